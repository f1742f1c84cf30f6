"""The home of a queue that is one file: the file, and a hidden directory beside it.

    NAME                    the queue
    .NAME.dirqueue/         what the format of the file has no place for

Layer: disk.
Only a change makes the directory: without it the file is a complete queue in which nothing is held. So `find` asks for
the file, and `fd` is -1 while there is no directory.
"""

from __future__ import annotations

import errno
import os
from fcntl import F_UNLCK, F_WRLCK
from stat import S_ISDIR, S_ISLNK, S_ISREG

from dirqueue.disk import fs, mount
from dirqueue.disk.clock import Clock
from dirqueue.disk.directory import Descriptor, Directory, not_found
from dirqueue.errors import LayoutError, access_error

PREFIX, SUFFIX = ".", ".dirqueue"


def side_of(path: str) -> str:
    """Return the path of the directory beside a file."""
    above, name = os.path.split(os.path.abspath(path))
    return os.path.join(above, f"{PREFIX}{name}{SUFFIX}")


def file_of(side: str) -> str:
    """Return the name of the file that a directory of that name is beside of; empty if it is none."""
    if not (side.startswith(PREFIX) and side.endswith(SUFFIX)):
        return ""
    return side[len(PREFIX) : -len(SUFFIX)]


def is_home(path: str) -> bool:
    """Return whether there is a file at the path, or was one a moment ago: an editor may be replacing it."""
    try:
        return not S_ISDIR(fs.stat(path, follow_symlinks=True).st_mode)
    except FileNotFoundError:
        return fs.exists(side_of(path), -1)
    except OSError:
        return False


