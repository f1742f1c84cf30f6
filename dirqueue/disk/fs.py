"""Every filesystem call of the package; no other module makes one.

Layer: above pure values, below everything.
The first part binds the bare calls by name. All modules call through this one, so a test can replace `fs.rename` (to
count it, fail it, kill at it or schedule it) for the whole package. The second part holds the few sequences of calls
that must be right in one place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl as _fcntl
import os
import sys
from collections.abc import Iterator
from stat import S_IMODE, S_ISREG
from typing import Any, BinaryIO

#: The bare calls, for tests that replace them.
CALLS = (
    "chmod", "close", "dup2", "fallocate", "fstat", "fsync", "link", "listdir", "mkdir", "open", "read", "readlink",
    "rename", "rename_noreplace", "rmdir", "scandir", "stat", "symlink", "syncfs", "unlink", "utime", "write",
    "fcntl", "flock", "ftruncate", "pread", "pwrite", "pwritev",
)  # fmt: skip

chmod = os.chmod
close = os.close
dup2 = os.dup2
fstat = os.fstat
link = os.link
listdir = os.listdir
mkdir = os.mkdir
open = os.open
read = os.read
readlink = os.readlink
rename = os.rename
rmdir = os.rmdir
scandir = os.scandir
stat = os.stat
statvfs = os.statvfs
symlink = os.symlink
unlink = os.unlink
utime = os.utime
write = os.write
fcntl, flock = _fcntl.fcntl, _fcntl.flock
ftruncate = os.ftruncate
pread = os.pread
pwrite = os.pwrite
pwritev = os.pwritev

#: Create a file: never through a planted link, never one that exists.
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: A message: never through a link, and a planted fifo must not block us.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: One that is read once. COST: to keep its time of access takes 0.5 of 15 µs (tmpfs), 1.4 of 28 (ext4) or 1.8 of 26
#: (xfs) of claim, read and ack. Only the owner of a file may do without (else EPERM). COMPAT: Linux only.
READ_ONCE = READ | getattr(os, "O_NOATIME", 0)
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: NFS: what a server says of an open file that another host has removed or replaced; nfs-ganesha also "server fault",
#: as kernels and libnfs tell it. So often at most a file is read again.
STALE = frozenset((errno.ESTALE, getattr(errno, "EREMOTEIO", errno.ESTALE), errno.EFAULT))
STALE_TRIES = 5
#: A body below this size takes one read, so 64 KiB are read at once; a longer one takes more.
CHUNK = 65537

ENCODING, ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

FILE_MODE = 0o666
PRIVATE_MODE = 0o600
DIR_MODE = 0o777


def rename_noreplace(src: str, dst: str, dir_fd: int) -> None:
    """Rename within a directory; FileExistsError if `dst` exists, NotImplementedError if the kernel cannot."""
    libc = _libc or _load_libc()
    call = libc.renameat2
    if call is None:
        raise NotImplementedError
    # Inlined os.fsencode: every put runs this line.
    if call(dir_fd, src.encode(ENCODING, ERRORS), dir_fd, dst.encode(), 1):
        libc.fail(src, dst)


def syncfs(fd: int) -> None:
    """Flush the whole filesystem that `fd` is on; NotImplementedError if there is no such call."""
    libc = _libc or _load_libc()
    if libc.syncfs is None:
        raise NotImplementedError
    if libc.syncfs(fd):
        libc.fail("syncfs", None)


def fallocate(fd: int, size: int) -> None:
    """Reserve real space for a file."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    while size > 0:  # COMPAT: macOS lacks the call
        size -= write(fd, bytes(min(size, CHUNK)))


def full_fsync(fd: int) -> None:
    """Flush a file to the medium. COMPAT: macOS's fsync leaves it in the cache of the drive."""
    try:
        fcntl(fd, FULL_FSYNC)
    except OSError:
        os.fsync(fd)  # a filesystem that cannot; if the medium failed, this fails too


#: How macOS flushes the drive as well; 0 where fsync does that.
FULL_FSYNC: int = getattr(_fcntl, "F_FULLFSYNC", 0)
fsync = full_fsync if FULL_FSYNC else os.fsync


_libc: Any = None


def _load_libc() -> Any:
    global _libc
    from dirqueue.disk.libc import Libc  # COST: ctypes takes milliseconds; only publishing needs it

    _libc = Libc()
    return _libc


# --- sequences ---------------------------------------------------------------------------------------------


def create(name: str, data: bytes, dir_fd: int, sync: bool, mode: int = FILE_MODE) -> None:
    """Write a new file completely or leave none: it must not exist, and any error removes it."""
    fill(open(name, CREATE, mode, dir_fd=dir_fd), name, data, dir_fd, sync)


