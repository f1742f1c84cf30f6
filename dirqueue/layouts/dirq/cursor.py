"""What to claim next in a dirq queue: one intermediate directory after the other, each listed when its turn comes.

Layer: layouts.  Touches: nothing.
Invariant: what is known is a hint; only the lock is a fact. Memory is one directory's names, whatever the depth.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from dirqueue.disk import fs
from dirqueue.layouts.dirq.store import Store
from dirqueue.layouts.peer import NEVER
from dirqueue.layouts.snapshot import Snapshot

#: A listing is good for this long, or this many times what it took to make, whichever is longer. What comes later is
#: later in line; only what is given back waits for the next look, or for the end of this one. Where the newest is
#: wanted first, the look must be newer.
FRESH_SECONDS = 1.0
FRESH_NEWEST = 0.1
FRESH_TIMES = 20
#: So many misses in a row are chance.
PATIENCE = 2
#: The granularity of directory times: a change within it may not show.
TICK_NS = 20_000_000
#: How many locks and pauses are remembered.
REMEMBERED = 10_000

#: Returns the elements of a directory without a lock, and with one.
Look = Callable[[str], tuple[list[str], list[str]]]


class Cursor:
    """The consuming half's memory of the directory. Not thread-safe: its layout holds a lock."""

    def __init__(self, store: Store, look: Look, ends: Callable[[str], int], order: str) -> None:
        self._store = store
        self._look = look
        self._ends = ends
        self._order = order
        self.run: list[str] = []
        #: Locked elements whose lock is stale: to be taken over, not taken.
        self.stale: set[str] = set()
        self.soonest = NEVER
        self.snapshot = Snapshot(FRESH_SECONDS if order == "fifo" else FRESH_NEWEST, FRESH_TIMES, PATIENCE)
        #: The error of a directory that we may not look into, since the last claim began.
        self.refused: OSError | None = None
        self._directories: list[str] = []
        #: The directory that `run` is of, and whether names of it were passed over.
        self._here = ""
        self._skipped = False
        self._not_before: dict[str, int] = {}
        # RACE: apart from the above, since a lock that a listing showed may be gone before it is written down here.
        self._lock_ends: dict[str, int] = {}
        self._still: dict[str, tuple[int, int]] = {}

    def fill(self, now: int) -> bool:
        """Make `run` the names to try next; False if there is nothing to claim."""
        if self.snapshot.fresh:
            if self.run:
                return True
            if self._skipped:
                self._skipped = False
                self._directories.append(self._here)
            if self._next(now):
                return True
        self.snapshot.begin()
        self.soonest = NEVER
        self._skipped = False
        self.run = []
        self._directories = self._store.directories()
        if self._order == "fifo":
            self._directories.reverse()
        elif self._order == "random":
            random.shuffle(self._directories)
        if len(self._not_before) > REMEMBERED:
            self._not_before.clear()
        if len(self._lock_ends) > REMEMBERED:
            self._lock_ends.clear()
        if len(self._still) > len(self._directories) + REMEMBERED:
            self._still.clear()
        found = self._next(now)
        self.snapshot.end()
        return found

    def _next(self, now: int) -> bool:
        while self._directories:
            where = self._directories.pop()
            run = self._enter(where, now)
            if run:
                self._here, self.run = where, run
                return True
        return False

    def _enter(self, where: str, now: int) -> list[str]:
        still = self._still.get(where)
        mtime = self._mtime(where)
        if still is not None and still[0] == mtime and now < still[1]:
            self.soonest = min(self.soonest, still[1])
            return []
        try:
            free, locked = self._look(where)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            self.refused = error  # another user's: what is behind it can still be ours
            return []
        soonest = NEVER
        for name in locked:
            when = self._when(f"{where}/{name}", now)
            if when <= now:
                self.stale.add(f"{where}/{name}")
                free.append(name)
            else:
                soonest = min(soonest, when)
        if self._not_before:
            free, first = self._hold_back(where, free, now)
            soonest = min(soonest, first)
        if not free and mtime >= 0 and time.time_ns() - mtime > TICK_NS:
            self._still[where] = (mtime, soonest)
        self.soonest = min(self.soonest, soonest)
        self._sort(free)
        return [f"{where}/{name}" for name in free]

    def _when(self, name: str, now: int) -> int:
        """Return when a lock ends; asked of the disk only when what is known of it is over."""
        when = self._lock_ends.get(name, 0)
        if when <= now:
            when = self._lock_ends[name] = self._ends(name)
        return when

    def _hold_back(self, where: str, free: list[str], now: int) -> tuple[list[str], int]:
        """Leave out what is not to be tried yet; return the rest, and when the first of the others is."""
        known, soonest = self._not_before, NEVER
        rest = []
        for name in free:
            when = known.get(f"{where}/{name}", 0)
            if when > now:
                soonest = min(soonest, when)
            else:
                rest.append(name)
        return rest, soonest

    def _sort(self, names: list[str]) -> None:
        """Sort so that the first to try is at the end."""
        if self._order == "random":
            random.shuffle(names)
        else:
            names.sort(reverse=self._order == "fifo")

    def _mtime(self, where: str) -> int:
        directory = self._store.directory
        if directory.mount.attributes_are_cached:
            return -1  # NFS: attributes are cached
        try:
            return fs.stat(where, dir_fd=directory.fd).st_mtime_ns
        except OSError:
            return -1

    def missed(self) -> None:
        """Another consumer took the name first. If that goes on it is working through here: go on a little further."""
        ahead = self.snapshot.missed(len(self.run))
        if ahead and self._order == "fifo":
            del self.run[-ahead:]
            self._skipped = True

    def forget(self, name: str) -> None:
        """An element is ours no more: nothing is known of it."""
        if self._not_before:
            self._not_before.pop(name, None)
        if self._lock_ends:
            self._lock_ends.pop(name, None)

    def not_before(self, name: str, when: int) -> None:
        """Leave an element alone until then."""
        self._not_before[name] = when
        self.soonest = min(self.soonest, when)

    def refresh(self) -> None:
        """Look again before the next claim."""
        self.snapshot.drop()
        self._still.clear()
