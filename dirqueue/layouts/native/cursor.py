"""What to claim next: a sorted snapshot of names, refreshed when it is used up or old.

Layer: layouts.  Touches: nothing but empty slices and batches, which it removes.
Invariant: a snapshot is a hint. A name in it may be gone, a name not in it may exist; only the rename is a fact.
One listing of the queue gives an ordered row of segments: runs of flat names, and directories (slices, batches,
parts) that are listed when their turn comes. So memory is one directory's names, whatever the depth.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import threading
import time
from typing import Any, NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.fork import renew_in_child
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import (
    ACKED,
    CONTAINERS,
    DELAYED,
    ERROR_NEW,
    LEASED,
    NEW,
    READY,
    SLICE,
    SPARK,
    STAGING,
)
from dirqueue.layouts.native.publish import SLICE_SECONDS
from dirqueue.layouts.snapshot import Snapshot
from dirqueue.settings import Settings

#: A snapshot is good for this long, or this many times what it took to make, whichever is longer.
FRESH_SECONDS = 0.2
FRESH_TIMES = 50
#: The same where a message that was put later may have to come first (priorities, lifo).
#: COST: by these factors listings take up to 1/11 of a busy consumer's time, and up to 1/51 otherwise.
FRESH_TIMES_OUT_OF_TURN = 10
#: Messages of our own that are remembered between two claims, where they may be next.
INSERTED = 1000
#: How long directories that we may not use are left alone.
CLOSED_SECONDS = 60.0
#: Above this many flat names (peers that do not slice) only the first ones are kept.
KEEP = 32768
#: How long a name that ended a wait is worth trying.
ARRIVED_SECONDS = 1.0
#: The granularity of directory times: a change within it may not show.
TICK_NS = 20_000_000
#: Entries looked at together.
CHUNK = 8192
NEVER = 1 << 62
CLAIMABLE = frozenset((READY, DELAYED, LEASED))
#: What a crash may leave, and the most of them that one listing hands over to be removed.
LEFTOVERS = frozenset((NEW, ERROR_NEW, STAGING, ACKED))
TIDY = 16
#: How many of the directories in a queue a waiting consumer watches: producers put to the latest.
WATCHED = 4
OF_FILES = CLAIMABLE | LEFTOVERS - {STAGING}
OF_DIRECTORIES = CONTAINERS | {STAGING}


class Segment(NamedTuple):
    """Names to try, in one directory; not listed yet if `names` is None. In reverse: the first is the last."""

    prefix: str
    names: list[str] | None


class View(NamedTuple):
    """What one listing of one directory showed."""

    claimable: list[str]
    containers: list[str]
    #: The earliest end of a lease or delay that is still to come, in microseconds.
    soonest: int
    #: Whether there was nothing at all, not even an unfinished file.
    bare: bool


class Cursor:
    """The consuming half's memory of the directory. Only `row` and `snapshot` are read without the lock."""

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self._directory = directory
        self._margin = micros(settings.margin)
        self._order = settings.order
        self._stale_after = micros(settings.stale)
        self._fresh_times = FRESH_TIMES
        if settings.order == "lifo" or settings.priorities:
            self._fresh_times = FRESH_TIMES_OUT_OF_TURN
        self.reset()
        renew_in_child(self.reset)

    def reset(self) -> None:
        """Know nothing. In a forked child: what another thread of the parent was changing may be half done."""
        self.lock = threading.RLock()  # a signal handler may get while we do
        #: What a crash left and is stale by its id: (directory, names), to remove in passing.
        self.leftovers: list[tuple[str, list[names.Name]]] = []
        #: The directory and the names in it to try now, as one: claims read it without the lock.
        self.row: tuple[str, list[str]] = ("", [])
        self.snapshot = Snapshot(FRESH_SECONDS, self._fresh_times)
        self._inserted = 0
        #: Directories of other users that we may not use, and until when they are left alone (monotonic).
        self._closed: dict[str, float] = {}
        #: Whether the queue holds messages that consumers of lots have pinned, by the last listing.
        self.has_pins = False
        self._segments: list[Segment] = []
        #: The directory of which we jumped over some names: it is listed again before others have their turn.
        self._skipped: str | None = None
        self._idle_mtime = -1
        #: How many listings of the queue were made: what bounds a claim.
        self.looks = 0
        self._still: dict[str, tuple[int, int]] = {}
        self._containers = False
        self.soonest = NEVER
        #: Directories that producers may be putting to, by the last look.
        self.watched: list[str] = []
        #: The name that came and ended a wait, for the next look: a hint.
        self.arrived = ""

    def fill(self, now: int) -> bool:
        """Make `row` the names to try next; False if there is nothing to claim."""
        if self.arrived and self._try_arrived(now):
            return True
        while True:
            if self.snapshot.fresh and (self.row[1] or self._next_segment(now)):
                return True
            if self._idle(now):
                return False
            # A listing can miss a name that is being renamed, so that "nothing" needs a second look.
            if not self._refresh(now) and not self._refresh(now):
                return False

    def _try_arrived(self, now: int) -> bool:
        """Nothing was there before this one came and ended our wait: try it before anything is listed."""
        name, self.arrived = self.arrived.removesuffix(".new"), ""
        if self._order != "fifo" or len(name) != ID_DIGITS or not _all_ids([name]):
            return False
        self.row = ("", [name])
        self.snapshot.expires = max(self.snapshot.expires, time.monotonic() + ARRIVED_SECONDS)
        return True

    def missed(self) -> None:
        """Another consumer took the name first and is working through here: go on a little further."""
        with self.lock:
            prefix, run = self.row
            ahead = self.snapshot.missed(len(run))
            if ahead:
                del run[-ahead:]
                self._skipped = prefix

    def stale(self) -> None:
        """Look again before the next claim."""
        self.snapshot.drop()
        self._still.clear()
        self._idle_mtime = -1

    def insert(self, prefix: str, name: str) -> None:
        """Take note of a message of our own that may come before those in the snapshot (lifo, priorities)."""
        with self.lock:
            before, run = self.row
            try:
                first = _priority(run[-1])
            except IndexError:
                if self._order == "lifo" and not _priority(name) and self._inserted < INSERTED:
                    self._inserted += 1
                    self.row = (prefix, [name])
                else:
                    self.snapshot.drop()
                return
            mine = _priority(name)
            if mine > first or (mine == first and self._order != "lifo"):
                return
            if self._inserted >= INSERTED:
                self._forget()  # nobody claims here: remember nothing, and list before the next claim
                return
            self._inserted += 1
            if prefix == before:
                run.append(name)
            else:
                self._segments.append(Segment(before, run))
                self.row = (prefix, [name])

    def _forget(self) -> None:
        self.row, self._segments, self._inserted = ("", []), [], 0
        self.snapshot.drop()

    def close(self, prefix: str) -> None:
        """Leave a directory that we may not use to others for a while."""
        with self.lock:
            self._closed[prefix] = time.monotonic() + CLOSED_SECONDS
            if self.row[0] == prefix:
                self.row = ("", [])

    # --- segments ------------------------------------------------------------------------------------------

    def _next_segment(self, now: int) -> bool:
        skipped, self._skipped = self._skipped, None
        if skipped == "":
            return False  # the queue itself: list all of it
        if skipped:
            self._segments.append(Segment(skipped, None))
        while self._segments:
            prefix, run = self._segments.pop()
            if prefix in self._closed:
                continue
            if run is None:
                run = self._enter(prefix, now)
            if run:
                self.row = (prefix, run)
                return True
        return False

    def _enter(self, prefix: str, now: int) -> list[str]:
        """List a slice, batch or part; parts found in it take its place in the row."""
        still = self._still.get(prefix)
        mtime = self._mtime(prefix)
        trusted = self._trusted(mtime)
        if still is not None and still[0] == mtime and now < still[1]:
            self.soonest = min(self.soonest, still[1])
            return []
        try:
            view = self._list(prefix, now)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            self.close(prefix)
            return []
        claimable = self._ordered(view.claimable)
        if view.containers:
            if self._order == "lifo":  # parts hold what was put after the first ones
                self._segments.append(Segment(prefix, claimable))
                claimable = []
            inner = self._ordered(view.containers)
            self._segments.extend(Segment(f"{prefix}{each}/", None) for each in inner)
        elif view.bare:
            self._remove(prefix, now)
        elif not view.claimable and trusted:
            if len(self._still) > 1024:
                self._still.clear()
            self._still[prefix] = (mtime, view.soonest)
        self.soonest = min(self.soonest, view.soonest)
        return claimable

    def _remove(self, prefix: str, now: int) -> None:
        """Remove an emptied directory. RACE: a producer that comes back to a slice makes it, or the next, again."""
        name = prefix[:-1]
        id, _, kind = name.rpartition("/")[2].partition(".")
        if kind == SLICE and now < names.micros_of(id) + micros(2 * SLICE_SECONDS):
            return
        try:
            gone = fs.remove_directory(name, self._directory.fd)
        except PermissionError:
            return  # another user's
        if gone and "/" in name:
            self._remove(name.rpartition("/")[0] + "/", now)

    # --- listings ------------------------------------------------------------------------------------------

    def _refresh(self, now: int) -> bool:
        """List the queue anew; return whether there is something to claim."""
        self.looks += 1
        self._inserted = 0
        self.snapshot.begin()
        if self._closed:
            began = time.monotonic()
            self._closed = {prefix: until for prefix, until in self._closed.items() if until > began}
        mtime = self._mtime(".")
        trusted = self._trusted(mtime)
        self._skipped = None
        self.soonest = NEVER
        view = self._list("", now)
        if view.bare and self._directory.removed():
            raise FileNotFoundError(errno.ENOENT, "the queue was removed", self._directory.path)
        self.soonest = view.soonest
        self._segments = self._row(view)
        self._containers = bool(view.containers)
        self.watched = sorted(view.containers)[-WATCHED:]
        self.row = ("", [])
        self.snapshot.end()
        found = self._next_segment(now)
        quiet = not found and not self._containers and not view.claimable
        self._idle_mtime = mtime if quiet and trusted else -1
        return found

    def _row(self, view: View) -> list[Segment]:
        """Return the segments in reverse order: flat runs between directories."""
        flat = self._ordered(view.claimable)
        row = [Segment(name + "/", None) for name in self._ordered(view.containers)]
        if self._order == "random":
            row.append(Segment("", flat))
            import random

            random.shuffle(row)
            return row
        flat.reverse()
        begin, mixed = 0, []
        # COST: a binary search for each directory takes 40 ms instead of 69 (32,768 names, 100 directories). With
        # about as many of each, computing all keys first takes 6 ms instead of 13 (1,000 and 1,000).
        few = len(row) * 16 < len(flat)
        turns: list[Any] = flat if few else [self._turn(name) for name in flat]
        key: Any = self._turn if few else None
        for container in reversed(row):
            end = bisect.bisect_left(turns, self._turn(container.prefix), lo=begin, key=key)
            mixed += [Segment("", flat[begin:end][::-1]), container]
            begin = end
        mixed.append(Segment("", flat[begin:][::-1]))
        mixed.reverse()
        return mixed

    def _turn(self, name: str) -> tuple[int, str | int]:
        """Return when it is a name's turn, as something that sorts."""
        priority, time_ = _order_key(name)
        return (priority, -int(time_)) if self._order == "lifo" else (priority, time_)

    def _ordered(self, run: list[str]) -> list[str]:
        """Sort so that the first to try is at the end."""
        if self._order == "random":
            import random

            random.shuffle(run)
        elif len({ID_DIGITS if len(name) == ID_DIGITS else _id_length(name) for name in run}) > 1:
            run.sort(key=_order_key, reverse=self._order == "fifo")
        else:  # ids of one length: the order of names is the order of ids
            run.sort(reverse=self._order == "fifo")
        if self._order != "fifo" and any(_id_length(name) > ID_DIGITS for name in run):
            run.sort(key=_priority, reverse=True)
        return run

    def _list(self, prefix: str, now: int) -> View:
        """Sort out one directory in one pass."""
        ready: list[str] = []
        others: list[names.Name] = []
        bare, pins = True, False
        last = ""
        with fs.entries(prefix or ".", self._directory.fd) as found:
            while True:
                strange: list[os.DirEntry[str]] = []
                chunk = [
                    entry.name
                    for entry in itertools.islice(found, CHUNK)
                    if entry.is_file(follow_symlinks=False) or strange.append(entry)  # type: ignore[func-returns-value]
                ]
                if not chunk and not strange:
                    break
                bare = False
                plain = [name for name in chunk if len(name) == ID_DIGITS]
                if len(plain) < len(chunk):
                    others += filter(None, map(_other, (name for name in chunk if len(name) != ID_DIGITS)))
                others += filter(None, map(_container, strange))
                if not prefix:
                    pins = pins or any(entry.name == SPARK for entry in strange)
                if plain and not _all_ids(plain):
                    plain = [name for name in plain if names.parse(name)]
                ready += [name for name in plain if name < last] if last else plain
                if len(ready) > 2 * KEEP and self._order == "fifo":
                    ready.sort(reverse=True)
                    del ready[:-KEEP]
                    last = ready[0]
                elif len(ready) > 2 * KEEP:
                    ready = self._ordered(ready)[-KEEP:]
        if not prefix:
            self.has_pins = pins
        leftovers = [name for name in others if name.kind in LEFTOVERS and self._stale(name, now)]
        if leftovers:
            self.leftovers = [(prefix, leftovers[:TIDY])]
        if last:  # what comes after the names that were left out has to wait for them
            others = [name for name in others if name.text < last or len(name.id) != ID_DIGITS]
        due, containers, soonest = self._due(others, now)
        return View(ready + due if due else ready, containers, soonest, bare)

    def _stale(self, name: names.Name, now: int) -> bool:
        aged = names.micros_of(name.id) + self._stale_after < now
        return aged and self._directory.clock.plausible

    def _due(self, found: list[names.Name], now: int) -> tuple[list[str], list[str], int]:
        """Tell apart what may be claimed now, directories, and when the next of the rest may be."""
        due: list[str] = []
        containers: list[str] = []
        soonest = NEVER
        for name in found:
            if name.kind in CONTAINERS:
                containers.append(name.text)
            if name.kind not in CLAIMABLE:
                continue
            when = name.until + (self._margin if name.kind == LEASED else 0)
            if when <= now:
                due.append(name.text)
            elif when < soonest:
                soonest = when
        return due, containers, soonest

    def _mtime(self, name: str) -> int:
        """Return when a directory last changed; -1 if nobody can know (NFS: attributes are cached)."""
        if self._directory.mount.attributes_are_cached:
            return -1
        try:
            if name == ".":
                facts = fs.fstat(self._directory.fd)
                return facts.st_mtime_ns if facts.st_nlink else -1
            return fs.stat(name, dir_fd=self._directory.fd).st_mtime_ns
        except OSError:
            return -1

    def _trusted(self, mtime: int) -> bool:
        """Return whether a change from now on will show. RACE: call it before the listing, which takes time."""
        return mtime >= 0 and time.time_ns() - mtime > TICK_NS

    def _idle(self, now: int) -> bool:
        """Return whether nothing has changed since we last found nothing, without listing again."""
        return self._idle_mtime >= 0 and now < self.soonest and self._mtime(".") == self._idle_mtime


def _id_length(name: str) -> int:
    length = name.find(".")
    return len(name) if length < 0 else length


def _order_key(name: str) -> tuple[int, str]:
    return names.order_key(name.partition(".")[0])


def _priority(name: str) -> int:
    return names.priority_of(name.partition(".")[0]) or 0


def _all_ids(run: list[str]) -> bool:
    """Return whether names of the right length are all ids. One test of all is cheaper than one of each."""
    together = "".join(run)
    return together.isascii() and together.encode().isdigit() and "0" not in together[::ID_DIGITS]


def _other(text: str) -> names.Name | None:
    """Return the parsed name of a file that is ours and not simply ready; None for notes and foreign files."""
    name = names.parse(text)
    return name if name is not None and name.kind in OF_FILES else None


def _container(entry: os.DirEntry[str]) -> names.Name | None:
    """Return the parsed name of an entry that is no file, if it is one of our directories."""
    name = names.parse(entry.name)
    if name is None or name.kind not in OF_DIRECTORIES:
        return None
    return name if entry.is_dir(follow_symlinks=False) else None
