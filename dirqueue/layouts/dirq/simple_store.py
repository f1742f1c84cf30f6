"""The files of dirq's Simple format: one for each element, a hard link for each lock.

    DIR/ELEMENT         the element                 DIR/ELEMENT.lck     its lock: a second name of the same file
    DIR/ELEMENT.tmp     being written

Layer: layouts.  Touches: exactly these names, and empty DIR.
Invariant: a visible element is complete; no name is ever overwritten; a lock is never visible with an old time, so
that no purge of any implementation takes a fresh lock for a stale one.
Crash: leaves ELEMENT.tmp, or a lock that is honoured until it is stale; never half an element.

The time of the file is the time of the lock. It also tells one holder from the next, as well as that can be told
where nothing of ours may be written down: the holder remembers it and looks again before it removes anything.
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

#: A time with this fraction of a second was written by somebody who tried to lock and may have failed: whoever
#: holds the lock still holds it. Microseconds, because some filesystems keep no more.
TRYING_NS = 123_456_000
SECOND_NS = 1_000_000_000
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

    # --- adding --------------------------------------------------------------------------------------------

    def add(self, data: bytes) -> str:
        """Write one element; return its name."""
        directory, digit = self.directory, self.digit
        if directory.fd < 0:
            self.make()
        where = folder(self.granularity)
        for _ in range(TRIES):
            new = f"{where}/{element(digit)}.tmp"
            try:
                fs.create(new, data, directory.fd, self.sync)
            except FileNotFoundError:
                self._remake(where)
            except FileExistsError:
                pass
            else:
                if self.umask is not None:
                    self._chmod(new, fs.FILE_MODE)
                break
        else:
            raise taken()
        try:
            name = self._show(new, where)
        except OSError:
            fs.discard(new, directory.fd)
            raise
        # CRASH: until this the element has a second name, which every purge removes.
        fs.discard(new, directory.fd)
        return name

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

    def take(self, name: str, fresh_ns: int, shift_ns: int = 0) -> Taken | None:
        """Lock an element and read it; return the time of the lock and the data, or None if we cannot have it.

        A file whose time is younger than `fresh_ns` needs no touch. `shift_ns` moves the time of the lock, so that
        others honour it for longer or shorter than they would. Data that is too long to be read with it is None.
        """
        top = self.directory.fd
        try:
            fd = fs.open(name, fs.READ, dir_fd=top)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                return None  # a planted link or socket is no element
            raise
        try:
            facts = fs.fstat(fd)
            time_ns = facts.st_mtime_ns
            # RACE: judged now, not when the claim began: if others found it old meanwhile, their touch is not ours.
            old = time_ns < time.time_ns() - fresh_ns
            if facts.st_mode & KIND != FILE or (facts.st_nlink > 1 and fs.exists(name + LOCK, top)):
                return None
            if old:
                # RACE: a purge that sees our link with the element's old time would take it away at once (all dirq
                # implementations link first and touch later), so the touch comes first.
                self._touch_trying(fd)
            try:
                fs.link(name, name + LOCK, src_dir_fd=top, dst_dir_fd=top, follow_symlinks=False)
            except (FileExistsError, FileNotFoundError):
                return None
            if old or shift_ns:
                time_ns = self._touch(fd, shift_ns)
            return time_ns, self._read(fd, name, facts.st_size)
        finally:
            fs.close(fd)

    def _read(self, fd: int, name: str, size: int) -> bytes | None:
        """Return the data of an element that we have locked, or None if it is long; an error gives the lock back."""
        try:
            return fs.read(fd, size) if size < fs.CHUNK else None
        except OSError:
            self.unlock(name)
            raise

    def lock(self, name: str, fresh_ns: int) -> int | None:
        """Lock an element without reading it; return the time of the lock, or None if we cannot have it."""
        top = self.directory.fd
        try:
            facts = fs.stat(name, dir_fd=top, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if facts.st_mode & KIND == FILE and facts.st_mtime_ns >= time.time_ns() - fresh_ns:
            return facts.st_mtime_ns if self._link(name) else None
        taken = self.take(name, fresh_ns)
        return None if taken is None else taken[0]

    def _link(self, name: str) -> bool:
        fd = self.directory.fd
        try:
            fs.link(name, name + LOCK, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def _touch_trying(self, fd: int) -> None:
        when = (time.time_ns() // SECOND_NS - 1) * SECOND_NS + TRYING_NS
        try:
            fs.utime(fd, ns=(when, when))
        except PermissionError:
            fs.utime(fd)  # not our file: only "now" is allowed, and only if we may write to it

    def _touch(self, fd: int, shift_ns: int) -> int:
        """Set the time of the lock that we have; return what it is then, in nanoseconds."""
        if shift_ns:
            when = time.time_ns() + shift_ns
            try:
                fs.utime(fd, ns=(when, when))
            except PermissionError:
                fs.utime(fd)
        else:
            fs.utime(fd)
        time_ns = fs.fstat(fd).st_mtime_ns
        if self.directory.mount.attributes_are_cached and not shift_ns:
            self.directory.learn(time_ns)
        return time_ns

    def steal(self, name: str, limit_ns: int, shift_ns: int = 0) -> Taken | None:
        """Take over a lock whose time is before the limit; as `take`."""
        spare = self.break_lock(name, limit_ns)
        if spare is None:
            return None
        directory = self.directory
        try:
            fd = fs.open(name, fs.READ, dir_fd=directory.fd)
        except OSError:
            fs.discard(spare, directory.fd)  # a lock without its element: somebody died while removing
            return None
        try:
            self._touch_trying(fd)
            if not self._link(name):
                return None  # RACE: between the two names somebody else locked it
            return self._touch(fd, shift_ns), self._read(fd, name, fs.fstat(fd).st_size)
        finally:
            fs.close(fd)
            fs.discard(spare, directory.fd)

    def break_lock(self, name: str, limit_ns: int) -> str | None:
        """Take a stale lock away; return the name that it has now, or None if it was not stale after all.

        RACE: between our look and our hand the holder may unlock and somebody else lock anew. So the lock is first
        renamed to a name of ours, which only one can do, and looked at again there; a live one is put back.
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
            # Not by a rename: onto another name of the same file that does nothing, and says that it did.
            self._link(name)
        finally:
            fs.discard(spare, directory.fd)
        return None

    def facts(self, name: str) -> os.stat_result | None:
        """Return the facts of a lock, or None if there is none."""
        try:
            return fs.stat(name + LOCK, dir_fd=self.directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def ours(self, name: str, token: str) -> bool:
        """Whether the lock that was there at that time is still there."""
        facts = self.facts(name)
        if facts is None:
            return False
        return str(facts.st_mtime_ns) == token or facts.st_mtime_ns % SECOND_NS == TRYING_NS

    def locked_at(self, name: str) -> int | None:
        """Return when a lock was taken or renewed, in microseconds; None if there is none."""
        facts = self.facts(name)
        return None if facts is None else facts.st_mtime_ns // 1000

    def renew(self, name: str, token: str, shift_ns: int = 0) -> tuple[str, int] | None:
        """Make a lock new; return its new token and its time in microseconds, or None if it is not there."""
        if not self.ours(name, token):
            return None
        try:
            # By the name of the lock: an element without one must not get a new time.
            fd = fs.open(name + LOCK, fs.READ, dir_fd=self.directory.fd)
        except FileNotFoundError:
            return None
        try:
            time_ns = self._touch(fd, shift_ns)
        finally:
            fs.close(fd)
        # RACE: a lock that was taken away while we touched it is nobody's.
        return (str(time_ns), time_ns // 1000) if self.facts(name) else None

    def unlock(self, name: str) -> bool:
        """Take the lock away; whether there was one."""
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
        # CRASH: a lock without an element is left, and purged when it is stale. The other order would let somebody
        # else lock the element between the two.
        fs.discard(name + LOCK, fd)
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
