"""A POSIX directory in memory, with the freedoms that a real one takes.

Its methods have the signatures of the `os` calls they stand for. Before each call that others can notice it asks the
scheduler for a turn; a listing takes two turns, and what changed in between is shown or not as the scheduler likes.
With `lossy`, a call may be done twice, as when a network filesystem loses the first reply.
"""

import errno
import itertools
import os
import stat
from types import SimpleNamespace

MOUNT = "/sim"
DEVICE = 99
ROOT = 1
#: Descriptors: never one of a real file, never the same in two worlds.
NUMBERS = itertools.count(10**9)


class Inode:
    __slots__ = ("data", "entries", "mode", "mtime_ns", "nlink", "number")

    def __init__(self, number, mode, now):
        self.number = number
        self.mode = mode
        self.mtime_ns = now
        self.nlink = 1
        self.data = bytearray()
        self.entries = {} if stat.S_ISDIR(mode) else None

    @property
    def is_directory(self):
        return self.entries is not None

    def facts(self):
        return SimpleNamespace(
            st_mode=self.mode,
            st_ino=self.number,
            st_dev=DEVICE,
            st_nlink=self.nlink,
            st_uid=0,
            st_gid=0,
            st_size=4096 if self.is_directory else len(self.data),
            st_mtime=self.mtime_ns / 1e9,
            st_mtime_ns=self.mtime_ns,
        )


class Found:
    """What a listing yields."""

    __slots__ = ("_inode", "name", "path")

    def __init__(self, name, inode):
        self.name = self.path = name
        self._inode = inode

    def is_file(self, *, follow_symlinks=True):
        return not self._inode.is_directory

    def is_dir(self, *, follow_symlinks=True):
        return self._inode.is_directory

    def is_symlink(self):
        return False

    def inode(self):
        return self._inode.number

    def stat(self, *, follow_symlinks=True):
        return self._inode.facts()


class Listing:
    def __init__(self, found):
        self._found = iter(found)

    def __iter__(self):
        return self._found

    def __next__(self):
        return next(self._found)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass


class Handle:
    __slots__ = ("inode", "position", "writable")

    def __init__(self, inode, writable):
        self.inode = inode
        self.position = 0
        self.writable = writable


def fail(code, *names):
    raise OSError(code, os.strerror(code), *names)


class Alone:
    """The scheduler of a world with one inhabitant."""

    def turn(self, kind, reads=(), writes=()):
        pass

    def choose(self, options, label):
        return 0


