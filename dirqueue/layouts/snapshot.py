"""How long a snapshot of names is good, and how far to jump when others work through it: one policy for all cursors.

Layer: layouts.  Pure values, no I/O.
A snapshot is a hint: a name in it may be gone, a name not in it may exist. Its age is judged by the monotonic clock, so
that setting the clock of the host back does not keep an old one in use.
"""

from __future__ import annotations

import math
import time

#: After a miss, skip up to this many names: another consumer is working through them.
JUMP = 64


class Snapshot:
    """The age of a cursor's snapshot and the races lost over it. Changed only under a lock of its user.

    Args:
        seconds: It is good for this long,
        times: or for so many times what it took to make, whichever is longer.
        patience: So many misses in a row are chance.
        glance: After so many seconds its user looks whether it may be used on.
    """

    __slots__ = (
        "_began", "_glance", "_looked", "_patience", "_seconds", "_times", "_until", "expires", "misses",
    )  # fmt: skip

    def __init__(self, seconds: float, times: float, patience: int = 0, glance: float = math.inf) -> None:
        self._seconds = seconds
        self._times = times
        self._patience = patience
        self._glance = glance
        self._began = self._looked = self._until = 0.0
        #: Until when it is good, or the next glance is due, by time.monotonic().
        self.expires = 0.0
        #: Names in a row that other consumers took first.
        self.misses = 0

    @property
    def fresh(self) -> bool:
        """Whether to go on with what is known."""
        return time.monotonic() < self.expires

    def begin(self) -> None:
        """Begin a new one: the listing comes next."""
        self._began = time.monotonic()
        self.misses = 0

    def end(self) -> None:
        """The listing is done, and good from now on."""
        now = time.monotonic()
        self._until = now + max(self._seconds, self._times * (now - self._began))
        self.glanced()

    @property
    def glance_due(self) -> bool:
        """Whether it is good, but only after a glance."""
        return 0.0 < self.expires <= time.monotonic() < self._until

    def glanced(self) -> None:
        """Go on with what is known."""
        self._looked = time.monotonic()
        self.expires = min(self._until, self._looked + self._glance)

    def prolong(self, seconds: float) -> None:
        """Use what is known for so long at least, but not beyond the next glance."""
        self.expires = max(self.expires, min(time.monotonic() + seconds, self._looked + self._glance))

    def drop(self) -> None:
        """Make the next look a new listing."""
        self.expires = self._until = 0.0

    def missed(self, left: int) -> int:
        """Count a name that another consumer took first. Return how many of those left to skip, never all of them."""
        self.misses += 1
        if self.misses <= self._patience or left <= 1:
            return 0
        import random  # imports hashlib, which is slow; a consumer that is alone never needs it

        return min(left - 1, int(random.random() * JUMP))  # noqa: S311 - spreads consumers, no secret
