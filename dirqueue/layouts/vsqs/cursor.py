"""What to claim next in a vsqs queue: a sorted snapshot of one flat directory.

Layer: layouts.  Touches: nothing.
Invariant: a snapshot is a hint; only the rename is a fact.
"""

from __future__ import annotations

import random

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.peer import NEVER
from dirqueue.layouts.snapshot import Snapshot
from dirqueue.layouts.vsqs.names import parse

#: A snapshot is good for this long, or this many times what it took to make, whichever is longer.
FRESH_SECONDS = 0.1
FRESH_TIMES = 20
#: So many misses in a row are chance.
PATIENCE = 2


class Cursor:
    """The consuming half's memory of the directory. Not thread-safe: its layout holds a lock."""

    def __init__(self, directory: Directory, order: str, margin: int) -> None:
        self._directory = directory
        self._order = order
        self._margin = margin
        self.run: list[str] = []
        self.soonest = NEVER
        self.snapshot = Snapshot(FRESH_SECONDS, FRESH_TIMES, PATIENCE)

    def fill(self, now: int) -> bool:
        """Make `run` the names to try next; False if there is nothing to claim."""
        if self.run and self.snapshot.fresh:
            return True
        # A listing can miss a name that is being renamed, so that "nothing" needs a second look.
        return self._list(now) or self._list(now)

    def _list(self, now: int) -> bool:
        self.snapshot.begin()
        found: list[tuple[int, str]] = []
        self.soonest = NEVER
        for entry in fs.listing(".", self._directory.fd):
            name = parse(entry.name)
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
        self.snapshot.end()
        return bool(self.run)

    def missed(self) -> None:
        """Another consumer took the name first. If that goes on it is working through here: go on a little further."""
        ahead = self.snapshot.missed(len(self.run))
        if ahead and self._order == "fifo":
            del self.run[-ahead:]  # found again by the next listing, which comes when the run is used up

    def refresh(self) -> None:
        """Look again before the next claim."""
        self.snapshot.drop()
