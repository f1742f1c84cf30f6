"""A POSIX directory in memory, with all the behaviour that POSIX allows.

Its methods have the signatures of the `os` calls that they simulate. Before each call that others can observe it asks
the scheduler for a turn and declares what it touches: names in directories, whole directories, files. A listing takes
two turns, and the scheduler decides whether it shows a name that appeared or disappeared in between: a renamed one may
be missed, or shown twice. With `lossy`, a call may be executed twice, as when a network filesystem loses a reply.
"""

import errno
import fcntl
import itertools
import os
import stat

from lab.schedule import reading, writing

MOUNT = "/sim"
DEVICE = 99
ROOT = 1
#: Descriptors: different from those of real files, and unique across worlds.
NUMBERS = itertools.count(10**9)


class Facts:
    """The result of stat."""

    __slots__ = ("st_ctime_ns", "st_gid", "st_ino", "st_mode", "st_mtime_ns", "st_nlink", "st_size", "st_uid")
    st_dev = DEVICE

    def __init__(self, inode):
        self.st_mode = inode.mode
        self.st_ino = inode.number
        self.st_nlink = inode.links()
        self.st_size = 4096 if inode.entries is not None else len(inode.data)
        self.st_mtime_ns = inode.mtime_ns
        self.st_ctime_ns = inode.ctime_ns
        self.st_uid = self.st_gid = 0

    @property
    def st_mtime(self):
        return self.st_mtime_ns / 1e9

    def values(self):
        return (self.st_mode, self.st_ino, self.st_nlink, self.st_size, self.st_mtime_ns, self.st_ctime_ns)


class Inode:
    """A file or a directory."""

    __slots__ = ("ctime_ns", "data", "entries", "mode", "mtime_ns", "nlink", "number", "parent")

    def __init__(self, number, mode, now):
        self.number = number
        self.mode = mode
        self.mtime_ns = self.ctime_ns = now
        self.nlink = 1
        #: The directory that a directory is in.
        self.parent = None
        self.data = b""
        self.entries = {} if stat.S_ISDIR(mode) else None

    def __lt__(self, other):
        return self.number < other.number

    def links(self):
        """Return the number of links: for a directory its name, its dot, and the dot-dot of each subdirectory."""
        if self.entries is None or not self.nlink:
            return self.nlink
        return 2 + sum(inode.entries is not None for inode in self.entries.values())


class Found:
    """An entry of a listing."""

    __slots__ = ("_inode", "name", "path")

    def __init__(self, name, inode):
        self.name = self.path = name
        self._inode = inode

    def is_file(self, *, follow_symlinks=True):
        return stat.S_ISREG(self._inode.mode)

    def is_dir(self, *, follow_symlinks=True):
        return self._inode.entries is not None

    def is_symlink(self):
        return stat.S_ISLNK(self._inode.mode)

    def inode(self):
        return self._inode.number

    def stat(self, *, follow_symlinks=True):
        return Facts(self._inode)


class Listing:
    """An open directory being read."""

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
    __slots__ = ("client", "inode", "position")

    def __init__(self, inode, client=None):
        self.inode = inode
        self.position = 0
        #: Who has it: what a dead one has locked is free.
        self.client = client


def _whole(inode):
    """Return the slots that a stat of a file or a directory reads."""
    return (inode.number,) if inode.entries is None else (inode.number, (inode.number, None))


def fail(code, *names):
    raise OSError(code, os.strerror(code), *names)


class Alone:
    """A scheduler for a single client."""

    inside = False
    killed = ()

    def turn(self, kind, touches=reading, *arguments):
        pass

    def choose(self, options):
        return 0

    def note(self, fact):
        pass


