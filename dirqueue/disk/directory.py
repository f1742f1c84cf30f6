"""The directory of a queue, open: its descriptor, its mount, its clock.

Layer: disk.
All calls are relative to the descriptor, so a queue that is renamed while in use stays the same queue.
"""

from __future__ import annotations

import errno
import os
import threading

from dirqueue.disk import ballast, fs, mount
from dirqueue.disk.clock import Clock, OwnClock
from dirqueue.disk.fork import renew_in_child
from dirqueue.errors import QueueNotFound, access_error


class Descriptor(int):
    """The descriptor of an open directory; closed when its last reference goes.

    RACE: if it were closed while another thread is about to use it, its number could belong to another file by then.
    """

    __slots__ = ()

    def __del__(self) -> None:
        try:
            fs.close(self)
        except BaseException:  # noqa: BLE001, S110 - there is no caller to report to; at exit even `fs` may be gone
            pass


class Opener:
    """What `Directory.fd` is while no descriptor is open: it opens one, which hides it as the instance's own attribute.

    COST: a property would take 40 ns of every look at `fd`, __getattr__ 15 ns of every look at any attribute.
    """

    def __get__(self, directory: Directory, owner: type[Directory]) -> int:
        return directory._open()  # noqa: SLF001


class Directory:
    """An open queue directory; it is made by the first write."""

    #: What is watched for by whoever waits, by inotify(7): moved to, created, the directory itself deleted; once.
    events = 0x80 | 0x100 | 0x400 | 0x80000000
    #: The descriptor; -1 while there is no directory. After close() the next access opens the path again.
    fd = Opener()

    def __init__(self, path: str, *, create: bool = True) -> None:
        # Absolute, so that it stays the same queue when the process changes its working directory.
        self.path = os.path.abspath(path)
        self.create = create
        #: Whether the format is that of a peer: then the directory may contain only names of that format.
        self.foreign = False
        #: The umask for the directory and its missing parents; that of the process if None.
        self.umask: int | None = None
        self.mount: mount.Mount
        self.clock: Clock
        #: Changes whenever `fd` begins to mean another directory.
        self.generation = 0
        #: What `fd` is while it is open.
        self._opened: Descriptor | None = None
        self._lock = threading.RLock()
        renew_in_child(self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Directory({self.path!r})"

    def find(self) -> bool:
        """Open the directory if it exists; return whether it does."""
        return self.fd >= 0

    def _open(self) -> int:
        """Return the descriptor, or -1 if there is no directory. RACE: another thread may close it at once."""
        with self._lock:
            if self._opened is not None:
                return self._opened
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
            self.generation += 1
            self._opened = self.fd = descriptor
            return descriptor

    def lend(self) -> None:
        """Treat the directory as that of a peer from now on: create no files but messages."""
        self.foreign = True
        self.clock = OwnClock(self)

    def need(self) -> None:
        """Open the directory; QueueNotFound if it does not exist."""
        if not self.find():
            raise not_found(self.path)

    def make(self) -> None:
        """Open the directory; make it if it is missing and `create` allows that."""
        if not self.find():
            self.remake()

    def reopen(self) -> bool:
        """Switch to the directory that is at the path now; return False if there is none.

        RACE: other threads are using the descriptor, so it is not closed: dup2 makes it refer to the new directory in
        one step.
        """
        if self._opened is None:
            return self.find()
        try:
            new = fs.open(self.path, fs.DIRECTORY)
        except FileNotFoundError:
            return False
        try:
            fs.dup2(new, self.fd, inheritable=False)
            self.generation += 1
        finally:
            fs.close(new)
        self.mount = mount.of(self.fd, self.path)
        return True

    def remake(self) -> None:
        """Make the directory again after it was removed, and switch to it."""
        if self.reopen():
            return
        if not self.create:
            raise not_found(self.path)
        try:
            made = fs.make_directories(self.path, self.umask)
        except OSError as error:
            raise access_error(self.path, "make the queue", error) from error
        if not self.reopen():
            raise self._still_missing()
        self.keep_ballast()
        # RACE: a process that just created it may not have got as far as this.
        self._sync_parents(made or [os.path.abspath(self.path)])

    def _still_missing(self) -> QueueNotFound:
        """Return the error for a queue that was made, or whose name was taken, and that is not there."""
        if not fs.exists(self.path, -1):
            return not_found(self.path)
        return QueueNotFound(
            f"{self.path!r} is a symbolic link that leads nowhere: remove it, or make the directory that it names",
            path=self.path,
        )

    def learn(self, mtime_ns: int) -> None:
        """Correct the clock by the time that the server has just given a file (NFS: its clock may differ)."""
        if isinstance(self.clock, OwnClock):
            self.clock.learn(mtime_ns)

    def _sync_parents(self, made: list[str]) -> None:
        """Make the names of the queue and of its new parents durable; if that fails, remove the queue again."""
        for path in made:
            try:
                fs.sync_directory(os.path.dirname(path), self.fd)
            except PermissionError:
                pass  # an unreadable parent: its durability is up to its owner
            except OSError as error:
                fs.discard(ballast.NAME, self.fd)
                self.close()
                fs.remove_directory(self.path, -1)
                raise access_error(self.path, "make the queue", error) from error

    def keep_ballast(self) -> None:
        """Reserve some space for when the disk is full."""
        if not self.foreign:
            ballast.keep(self)

    def move(self, src: str, dst: str) -> None:
        """Rename the exact `src` to a name that no other process can create; on a full disk drop the ballast first."""
        rename = fs.move if self.mount.replies_can_be_lost else fs.rename_in
        try:
            rename(src, dst, self.fd)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.drop_ballast():
                raise
            rename(src, dst, self.fd)

    def removed(self) -> bool:
        """Return whether the open directory was removed from the filesystem; it then lists as empty."""
        try:
            return fs.fstat(self.fd).st_nlink == 0
        except OSError as error:
            return error.errno == errno.ESTALE

    def drop_ballast(self) -> bool:
        """Drop the reserve; return whether there was one."""
        return not self.foreign and ballast.drop(self)

    def sync(self, folder: str = ".", *more: str) -> None:
        """Make the names in the queue, or in some of its directories, durable, one after the other.

        CRASH: where a flush of one directory shows what was renamed into it, but not that it left another one, any
        flush can give two names to a message that anybody moved before. There all of the filesystem is flushed.
        """
        if self.mount.renames_are_flushed_apart:
            return fs.syncfs(self.fd)
        for each in (folder, *more):
            if each == ".":
                fs.sync_fd(self.fd)
            else:
                fs.sync_directory(each, self.fd)
        return None

    def close(self) -> None:
        """Release the descriptor; the next use opens the path again."""
        with self._lock:
            try:
                del self.fd
            except AttributeError:
                pass  # not open
            self._opened = None


def not_found(path: str) -> QueueNotFound:
    """Return the error for a queue that does not exist."""
    return QueueNotFound(f"there is no queue at {path!r}: put() or create() makes one", path=path)
