"""The vsqs layout: literal VSQS names, as vsqs 0.3 writes them.

Layer: layouts.  Touches: exactly the names of names.py. Times are written in microseconds or, with the setting
`milliseconds`, in milliseconds; both are read, by their length.
Invariant: a visible message is complete; no change overwrites a name; an expired message goes directly to
its next holder, never back through T, where a rename of another program could overwrite it.
Crash: leaves T.new, or T.X, which anybody may claim when X is over.

The exact name T.X is what a holder changes, so a lease that another consumer took over is never ended by mistake. It
is weaker than a token of the native layout: X is a time, and programs of VSQS delete by T, whatever X is.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.plain import check_plain_file
from dirqueue.errors import QueueError
from dirqueue.layouts.base import Claim, Purged, bad_handle, lost
from dirqueue.layouts.native.names import PAUSED
from dirqueue.layouts.peer import LOOKS, Peer, moved_on
from dirqueue.layouts.vsqs.cursor import Cursor
from dirqueue.layouts.vsqs.names import check_id, leased, micros_of, parse
from dirqueue.message import Entry
from dirqueue.settings import FILE, Settings

_NO_PLACE = "VSQS has a place for the message and one number, nothing else"
#: How often a put starts anew when its time is taken.
TRIES = 1000
#: How far ahead of the clock an id is drawn, at least and at most, in microseconds: see `_unused`.
LEAST, MOST = 5, 20_000
#: How often to look at the clock before sleeping.
SPINS = 500
_LISTED = frozenset(states.LISTED) - {states.DELAYED}


class Vsqs(Peer):
    """Messages are files named by the time they were put."""

    name: ClassVar[str] = "vsqs"
    pauses_inside: ClassVar[bool] = True
    _cursor: Cursor
    lacks: ClassVar[dict[str, str]] = {
        "delay": "a message of VSQS is ready as soon as it is there",
        "priority": "VSQS orders by the time in the name alone",
        "attempts": f"there is no place to count deliveries: {_NO_PLACE}",
        "batch": "messages of VSQS become visible one by one: put_many puts one after the other",
        "dead": f"there is no place for dead messages: {_NO_PLACE}",
        "done": f"there is no place for done messages: {_NO_PLACE}",
        "apart": f"there are neither dead nor done messages: {_NO_PLACE}",
        "fencing": "a lease is known by the time it ends, and programs of VSQS delete by id, whoever holds it",
        "link": "vsqs 0.3 takes a message for its own and nobody else's file",
        "attributes": f"there is no place for them: {_NO_PLACE}",
        "change": "a message of VSQS keeps its id for life, and the id is all there is to change",
    }

    def __init__(self, directory: Directory, settings: Settings) -> None:
        super().__init__(directory, settings)
        self._margin = micros(settings.margin)
        self._cursor = Cursor(directory, settings.order, self._margin)
        self._last = 0
        #: How far ahead of the clock the next id is drawn, in microseconds.
        self._ahead = LEAST
        self._unit = 1000 if settings.milliseconds else 1

    def create(self) -> None:
        """Make the directory."""
        self.directory.make()

    # --- producers -----------------------------------------------------------------------------------------

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        directory, sync = self.directory, self.settings.sync
        if directory.fd < 0:
            directory.make()
        try:
            for _ in range(TRIES):
                id = self._id()
                new = f"{id}.new"
                file = self._reserve(new)
                if file < 0:
                    continue
                if not self._unused(id):
                    fs.close(file)
                    fs.discard(new, directory.fd)
                    continue
                fs.fill(file, new, data, directory.fd, sync)
                self._wait_for(id)
                try:
                    directory.mount.publish(new, id, directory.fd)
                except (FileExistsError, FileNotFoundError):
                    fs.discard(new, directory.fd)
                    continue
                if sync:
                    self._make_durable(id)
                if self.settings.order != "fifo":
                    self._cursor.refresh()
                return id
        except OSError as error:
            self._fail("put to", error)
        raise self._crowded()

    def _reserve(self, new: str) -> int:
        """Make the unfinished file, open; -1 if the name is taken or the queue was removed."""
        try:
            return fs.open(new, fs.CREATE, fs.FILE_MODE, dir_fd=self.directory.fd)
        except FileExistsError:
            return -1
        except FileNotFoundError:
            self.directory.remake()
            return -1

    def _id(self) -> str:
        """Return a time that is about to come, as an id that this object has not used."""
        unit = self._unit
        with self._lock:
            soon = self._soon()
            while soon <= self._last:
                if self._last - soon > 1000:
                    soon = self._last + 1  # the clock was set back
                    break
                time.sleep(unit / 1e6)
                soon = self._soon()
            self._last = soon
        return str(soon)

    def _soon(self) -> int:
        return -(-(time.time_ns() // 1000 + self._ahead) // self._unit)

    def _unused(self, id: str) -> bool:
        """Return whether no message in flight has the id: T and T.X of two messages would overwrite each other.

        RACE: T.new is ours by now, and nothing was shown as T before that time has come; so T is ours if it has not.
        COST: elsewhere only a listing tells. A put to 10,000 messages on tmpfs takes 45 us with one, 18 without.
        """
        if not self.directory.mount.attributes_are_cached:
            left = int(id) * self._unit - time.time_ns() // 1000
            late = left < 0
            # Twice what it took to get here, or more than last time if that was too little.
            self._ahead = min(max(2 * (self._ahead if late else self._ahead - left), LEAST), MOST)
            return not late
        return not any(
            name.id == id and name.until >= 0
            for name in map(parse, fs.names_in(".", self.directory.fd))
            if name is not None
        )

    def _wait_for(self, id: str) -> None:
        """Wait until the time of an id has come: nobody looks for it among the messages in flight before."""
        spins = SPINS
        while 0 < (left := int(id) * self._unit - time.time_ns() // 1000) <= MOST + self._unit:
            # COST: a sleep takes 50 us at least, and most puts need less; so look at the clock again, for so long.
            spins -= 1
            if left > 100 or spins < 0:
                time.sleep(left / 1e6)

    def _make_durable(self, id: str) -> None:
        try:
            self.directory.sync()
        except OSError:
            fs.discard(id, self.directory.fd)
            raise

    def _crowded(self) -> QueueError:
        path = self.directory.path
        text = f"cannot put to {path!r}: every id that was tried is taken; are there that many producers?"
        return QueueError(text, path=path)

    def put_path(
        self, path: str, *, delay: float = 0, priority: int | None = None, link: bool = False
    ) -> str:
        self.directory.make()
        source = os.path.abspath(path)
        try:
            check_plain_file(source, self.settings)
            for _ in range(TRIES):
                id = self._id()
                new = f"{id}.new"
                file = self._reserve(new)
                if file < 0:
                    continue
                fs.close(file)
                try:
                    if not self._unused(id):
                        continue
                    self._wait_for(id)
                    self.directory.mount.publish(source, id, self.directory.fd)
                except FileExistsError:
                    continue
                finally:
                    fs.discard(new, self.directory.fd)
                if self.settings.sync:
                    self.directory.sync()
                return id
        except OSError as error:
            self._fail(f"put the file {path!r} into", error)
        raise self._crowded()

    def count(self) -> int:
        if not self.directory.find():
            return 0
        found = map(parse, fs.names_in(".", self.directory.fd))
        return sum(name is not None and name.until >= 0 for name in found)

    # --- consumers -----------------------------------------------------------------------------------------

    def claim(self, seconds_: float) -> Claim | None:
        directory = self.directory
        if (directory.fd < 0 and not directory.find()) or self.rests():
            return None
        now = directory.clock.now()
        lock, cursor = self._lock, self._cursor
        try:
            for _ in range(LOOKS):
                lock.acquire()
                try:
                    if not cursor.fill(now):
                        if not self._made_again():
                            return None
                        cursor.refresh()
                        continue
                    text = cursor.run.pop()
                finally:
                    lock.release()
                held = self._take(text, now, micros(seconds_))
                if held is not None:
                    return held
        except FileNotFoundError:
            directory.reopen()
            cursor.refresh()
        except OSError as error:
            self._fail("claim from", error)
        return None

    def _take(self, text: str, now: int, duration: int) -> Claim | None:
        """Rename one name to our lease and read the body; None if another consumer was faster."""
        id = text.partition(".")[0]
        place, until = leased(id, max(now + duration, micros_of(text[len(id) + 1 :] or "0") + 1))
        fd = self.directory.fd
        try:
            fs.rename(text, place, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            self._cursor.missed()
            return None
        held = Claim(id, place, now, until, 1)
        try:
            file = fs.open(place, fs.READ, dir_fd=fd)
            try:
                data = fs.read(file, fs.CHUNK)
            finally:
                fs.close(file)
        except FileNotFoundError:
            return None  # RACE: our lease was over before we opened it
        if len(data) < fs.CHUNK:
            held.data = data
        return held

    def ack(self, held: Claim) -> None:
        self._open()
        try:
            fs.unlink(held.place, dir_fd=self.directory.fd)
            if self.settings.sync:
                self.directory.sync()
        except FileNotFoundError:
            raise lost(held, "ack") from None
        except OSError as error:
            self._fail("ack a message of", error)

    def renew(self, held: Claim, seconds_: float) -> None:
        self._open()
        until = max(self.directory.clock.now() + micros(seconds_), held.ends + 1)
        self._put_off(held, until, "renew")

    def _put_off(self, held: Claim, until: int, doing: str) -> None:
        place, until = leased(held.id, until)
        try:
            if place != held.place:
                self.directory.move(held.place, place)
        except FileNotFoundError:
            raise lost(held, doing) from None
        except OSError as error:
            self._fail(f"{doing} a message of", error)
        held.place, held.ends = place, until

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        """Leave it in flight until the delay is over: every consumer of VSQS takes it then. Counts nothing."""
        self._open()
        if not delay:
            self.release(held)
            return
        self._put_off(held, self.directory.clock.now() + micros(delay) - self._margin, "retry")
        self._cursor.refresh()

    def release(self, held: Claim) -> None:
        directory = self.directory
        self._open()
        try:
            directory.mount.publish(held.place, held.id, directory.fd)
        except FileNotFoundError:
            raise lost(held, "release") from None
        except FileExistsError:
            # COMPAT: another message has the same id; ours waits for its turn as one that is over.
            self._put_off(held, directory.clock.now(), "release")
        except OSError as error:
            self._fail("release a message of", error)
        self._cursor.refresh()

    def entry(self, held: Claim) -> Entry:
        return Entry(held.id, "leased", held.place, micros_of(held.id), held.ends, 1, held.token)

    def hold(self, handle: str) -> Claim:
        name = parse(handle)
        if name is None or name.until <= 0:
            raise bad_handle(handle)
        held = Claim(name.id, handle, 0, name.until, 1)
        if not self.directory.find() or not fs.exists(handle, self.directory.fd):
            raise lost(held, "take over")
        return held

    # --- lookers -------------------------------------------------------------------------------------------

    def check_id(self, id: object) -> str:
        return check_id(id)

    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]:
        return self._listed(self._entries(frozenset(states) or _LISTED))

    def _entries(self, wanted: frozenset[str]) -> Iterator[Entry]:
        if not self.directory.find():
            return
        for found in fs.listing(".", self.directory.fd):
            name = parse(found.name)
            if name is None or not found.is_file(follow_symlinks=False):
                entry = Entry("", "foreign", found.name, 0)
                if found.name in (FILE, PAUSED):
                    continue
            else:
                state = "ready" if name.until == 0 else "new" if name.until < 0 else "leased"
                attempts = int(state == "leased")
                entry = Entry(name.id, state, found.name, name.put, max(name.until, 0), attempts)
            if entry.state in wanted:
                yield entry

    def find(self, id: str) -> Entry | None:
        if not self.directory.find():
            return None
        # Most are ready, and one call finds those: a listing for each of many ids would be quadratic.
        try:
            if fs.is_file(id, self.directory.fd):
                return Entry(id, "ready", id, micros_of(id))
        except OSError as error:
            self._fail("look into", error)
        # A name being renamed may be missed by a listing: absence needs a second look.
        for _ in range(2):
            for entry in self.entries(states.LIVE):
                if entry.id == id:
                    return entry
        return None

    # --- changers and cleaners -----------------------------------------------------------------------------

    def cancel(self, entry: Entry) -> None:
        self._unclaimed(entry)
        if not self.remove(entry):
            raise moved_on(entry.id)

    def remove(self, entry: Entry) -> bool:
        self._open()
        try:
            fs.unlink(entry.place, dir_fd=self.directory.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._fail("remove a message of", error)
        return True

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        """Remove messages that nobody finished writing; expired ones need no purge."""
        if not self.directory.find():
            return Purged()
        oldest = self.directory.clock.now() - micros(self.settings.stale)
        gone = 0
        for entry in list(self.entries(("new",))):
            try:
                old = fs.mtime_of(entry.place, self.directory.fd) * 1_000_000 < oldest
            except FileNotFoundError:
                continue
            if old and entry.put < oldest:
                gone += fs.discard(entry.place, self.directory.fd)
            if progress:
                progress()
        return Purged(new=gone)
