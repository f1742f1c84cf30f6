"""Removing messages by their ids, in whatever state, unless somebody holds them.

Layer: tools.  Touches: the exact names of ready, delayed, dead and done messages, and their notes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.errors import MessageNotFound
from dirqueue.layouts.base import Layout
from dirqueue.message import Entry
from dirqueue.queue import Queue
from dirqueue.tools.lookup import find_all


class Removed(NamedTuple):
    """What was removed."""

    ids: list[str]
    #: Why others were not: id -> a sentence.
    failed: dict[str, str]


def remove(queue: Queue[Any], ids: Iterable[str]) -> Removed:
    """Remove messages that nobody holds: what waits is cancelled (and kept in done/, with keep_done), the rest goes.

    InvalidId for the first id that is none, before anything is removed.
    """
    layout = queue.layout
    wanted = list(dict.fromkeys(layout.check_id(id) for id in ids))
    # COST: one listing for all, since finding one may take a listing.
    found = find_all(layout, wanted) if len(wanted) > 1 else {}
    removed = Removed([], {})
    ended: list[Entry] = []
    for id in wanted:
        entry = found.get(id) or layout.find(id)
        try:
            _remove(layout, id, entry)
        except MessageNotFound as error:
            removed.failed[id] = str(error)
            continue
        removed.ids.append(id)
        if entry is not None and entry.state in states.ENDED:
            ended.append(entry)  # what waited is durable already
    if queue.settings.sync:
        make_durable(layout, ended)
    return removed


def make_durable(layout: Layout, removed: Iterable[Entry]) -> None:
    """Make it durable that messages were removed: each directory that one of them was in is flushed once."""
    directory = layout.directory
    for folder in sorted({os.path.dirname(entry.place) for entry in removed}):
        try:
            directory.sync(folder or ".")
        except FileNotFoundError:
            # RACE: a purge has removed the empty bucket, which its room remembers.
            directory.sync(os.path.dirname(folder) or ".")


def _remove(layout: Layout, id: str, entry: Entry | None) -> None:
    """Remove one message; MessageNotFound says why that cannot be."""
    where = repr(layout.directory.path)
    if entry is None:
        raise MessageNotFound(f"there is no message {id} in {where}", message_id=id)
    if entry.state == states.LEASED:
        raise MessageNotFound(
            f"message {id} of {where} is held{' by ' + entry.token if entry.token else ''}: "
            "its holder ends the lease, or it ends by itself",
            message_id=id,
        )
    if entry.state in states.UNCLAIMED:
        layout.cancel(entry)
    elif not layout.remove(entry):
        raise MessageNotFound(f"message {id} of {where} is not {entry.state} any more", message_id=id)
