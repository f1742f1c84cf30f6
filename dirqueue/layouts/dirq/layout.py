"""What the two dirq layouts have in common: claims, their ends, looking, cleaning.

Layer: layouts.  Touches: see simple_store.py and normal_store.py.
Invariant: an element is removed only by the consumer that locked it and finds its lock unchanged.
Crash: a lock is left, which others honour until its time plus the queue's `lease` is over.

A lock of dirq says when it was taken, not when it ends: how long it is honoured is decided by whoever looks. Here that
is the setting `lease` (600 s by default, as in dirq); a claim for longer or shorter moves the lock's time.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import ClassVar, Protocol

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.layouts.base import Claim, Purged, bad_handle, lost
from dirqueue.layouts.dirq import names
from dirqueue.layouts.dirq.cursor import Cursor
from dirqueue.layouts.peer import LOOKS, Peer, moved_on
from dirqueue.message import Entry
from dirqueue.settings import Settings

_NO_PLACE = "dirq programs count or delete every file that is not theirs"
LACKS = {
    "delay": "an element of dirq is visible as soon as it is there",
    "priority": "dirq orders by the time in the name alone",
    "attempts": f"there is no place to count deliveries: {_NO_PLACE}",
    "batch": "elements of dirq become visible one by one: put_many puts one after the other",
    "dead": f"there is no place for dead messages: {_NO_PLACE}",
    "done": f"there is no place for done messages: {_NO_PLACE}",
    "fencing": "a lock of dirq has no owner; it is known by its time, which is looked at just before each change",
    "attributes": f"there is no place for them: {_NO_PLACE}",
    "apart": "there are neither dead nor done messages: there is no place for them",
    "change": "an element of dirq keeps its name for life, and the name is all there is to change",
    "link": "a second name of a file is a lock, or an unfinished element, to dirq",
    "watch": "elements appear in sub-directories, so waiting is by polling",
}
#: What tells a lock from the next, as the two formats say it; with the name it is the handle of a lease.
_TOKEN = re.compile(r"[0-9]+(-[0-9]+)?")
#: Where the token begins in a handle, `NAME@TOKEN`.
TOKEN_AT = names.NAME_LENGTH + 1
#: For how long an element that we may not lock is left alone.
STEP_OVER_SECONDS = 1.0
_LISTED = frozenset(states.LISTED) - {states.DELAYED}


class Locks(Protocol):
    """What a layout needs of the files of its format."""

    sync: bool

    def make(self) -> None: ...
    def count(self) -> int: ...
    def directories(self) -> list[str]: ...
    def ours(self, name: str, token: str) -> bool: ...
    def lock(self, name: str) -> str | int | None: ...
    def locked_at(self, name: str) -> int | None: ...
    def renew(self, name: str, token: str, shift_ns: int = 0) -> tuple[str, int] | None: ...
    def unlock(self, name: str) -> bool: ...
    def remove(self, name: str) -> bool: ...
    def purge(self, old_temporary_ns: int, old_lock_ns: int) -> tuple[int, int, int]: ...


class DirqLayout(Peer):
    """A layout over the files of one dirq format."""

    lacks: ClassVar[dict[str, str]] = LACKS
    _locks: Locks
    _cursor: Cursor

    def __init__(self, directory: Directory, settings: Settings) -> None:
        super().__init__(directory, settings)
        self._lease_seconds = settings.lease
        self._lease = micros(settings.lease)
        self._honoured = self._lease + micros(settings.margin)

    def create(self) -> None:
        """Make the directory so that it can be recognised."""
        self._locks.make()

    def count(self) -> int:
        return self._locks.count() if self.directory.find() else 0

    # --- consumers -----------------------------------------------------------------------------------------

    def claim(self, seconds_: float) -> Claim | None:
        directory = self.directory
        if (directory.fd < 0 and not directory.find()) or self.rests():
            return None
        now = directory.clock.now()
        shift = 0 if seconds_ == self._lease_seconds else micros(seconds_) - self._lease
        cursor, take = self._cursor, self._take
        snapshot = cursor.snapshot
        cursor.refused = None
        try:
            for _ in range(LOOKS):
                try:
                    # RACE: threads share the cursor. What is known they take without its lock: to pop is one step.
                    name = cursor.run.pop() if monotonic() < snapshot.expires else self._look_again(now)
                except IndexError:
                    name = self._look_again(now)
                if not name:
                    break
                try:
                    held = take(name, now, shift)
                except PermissionError as error:
                    self._step_over(name, now, error)
                    continue
                if held is not None:
                    snapshot.misses = 0
                    return held
                with self._lock:
                    cursor.missed()
            if cursor.refused:
                raise cursor.refused
        except FileNotFoundError:
            directory.reopen()  # the whole queue was removed; there may be another one at its path by now
            cursor.refresh()
        except OSError as error:
            self._fail("claim from", error)
        return None

    def _step_over(self, name: str, now: int, error: OSError) -> None:
        """Leave another user's element alone for a while: those behind it may be ours. Reported if none is."""
        with self._lock:
            self._cursor.refused = error
            self._cursor.not_before(name, now + micros(STEP_OVER_SECONDS))

    def _look_again(self, now: int) -> str:
        """Return a name to try, of the next directory or a new look; empty if there is none."""
        cursor = self._cursor
        with self._lock:
            for _ in range(LOOKS):
                if cursor.fill(now):
                    try:
                        return cursor.run.pop()
                    except IndexError:
                        continue  # RACE: a thread that needed no lock took the last one
                if not self._made_again():
                    break
                cursor.refresh()
        return ""

    @abstractmethod
    def _take(self, name: str, now: int, shift: int) -> Claim | None:
        """Lock one element and read it; None if we cannot have it."""

    def ack(self, held: Claim) -> None:
        locks, name = self._locks, held.id
        if self.directory.fd < 0:
            self.directory.need()
        try:
            if not locks.ours(name, held.place[TOKEN_AT:]) or not locks.remove(name):
                raise lost(held, "ack")
            self._cursor.forget(name)
            if locks.sync:
                self._sync(name)
        except OSError as error:
            self._fail("ack a message of", error)

    def _sync(self, name: str) -> None:
        try:
            self.directory.sync(name[:8])
        except FileNotFoundError:
            pass  # the emptied directory is gone with its names

    def renew(self, held: Claim, seconds_: float) -> None:
        self._open()
        try:
            renewed = self._locks.renew(held.id, held.token, (micros(seconds_) - self._lease) * 1000)
        except OSError as error:
            self._fail("renew a lease of", error)
        if renewed is None:
            raise lost(held, "renew")
        held.place, held.ends = f"{held.id}@{renewed[0]}", renewed[1] + self._lease

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        """Unlock it. Others may take it at once; we ourselves leave it alone for the delay."""
        self._unlock(held, "retry")
        if delay:
            with self._lock:
                self._cursor.not_before(held.id, self.directory.clock.now() + micros(delay))

    def release(self, held: Claim) -> None:
        self._unlock(held, "release")

    def _unlock(self, held: Claim, doing: str) -> None:
        self._open()
        try:
            if not self._locks.ours(held.id, held.token) or not self._locks.unlock(held.id):
                raise lost(held, doing)
        except OSError as error:
            self._fail(f"{doing} a message of", error)
        self._cursor.forget(held.id)
        self._cursor.refresh()

    def entry(self, held: Claim) -> Entry:
        return Entry(held.id, "leased", held.place, names.micros_of(held.id), held.ends, 1, held.token)

    def hold(self, handle: str) -> Claim:
        name, _, token = handle.partition("@")
        if not names.NAME.fullmatch(name) or not _TOKEN.fullmatch(token):
            raise bad_handle(handle)
        held = Claim(name, handle, 0, 0, 1)
        when = (
            self._locks.locked_at(name) if self.directory.find() and self._locks.ours(name, token) else None
        )
        if when is None:
            raise lost(held, "take over")
        held.ends = when + self._lease
        return held

    # --- lookers -------------------------------------------------------------------------------------------

    def check_id(self, id: object) -> str:
        return names.check(id)

    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]:
        return self._listed(self._entries(frozenset(states) or _LISTED))

    def _entries(self, wanted: frozenset[str]) -> Iterator[Entry]:
        if self.directory.find() and not wanted.isdisjoint(_LISTED):
            for where in fs.names_in(".", self.directory.fd):
                yield from (entry for entry in self._inside(where) if entry.state in wanted)

    def _inside(self, where: str) -> Iterator[Entry]:
        """Yield what is in one entry of the queue's directory."""
        try:
            found = list(fs.listing(where, self.directory.fd)) if self._is_ours(where) else None
        except FileNotFoundError:
            return
        except NotADirectoryError:
            found = None
        if found is None:
            yield Entry("", "foreign", where, 0)
        else:
            yield from self._entries_of(where, found)

    def _is_ours(self, where: str) -> bool:
        """Return whether a name in the queue's directory is one of the format's."""
        return names.DIRECTORY.fullmatch(where) is not None

    @abstractmethod
    def _entries_of(self, where: str, found: list[os.DirEntry[str]]) -> Iterator[Entry]:
        """Yield the entries of one of the format's directories, as their names describe them."""

    def _seen(self, name: str) -> Entry:
        """Return an element as it is now, locked or not."""
        when = self._locks.locked_at(name)
        if when is None:
            return Entry(name, "ready", name, names.micros_of(name))
        return Entry(name, "leased", name, names.micros_of(name), when + self._lease, 1)

    def find(self, id: str) -> Entry | None:
        try:
            return self._seen(id) if self.directory.find() and fs.exists(id, self.directory.fd) else None
        except OSError as error:
            self._fail("look into", error)

    # --- changers and cleaners -----------------------------------------------------------------------------

    def cancel(self, entry: Entry) -> None:
        self._unclaimed(entry)
        self._open()
        try:
            if self._locks.lock(entry.id) is None:
                raise moved_on(entry.id)
            self._locks.remove(entry.id)
            if self._locks.sync:
                self._sync(entry.id)
        except OSError as error:
            self._fail("cancel a message of", error)

    def remove(self, entry: Entry) -> bool:
        self._open()
        try:
            return self._locks.remove(entry.id)
        except OSError as error:
            self._fail("remove a message of", error)

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        if not self.directory.find():
            return Purged()
        now = self.directory.clock.now()
        new, released, directories = self._locks.purge(
            (now - micros(self.settings.stale)) * 1000, (now - self._honoured) * 1000
        )
        if progress:
            progress()
        if released:
            self._cursor.refresh()
        return Purged(new=new, released=released, directories=directories)
