"""The files of dirq's Simple format: one for each element, a hard link for each lock.

    DIR/ELEMENT         the element                 DIR/ELEMENT.lck     its lock: a second name of the same file
    DIR/ELEMENT.tmp     being written

Layer: layouts.  Touches: exactly these names, and empty DIR.
Invariant: a visible element is complete; no name is ever overwritten; a lock is never visible with an old time, so
that no purge of any implementation takes a fresh lock for a stale one.
Crash: leaves ELEMENT.tmp, or a lock that is honoured until it is stale; never half an element.

The time of the file is the time of the lock. It is also all that distinguishes one holder from the next, since
nothing else may be written down: the holder remembers it and looks again before it removes anything.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.dirq.names import ELEMENT, LOCK, TEMPORARY, element, elements, folder
from dirqueue.layouts.dirq.store import TRIES, Store, taken

#: A time with this fraction of a second was written by a consumer that tried to lock and may have failed: the
#: holder of the lock still holds it. Microseconds, because some filesystems keep no more.
TRYING_NS = 123_456_000
SECOND_NS = 1_000_000_000
#: An element younger than this is not touched before it is locked, only after: such a touch may be as old itself.
YOUNG_NS = 2 * SECOND_NS
#: What a file's mode says of its kind.
KIND, FILE = 0o170000, stat.S_IFREG


#: The time of a lock in nanoseconds, and what the element holds.
Taken = tuple[int, bytes | None]


class SimpleStore(Store):
    """The files of one queue."""

    def __init__(
        self, directory: Directory, *, sync: bool, granularity: int, digit: str = "", umask: int | None = None
    ) -> None:
        super().__init__(directory, sync=sync, digit=digit, umask=umask)
        self.granularity = granularity
        #: Whether the filesystem keeps the times of files to the nanosecond, once known: then nobody needs to look.
        self._exact = False

    # --- adding --------------------------------------------------------------------------------------------

    def add(self, data: bytes) -> str:
        """Write one element; return its name."""
        directory, digit, sync, mode = self.directory, self.digit, self.sync, self.file_mode
        if directory.fd < 0:
            self.make()
        where = folder(self.granularity)
        for _ in range(TRIES):
            new = f"{where}/{element(digit)}.tmp"
            try:
                fs.create(new, data, directory.fd, sync, mode)
            except FileNotFoundError:
                self._remake(where)
                continue
            except FileExistsError:
                continue
            try:
                if self.umask is not None:
                    fs.widen(new, mode, directory.fd)
                name = self._show(new, where)
            except FileNotFoundError:
                continue  # RACE: we were stopped for so long that a purge removed the unfinished file
            except OSError:
                fs.discard(new, directory.fd)
                raise
            # CRASH: until this the element has a second name, which every purge removes.
            fs.discard(new, directory.fd)
            return name
        raise taken()

    def _show(self, source: str, where: str) -> str:
        """Give a complete file its visible name and make that durable; the source stays."""
        fd = self.directory.fd
        for _ in range(TRIES):
            name = f"{where}/{element(self.digit)}"
            try:
                fs.link(source, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
            except FileExistsError:
                # NFS: done, reply lost, asked again: then both names are one file.
                if not (self.directory.mount.replies_can_be_lost and fs.same_file(source, name, fd)):
                    continue
            if self.sync:
                try:
                    self.directory.sync(where)
                except OSError:
                    fs.discard(name, fd)
                    raise
            return name
        raise taken()

    def _remake(self, where: str) -> None:
        """Make the intermediate directory, and the queue itself if that was removed."""
        try:
            self.make_directory(where)
        except FileNotFoundError:
            self.directory.remake()
            self.make_directory(where)

    def add_path(self, path: str) -> str:
        """Move a file of the same filesystem in; return its name. Mode, owner and time stay its own."""
        source = os.path.abspath(path)
        self.make()
        where = folder(self.granularity)
        for _ in range(TRIES):
            self._remake(where)
            try:
                name = self._show(source, where)
            except FileNotFoundError:
                # RACE: the empty directory was purged; unless it is the file itself that is not there.
                if not fs.exists(source, self.directory.fd):
                    raise
            else:
                fs.unlink(source)
                return name
        raise taken()

    # --- locking -------------------------------------------------------------------------------------------

    def take(self, name: str, shift_ns: int = 0) -> Taken | None:
        """Lock an element and read it; return the time of the lock and the data, or None if we cannot have it.

        `shift_ns` moves the time of the lock, so that others honour it for longer or shorter than they would. Data
        that is too long to be read with it is None.
        """
        try:
            fd = fs.open(name, fs.READ, dir_fd=self.directory.fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                return None  # a planted link or socket is no element
            raise
        try:
            facts = fs.fstat(fd)
            time_ns = self._lock(name, facts, shift_ns)
            if time_ns is None:
                return None
            size = facts.st_size
            try:
                return time_ns, fs.read(fd, size) if size < fs.CHUNK else None
            except OSError:
                self.unlock(name)
                raise
        finally:
            fs.close(fd)

    def lock(self, name: str) -> int | None:
        """Lock an element without reading it; return the time of the lock, or None if we cannot have it."""
        try:
            facts = fs.stat(name, dir_fd=self.directory.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._lock(name, facts, 0)

    def _lock(self, name: str, facts: os.stat_result, shift_ns: int) -> int | None:
        """Lock an element that looks like this; return the time of the lock.

        COST: the touch is the ninth call of claim, read and ack, 7 % of their CPU time on tmpfs. Without it two holders
        could share one time, and a late end of the first would take what the second holds.
        """
        lock, time_ns, fd = name + LOCK, facts.st_mtime_ns, self.directory.fd
        if facts.st_mode & KIND != FILE or (facts.st_nlink > 1 and fs.exists(lock, fd)):
            return None
        # RACE: judged now, not when the claim began: if others found it old meanwhile, their touch is not ours.
        young = time_ns >= time.time_ns() - YOUNG_NS
        if not young and not self._mark_try(name):
            return None
        try:
            fs.link(name, lock, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            return None
        try:
            return self._touch(name, shift_ns)
        except OSError:
            fs.discard(lock, fd)
            raise

    def _mark_try(self, name: str) -> bool:
        """Make an old element young before it is locked. Return False if it is gone.

        RACE: a purge that sees our link with the element's old time would take it away at once (all dirq
        implementations link first and touch later), so this touch comes before the link.
        """
        when = (time.time_ns() // SECOND_NS - 1) * SECOND_NS + TRYING_NS
        try:
            self._set_time(name, when)
        except FileNotFoundError:
            return False
        return True

    def _set_time(self, name: str, when: int) -> bool:
        """Set the time of a file. Return False if it is another user's, so that only "now" was allowed."""
        fd = self.directory.fd
        try:
            fs.utime(name, ns=(when, when), dir_fd=fd, follow_symlinks=False)
        except PermissionError:
            fs.utime(name, dir_fd=fd, follow_symlinks=False)
            return False
        return True

    def _touch(self, name: str, shift_ns: int) -> int | None:
        """Set the time of the lock that we have; return it in nanoseconds, or None if the lock is gone.

        Every lock gets a time of its own: it is all that tells a holder from the next.
        """
        lock, directory = name + LOCK, self.directory
        cached = directory.mount.attributes_are_cached
        try:
            if cached and not shift_ns:  # NFS: the server's clock is the one that all hosts agree on
                fs.utime(lock, dir_fd=directory.fd, follow_symlinks=False)
                when = fs.stat(lock, dir_fd=directory.fd, follow_symlinks=False).st_mtime_ns
                directory.learn(when)
                return when
            when = time.time_ns() + shift_ns
            if self._set_time(lock, when) and self._exact:
                return when
            kept = fs.stat(lock, dir_fd=directory.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return None  # RACE: taken away as soon as it was there
        self._exact = kept == when and not cached
        return kept

    def steal(self, name: str, limit_ns: int, shift_ns: int = 0) -> Taken | None:
        """Take over a lock whose time is before the limit; as `take`."""
        spare = self.break_lock(name, limit_ns)
        if spare is None:
            return None
        try:
            return self.take(name, shift_ns)
        finally:
            fs.discard(spare, self.directory.fd)

    def break_lock(self, name: str, limit_ns: int) -> str | None:
        """Take a stale lock away; return the name that it has now, or None if it was not stale after all.

        RACE: after we looked the holder may unlock and another consumer lock anew. So the lock is first renamed to a
        new name, which only one can do, and looked at again there; a live one is put back.
        """
        directory = self.directory
        spare = f"{name[:9]}{element(self.digit)}{TEMPORARY}"
        try:
            fs.rename(name + LOCK, spare, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
            facts = fs.stat(spare, dir_fd=directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if facts.st_mtime_ns < limit_ns:
            return spare
        try:
            # Not by a rename: onto another name of the same file it does nothing and reports success.
            fd = directory.fd
            fs.link(name, name + LOCK, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            pass  # RACE: locked anew, or removed with its lock
        finally:
            fs.discard(spare, directory.fd)
        return None

    def facts(self, name: str) -> os.stat_result | None:
        """Return the facts of a lock, or None if there is none."""
        try:
            return fs.stat(name + LOCK, dir_fd=self.directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def token(self, name: str) -> str | None:
        facts = self.facts(name)
        return None if facts is None else str(facts.st_mtime_ns)

    def ours(self, name: str, token: str) -> bool:
        try:
            time_ns = fs.stat(name + LOCK, dir_fd=self.directory.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return False
        return str(time_ns) == token or time_ns % SECOND_NS == TRYING_NS

    def locked_at(self, name: str) -> int | None:
        """Return when a lock was taken or renewed, in microseconds; None if there is none."""
        facts = self.facts(name)
        return None if facts is None else facts.st_mtime_ns // 1000

    def renew(self, name: str, token: str, shift_ns: int = 0) -> tuple[str, int] | None:
        """Make a lock new; return its new token and its time in microseconds, or None if it is not there."""
        if not self.ours(name, token):
            return None
        time_ns = self._touch(name, shift_ns)
        return None if time_ns is None else (str(time_ns), time_ns // 1000)

    def unlock(self, name: str) -> bool:
        try:
            fs.unlink(name + LOCK, dir_fd=self.directory.fd)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> bool:
        """Remove a locked element; False if it is gone already."""
        fd = self.directory.fd
        try:
            fs.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return False
        # CRASH: a lock without an element is left, and purged when it is stale. The other order would let another
        # consumer lock the element between the two.
        try:
            fs.unlink(name + LOCK, dir_fd=fd)
        except OSError:
            pass
        return True

    # --- looking and cleaning ------------------------------------------------------------------------------

    def look(self, where: str) -> tuple[list[str], list[str]]:
        """Return the elements of a directory: those without a lock, and those with one."""
        found = fs.names_in(where, self.directory.fd)
        everything = elements(found)
        if len(everything) == len(found):
            return everything, []
        locked = {name[:-4] for name in found if name.endswith(LOCK)}
        if not locked:
            return everything, []
        return [n for n in everything if n not in locked], [n for n in everything if n in locked]

    def count(self) -> int:
        return sum(len(self.elements(where)) for where in self.directories())

    def purge(self, old_temporary_ns: int, old_lock_ns: int) -> tuple[int, int, int]:
        temporary = locks = gone = 0
        directories = self.directories()
        for where in directories:
            try:
                found = fs.names_in(where, self.directory.fd)
            except (FileNotFoundError, NotADirectoryError):
                continue
            left = len(found)
            for name in found:
                if len(name) != 18 or not ELEMENT.fullmatch(name, 0, 14):
                    continue
                kind = name[14:]
                if kind == TEMPORARY and self._older(f"{where}/{name}", old_temporary_ns):
                    went = fs.discard(f"{where}/{name}", self.directory.fd)
                    temporary, left = temporary + went, left - went
                elif kind == LOCK and self._older(f"{where}/{name}", old_lock_ns):
                    spare = self.break_lock(f"{where}/{name[:14]}", old_lock_ns)
                    if spare is not None:
                        fs.discard(spare, self.directory.fd)
                        locks, left = locks + 1, left - 1
            if left == 0 and where != directories[-1]:
                gone += self.remove_if_empty(where)
        return temporary, locks, gone

    def _older(self, name: str, limit_ns: int) -> bool:
        if not limit_ns:
            return False
        try:
            return fs.stat(name, dir_fd=self.directory.fd, follow_symlinks=False).st_mtime_ns < limit_ns
        except FileNotFoundError:
            return False