class SimFS:
    """One filesystem, mounted at /sim; `now` is a function that returns nanoseconds."""

    def __init__(self, now, scheduler=None, *, fstype="tmpfs", lossy=0, noreplace=True, links=True):
        self.now = now
        self.scheduler = scheduler or Alone()
        self.lossy = lossy
        #: Called after each change: (kind, old path or None, new path or None, inode, what was replaced or None).
        self.watch = None
        self.noreplace = noreplace
        self.links = links
        #: A hash of the whole tree, updated with each change.
        self.digest = 0
        #: The number of files that each client has made.
        self.counts = {}
        self.root = Inode(ROOT, stat.S_IFDIR | 0o755, now())
        self.root.parent = self.root
        self._handles = {}
        #: Who has flocked which file.
        self._locks = {}
        self.calls = 0
        table = f"1 1 0:{DEVICE} / {MOUNT} rw - {fstype} {fstype} rw\n".encode()
        self._table = Inode(2, stat.S_IFREG | 0o444, 0)
        self._table.data = table

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
        if where.entries is None:
            fail(errno.ENOTDIR, path)
        return where, parts[-1]

    def _child(self, where, name, path):
        if where.entries is None:
            fail(errno.ENOTDIR, path)
        found = where.parent if name == ".." else where.entries.get(name)
        if found is None:
            fail(errno.ENOENT, path)
        return found

    def _lookup(self, path, dir_fd):
        where, name = self._parent(path, dir_fd)
        return where if name in {".", ""} else self._child(where, name, path)

    def _slots(self, path, dir_fd):
        """Return what a path touches: (slots of the directories on the way, slot of the last part, what is there).

        A slot is a directory's number and a name. Never fails: a path that leads nowhere has its slots up to there.
        """
        try:
            where, rest = self._start(path, dir_fd)
        except OSError:
            return (), (0, path), None
        if "/" not in rest:
            if rest in {".", ".."}:
                return (), (where.number, rest), where if rest == "." else where.parent
            found = where.entries.get(rest) if where.entries is not None else None
            return (), (where.number, rest), found
        parts = [part for part in rest.split("/") if part and part != "."]
        if not parts:
            return (), (where.number, "."), where
        above = []
        for part in parts[:-1]:
            if part == "..":
                where = where.parent  # a queue is never renamed
                continue
            above.append((where.number, part))
            where = where.entries.get(part) if where.entries is not None else None
            if where is None:
                return tuple(above), above[-1], None
        found = where.entries.get(parts[-1]) if where.entries is not None else None
        return tuple(above), (where.number, parts[-1]), found

    # --- changing things -----------------------------------------------------------------------------------

    def _new(self, mode):
        """Return a new file. Its number depends only on the client, not on what others made meanwhile."""
        client = self.scheduler.current if self.scheduler.inside else "."
        count = self.counts[client] = self.counts.get(client, 0) + 1
        return Inode(ord(client[0]) * 1_000_000 + count, mode, self.now())

    def _enter(self, where, name, inode):
        where.entries[name] = inode
        if inode.entries is not None:
            inode.parent = where
        self._changed(inode)
        self.digest ^= hash((where.number, name, inode.number))
        self._touched(where)

    def _leave(self, where, name):
        inode = where.entries.pop(name)
        self.digest ^= hash((where.number, name, inode.number))
        self._touched(where)

    def _changed(self, inode):
        """Set the time of the last change of a name or of the contents."""
        now = self.now()
        if inode.ctime_ns != now:
            self.digest ^= hash(("c", inode.number, inode.ctime_ns)) ^ hash(("c", inode.number, now))
            inode.ctime_ns = now

    def path_of(self, where, name):
        """Return the path of a name in a directory, from the root."""
        parts = [name]
        while where is not self.root:
            parts.append(next(each for each, inode in where.parent.entries.items() if inode is where))
            where = where.parent
        return "/".join(reversed(parts))

    def _touched(self, inode, ns=None):
        now = self.now() if ns is None else ns
        if inode.mtime_ns != now:
            self.digest ^= hash((inode.number, inode.mtime_ns)) ^ hash((inode.number, now))
            inode.mtime_ns = now

    def _fill(self, inode, data):
        self.digest ^= hash((inode.number, inode.data)) ^ hash((inode.number, data))
        inode.data = data

    def _give(self, inode):
        fd = next(NUMBERS)
        self._handles[fd] = Handle(inode, self.scheduler.current if self.scheduler.inside else None)
        return fd

    def _act(self, kind, touches, do, arguments):
        """Take a turn and execute the call; if its reply is lost, execute it again a turn later."""
        self.calls += 1
        scheduler = self.scheduler
        if not scheduler.inside:
            return do(*arguments)
        scheduler.turn(kind, touches, *arguments)
        try:
            done = do(*arguments)
            if self.lossy and scheduler.choose(2):
                self.lossy -= 1
                scheduler.note("lost")
                scheduler.turn(f"{kind} again", touches, *arguments)
                done = do(*arguments)
        except OSError as error:
            scheduler.note(error.errno)
            raise
        return done

    # --- calls on descriptors ------------------------------------------------------------------------------

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        self.calls += 1
        if path == "/proc/self/mountinfo":
            return self._give(self._table)
        if path == "." and dir_fd is not None:  # which always exists
            return self._give(self._handle(dir_fd).inode)
        scheduler = self.scheduler
        scheduler.turn("open", self._opened, path, dir_fd, flags)
        try:
            return self._open(path, flags, mode, dir_fd)
        except OSError as error:
            scheduler.note(error.errno)
            raise

    def _opened(self, path, dir_fd, flags):
        above, slot, found = self._slots(path, dir_fd)
        if not flags & os.O_CREAT:
            return (*above, slot), ()
        if found is not None and flags & os.O_TRUNC:
            return above, (slot, found.number)
        return above, (slot,)

    def _open(self, path, flags, mode, dir_fd):
        where, name = self._parent(path, dir_fd)
        found = where if name in {".", ""} else where.entries.get(name)
        if found is None:
            if not flags & os.O_CREAT or where.nlink == 0:
                fail(errno.ENOENT, path)
            found = self._new(stat.S_IFREG | mode)
            self._enter(where, name, found)
            if self.watch:
                self.watch("create", None, self.path_of(where, name), found, None)
            if flags & os.O_EXCL and self.lossy and self.scheduler.choose(2):
                self.lossy -= 1
                fail(errno.EEXIST, path)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            fail(errno.EEXIST, path)
        if stat.S_ISLNK(found.mode):
            fail(errno.ELOOP, path)  # the library never follows one
        if flags & os.O_DIRECTORY and found.entries is None:
            fail(errno.ENOTDIR, path)
        if flags & os.O_TRUNC:
            self._fill(found, b"")
        return self._give(found)

    def close(self, fd):
        self._handle(fd)
        del self._handles[fd]

    def dup2(self, fd, fd2, inheritable=True):
        self._handles[fd2] = Handle(self._handle(fd).inode)
        return fd2

    def read(self, fd, size):
        handle = self._handle(fd)
        self.calls += 1
        self.scheduler.turn("read", reading, handle.inode.number)
        data = handle.inode.data[handle.position : handle.position + size]
        handle.position += len(data)
        self.scheduler.note(data)
        return data

    def write(self, fd, data):
        handle = self._handle(fd)
        inode = handle.inode
        self.calls += 1
        self.scheduler.turn("write", writing, inode.number)
        end = handle.position + len(data)
        self._fill(inode, inode.data[: handle.position] + bytes(data) + inode.data[end:])
        handle.position = end
        self._touched(inode)
        return len(data)

    def pread(self, fd, size, offset):
        inode = self._handle(fd).inode
        self.calls += 1
        self.scheduler.turn("pread", reading, inode.number)
        data = inode.data[offset : offset + size]
        self.scheduler.note(data)
        return data

    def pwrite(self, fd, data, offset):
        inode = self._handle(fd).inode
        self.calls += 1
        self.scheduler.turn("pwrite", writing, inode.number)
        before = inode.data[:offset].ljust(offset, b"\0")
        self._fill(inode, before + bytes(data) + inode.data[offset + len(data) :])
        self._touched(inode)
        return len(data)

    def pwritev(self, fd, buffers, offset, flags=0):
        inode = self._handle(fd).inode
        self.calls += 1
        self.scheduler.turn("pwritev", writing, inode.number)
        data = b"".join(buffers)
        self._fill(inode, inode.data + data)  # only ever used to append
        self._touched(inode)
        return len(data)

    def ftruncate(self, fd, length):
        inode = self._handle(fd).inode
        self.calls += 1
        self.scheduler.turn("ftruncate", writing, inode.number)
        self._fill(inode, inode.data[:length].ljust(length, b"\0"))
        self._touched(inode)

    def flock(self, fd, operation):
        handle = self._handle(fd)
        self.calls += 1
        self.scheduler.turn("flock", writing, handle.inode.number)
        holder = self._locks.get(handle.inode.number)
        if operation & fcntl.LOCK_UN:
            if holder is handle:
                del self._locks[handle.inode.number]
        elif holder not in (None, handle) and self._is_alive(holder):
            fail(errno.EWOULDBLOCK)
        else:
            self._locks[handle.inode.number] = handle
        self.scheduler.note(bool(holder))

    def _is_alive(self, handle):
        return handle in self._handles.values() and handle.client not in self.scheduler.killed

    def fcntl(self, fd, command, argument=0):
        fail(errno.EINVAL)  # there are no leases here

    def fsync(self, fd):
        self._handle(fd)

    syncfs = fsync

    def fallocate(self, fd, size):
        inode = self._handle(fd).inode
        self._fill(inode, inode.data + bytes(size))

    def fstat(self, fd):
        inode = self._handle(fd).inode
        self.scheduler.turn("fstat", reading, *_whole(inode))
        return self._facts(inode)

    def _facts(self, inode):
        facts = Facts(inode)
        self.scheduler.note(facts.values())
        return facts

    # --- calls on names ------------------------------------------------------------------------------------

    def stat(self, path, *, dir_fd=None, follow_symlinks=True):
        if isinstance(path, int):
            return self.fstat(path)
        self.calls += 1
        self.scheduler.turn("stat", self._looked_at, path, dir_fd)
        try:
            return self._facts(self._lookup(path, dir_fd))
        except OSError as error:
            self.scheduler.note(error.errno)
            raise

    lstat = stat

    def _looked_at(self, path, dir_fd):
        above, slot, found = self._slots(path, dir_fd)
        return (*above, slot, *(_whole(found) if found else ())), ()

    def utime(self, path, times=None, *, ns=None, dir_fd=None, follow_symlinks=True):
        self.calls += 1
        if isinstance(path, int):
            inode = self._handle(path).inode
            self.scheduler.turn("utime", writing, inode.number)
        else:
            self.scheduler.turn("utime", self._stamped, path, dir_fd)
            try:
                inode = self._lookup(path, dir_fd)
            except OSError as error:
                self.scheduler.note(error.errno)
                raise
        self._touched(inode, ns[1] if ns is not None else None if times is None else int(times[1] * 1e9))

    def _stamped(self, path, dir_fd):
        above, slot, found = self._slots(path, dir_fd)
        return (*above, slot), (found.number,) if found else ()

    def chmod(self, path, mode, *, dir_fd=None, follow_symlinks=True):
        self.calls += 1
        inode = self._handle(path).inode if isinstance(path, int) else self._lookup(path, dir_fd)
        inode.mode = (inode.mode & ~0o7777) | mode

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        self._act("mkdir", self._one, self._mkdir, (path.rstrip("/") or "/", dir_fd, mode))

    def _one(self, path, dir_fd, *_):
        above, slot, found = self._slots(path, dir_fd)
        return above, (slot, found.number) if found else (slot,)

    def _mkdir(self, path, dir_fd, mode):
        where, name = self._parent(path, dir_fd)
        if name in {".", ""} or name in where.entries:
            fail(errno.EEXIST, path)
        if where.nlink == 0:
            fail(errno.ENOENT, path)
        made = self._new(stat.S_IFDIR | mode)
        self._enter(where, name, made)
        if self.watch:
            self.watch("mkdir", None, self.path_of(where, name), made, None)

    def rmdir(self, path, *, dir_fd=None):
        self._act("rmdir", self._inside, self._rmdir, (path, dir_fd))

    def _inside(self, path, dir_fd):
        above, slot, found = self._slots(path, dir_fd)
        return above, (slot, (found.number, None)) if found else (slot,)

    def _rmdir(self, path, dir_fd):
        where, name = self._parent(path, dir_fd)
        found = self._child(where, name, path)
        if found.entries is None:
            fail(errno.ENOTDIR, path)
        if found.entries:
            fail(errno.ENOTEMPTY, path)
        found.nlink = 0
        self._leave(where, name)

    def unlink(self, path, *, dir_fd=None):
        self._act("unlink", self._one, self._unlink, (path, dir_fd))

    def _unlink(self, path, dir_fd):
        where, name = self._parent(path, dir_fd)
        found = self._child(where, name, path)
        if found.entries is not None:
            fail(errno.EISDIR, path)
        path = self.path_of(where, name) if self.watch else None
        self._leave(where, name)
        found.nlink -= 1
        self._changed(found)
        if self.watch:
            self.watch("unlink", path, None, found, None)

    def link(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        self._act("link", self._two, self._link, (src, dst, src_dir_fd, dst_dir_fd))

    def _two(self, src, dst, src_dir_fd, dst_dir_fd, *_):
        above, from_, one = self._slots(src, src_dir_fd)
        beyond, to, other = self._slots(dst, dst_dir_fd)
        files = [each.number for each in (one, other) if each is not None and each.entries is None]
        whole = [(other.number, None)] if other is not None and other.entries is not None else []
        return above + beyond, (from_, to, *files, *whole)

    def _link(self, src, dst, src_dir_fd, dst_dir_fd):
        if not self.links:
            fail(errno.EPERM, src)
        found = self._lookup(src, src_dir_fd)
        where, name = self._parent(dst, dst_dir_fd)
        if name in where.entries:
            fail(errno.EEXIST, src, None, dst)
        if where.nlink == 0:
            fail(errno.ENOENT, dst)
        self._enter(where, name, found)
        found.nlink += 1

    def symlink(self, target, path, *, dir_fd=None):
        self._act("symlink", self._one, self._symlink, (path, dir_fd, target))

    def _symlink(self, path, dir_fd, target):
        where, name = self._parent(path, dir_fd)
        if name in where.entries:
            fail(errno.EEXIST, path)
        if where.nlink == 0:
            fail(errno.ENOENT, path)
        made = self._new(stat.S_IFLNK | 0o777)
        self._fill(made, target)
        self._enter(where, name, made)

    def readlink(self, path, *, dir_fd=None):
        path = os.fsdecode(path)
        self.calls += 1
        self.scheduler.turn("readlink", self._looked_at, path, dir_fd)
        try:
            found = self._lookup(path, dir_fd)
            if not stat.S_ISLNK(found.mode):
                fail(errno.EINVAL, path)
        except OSError as error:
            self.scheduler.note(error.errno)
            raise
        self.scheduler.note(found.data)
        return found.data

    def rename(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        self._act("rename", self._two, self._rename, (src, dst, src_dir_fd, dst_dir_fd, True))

    def rename_noreplace(self, src, dst, dir_fd):
        if not self.noreplace:
            raise NotImplementedError
        self._act("rename", self._two, self._rename, (src, dst, dir_fd, dir_fd, False))

    def _rename(self, src, dst, src_dir_fd, dst_dir_fd, replace):
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
            if (there.entries is None) != (found.entries is None):
                fail(errno.EISDIR if there.entries is not None else errno.ENOTDIR, src, None, dst)
            if there.entries:
                fail(errno.ENOTEMPTY, src, None, dst)
            there.nlink -= 1
            self._leave(to, new)
        path = self.path_of(from_, old) if self.watch else None
        self._leave(from_, old)
        self._enter(to, new, found)
        if self.watch:
            self.watch("rename", path, self.path_of(to, new), found, there)

    # --- listings ------------------------------------------------------------------------------------------

    def scandir(self, path):
        return Listing([Found(name, inode) for name, inode in self._list(path)])

    def listdir(self, path):
        return [name for name, _ in self._list(path)]

    def _list(self, path):
        self.calls += 1
        scheduler = self.scheduler
        if isinstance(path, int):
            where = self._handle(path).inode
            scheduler.turn("list", reading, (where.number, None))
        else:
            scheduler.turn("list", self._looked_at, path, None)
            where = self._listable(path)
        if not scheduler.inside:
            return sorted(where.entries.items())
        before = dict(where.entries)
        scheduler.note(frozenset(before))
        scheduler.turn("listed", reading, (where.number, None))
        after = where.entries
        shown = []
        for name, inode in sorted(before.items()):
            # Removed since the listing began: it may be shown or missed.
            if name in after or not scheduler.choose(2):
                shown.append((name, inode))
        for name, inode in sorted(after.items()):
            if name not in before and scheduler.choose(2):
                shown.append((name, inode))
        shown.sort()
        scheduler.note(tuple([(name, inode.number) for name, inode in shown]))
        return shown

    def _listable(self, path):
        try:
            where = self._lookup(path, None)
            if where.entries is None:
                fail(errno.ENOTDIR, path)
        except OSError as error:
            self.scheduler.note(error.errno)
            raise
        return where

    # --- for tests, outside of the simulation --------------------------------------------------------------

    def touch(self, path):
        """Set the time of a file to now, as part of the previous call."""
        self._touched(self._lookup(path, None))

    def tree(self, inode=None, prefix=""):
        """Return every path with its content; directories end in a slash and have None."""
        paths = {}
        for name, child in (inode or self.root).entries.items():
            if child.entries is not None:
                paths[f"{prefix}{name}/"] = None
                paths.update(self.tree(child, f"{prefix}{name}/"))
            else:
                paths[prefix + name] = child.data
        return paths

    @property
    def open_handles(self):
        return len(self._handles)
