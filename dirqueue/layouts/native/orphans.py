"""Attributes whose message is gone.

Layer: layouts.  Touches: attributes/BUCKET/ID.
Invariant: none is removed of a message that is there, or that a transaction is about to move here. Gone is a message
that no name shows, in a walk that has missed nothing (sight.py); in a queue that never rests they stay.
Crash: at any call; the next purge goes on.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import names, sight
from dirqueue.layouts.native.extras import place_of
from dirqueue.layouts.native.inspect import buckets
from dirqueue.layouts.native.names import ATTRIBUTES, NEW, READY
from dirqueue.layouts.native.register import register_beside

#: Place -> the id that it is of, without its priority: a message that changes its priority has both for a moment.
_Kept = dict[str, str]


class Walk(NamedTuple):
    """A walk over the queue in search of messages."""

    #: Those that it has not shown.
    missing: set[str]
    #: When it began, by our clock, in microseconds.
    begun: int
    #: From when on nothing had changed, by the server's; None if it cannot prove anything.
    quiet: int | None


class Orphans:
    """What a purge does with attributes; made before the purge changes anything.

    Args:
        directory: Of the queue.
        look: Whether it is to be asked which are of messages that are gone.
    """

    def __init__(self, directory: Directory, *, look: bool = True) -> None:
        self._directory = directory
        self._any = fs.exists(ATTRIBUTES, directory.fd)
        # NFS: there an hour without a change is a proof, and a look at the clock is a change of the queue.
        early = look and directory.mount.attributes_are_cached
        self._early = self._walk(set(self.kept().values())) if early else None

    def drop(self, id: str) -> None:
        """Remove what a message carried that the purge has removed."""
        if self._any:
            fs.discard(place_of(id), self._directory.fd)

    def kept(self) -> _Kept:
        """Return all the files there are, finished or not."""
        found: _Kept = {}
        for bucket in self.buckets():
            # RACE: removed as empty; or it is another user's.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                for text in fs.names_in(bucket, self._directory.fd):
                    name = names.parse(text.removesuffix(f".{NEW}"))
                    if name is not None and name.kind == READY:
                        found[f"{bucket}/{text}"] = name.id[-ID_DIGITS:]
        return found

    def buckets(self) -> list[str]:
        """Return the directories that they lie in."""
        return [f"{ATTRIBUTES}/{bucket}" for bucket in buckets(self._directory, ATTRIBUTES)]

    def among(self, stale: _Kept) -> list[str]:
        """Return which of these stale files may go: those that are unfinished, or whose message is gone."""
        gone = self._gone(set(stale.values()))
        return [place for place, id in stale.items() if id in gone or place.endswith(f".{NEW}")]

    def _gone(self, wanted: set[str]) -> set[str]:
        """Return which of these messages are gone for certain."""
        if self._early is not None:
            return wanted & self._early.missing if self._lacks(self._early) <= 0 else set()
        walk = self._walk(wanted)
        lacks = self._lacks(walk)
        if walk.missing and 0 < lacks <= sight.PAUSE:
            time.sleep(lacks / 1_000_000)  # the purge has changed directories itself, a moment ago
            walk = self._walk(wanted)
            lacks = self._lacks(walk)
        return walk.missing if lacks <= 0 else set()

    def _lacks(self, walk: Walk) -> int:
        """Return for how many microseconds more nothing must change before a walk can prove anything."""
        if walk.quiet is None:
            return sight.QUIET
        return walk.quiet - walk.begun - self._directory.clock.offset

    def _walk(self, wanted: set[str]) -> Walk:
        """Look for these messages."""
        begun, folders = time.time_ns() // 1000, list[str]()
        if not wanted:
            return Walk(wanted, begun, None)
        try:
            # RACE: in this order: a plan is there before what it moves carries anything here, and until it is here.
            missing = wanted.difference(register_beside(self._directory).planned())
            for text in sight.names_in_queue(self._directory.fd, folders):
                name = sight.message_of(text)
                if name is not None:
                    missing.discard(name.id[-ID_DIGITS:])
            return Walk(missing, begun, sight.quiet_at(folders, self._directory))
        except PermissionError:
            return Walk(set(), begun, None)  # another user's, with names in it that cannot be seen
