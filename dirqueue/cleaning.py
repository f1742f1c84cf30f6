"""Purging a queue, one purger at a time; and refusing to touch what shows no sign of being a queue.

Layer: mechanisms.  Touches: what the layout's purge removes; the lock of a purge.
"""

from __future__ import annotations

from collections.abc import Callable

from dirqueue.dead_letters import expire
from dirqueue.layouts.base import Layout, Purged, refuse
from dirqueue.settings import check_seconds


def need_sign(layout: Layout, done: str) -> None:
    """Raise QueueError if nothing shows that the directory is a queue; whoever names the layout knows that it is."""
    from dirqueue.layouts import signs

    if layout.settings.layout == "auto" and layout.directory.find():
        signs.need_queue(layout.directory.path, done)


def purge(layout: Layout, older_than: float | None, progress: Callable[[], None] | None) -> Purged:
    """Purge; the arguments are those of `Queue.purge`. Raises plain OSError."""
    from filelock import FileLock, Timeout

    if older_than is not None:
        check_seconds("older_than", older_than)
        if "dead" in layout.lacks:
            refuse(layout, "dead", "keep messages that are too old")
    if not layout.directory.find():
        return Purged()
    need_sign(layout, "purged")
    try:
        with FileLock(layout.purge_lock(), timeout=0):
            purged = layout.purge(progress)
            return purged if older_than is None else purged + Purged(expired=expire(layout, older_than))
    except Timeout:
        return Purged(busy=1)
