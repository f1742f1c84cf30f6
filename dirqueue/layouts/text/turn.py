"""A turn: the one way to change a text queue. Lock, look, one record, one change of the file, stamp, seal, unlock.

Layer: layouts.  Touches: the file, lock, journal.POSITION.
Invariant: the seal is written last. If the file answers to it at the beginning of the next turn, nobody else has been
there, and all that is remembered is true; if not, `merge` finds out what happened.
Crash: at any call; the kernel unlocks, and the next turn redoes the records that the file has not seen. A turn that
was cut short before it changed the file leaves a record behind the end that the seal names: it never counted.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN
from threading import get_ident
from typing import TypeVar

from dirqueue.disk import fs, signals
from dirqueue.disk.beside import Beside, append, opened, reserve, unreserve
from dirqueue.disk.fork import renew_in_child
from dirqueue.errors import DirQueueError, QueueError, access_error
from dirqueue.layouts.text import names, stamp
from dirqueue.layouts.text.grammar import PAGE, items
from dirqueue.layouts.text.journal import Journal
from dirqueue.layouts.text.notes import Notes
from dirqueue.layouts.text.stamp import SEAL, Seal, seen_text

T = TypeVar("T")

#: How long a file that somebody else saves has to be quiet before it is taken for whole; in microseconds.
QUIET = 250_000
#: How long it takes to look again; in microseconds.
SOON = 1000
#: How long a change waits for that, and for the lock.
PATIENCE = 10.0
#: Pauses between two tries for the lock.
SHORTEST, LONGEST = 0.00005, 0.002
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Restless(Exception):
    """Somebody is saving the file at this moment; it will have been quiet for long enough in so many microseconds."""

    def __init__(self, micros: int) -> None:
        super().__init__(micros)
        self.micros = micros


class Gone(Exception):
    """There is no file."""


class Ledger:
    """The file, the journal beside it, and what this object knows of both."""

    def __init__(self, directory: Beside) -> None:
        self.directory = directory
        self.journal = Journal(directory)
        self.notes = Notes()
        #: The file during a turn.
        self.file = -1
        self.size = 0
        #: The seal that `notes` and `journal` belong to, as it is in the lock file; empty if nothing is known.
        self.seal: Seal | None = None
        self._sealed = b""
        #: When the file was changed that was last looked at, in microseconds.
        self._last_change = 0
        self._lock_fd = -1
        self._mutex = threading.RLock()
        self._busy = False
        renew_in_child(self._renew_in_child)

    def _renew_in_child(self) -> None:
        # The lock of the parent is shared through the descriptor: the child takes one of its own.
        for fd in (self._lock_fd, self.file):
            if fd >= 0:
                fs.close_quietly(fd)
        self._lock_fd = self.file = -1
        self._mutex = threading.RLock()
        self._busy = False
        self.forget()

    def forget(self) -> None:
        """Know nothing any more: the next turn reads the journal again."""
        self.journal.close()
        self.journal = Journal(self.directory)
        moved = self.notes.age + 1
        self.notes = Notes()
        self.notes.age, self.notes.moved = moved, True
        self.seal, self._sealed = None, b""

    def close(self) -> None:
        """Let go of all descriptors."""
        with self._mutex:
            if self._lock_fd >= 0:
                fs.close_quietly(self._lock_fd)
                self._lock_fd = -1
            self.forget()
            self.directory.close()

    # --- turns ---------------------------------------------------------------------------------------------

    def run(
        self, change: Callable[[], T], *, create: bool = False, sync: bool = False, patient: bool = True
    ) -> T:
        """Lock and look, call `change`, unlock; return what it returned.

        Args:
            change: Raises only errors that are ours if it has changed nothing.
            create: Make the file if there is none; else Gone is raised.
            sync: Make what was changed durable after the unlock.
            patient: Wait while somebody else saves the file; else Restless is raised.
        """
        deadline = 0.0
        while True:
            try:
                return self._alone(lambda: self._turn(change, create=create, sync=sync))
            except Restless as restless:
                now = time.monotonic()
                deadline = deadline or now + PATIENCE
                if not patient or now >= deadline:
                    raise
                pause = restless.micros / 1_000_000
            time.sleep(pause)

    def _turn(self, change: Callable[[], T], *, create: bool, sync: bool) -> T:
        try:
            self._begin(create)
            return change()
        except (DirQueueError, Gone, Restless):
            raise
        except BaseException:
            self.forget()
            raise
        finally:
            self._end(sync=sync)

    def _alone(self, act: Callable[[], T]) -> T:
        """Call a function while neither other threads nor handlers of signals use this object."""
        masked = None
        if get_ident() == threading.main_thread().ident:
            masked = signals.hold()
            if masked is not None and signals.taken_by_others():
                signals.restore(masked)
                return signals.aside(lambda: self._alone(act))
        try:
            with self._mutex:
                if self._busy:
                    raise self._interrupted()
                try:
                    self._busy = True
                    return act()
                finally:
                    self._busy = False
        finally:
            if masked is not None:
                signals.restore(masked)

    def _begin(self, create: bool) -> None:
        self._lock()
        try:
            self.file = opened(self.directory.path, os.O_RDWR)
        except FileNotFoundError:
            self._make_file(create)
        self._look()

    def _end(self, *, sync: bool) -> None:
        file, self.file = self.file, -1
        try:
            if file >= 0:
                if sync:
                    unreserve(file)
                else:
                    fs.close(file)
        finally:
            if self._lock_fd >= 0:
                fs.flock(self._lock_fd, LOCK_UN)
            if sync and file >= 0:
                try:
                    fs.fsync(file)
                finally:
                    fs.close_quietly(file)

    def _lock(self) -> None:
        pause, deadline = SHORTEST, 0.0
        while True:
            if self._lock_fd < 0:
                self._open_lock()
            try:
                fs.flock(self._lock_fd, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + PATIENCE
                if now >= deadline:
                    raise self._stuck() from None
                time.sleep(pause)
                pause = min(pause * 2, LONGEST)
                continue
            return

    def _open_lock(self) -> None:
        self.directory.need_locks()
        self.directory.make()
        try:
            self._lock_fd = fs.open(names.LOCK, _LOCK_FLAGS, fs.FILE_MODE, dir_fd=self.directory.fd)
        except FileNotFoundError:
            self.directory.remake()  # RACE: removed since it was opened
            self._lock_fd = fs.open(names.LOCK, _LOCK_FLAGS, fs.FILE_MODE, dir_fd=self.directory.fd)

    def _interrupted(self) -> QueueError:
        path = self.directory.path
        return QueueError(
            f"cannot use {path!r} in a handler of a signal that interrupts another use of it: set a flag in the "
            "handler, and use it after that",
            path=path,
        )

    def _stuck(self) -> QueueError:
        path = self.directory.path
        return QueueError(
            f"cannot use {path!r}: another process has held its lock for {PATIENCE:g} s; it is stopped, or on a "
            f"machine that hangs (fuser {os.path.join(self.directory.side, names.LOCK)!r} names it)",
            path=path,
        )

    def _make_file(self, create: bool) -> None:
        if not create or not self.directory.create:
            raise Gone
        seal = stamp.load(fs.pread(self._lock_fd, SEAL, 0))
        if seal is not None:
            # RACE: vim and Emacs rename the file away before they write the new one.
            age = self.directory.clock.now() - int(
                fs.mtime_of(os.path.dirname(self.directory.path), -1) * 1_000_000
            )
            if 0 <= age < QUIET:
                raise Restless(QUIET - age)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.file = fs.open(self.directory.path, flags, fs.FILE_MODE)
        except FileExistsError:
            raise Restless(SOON) from None
        try:
            self.directory.sync()  # its name has to outlast a power loss as its contents do
        except PermissionError:
            pass  # an unreadable directory: its durability is up to its owner

    # --- looking -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Compare the file with the seal, learn what others did, and mend what they left."""
        facts = fs.fstat(self.file)
        self.size = facts.st_size
        data = fs.pread(self._lock_fd, SEAL, 0)
        seal = self.seal if data == self._sealed else stamp.load(data)
        if seal is not None and (seal.inode, seal.size, seal.changed) == (
            facts.st_ino,
            facts.st_size,
            facts.st_ctime_ns,
        ):
            if seal is self.seal:
                return
            if self.follow(seal):
                self.seal, self._sealed = seal, data
                return
            seal = None
        if not fs.fstat(self._lock_fd).st_nlink:
            # RACE: the directory was removed while we had the lock open: it locks nothing any more.
            fs.close_quietly(self._lock_fd)
            self._lock_fd = -1
            self.directory.close()
            self.forget()
            raise Restless(SOON)
        from dirqueue.layouts.text import merge

        self._sealed = b""
        merge.reconcile(self, seal, facts)
        self.in_turn()

    def follow(self, seal: Seal) -> bool:
        """Read the journal up to where the seal says; return False if it does not get there."""
        journal, notes = self.journal, self.notes
        try:
            if self.seal is None or seal.part != journal.part or seal.end < journal.end:
                journal.open(seal.part)
            for _, record in journal.read(seal.end):
                notes.apply(record)
        except FileNotFoundError:
            return False
        return (journal.end, journal.chain) == (seal.end, seal.chain)

    def look(self) -> tuple[bytes, bool] | None:
        """Return the bytes of the file, without locking, and whether the notes belong to them; None if it is missing.

        Touches nothing, and works where nothing may be written.
        """
        return self._alone(self._looked)

    def _looked(self) -> tuple[bytes, bool] | None:
        sealed = self.sealed_now()
        seal = stamp.load(sealed) if sealed else None
        if seal is None:
            if not sealed and self.seal is not None:
                self.forget()
            known = not sealed
        elif seal == self.seal:
            known = True
        else:
            known = self.follow(seal)
            self.seal, self._sealed = (seal, sealed) if known else (None, b"")
            if not known:
                self.forget()
        try:
            data, facts = self._read()
        except FileNotFoundError:
            return None
        same = seal is not None and (seal.inode, seal.size, seal.changed) == (
            facts.st_ino,
            facts.st_size,
            facts.st_ctime_ns,
        )
        return data, same and known

    def sealed_now(self) -> bytes:
        """Return what the lock file holds; nothing if there is none."""
        if self.directory.fd < 0:
            return b""
        try:
            fd = fs.open(names.LOCK, fs.READ, dir_fd=self.directory.fd)
        except FileNotFoundError:
            self.directory.close()
            return b""
        try:
            return fs.pread(fd, SEAL, 0)
        finally:
            fs.close(fd)

    def _read(self) -> tuple[bytes, os.stat_result]:
        fd = opened(self.directory.path, os.O_RDONLY)
        try:
            facts = fs.fstat(fd)
            self._last_change = facts.st_mtime_ns // 1000
            return read_all(fd, facts.st_size), facts
        finally:
            fs.close(fd)

    def put_at(self, offset: int) -> int:
        """Return when what lies there was put, as far as that is known: else when the file was last changed."""
        return self.notes.put_at(offset) or self._last_change

    # --- changing ------------------------------------------------------------------------------------------

    def record(self, record: bytes) -> None:
        """Write a record; on a full disk the reserve and the history make room."""
        journal = self.journal
        if journal.end >= journal.full:
            journal.turn_over(self.notes.base())
        try:
            journal.append(record)
        except OSError as error:
            if error.errno not in _FULL or not (self.directory.drop_ballast() or journal.drop_history()):
                raise
            journal.append(record)

    def note(self, record: bytes, writes: list[tuple[int, bytes]]) -> None:
        """Write a record that changes no state in the file, and seal; with what else is to be written there."""
        if writes:
            self.change(record, writes)
            return
        self.record(record)
        seal, journal = self.in_turn(), self.journal
        self.write_seal(Seal(*seal[:3], journal.part, journal.end, journal.chain, *seal[6:]))

    def append(self, record: bytes, block: bytes, flips: list[int] = []) -> None:  # noqa: B006 - never changed
        """Record and append a block; then make the bytes at these offsets dashes. Seals."""
        seal, journal, size = self.in_turn(), self.journal, self.size
        alone = reserve(self.file)
        end, chain = journal.end, journal.chain
        self.record(record)
        if not alone and self._replaced(seal):
            self._leave_to_the_next()
            return
        try:
            done = append(self.file, block)
            while done < len(block):
                done += append(self.file, block[done:])
            if flips and (alone or fs.fstat(self.file).st_size == size + len(block)):
                for offset in flips:
                    fs.pwrite(self.file, b"-", offset)
        except OSError:
            self._take_back(size, len(block), end, chain)
            raise
        self.size = size + len(block)
        self.stamp(seal, block)

    def _take_back(self, size: int, length: int, end: int, chain: int) -> None:
        """Remove what was written of a block, because no more fits; and its record, so that nobody writes it later."""
        try:
            now = fs.fstat(self.file).st_size
            if size < now < size + length:
                fs.ftruncate(self.file, size)
            self.journal.undo(end, chain)
        except OSError:
            pass  # the next turn redoes the record: the message of a put that failed is delivered
        self.forget()

    def change(self, record: bytes | None, writes: list[tuple[int, bytes]]) -> None:
        """Record, and write these bytes at these offsets, over others of the same length. Seals."""
        seal = self.in_turn()
        alone = reserve(self.file)
        if record:
            self.record(record)
        if not alone and self._replaced(seal):
            self._leave_to_the_next()
            return
        for offset, data in writes:
            fs.pwrite(self.file, data, offset)
        last = writes[-1][0] >= seal.anchor_at
        self.stamp(seal, before=fs.pread(self.file, PAGE, max(0, self.size - PAGE)) if last else b"")

    def _replaced(self, seal: Seal) -> bool:
        """Return whether somebody saved another copy of the file since the turn began; marks and appends are none."""
        last = seen_text(seal.seen)
        return fs.fstat(self.file).st_size < seal.size or fs.pread(self.file, len(last), seal.other()) != last

    def _leave_to_the_next(self) -> None:
        """Do no more in this turn: somebody else is saving the file, and the next quiet turn redoes the record."""
        self.journal.sync()
        self.forget()

    def in_turn(self) -> Seal:
        """Return the seal of this turn. Restless if somebody else was at the file since it began: look again."""
        if self.seal is None:
            raise Restless(SOON)
        return self.seal

    def stamp(self, seal: Seal, block: bytes = b"", before: bytes = b"") -> None:
        """Say in the file up to where it has seen the journal; then seal, if nobody was at the file meanwhile.

        `block` is what was added to the file, if anything was; `before` the end of what was there, if it is needed.
        """
        journal = self.journal
        seen = journal.end
        text = seen_text(seen)
        fs.pwrite(self.file, text, seal.slot)
        facts = fs.fstat(self.file)
        if facts.st_size != self.size or fs.pread(self.file, stamp.WIDTH, seal.stamp) != seal.numbers(seen):
            # RACE: somebody who does not lock saved the file in between. What is there now must not look as if it had
            # seen the record: it says again what it said before.
            if fs.pread(self.file, len(text), seal.slot) == text:
                fs.pwrite(self.file, fs.pread(self.file, len(text), seal.other()), seal.slot)
            if facts.st_size < self.size:
                self._withdraw(block, facts.st_size - len(block))
            self._leave_to_the_next()
            return
        soft, soft_until, clean, anchor_at, anchor = seal[9:]
        if tail := before + block:
            soft = soft_until = 0
            clean = int(tail[-1] in b"\r\n")
            anchor_at, anchor = stamp.anchor(tail, self.size, seal.stamp)
        self.write_seal(
            Seal(
                facts.st_ino, facts.st_size, facts.st_ctime_ns, journal.part, seen, journal.chain, seen,
                seal.stamp, seal.other(), soft, soft_until, clean, anchor_at, anchor,
            )
        )  # fmt: skip

    def _withdraw(self, block: bytes, at: int) -> None:
        """Make comments of the messages in a block that is above its place, where it is not looked for."""
        if at >= 0 and fs.pread(self.file, len(block), at) == block:
            for item in items(block, 0, at):
                fs.pwrite(self.file, b"#", item.offset)

    def write_seal(self, seal: Seal) -> None:
        """Say that all is well."""
        data = seal.dump()
        fs.pwrite(self._lock_fd, data, 0)
        self.seal, self._sealed = seal, data

    def failed(self, doing: str, error: OSError) -> Exception:
        """Return the error that says what could not be done; one of ours says it already."""
        return error if isinstance(error, QueueError) else access_error(self.directory.path, doing, error)


def read_all(fd: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, or all if it has become shorter."""
    pieces, at = [], 0
    while at < size and (data := fs.pread(fd, size - at, at)):
        pieces.append(data)
        at += len(data)
    return b"".join(pieces)
