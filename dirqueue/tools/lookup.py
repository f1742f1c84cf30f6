"""Finding many messages by their ids.

Layer: tools.  Touches: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from dirqueue import states
from dirqueue.layouts.base import Layout
from dirqueue.message import Entry


def find_all(layout: Layout, ids: Iterable[str]) -> dict[str, Entry]:
    """Return the messages of these ids, in whatever state, by one pass over the names.

    A listing may miss a message that is being renamed: `layout.find` tells whether one that is absent here is gone.
    """
    wanted = set(ids)
    return {entry.id: entry for entry in layout.entries(states.VISIBLE) if entry.id in wanted}