class Beside(Directory):
    """The directory beside a file that is a queue; `path` is that of the file."""

    #: Modified, attributes (the last link of a file that was replaced), deleted, moved away; once.
    events = 0x2 | 0x4 | 0x400 | 0x800 | 0x80000000

    def __init__(self, path: str, *, create: bool = True) -> None:
        super().__init__(path, create=create)
        self.side = side_of(path)
        # Until the directory is there, the clock of this machine is asked.
        self.clock = Clock(self)

    def __repr__(self) -> str:
        return f"Beside({self.path!r})"

    def find(self) -> bool:
        """Return whether the file exists.

        Raises:
            LayoutError: something else than a file has its name.
        """
        try:
            kind = fs.stat(self.path, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise access_error(self.path, "open the queue", error) from error
        if not S_ISREG(kind):
            raise not_a_file(self.path, kind)
        self.fd  # noqa: B018 - looks for the directory
        return True

    def _open(self) -> int:
        with self._lock:
            if self._opened is not None:
                return self._opened
            try:
                fd = fs.open(self.side, fs.DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                if "mount" not in self.__dict__:
                    self.mount = self._mount()
                return -1
            except OSError as error:
                raise access_error(self.side, "open", error) from error
            descriptor = Descriptor(fd)
            try:
                self.mount = mount.of(descriptor, self.side)
            except OSError as error:
                raise access_error(self.side, "open", error) from error
            self.clock = Clock(self)
            self._opened = self.fd = descriptor
            return descriptor

    def _mount(self) -> mount.Mount:
        """Return the mount that the file is on, or will be."""
        above = os.path.dirname(self.path)
        while not fs.exists(above, -1):
            above = os.path.dirname(above)
        try:
            return mount.Mount(mount.fstype_of(fs.stat(above).st_dev, above))
        except OSError:
            return mount.Mount("unknown")

    def need_locks(self) -> None:
        """Raise LayoutError where a lock may bind this host only."""
        # NFS: two hosts that each hold "the" lock would write over each other's lines. A rename needs no lock.
        self.fd  # noqa: B018 - looks for the directory, and at its mount
        if self.mount.locks_may_be_local:
            raise LayoutError(
                f"cannot change {self.path!r}: it is on a network filesystem ({self.mount.fstype}), where a lock may "
                "bind one host only; keep a text queue on a local disk, or use a directory, which needs no lock",
                path=self.path,
            )

    def make(self) -> None:
        """Open the directory; make it if it is missing."""
        if self.fd < 0:
            self.remake()

    def remake(self) -> None:
        """Make the directory, with the rights of the file's own directory, and open it."""
        self.close()
        if not self.create and not self.find():
            raise not_found(self.path)
        above = os.path.dirname(self.path)
        try:
            made: list[str] = []
            try:
                fd = fs.open(above, fs.DIRECTORY)
            except FileNotFoundError:
                made = fs.make_directories(above, self.umask)
                fd = fs.open(above, fs.DIRECTORY)
            try:
                made += [self.side] if fs.make_inner(os.path.basename(self.side), fd) else []
            finally:
                fs.close(fd)
        except OSError as error:
            raise access_error(self.path, "make the queue", error) from error
        self.close()
        if self.fd < 0:
            raise not_found(self.path)
        self.keep_ballast()
        for path in made:
            try:
                fs.sync_directory(os.path.dirname(path), -1)
            except PermissionError:
                pass  # an unreadable parent: its durability is up to its owner
            except OSError as error:
                raise access_error(self.path, "make the queue", error) from error

    def reopen(self) -> bool:
        """Switch to the directory that is at the path now; return False if there is none."""
        self.close()
        return self.fd >= 0

    def removed(self) -> bool:
        """Return False: whoever looks opens the file by its path."""
        return False

    def sync(self, folder: str = ".", *more: str) -> None:
        """Make the name of the file durable."""
        fs.sync_directory(os.path.dirname(self.path), -1)


def not_a_file(path: str, kind: int) -> LayoutError:
    """Return the error for what is not a regular file."""
    if S_ISLNK(kind):
        what = "a symbolic link: give the path of the file itself, because editors replace a link by a file"
    elif S_ISDIR(kind):
        what = (
            "a directory, and a text queue is a file: name the layout that the directory has, or leave it out"
        )
    else:
        what = "a fifo, socket or device, and a text queue is a regular file"
    return LayoutError(f"{path!r} is {what}", path=path)


def opened(path: str, flags: int) -> int:
    """Open the file of a queue; it must be a regular one.

    Raises:
        FileNotFoundError: there is none.
        LayoutError: something else has its name.
    """
    for _ in range(PATIENCE):
        try:
            fd = fs.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except BlockingIOError:
            # RACE: the file is reserved for a moment (fs.reserve), and O_NONBLOCK, for fifos, does not wait.
            _wait()
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise not_a_file(path, fs.stat(path, follow_symlinks=False).st_mode) from None
            raise
    else:
        fd = fs.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    return fd


_AT_END: int | None = getattr(os, "RWF_APPEND", None)


def append(fd: int, data: bytes) -> int:
    """Write at the end of the file, wherever that is by now; return how much was written."""
    if _AT_END is None:  # COMPAT: not Linux; a program that does not lock may then write to the same place
        return fs.pwrite(fd, data, fs.fstat(fd).st_size)
    return fs.pwritev(fd, [data], 0, _AT_END)


def reserve(fd: int) -> bool | None:
    """Make other programs wait when they open the file, until it is closed here.

    Return False if one of them has it open, None where the filesystem or the owner of the file does not allow it.
    """
    try:
        # The kernel sends a signal when another program wants to open it: SIGIO would end the process.
        fs.fcntl(fd, _SET_SIGNAL, _URGENT)
        fs.fcntl(fd, _SET_LEASE, F_WRLCK)
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    return True


def unreserve(fd: int) -> None:
    """Let other programs open the file again."""
    try:
        fs.fcntl(fd, _SET_LEASE, F_UNLCK)
    except OSError:
        pass  # it was not reserved


#: fcntl(2) and signal(7) in Linux; elsewhere they are refused. SIGURG does nothing, unless a program wants it.
_SET_SIGNAL, _SET_LEASE, _URGENT = 10, 1024, 23
#: How often a reserved file is tried before the kernel is asked to wait, and how long between two tries.
PATIENCE = 40
PAUSE = 0.0005


def _wait() -> None:
    import time

    time.sleep(PAUSE)
