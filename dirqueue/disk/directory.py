"""The directory of a queue, open: its descriptor, its mount, its clock.

Layer: disk.
Everything is done relative to the descriptor, so a queue that is renamed while in use stays the same queue.
"""

from __future__ import annotations

import errno
import os
import threading

from dirqueue.disk import ballast, fs, mount
from dirqueue.disk.clock import Clock, OwnClock
from dirqueue.disk.fork import renew_in_child
from dirqueue.errors import QueueNotFound, access_error

BALLAST = ballast.NAME


class Descriptor(int):
    """An open directory's number; closed when the last one who uses it lets go of it.

    RACE: a number that is closed while another thread is about to use it may by then be another file's.
    """

    __slots__ = ()

    def __del__(self) -> None:
        try:
            fs.close(self)
        except BaseException:  # noqa: BLE001, S110 - nobody is left to report it to; at exit even `fs` may be gone
            pass


class Directory:
    """An open queue directory; made when first written to."""

    #: The descriptor; -1 while there is no directory. After close() the next look at it opens the path again.
    fd: int

    def __init__(self, path: str, *, create: bool = True) -> None:
        # Absolute, so that it stays the same queue when the process changes its directory.
        self.path = os.path.abspath(path)
        self.create = create
        #: Whether the format is a peer's: then nothing may lie in the directory but its own names.
        self.foreign = False
        #: The umask for the directory and what is missing above it; that of the process if None.
        self.umask: int | None = None
        self.mount: mount.Mount
        self.clock: Clock
        self._lock = threading.RLock()
        renew_in_child(self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Directory({self.path!r})"

    def __getattr__(self, name: str) -> int:
        # COST: a property would take 40 ns of every call; this runs only while no descriptor is open.
        if name != "fd":
            raise AttributeError(f"'Directory' object has no attribute {name!r}")
        return self._open()

    def find(self) -> bool:
        """Open the directory if it is there; return whether it is."""
        return "fd" in self.__dict__ or self._open() >= 0

    def _open(self) -> int:
        """Return the descriptor, -1 if there is no directory. RACE: another thread may close it at once."""
        with self._lock:
            descriptor: int | None = self.__dict__.get("fd")
            if descriptor is not None:
                return descriptor
            try:
                fd = fs.open(self.path, fs.DIRECTORY)
            except FileNotFoundError:
                return -1
            except OSError as error:
                raise access_error(self.path, "open the queue", error) from error
            descriptor = Descriptor(fd)
            try:
                self.mount = mount.of(descriptor, self.path)
            except OSError as error:
                raise access_error(self.path, "open the queue", error) from error
            self.clock = OwnClock(self) if self.foreign else Clock(self)
            self.fd = descriptor
            return descriptor

    def lend(self) -> None:
        """Keep no file of ours in here from now on."""
        self.foreign = True
        self.clock = OwnClock(self)

    def need(self) -> None:
        """Open the directory; QueueNotFound if it is not there."""
        if not self.find():
            raise not_found(self.path)

    def make(self) -> None:
        """Open the directory, made first if it is missing and may be made."""
        if not self.find():
            self.remake()

    def reopen(self) -> bool:
        """Turn to the directory that is at the path now; False if there is none.

        RACE: other threads are using the descriptor, so it is never closed here: its number changes what it
        means in one step.
        """
        if "fd" not in self.__dict__:
            return self.find()
        try:
            new = fs.open(self.path, fs.DIRECTORY)
        except FileNotFoundError:
            return False
        try:
            fs.dup2(new, self.fd, inheritable=False)
        finally:
            fs.close(new)
        self.mount = mount.of(self.fd, self.path)
        return True

    def remake(self) -> None:
        """Make the directory again after somebody removed it, and turn to it."""
        if self.reopen():
            return
        if not self.create:
            raise not_found(self.path)
        try:
            made = fs.make_directories(self.path, self.umask)
        except OSError as error:
            raise access_error(self.path, "make the queue", error) from error
        if not self.reopen():
            raise not_found(self.path)
        self.keep_ballast()
        # RACE: if somebody else just made it, they may not have got as far as this.
        self._sync_parents(made or [os.path.abspath(self.path)])

    def learn(self, mtime_ns: int) -> None:
        """Take note of the time that the server gave a file just now (NFS: its clock is not ours)."""
        if isinstance(self.clock, OwnClock):
            self.clock.learn(mtime_ns)

    def _sync_parents(self, made: list[str]) -> None:
        """Make the names of the queue and of what was made above it durable; if that fails, it was not made."""
        for path in made:
            try:
                fs.sync_directory(os.path.dirname(path), self.fd)
            except PermissionError:
                pass  # a parent we may not read; whoever made it answers for it
            except OSError as error:
                fs.discard(ballast.NAME, self.fd)
                self.close()
                fs.remove_directory(self.path, -1)
                raise access_error(self.path, "make the queue", error) from error

    def keep_ballast(self) -> None:
        """Reserve a little space for a full disk."""
        if not self.foreign:
            ballast.keep(self)

    def move(self, src: str, dst: str) -> None:
        """Rename the exact `src` to a name that nobody else can make; a full disk costs only the ballast."""
        rename = fs.move if self.mount.replies_can_be_lost else fs.rename_in
        try:
            rename(src, dst, self.fd)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.drop_ballast():
                raise
            rename(src, dst, self.fd)

    def removed(self) -> bool:
        """Whether the open directory is not in the filesystem any more: it lists as empty then."""
        try:
            return fs.fstat(self.fd).st_nlink == 0
        except OSError as error:
            return error.errno == errno.ESTALE

    def drop_ballast(self) -> bool:
        """Give the reserve up; return whether there was one."""
        return not self.foreign and ballast.drop(self)

    def sync(self, folder: str = ".") -> None:
        """Make the names in the queue, or in a directory of it, durable."""
        if folder == ".":
            fs.sync_fd(self.fd)
        else:
            fs.sync_directory(folder, self.fd)

    def close(self) -> None:
        """Let go of the descriptor; the next use opens the path again."""
        self.__dict__.pop("fd", None)


def not_found(path: str) -> QueueNotFound:
    """Return the error for a queue that is not there."""
    return QueueNotFound(f"there is no queue at {path!r}: put() or create() makes one", path=path)
