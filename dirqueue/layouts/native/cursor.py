"""What to claim next: a sorted snapshot of names, refreshed when it is used up or old.

Layer: layouts.  Touches: nothing but empty slices and batches, which it removes.
Invariant: a snapshot is a hint. A name in it may be gone, a name not in it may exist; only the rename is a fact.
One listing of the queue gives an ordered row of segments: runs of names, and directories (slices, batches, parts)
that are listed when their turn comes. So memory is one directory's names, whatever the depth. What is due in the rooms
(due.py) is merged into the runs as paths.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.fork import renew_in_child
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import conditions, names, pausing
from dirqueue.layouts.native.due import Due, Times
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.names import (
    ACKED,
    BUCKET,
    CONTAINERS,
    DELAYED,
    ERROR_NEW,
    LEASED,
    NEW,
    PAUSED,
    READY,
    SLICE,
    SPARK,
    STAGING,
)
from dirqueue.layouts.native.order import NO_LINKS, Order, Row, Segment, priority_of
from dirqueue.layouts.native.publish import SLICE_SECONDS
from dirqueue.layouts.native.resolve import NEVER, Resolver
from dirqueue.layouts.snapshot import Snapshot
from dirqueue.settings import Settings

#: A snapshot is good for this long, or this many times what it took to make, whichever is longer.
FRESH_SECONDS = 0.2
FRESH_TIMES = 50
#: The same where a message that was put later may have to come first (priorities, lifo).
#: COST: by these factors listings take up to 1/11 of a busy consumer's time, and up to 1/51 otherwise.
FRESH_TIMES_OUT_OF_TURN = 10
#: While a snapshot is in use, this often a glance shows whether the queue was paused: one call.
GLANCE_SECONDS = 1.0
#: Messages of our own that are remembered between two claims, where they may be next.
INSERTED = 1000
#: How long directories that we may not use are left alone.
CLOSED_SECONDS = 60.0
#: Above this many flat names (peers that do not slice) only the first ones are kept.
KEEP = 32768
#: How long a name that ended a wait is worth trying.
ARRIVED_SECONDS = 1.0
#: Entries looked at together.
CHUNK = 8192
CLAIMABLE = frozenset((READY, DELAYED, LEASED))
#: What a crash may leave, and the most of them that one listing hands over to be removed.
LEFTOVERS = frozenset((NEW, ERROR_NEW, STAGING, ACKED))
TIDY = 16
#: How many of the directories in a queue a waiting consumer watches: producers put to the latest.
WATCHED = 4
OF_FILES = CLAIMABLE | LEFTOVERS - {STAGING}
#: Links that are not ours and are remembered.
FOREIGN = 10_000


class View(NamedTuple):
    """What one listing of one directory showed."""

    claimable: list[str]
    containers: list[str]
    #: The earliest end of a lease or delay that is still to come, in microseconds.
    soonest: int
    #: Whether there was nothing at all, not even an unfinished file.
    bare: bool
    links: AbstractSet[str] = NO_LINKS
    #: Whether there were names whose transaction was not decided: what they will be shows in no time of a directory.
    open: bool = False


class Cursor:
    """The consuming half's memory of the directory. Only `row` and `snapshot` are read without the lock."""

    def __init__(self, directory: Directory, settings: Settings, extras: ExtrasStore) -> None:
        self._directory = directory
        self._extras = extras
        self._margin = micros(settings.margin)
        self._order, self._sorter = settings.order, Order(settings.order)
        self._stale_after = micros(settings.stale)
        self._fresh_times = FRESH_TIMES
        if settings.order == "lifo" or settings.priorities:
            self._fresh_times = FRESH_TIMES_OUT_OF_TURN
        self._times = Times(directory)
        self._resolver = Resolver(directory, settings)
        self._due = Due(directory, self._margin, self._stale, self._resolver)
        self.reset()
        renew_in_child(self.reset)

    def reset(self) -> None:
        """Know nothing. In a forked child: what another thread of the parent was changing may be half done."""
        self.lock = threading.RLock()  # a signal handler may get while we do
        #: What a crash left and is stale by its id: (directory, names), to remove in passing.
        self.leftovers: list[tuple[str, list[names.Name]]] = []
        #: The directory and the names in it to try now, as one: claims read it without the lock.
        self.row: Row = _nothing()
        #: Links that are not ours, by their paths: bounded, and read again when forgotten.
        self._foreign: set[str] = set()
        self.snapshot = Snapshot(FRESH_SECONDS, self._fresh_times, glance=GLANCE_SECONDS)
        self._inserted = 0
        #: Directories of other users that we may not use, and until when they are left alone (monotonic).
        self._closed: dict[str, float] = {}
        #: Whether the queue holds messages that consumers of lots have pinned, and was paused, by the last look.
        self.has_pins = self.paused = False
        self._segments: list[Segment] = []
        #: The directory of which we jumped over some names: it is listed again before others have their turn.
        self._skipped: str | None = None
        self._idle_mtime = -1
        #: How many listings of the queue were made: what bounds a claim.
        self.looks = 0
        self._still: dict[str, tuple[int, int]] = {}
        self._due.forget()
        self.soonest = NEVER
        #: Directories that producers may be putting to, by the last look.
        self.watched: list[str] = []
        #: The name that came and ended a wait, for the next look: a hint.
        self.arrived = ""

    def fill(self, now: int) -> bool:
        """Make `row` the names to try next; False if there is nothing to claim."""
        if self._is_paused():
            return False
        if self.arrived and self._try_arrived(now):
            return True
        while True:
            if self.snapshot.fresh and (self.row[1] or self._next_segment(now)):
                return True
            if self._idle(now):
                return False
            # A listing can miss a name that is being renamed, so that "nothing" needs a second look.
            if not self._refresh(now) and (self.paused or not self._refresh(now)):
                return False

    def _is_paused(self) -> bool:
        """Return whether the queue is paused. One call while it is, and one a second while a snapshot is in use."""
        glance = self.snapshot.glance_due
        if self.paused or glance:
            self.paused = pausing.is_paused(self._directory)
            if self.paused:
                self._rest()
            elif glance:
                self.snapshot.glanced()
        return self.paused

    def pause(self) -> None:
        """The queue was paused by us: look at that before the next claim."""
        with self.lock:
            self.paused = True
            self.stale()

    def _rest(self) -> None:
        """Know nothing, and wait for nothing but the end of the pause."""
        self._forget()
        self._due.forget()
        self._idle_mtime, self.soonest, self.watched, self.arrived = -1, NEVER, [], ""

    def _try_arrived(self, now: int) -> bool:
        """Nothing was there before this one came and ended our wait: try it before anything is listed."""
        name, self.arrived = self.arrived.removesuffix(".new"), ""
        if self._order != "fifo" or len(name) != ID_DIGITS or not names.are_ids([name]):
            return False
        self._extras.find()
        self.row = ("", [name], NO_LINKS)
        self.snapshot.expires = max(self.snapshot.expires, time.monotonic() + ARRIVED_SECONDS)
        return True

    def missed(self) -> None:
        """Another consumer took the name first and is working through here: go on a little further."""
        with self.lock:
            prefix, run, _ = self.row
            ahead = self.snapshot.missed(len(run))
            if ahead:
                del run[-ahead:]
                self._skipped = prefix

    def stale(self) -> None:
        """Look again before the next claim."""
        self.snapshot.drop()
        self._still.clear()
        self._idle_mtime = -1

    def reopened(self) -> None:
        """The directory is another one now."""
        self.stale()
        self._due.forget()

    def returned(self, place: str) -> None:
        """Take note of a message of our own that can be claimed again: most likely it is the oldest."""
        if self._order != "fifo" or self._fresh_times != FRESH_TIMES:
            return self.stale()
        self._idle_mtime = -1
        if self.paused:
            return None
        with self.lock:
            prefix, run, links = self.row
            if prefix:
                self._segments.append(Segment(prefix, run, links))
                self.row = ("", [place], NO_LINKS)
            else:
                run.append(place)
            if len(run) == 1 or prefix:
                self.snapshot.prolong(ARRIVED_SECONDS)
        return None

    def insert(self, prefix: str, name: str) -> None:
        """Take note of a message of our own that may come before those in the snapshot (lifo, priorities)."""
        with self.lock:
            before, run, links = self.row
            try:
                first = priority_of(run[-1])
            except IndexError:
                if self._order == "lifo" and not priority_of(name) and self._inserted < INSERTED:
                    self._inserted += 1
                    self.row = (prefix, [name], NO_LINKS)
                else:
                    self.snapshot.drop()
                return
            mine = priority_of(name)
            if mine > first or (mine == first and self._order != "lifo"):
                return
            if self._inserted >= INSERTED:
                self._forget()  # nobody claims here: remember nothing, and list before the next claim
                return
            self._inserted += 1
            if prefix == before:
                run.append(name)
            else:
                self._segments.append(Segment(before, run, links))
                self.row = (prefix, [name], NO_LINKS)

    def _forget(self) -> None:
        self.row, self._segments, self._inserted = _nothing(), [], 0
        self.snapshot.drop()

    def close(self, prefix: str) -> None:
        """Leave a directory that we may not use to others for a while."""
        with self.lock:
            self._closed[prefix] = time.monotonic() + CLOSED_SECONDS
            self._due.close(prefix, CLOSED_SECONDS)
            if self.row[0] == prefix:
                self.row = _nothing()

    def tried(self, path: str) -> None:
        """Somebody tries to claim this name."""
        self._due.tried(path)

    def leave_out(self, path: str) -> None:
        """Do not offer a link that is not ours again."""
        if len(self._foreign) >= FOREIGN:
            self._foreign.clear()
        self._foreign.add(path)

    # --- segments ------------------------------------------------------------------------------------------

    def _next_segment(self, now: int) -> bool:
        skipped, self._skipped = self._skipped, None
        if skipped == "":
            return False  # the queue itself: list all of it
        if skipped:
            self._segments.append(Segment(skipped, None))
        while self._segments:
            prefix, run, links = self._segments.pop()
            if prefix in self._closed:
                continue
            if run is None:
                run, links = self._enter(prefix, now)
            if run:
                # RACE: a listing may show a message, and not attributes/, which is older. No call for a message.
                self._extras.find()
                self.row = (prefix, run, links)
                return True
        return False

    def _enter(self, prefix: str, now: int) -> tuple[list[str], AbstractSet[str]]:
        """List a slice, batch or part; parts found in it take its place in the row."""
        still = self._still.get(prefix)
        mtime = self._times.of(prefix)
        settled = self._times.settled(mtime)
        if still is not None and still[0] == mtime and now < still[1]:
            self.soonest = min(self.soonest, still[1])
            return [], NO_LINKS
        try:
            view = self._list(prefix, now)
        except (FileNotFoundError, NotADirectoryError):
            return [], NO_LINKS
        except PermissionError:
            self.close(prefix)
            return [], NO_LINKS
        claimable = self._sorter.sort(view.claimable)
        if view.containers:
            if self._order == "lifo":  # parts hold what was put after the first ones
                self._segments.append(Segment(prefix, claimable, view.links))
                claimable = []
            inner = self._sorter.sort(view.containers)
            self._segments.extend(Segment(f"{prefix}{each}/", None) for each in inner)
        elif view.bare:
            self._remove(prefix, now)
        elif not view.claimable and settled > 0 and not view.open:
            if len(self._still) > 1024:
                self._still.clear()
            self._still[prefix] = (mtime, view.soonest)
        self.soonest = min(self.soonest, view.soonest)
        return claimable, view.links

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
        above = name.rpartition("/")[0]
        if gone and names.parse_directory(above.rpartition("/")[2]) is not None:
            self._remove(above + "/", now)

    # --- listings ------------------------------------------------------------------------------------------

    def _refresh(self, now: int) -> bool:
        """List the queue anew; return whether there is something to claim."""
        self.looks += 1
        self._inserted = 0
        self.snapshot.begin()
        if self._closed:
            began = time.monotonic()
            self._closed = {prefix: until for prefix, until in self._closed.items() if until > began}
        settled = self._times.settled(self._times.of("."))
        self._skipped = None
        view = self._list("", now)
        if view.bare and self._directory.removed():
            raise FileNotFoundError(errno.ENOENT, "the queue was removed", self._directory.path)
        if self.paused:
            self._rest()
            return False
        # While there is other work, what was listed lately in the rooms is not listed again.
        hurry = bool(view.claimable or view.containers)
        found = self._begin(view, now, hurry=hurry)
        if not found and hurry:
            found = self._begin(View([], [], self.soonest, bare=True), now, hurry=False)
        self.watched = sorted(view.containers)[-WATCHED:] + self._due.watched
        self.snapshot.end()
        self._idle_mtime = -1 if found or view.containers or view.claimable or view.open else settled
        return found

    def _begin(self, view: View, now: int, *, hurry: bool) -> bool:
        """Make `row` the first of what the listings showed; False if there is nothing to claim."""
        due, inner, links = self._due.look(now, hurry=hurry)
        if self._foreign:
            due = [name for name in due if name not in self._foreign]
        self.leftovers += [(prefix, found[:TIDY]) for prefix, found in self._due.leftovers]
        self._due.leftovers = []
        self.soonest = min(view.soonest, self._due.soonest)
        self._segments = self._sorter.segments(
            view.claimable, due, view.containers + inner, view.links | links if links else view.links
        )
        self.row = _nothing()
        return self._next_segment(now)

    def _list(self, prefix: str, now: int) -> View:
        """Sort out one directory in one pass."""
        ready: list[str] = []
        others: list[names.Name] = []
        conditional: list[conditions.Condition] = []
        links: set[str] = set()
        bare, paused = True, False
        rooms: set[str] = set()
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
                if strange:
                    linked, strange = self._linked(strange, prefix)
                    links.update(linked)
                    chunk += linked
                plain = [name for name in chunk if len(name) == ID_DIGITS]
                if len(plain) < len(chunk):
                    rest = [name for name in chunk if len(name) != ID_DIGITS]
                    paused = paused or PAUSED in rest
                    others += filter(None, map(_other, rest))
                    conditional += conditions.among(rest)
                others += filter(None, map(_container, strange))
                if not prefix:
                    rooms.update(entry.name for entry in strange if not entry.name[0].isdigit())
                if plain and not names.are_ids(plain):
                    plain = [name for name in plain if names.parse(name)]
                ready += [name for name in plain if name < last] if last else plain
                if len(ready) > 2 * KEEP and self._order == "fifo":
                    ready.sort(reverse=True)
                    del ready[:-KEEP]
                    last = ready[0]
                elif len(ready) > 2 * KEEP:
                    ready = self._sorter.sort(ready)[-KEEP:]
        if not prefix:
            self.has_pins, self.paused = SPARK in rooms, paused
        again = NEVER
        if conditional:
            shown, again = self._resolver.resolve(prefix, conditional, now, links)
            ready += [name for name in shown if len(name) == ID_DIGITS]
            others += filter(None, (_other(name) for name in shown if len(name) != ID_DIGITS))
        leftovers = [name for name in others if name.kind in LEFTOVERS and self._stale(name, now)]
        if leftovers:
            self.leftovers = [(prefix, leftovers[:TIDY])]
        if last:  # what comes after the names that were left out has to wait for them
            others = [name for name in others if name.text < last or len(name.id) != ID_DIGITS]
        due, containers, soonest = self._sort_out(others, now)
        return View(
            ready + due if due else ready, containers, min(soonest, again), bare, links, open=again != NEVER
        )

    def _linked(
        self, strange: list[os.DirEntry[str]], prefix: str
    ) -> tuple[list[str], list[os.DirEntry[str]]]:
        """Return the names of symbolic links, without those that are known not to be ours, and what else there is."""
        # COST: a link is not looked at as a directory, too: 1 µs instead of 2 for each that is drained.
        found = [entry.name for entry in strange if entry.is_symlink()]
        others = [] if len(found) == len(strange) else [entry for entry in strange if not entry.is_symlink()]
        if self._foreign:
            found = [name for name in found if prefix + name not in self._foreign]
        return found, others

    def _stale(self, name: names.Name, now: int) -> bool:
        aged = names.micros_of(name.id) + self._stale_after < now
        return aged and self._directory.clock.plausible

    def _sort_out(self, found: list[names.Name], now: int) -> tuple[list[str], list[str], int]:
        """Tell apart what may be claimed now, directories, and when the next of the rest may be."""
        due: list[str] = []
        containers: list[str] = []
        soonest = NEVER
        for name in found:
            if name.kind in CONTAINERS or name.kind == BUCKET:
                containers.append(name.text)
            if name.kind not in CLAIMABLE:
                continue
            when = name.until + (self._margin if name.kind == LEASED else 0)
            if when <= now:
                due.append(name.text)
            elif when < soonest:
                soonest = when
        return due, containers, soonest

    def _idle(self, now: int) -> bool:
        """Return whether nothing has changed since we last found nothing, without listing again."""
        return (
            self._idle_mtime > 0
            and now < self.soonest
            and self._times.of(".") == self._idle_mtime
            and self._due.is_quiet(now)
        )


def _nothing() -> Row:
    return "", [], NO_LINKS


def _other(text: str) -> names.Name | None:
    """Return the parsed name of a file that is ours and not simply ready; None for notes and foreign files."""
    name = names.parse(text)
    return name if name is not None and name.kind in OF_FILES else None


def _container(entry: os.DirEntry[str]) -> names.Name | None:
    """Return the parsed name of an entry that is no file, if it is one of our directories."""
    name = names.parse_directory(entry.name)
    return name if name is not None and entry.is_dir(follow_symlinks=False) else None