def fill(fd: int, name: str, data: bytes, dir_fd: int, sync: bool) -> None:
    """Write a file that was just created and close it; any error removes it."""
    try:
        done = write(fd, data)
        while done < len(data):
            done += _write_on(fd, memoryview(data)[done:])
        if sync:
            fsync(fd)  # after a failed fsync the pages look clean: never again, the file goes
    except BaseException:
        close_quietly(fd)
        discard(name, dir_fd)
        raise
    try:
        close(fd)
    except OSError:
        # NFS: a write may fail as late as here. The descriptor is closed nevertheless.
        discard(name, dir_fd)
        raise


def _write_on(fd: int, rest: memoryview) -> int:
    more = write(fd, rest)
    if more == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return more


def read_file(name: str, dir_fd: int, guess: int = CHUNK) -> bytes:
    """Return the whole file: in one read if it is shorter than `guess`; a `guess` of 0 asks for its size first.

    NFS: FileNotFoundError also if another host removes it meanwhile; of one that is replaced, the new one is read.
    """
    left = STALE_TRIES
    while True:
        left -= 1
        fd = open(name, READ, dir_fd=dir_fd)
        try:
            return _read_all(fd, guess)
        except OSError as error:
            if error.errno not in STALE or not left:
                raise
        finally:
            close(fd)


def _read_all(fd: int, guess: int) -> bytes:
    # One read returns at most two gigabytes, which is less than asked for and looks like the end of the file.
    guess = guess or min(fstat(fd).st_size + 1, 1 << 30)
    data = read(fd, guess)
    if len(data) < guess:
        return data
    pieces = [data]
    while data := read(fd, 16 * CHUNK):
        pieces.append(data)
    return b"".join(pieces)


def replace_file(name: str, data: bytes, dir_fd: int, *, sync: bool, mode: int = FILE_MODE) -> None:
    """Replace a small file: readers see the old one or the new one."""
    temporary = name + ".new"
    discard(temporary, dir_fd)
    create(temporary, data, dir_fd, sync=sync, mode=mode)
    rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def discard(name: str, dir_fd: int) -> bool:
    """Unlink a file and return whether that succeeded; errors are ignored, since the caller is giving up."""
    try:
        unlink(name, dir_fd=dir_fd)
    except OSError:
        return False
    return True