class SimFS:
    """One filesystem, mounted at /sim; `now` is a function that returns nanoseconds."""

    #: Every call that a package may bind; the seam refuses one that is not here.
    CALLS = frozenset(
        "chmod close dup2 fallocate fstat fsync link listdir lstat mkdir open read rename "
        "rename_noreplace rmdir scandir stat syncfs unlink utime write".split()
    )

    def __init__(self, now, scheduler=None, *, fstype="tmpfs", lossy=0, noreplace=True, links=True):
        self.now = now
        self.scheduler = scheduler or Alone()
        self.lossy = lossy
        self.noreplace = noreplace
        self.links = links
        self._count = ROOT
        self.root = Inode(ROOT, stat.S_IFDIR | 0o755, now())
        self._handles = {}
        self.calls = 0
        table = f"1 1 0:{DEVICE} / {MOUNT} rw - {fstype} {fstype} rw\n".encode()
        self._table = Inode(2, stat.S_IFREG | 0o444, 0)
        self._table.data += table

    # --- finding things ------------------------------------------------------------------------------------

    def _start(self, path, dir_fd):
        if path.startswith("/"):
            if not path.startswith(MOUNT):
                fail(errno.ENOENT, path)
            return self.root, path[len(MOUNT) :]
        if dir_fd is None:
            fail(errno.ENOENT, path)
        return self._handle(dir_fd).inode, path

    def _handle(self, fd):
        handle = self._handles.get(fd)
        if handle is None:
            fail(errno.EBADF)
        return handle

    def _parent(self, path, dir_fd):
        """Return the directory that holds the last part of a path, and that part."""
        where, rest = self._start(path, dir_fd)
        if "/" not in rest:
            return where, rest
        parts = [part for part in rest.split("/") if part and part != "."]
        if not parts:
            return where, "."
        for part in parts[:-1]:
            where = self._child(where, part, path)
        if not where.is_directory:
            fail(errno.ENOTDIR, path)
        return where, parts[-1]

    def _child(self, where, name, path):
        if not where.is_directory:
            fail(errno.ENOTDIR, path)
        found = where.entries.get(name)
        if found is None:
            fail(errno.ENOENT, path)
        return found

    def _lookup(self, path, dir_fd):
        where, name = self._parent(path, dir_fd)
        return where if name in {".", ""} else self._child(where, name, path)

    def _slot(self, path, dir_fd):
        """Return what a call on this name touches: the directory's number and the name. Never fails."""
        try:
            where, name = self._parent(path, dir_fd)
        except OSError:
            return (0, path)
        return (where.number, name)

    def _new(self, mode):
        self._count += 1
        return Inode(self._count + 2, mode, self.now())

    def _changed(self, where):
        where.mtime_ns = self.now()

    # --- calls on descriptors ------------------------------------------------------------------------------

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        self.calls += 1
        if path == "/proc/self/mountinfo":
            return self._give(Handle(self._table, writable=False))
        if flags & os.O_CREAT:
            self.scheduler.turn("open", (), (self._slot(path, dir_fd),))
        elif path != ".":  # which nobody can take away
            self.scheduler.turn("open", (self._slot(path, dir_fd),))
        where, name = self._parent(path, dir_fd)
        found = where if name in {".", ""} else where.entries.get(name)
        if found is None:
            if not flags & os.O_CREAT:
                fail(errno.ENOENT, path)
            if where.nlink == 0:
                fail(errno.ENOENT, path)
            found = where.entries[name] = self._new(stat.S_IFREG | mode)
            self._changed(where)
            if flags & os.O_EXCL and self.lossy and self.scheduler.choose(2, "lost reply"):
                self.lossy -= 1
                fail(errno.EEXIST, path)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            fail(errno.EEXIST, path)
        if flags & os.O_DIRECTORY and not found.is_directory:
            fail(errno.ENOTDIR, path)
        if flags & os.O_TRUNC:
            found.data.clear()
        return self._give(Handle(found, writable=flags & (os.O_WRONLY | os.O_RDWR)))

    def _give(self, handle):
        fd = next(NUMBERS)
        self._handles[fd] = handle
        return fd

    def close(self, fd):
        self._handle(fd)
        del self._handles[fd]

    def dup2(self, fd, fd2, inheritable=True):
        handle = self._handle(fd)
        self._handles[fd2] = Handle(handle.inode, handle.writable)
        return fd2

    def read(self, fd, size):
        handle = self._handle(fd)
        self.calls += 1
        self.scheduler.turn("read", (handle.inode.number,))
        data = bytes(handle.inode.data[handle.position : handle.position + size])
        handle.position += len(data)
        return data

    def write(self, fd, data):
        handle = self._handle(fd)
        self.calls += 1
        self.scheduler.turn("write", (), (handle.inode.number,))
        size = len(data)
        handle.inode.data[handle.position : handle.position + size] = data
        handle.position += size
        handle.inode.mtime_ns = self.now()
        return size

    def fsync(self, fd):
        self._handle(fd)

    syncfs = fsync

    def fallocate(self, fd, size):
        self._handle(fd).inode.data.extend(bytes(size))

    def fstat(self, fd):
        inode = self._handle(fd).inode
        if inode.is_directory:
            self.scheduler.turn("fstat", ((inode.number, None),))
        return inode.facts()

    # --- calls on names ------------------------------------------------------------------------------------

    def stat(self, path, *, dir_fd=None, follow_symlinks=True):
        if isinstance(path, int):
            return self.fstat(path)
        self.calls += 1
        self.scheduler.turn("stat", (self._slot(path, dir_fd),))
        return self._lookup(path, dir_fd).facts()

    lstat = stat

    def utime(self, path, times=None, *, ns=None, dir_fd=None, follow_symlinks=True):
        self.calls += 1
        if isinstance(path, int):
            inode = self._handle(path).inode
        else:
            self.scheduler.turn("utime", (self._slot(path, dir_fd),))
            inode = self._lookup(path, dir_fd)
        if ns is not None:
            inode.mtime_ns = ns[1]
        else:
            inode.mtime_ns = self.now() if times is None else int(times[1] * 1e9)

    def chmod(self, path, mode, *, dir_fd=None, follow_symlinks=True):
        self.calls += 1
        inode = self._handle(path).inode if isinstance(path, int) else self._lookup(path, dir_fd)
        inode.mode = (inode.mode & ~0o7777) | mode

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        self._repeatable("mkdir", (self._slot(path, dir_fd),), lambda: self._mkdir(path, mode, dir_fd))

    def _mkdir(self, path, mode, dir_fd):
        where, name = self._parent(path.rstrip("/") or "/", dir_fd)
        if name in {".", ""} or name in where.entries:
            fail(errno.EEXIST, path)
        if where.nlink == 0:
            fail(errno.ENOENT, path)
        where.entries[name] = self._new(stat.S_IFDIR | mode)
        self._changed(where)

    def rmdir(self, path, *, dir_fd=None):
        slot = self._slot(path, dir_fd)
        try:
            inside = ((self._lookup(path, dir_fd).number, None),)
        except OSError:
            inside = ()
        self._repeatable("rmdir", (slot, *inside), lambda: self._rmdir(path, dir_fd))

    def _rmdir(self, path, dir_fd):
        where, name = self._parent(path, dir_fd)
        found = self._child(where, name, path)
        if not found.is_directory:
            fail(errno.ENOTDIR, path)
        if found.entries:
            fail(errno.ENOTEMPTY, path)
        found.nlink = 0
        del where.entries[name]
        self._changed(where)

    def unlink(self, path, *, dir_fd=None):
        self._repeatable("unlink", (self._slot(path, dir_fd),), lambda: self._unlink(path, dir_fd))

    def _unlink(self, path, dir_fd):
        where, name = self._parent(path, dir_fd)
        found = self._child(where, name, path)
        if found.is_directory:
            fail(errno.EISDIR, path)
        del where.entries[name]
        found.nlink -= 1
        self._changed(where)

    def link(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        slots = (self._slot(src, src_dir_fd), self._slot(dst, dst_dir_fd))
        self._repeatable("link", slots, lambda: self._link(src, dst, src_dir_fd, dst_dir_fd))

    def _link(self, src, dst, src_dir_fd, dst_dir_fd):
        if not self.links:
            fail(errno.EPERM, src)
        found = self._lookup(src, src_dir_fd)
        where, name = self._parent(dst, dst_dir_fd)
        if name in where.entries:
            fail(errno.EEXIST, src, None, dst)
        if where.nlink == 0:
            fail(errno.ENOENT, dst)
        where.entries[name] = found
        found.nlink += 1
        self._changed(where)

    def rename(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        slots = (self._slot(src, src_dir_fd), self._slot(dst, dst_dir_fd))
        self._repeatable(
            "rename", slots, lambda: self._rename(src, dst, src_dir_fd, dst_dir_fd, replace=True)
        )

    def rename_noreplace(self, src, dst, dir_fd):
        if not self.noreplace:
            raise NotImplementedError
        slots = (self._slot(src, dir_fd), self._slot(dst, dir_fd))
        self._repeatable("rename", slots, lambda: self._rename(src, dst, dir_fd, dir_fd, replace=False))

    def _rename(self, src, dst, src_dir_fd, dst_dir_fd, *, replace):
        from_, old = self._parent(src, src_dir_fd)
        found = self._child(from_, old, src)
        to, new = self._parent(dst, dst_dir_fd)
        if to.nlink == 0:
            fail(errno.ENOENT, dst)
        there = to.entries.get(new)
        if there is not None:
            if not replace:
                fail(errno.EEXIST, src, None, dst)
            if there is found:
                return
            if there.is_directory != found.is_directory:
                fail(errno.EISDIR if there.is_directory else errno.ENOTDIR, src, None, dst)
            if there.is_directory and there.entries:
                fail(errno.ENOTEMPTY, src, None, dst)
            there.nlink -= 1
        del from_.entries[old]
        to.entries[new] = found
        self._changed(from_)
        self._changed(to)

    def _repeatable(self, kind, slots, do):
        """Take a turn and do it; with bad luck the reply is lost, and the same is asked for again a turn later."""
        self.calls += 1
        self.scheduler.turn(kind, (), slots)
        do()
        if self.lossy and self.scheduler.choose(2, "lost reply"):
            self.lossy -= 1
            self.scheduler.turn(f"{kind} again", (), slots)
            do()

    # --- listings ------------------------------------------------------------------------------------------

    def scandir(self, path):
        return Listing(Found(name, inode) for name, inode in self._list(path))

    def listdir(self, path):
        return [name for name, _ in self._list(path)]

    def _list(self, path):
        self.calls += 1
        where = self._handle(path).inode if isinstance(path, int) else self._lookup(path, None)
        if not where.is_directory:
            fail(errno.ENOTDIR)
        everything = ((where.number, None),)
        self.scheduler.turn("list", everything)
        before = dict(where.entries)
        self.scheduler.turn("listed", everything)
        after = where.entries
        gone = [item for item in before.items() if item[0] not in after]
        came = [item for item in after.items() if item[0] not in before]
        shown = [item for item in before.items() if item[0] in after]
        if gone and came:
            seen = ([], gone, came, gone + came)[self.scheduler.choose(4, "listing")]
        elif gone or came:
            seen = ([], gone or came)[self.scheduler.choose(2, "listing")]
        else:
            seen = []
        return shown + seen

    # --- for those who look at it from outside -------------------------------------------------------------

    def tree(self, inode=None, prefix=""):
        """Return every path with its content; directories end in a slash and have None."""
        paths = {}
        for name, child in (inode or self.root).entries.items():
            if child.is_directory:
                paths[f"{prefix}{name}/"] = None
                paths.update(self.tree(child, f"{prefix}{name}/"))
            else:
                paths[prefix + name] = bytes(child.data)
        return paths

    @property
    def open_handles(self):
        return len(self._handles)
