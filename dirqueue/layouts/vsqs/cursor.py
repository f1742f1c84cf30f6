"""What to claim next in a vsqs queue: a sorted snapshot of one flat directory.

Layer: layouts.  Touches: nothing.
Invariant: a snapshot is a hint; only the rename is a fact.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.layouts.peer import NEVER

#: A snapshot is good for this long, or this many times what it took to make, whichever is longer.
FRESH_SECONDS = 0.1
FRESH_TIMES = 20
#: After a miss, skip up to this many names: another consumer is working through them.
JUMP = 64
#: So many misses in a row are chance.
PATIENCE = 2


class Parsed(Protocol):
    """What the cursor needs to know of a name."""

    @property
    def put(self) -> int: ...
    @property
    def until(self) -> int: ...


class Cursor:
    """The consuming half's memory of the directory. Not thread-safe: its layout holds a lock."""

    def __init__(
        self, directory: Directory, order: str, margin: int, parse: Callable[[str], Parsed | None]
    ) -> None:
        self._directory = directory
        self._order = order
        self._margin = margin
        self._parse = parse
        self.run: list[str] = []
        self.soonest = NEVER
        self._expires = 0
        self._skipped = False
        self._misses = 0

    def fill(self, now: int) -> bool:
        """Make `run` the names to try next; False if there is nothing to claim."""
        if self.run and now < self._expires:
            return True
        # A listing can miss a name that is being renamed, so that "nothing" needs a second look.
        return self._list(now) or self._list(now)

    def _list(self, now: int) -> bool:
        began = time.monotonic()
        found: list[tuple[int, str]] = []
        self.soonest = NEVER
        for entry in fs.listing(".", self._directory.fd):
            name = self._parse(entry.name)
            if name is None or name.until < 0 or not entry.is_file(follow_symlinks=False):
                continue
            due = name.until + self._margin if name.until else 0
            if due <= now:
                found.append((name.put, entry.name))
            else:
                self.soonest = min(self.soonest, due)
        if self._order == "random":
            random.shuffle(found)
        else:
            found.sort(reverse=self._order == "fifo")
        self.run = [text for _, text in found]
        self._misses = 0
        self._expires = now + micros(max(FRESH_SECONDS, FRESH_TIMES * (time.monotonic() - began)))
        return bool(self.run)

    def missed(self) -> None:
        """Somebody took the name first; if that goes on they are working through here, so go on a little further."""
        self._misses += 1
        ahead = min(len(self.run) - 1, int(random.random() * JUMP))  # noqa: S311
        if self._misses > PATIENCE and ahead > 0 and self._order == "fifo":
            del self.run[-ahead:]

    def refresh(self) -> None:
        """Look again before the next claim."""
        self._expires = 0
