"""The directory of a queue, open: its descriptor, its mount, its clock.

Layer: above fs, below layouts.
Everything is done relative to the descriptor, so a queue that is renamed while in use stays the same queue.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading

from dirqueue.disk import fs, mount
from dirqueue.disk.clock import Clock, OwnClock
from dirqueue.errors import QueueNotFound, access_error

#: Reserved space, given up when a claim meets a full disk.
BALLAST = ".ballast"


class Directory:
    """An open queue directory; made when first written to."""

    fd = -1

    def __init__(self, path: str, *, create: bool = True) -> None:
        # Absolute, so that it stays the same queue when the process changes its directory.
        self.path = os.path.abspath(path)
        self.create = create
        #: Whether the format is somebody else's: then nothing may lie in the directory but its own names.
        self.foreign = False
        #: The umask for the directory and what is missing above it; that of the process if None.
        self.umask: int | None = None
        self.fd = -1
        #: Directories in it that producers may be putting to, by the last look: who waits watches them too.
        self.inner: list[str] = []
        #: The name that came and ended a wait, for the next look: a hint.
        self.arrived = ""
        self.mount: mount.Mount
        self.clock: Clock
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Directory({self.path!r})"

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(BaseException):  # whatever it is, nobody is left to tell
                fs.close(self.fd)

    def find(self) -> bool:
        """Open the directory if it is there; whether it is."""
        if self.fd >= 0:
            return True
        with self._lock:
            if self.fd >= 0:
                return True
            try:
                fd = fs.open(self.path, fs.DIRECTORY)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise access_error(self.path, "open the queue", error) from error
            try:
                self.mount = mount.of(fd, self.path)
            except OSError as error:
                fs.close_quietly(fd)
                raise access_error(self.path, "open the queue", error) from error
            self.clock = OwnClock(fd) if self.foreign else Clock(fd)
            self.fd = fd
        return True

    def lend(self) -> None:
        """Keep no file of ours in here from now on."""
        self.foreign = True
        if self.fd >= 0:
            self.clock = OwnClock(self.fd)

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
        if self.fd < 0:
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
                fs.discard(BALLAST, self.fd)
                self.close()
                fs.remove_directory(self.path, -1)
                raise access_error(self.path, "make the queue", error) from error

    def keep_ballast(self) -> None:
        """Reserve a little space for bad times. No room, or no right, is no error: it is only a reserve."""
        if self.foreign or not self.mount.ballast or fs.exists(BALLAST, self.fd):
            return
        try:
            fd = fs.open(BALLAST, fs.CREATE, fs.FILE_MODE, dir_fd=self.fd)
        except OSError:
            return
        try:
            fs.fallocate(fd, self.mount.ballast)
        except OSError:
            fs.discard(BALLAST, self.fd)
        finally:
            fs.close(fd)

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
        """Give the reserve up; whether there was one."""
        if self.foreign or not fs.discard(BALLAST, self.fd):
            return False
        try:
            fs.syncfs(self.fd)  # btrfs gives freed space away only after it has committed
        except (OSError, NotImplementedError):
            pass
        return True

    def sync(self, folder: str = ".") -> None:
        """Make the names in the queue, or in a directory of it, durable."""
        if folder == ".":
            fs.sync_fd(self.fd)
        else:
            fs.sync_directory(folder, self.fd)

    def close(self) -> None:
        """Let go of the descriptor; the next use opens the path again."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            fs.close_quietly(fd)


def not_found(path: str) -> QueueNotFound:
    """Return the error for a queue that is not there."""
    return QueueNotFound(f"there is no queue at {path!r}: put() or create() makes one", path=path)