def rename_in(src: str, dst: str, dir_fd: int) -> None:
    """Rename within a directory."""
    rename(src, dst, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def move(src: str, dst: str, dir_fd: int) -> None:
    """Rename the exact `src` to a `dst` that no other process can create; FileNotFoundError if `src` is missing.

    NFS: the server may have done it and the reply may be lost; the repeated call then fails with ENOENT. Since no other
    process creates `dst`, its presence proves success.
    """
    try:
        rename(src, dst, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except FileNotFoundError:
        if not exists(dst, dir_fd):
            raise


def exists(name: str, dir_fd: int) -> bool:
    """Return whether anything of that name exists."""
    try:
        stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_file(name: str, dir_fd: int) -> bool:
    """Return whether there is a regular file of that name."""
    try:
        return S_ISREG(stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def umask() -> int:
    """Return the umask of the process without a moment in which it is another; 0o077 where that cannot be known."""
    try:
        text = read_file("/proc/self/status", -1)
    except OSError:
        return 0o077  # not Linux
    found = text.partition(b"Umask:")[2].split(None, 1)
    return int(found[0], 8) if found else 0o077


def same_file(one: str, other: str, dir_fd: int) -> bool:
    """Return whether two names are the same file; False if either is missing."""
    try:
        first = stat(one, dir_fd=dir_fd, follow_symlinks=False)
        second = stat(other, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def size_of(name: str, dir_fd: int) -> int:
    """Return the size of a file as stat reports it; that of a link is the length of its target."""
    return stat(name, dir_fd=dir_fd, follow_symlinks=False).st_size


def served_size(name: str, dir_fd: int) -> int:
    """Return the size of a file on its server, not the size cached by this host.

    NFS, FUSE: an ordinary stat may return attributes that this host cached when it wrote the file.
    """
    libc = _libc or _load_libc()
    if libc.statx is not None:
        facts = bytearray(256)
        buffer = libc.buffer(facts)
        if libc.statx(dir_fd, name.encode(), _FORCE_SYNC | _NOFOLLOW, _STATX_SIZE, buffer) == 0:
            return int.from_bytes(facts[40:48], sys.byteorder)
        if libc.get_errno() == errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return size_of(name, dir_fd)


#: statx(2): ask the server, do not follow links, request only the size (bytes 40 to 48 of the result).
_FORCE_SYNC, _NOFOLLOW, _STATX_SIZE = 0x2000, 0x100, 0x200


def mtime_of(name: str, dir_fd: int) -> float:
    """Return when a file or directory was last changed."""
    return stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mtime


def make_directory(path: str, dir_fd: int | None = None, umask: int | None = None) -> bool:
    """Make one directory and return whether it is new; an existing one is no error.

    With `umask` the mode does not depend on the umask of the process, which threads share; it is never too wide.
    """
    mode = DIR_MODE if umask is None else DIR_MODE & ~umask
    try:
        mkdir(path, mode, dir_fd=dir_fd)
    except FileExistsError:
        return False
    if umask is not None:
        widen(path, mode, dir_fd)
    return True


def make_inner(path: str, dir_fd: int) -> bool:
    """Make a directory inside an open one, with the same mode whatever the umask; return whether it is new.

    So all users of the outer one can use the inner one. If the filesystem refuses, the mode is that of the umask.
    """
    if not make_directory(path, dir_fd):
        return False
    try:
        wanted = S_IMODE(fstat(dir_fd).st_mode)
        fd = open(path, DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            if S_IMODE(fstat(fd).st_mode) != wanted:
                chmod(fd, wanted)
        finally:
            close(fd)
    except OSError:
        pass  # RACE: it was empty, and another process has already removed it
    return True


def widen(path: str, mode: int, dir_fd: int | None) -> None:
    """Give a new file or directory the bits of `mode` that the umask of the process removed."""
    found = stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
    if mode & ~found:
        chmod(path, (found & 0o7777) | mode, dir_fd=dir_fd)


def make_directories(path: str, umask: int | None = None) -> list[str]:
    """Make a directory and its missing parents; return the paths that were missing."""
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path) and path not in missing:
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        make_directory(each, umask=umask)
    return missing


def remove_directory(name: str, dir_fd: int) -> bool:
    """Remove a directory if it is empty and return whether it was removed; a full or missing one is no error."""
    try:
        rmdir(name, dir_fd=dir_fd)
    except OSError as error:
        # NFS: the .nfsXXXX of a file that is still open keeps the directory from being removed for a while.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY, errno.ENOTDIR):
            return False
        raise
    return True


def remove_quietly(name: str, dir_fd: int) -> None:
    """Remove an empty directory while tidying up; after an error it is left to the next purge."""
    try:
        rmdir(name, dir_fd=dir_fd)
    except OSError:
        pass


def remove_tree(name: str, dir_fd: int) -> int:
    """Remove a directory with all its contents; return the number of files removed.

    After an error the rest is left to the next purge.
    """
    count = 0
    try:
        for entry in list(listing(name, dir_fd)):
            path = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                count += remove_tree(path, dir_fd)
            else:
                count += discard(path, dir_fd)
        remove_directory(name, dir_fd)
    except OSError:
        pass
    return count


def sync_directory(name: str, dir_fd: int) -> None:
    """Make the names in a directory durable."""
    fd = open(name, DIRECTORY, dir_fd=dir_fd)
    try:
        sync_fd(fd)
    finally:
        close(fd)


def sync_fd(fd: int) -> None:
    """Make the names in an open directory durable, if the filesystem supports it."""
    try:
        fsync(fd)
    except OSError as error:
        # COMPAT: some network and FUSE filesystems refuse fsync on a directory; only their server can do it.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF):
            raise


@contextlib.contextmanager
def entries(name: str, dir_fd: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Open a directory for one pass, with a separate descriptor: threads must not share a position."""
    try:
        fd = open(name, DIRECTORY, dir_fd=dir_fd)
        try:
            with scandir(fd) as found:
                yield found
        finally:
            close(fd)
    except OSError as error:
        # NFS: another host removed the directory, and this one still has it cached.
        if error.errno == errno.ESTALE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
        raise


def listing(name: str, dir_fd: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory; their types stay known after it is closed."""
    with entries(name, dir_fd) as found:
        for entry in found:
            # COMPAT: some FUSE filesystems report no types; then stat each entry while the directory is open.
            if not (
                entry.is_file(follow_symlinks=False)
                or entry.is_dir(follow_symlinks=False)
                or entry.is_symlink()
            ):
                try:
                    entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # RACE: removed since it was listed
            yield entry


def names_in(name: str, dir_fd: int) -> list[str]:
    """Return only the names in a directory."""
    fd = open(name, DIRECTORY, dir_fd=dir_fd)
    try:
        return listdir(fd)
    finally:
        close(fd)


def directories_in(name: str, dir_fd: int) -> list[str]:
    """Return the names of the directories in a directory; a link to one is none."""
    with entries(name, dir_fd) as found:
        return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


def close_quietly(fd: int) -> None:
    """Close a descriptor that was only read, or that has already failed; errors are ignored."""
    try:
        close(fd)
    except OSError:  # an earlier error, if any, is more useful
        pass


def copy_out(source: BinaryIO, path: str) -> None:
    """Write a stream to a new file that only its owner can read, or leave none."""
    fd = open(path, CREATE, PRIVATE_MODE)
    try:
        while data := source.read(16 * CHUNK):
            rest = memoryview(data)
            while rest:
                rest = rest[write(fd, rest) :]
    except BaseException:
        remove_path(path)
        raise
    finally:
        close_quietly(fd)


def remove_path(path: str) -> None:
    """Unlink a temporary file; errors are ignored."""
    try:
        unlink(path)
    except OSError:
        pass
