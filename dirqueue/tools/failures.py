"""What messages failed with, counted.

Layer: tools.  Touches: nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dirqueue import codecs
from dirqueue.errors import MessageNotFound
from dirqueue.message import Entry, Message
from dirqueue.queue import Queue


def kind_of(queue: Queue[Any], entry: Entry) -> str:
    """Return the first line of what a message failed with; an empty text if nothing is known."""
    try:
        lines = (Message(entry, queue.layout, codecs.BYTES).error or "").splitlines()
    except MessageNotFound:
        return ""
    return lines[0] if lines else ""


def kinds(queue: Queue[Any], entries: Iterable[Entry]) -> Counter[str]:
    """Count the messages by what they failed with."""
    return Counter(kind_of(queue, entry) for entry in entries)
