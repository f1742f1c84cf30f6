"""What fits into a queue with max_messages or max_size.

Layer: mechanisms.  Touches: nothing; it counts.
"""

from __future__ import annotations

from dirqueue.errors import Full, MessageTooLarge
from dirqueue.layouts.base import Layout
from dirqueue.waiting import Waiter

#: A bounded queue is counted again when one part in so many of what was free is used up.
TRUST = 4


class Bound:
    """What is known to be free, so that not every put has to count."""

    def __init__(self, layout: Layout, limit: int) -> None:
        self._layout = layout
        self._limit = limit
        self._free = 0

    def reserve(self, wanted: int, timeout: float | None) -> None:
        """Wait until so many fit; Full if they do not in time, or never will.

        RACE: others put too, so the limit may be exceeded by what they put meanwhile.
        """
        if self._free >= wanted:
            self._free -= wanted
            return
        path, limit = self._layout.directory.path, self._limit
        if wanted > limit:
            raise Full(f"{wanted} messages never fit into a queue of max_messages={limit}", path=path)
        with Waiter((self._layout,), timeout, for_room=True) as waiter:
            while True:
                free = limit - self._layout.count()
                if free >= wanted:
                    self._free = (free - wanted) // TRUST
                    return
                if not waiter.pause():
                    raise Full(
                        f"{path!r} holds max_messages={limit} and no room came free in time", path=path
                    )


def too_large(size: int, limit: int) -> MessageTooLarge:
    """Return the error for a body above max_size."""
    text = f"the body has {size} bytes; this queue takes at most max_size={limit}"
    return MessageTooLarge(text, message_id="", size=size, limit=limit)
