"""A real NFS server with any number of mounts: nfs-ganesha, and a small FUSE client based on libnfs.

    with nfs.served(place) as export, nfs.mounted(place / "one") as one, nfs.mounted(place / "two") as two: ...

Not every kernel has an NFS client, and a test may not load one; this client speaks NFS version 3 in user space. Each
mount is a separate client without a cache of names or attributes, so that the server is tested: its create, rename,
link and remove, its times, and its answers to two clients at once.

    python -m lab.nfs POINT PORT         the daemon
"""

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

from lab import faultfs

PORT = 22049
LIBRARY = "libnfs.so.13"
CONFIG = """
NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = 127.0.0.1; Protocols = 3;
    Enable_NLM = false; Enable_RQUOTA = false; mount_path_pseudo = true; }}
NFSv4 {{ Graceless = true; RecoveryRoot = "{place}/recovery"; }}
EXPORT {{ Export_Id = 1; Path = "{place}/export"; Pseudo = "/export"; Access_Type = RW; Squash = No_Root_Squash;
    SecType = sys; Protocols = 3; FSAL {{ Name = VFS; }} }}
LOG {{ Default_Log_Level = FATAL; }}
"""


def missing():
    """Return the programs and libraries that are missing; Debian: nfs-ganesha nfs-ganesha-vfs rpcbind libnfs13."""
    programs = {"ganesha.nfsd": "nfs-ganesha", "rpcbind": "rpcbind"}
    absent = [
        package for name, package in programs.items() if not shutil.which(name, path="/usr/bin:/usr/sbin")
    ]
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        absent.append("libnfs13")
    return absent


class Facts(ctypes.Structure):
    """struct nfs_stat_64."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime atime_ns mtime_ns ctime_ns used"
        ).split()
    ]


class Time(ctypes.Structure):
    """struct timeval."""

    _fields_ = [("seconds", ctypes.c_long), ("micros", ctypes.c_long)]


class Entry(ctypes.Structure):
    """The head of struct nfsdirent."""

    _fields_ = [
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("inode", ctypes.c_uint64),
        ("type", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
    ]


class Client:
    """One NFS client; every call raises OSError."""

    def __init__(self, port):
        self.lib = ctypes.CDLL(LIBRARY)
        for name in ("nfs_init_context", "nfs_parse_url_dir", "nfs_readdir", "nfs_get_error"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.nfs = ctypes.c_void_p(self.lib.nfs_init_context())
        url = f"nfs://127.0.0.1/export/?version=3&nfsport={port}&mountport={port + 1}".encode()
        parsed = self.lib.nfs_parse_url_dir(self.nfs, url)
        if not parsed:
            raise OSError(errno.EINVAL, self.error())
        server, path = ctypes.cast(parsed, ctypes.POINTER(ctypes.c_char_p))[:2]
        self.lib.nfs_set_dircache(self.nfs, 0)
        self.lib.nfs_set_timeout(self.nfs, 30_000)
        self.call("mount", server, path)

    def error(self):
        text = self.lib.nfs_get_error(self.nfs)
        return ctypes.string_at(text).decode(errors="replace") if text else "unknown"

    def call(self, name, *arguments):
        result = getattr(self.lib, f"nfs_{name}")(self.nfs, *arguments)
        if result < 0:
            raise OSError(-result, self.error())
        return result


def _operations(client):
    import mfusepy

    handles = {}

    def u64(number):
        return ctypes.c_uint64(number)

    def path_of(path):
        return path.encode("utf-8", "surrogateescape")

    def keep(handle):
        number = min(set(range(1, len(handles) + 2)) - set(handles))
        handles[number] = handle
        return number

    class Nfs(mfusepy.Operations):
        use_ns = True

        def getattr(self, path, fh=None):
            facts = Facts()
            client.call("lstat64", path_of(path), ctypes.byref(facts))
            found = {
                f"st_{key}": getattr(facts, key) for key in ("mode", "ino", "nlink", "uid", "gid", "size")
            }
            for key in ("atime", "mtime", "ctime"):
                found[f"st_{key}"] = getattr(facts, key) * 10**9 + getattr(facts, f"{key}_ns")
            return found

        def readdir(self, path, fh):
            directory = ctypes.c_void_p()
            client.call("opendir", path_of(path), ctypes.byref(directory))
            found = []
            while entry := client.lib.nfs_readdir(client.nfs, directory):
                seen = ctypes.cast(entry, ctypes.POINTER(Entry)).contents
                kind = {1: stat.S_IFREG, 2: stat.S_IFDIR, 5: stat.S_IFLNK}.get(seen.type, 0)
                name = seen.name.decode("utf-8", "surrogateescape")
                found.append((name, {"st_mode": kind | 0o600, "st_ino": seen.inode or 1}, 0))
            client.lib.nfs_closedir(client.nfs, directory)
            return found

        def _open(self, verb, path, *how):
            handle = ctypes.c_void_p()
            client.call(verb, path_of(path), *how, ctypes.byref(handle))
            return keep(handle)

        def open(self, path, flags):
            return self._open("open", path, flags & (os.O_ACCMODE | os.O_TRUNC))

        def create(self, path, mode, flags=os.O_WRONLY):
            return self._open("create", path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def read(self, path, size, offset, fh):
            data = ctypes.create_string_buffer(size)
            got = client.call("pread", handles[fh], u64(offset), u64(size), data)
            return data.raw[:got]

        def write(self, path, data, offset, fh):
            return client.call("pwrite", handles[fh], u64(offset), u64(len(data)), data)

        def truncate(self, path, length, fh=None):
            return client.call("truncate", path_of(path), u64(length))

        def flush(self, path, fh):
            return 0

        def fsync(self, path, datasync, fh):
            return client.call("fsync", handles[fh])

        def fsyncdir(self, path, datasync, fh):
            return 0

        def release(self, path, fh):
            return client.call("close", handles.pop(fh))

        def rename(self, old, new):
            return client.call("rename", path_of(old), path_of(new))

        def link(self, target, source):
            return client.call("link", path_of(source), path_of(target))

        def unlink(self, path):
            return client.call("unlink", path_of(path))

        def mkdir(self, path, mode):
            return client.call("mkdir2", path_of(path), mode)

        def rmdir(self, path):
            return client.call("rmdir", path_of(path))

        def chmod(self, path, mode):
            return client.call("chmod", path_of(path), mode)

        def chown(self, path, uid, gid):
            return 0

        def utimens(self, path, times=None):
            if times is None:
                return client.call("utimes", path_of(path), None)
            pair = (Time * 2)(*(Time(each // 10**9, each % 10**9 // 1000) for each in times))
            return client.call("utimes", path_of(path), pair)

        def statfs(self, path):
            return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1 << 20, "f_bfree": 1 << 20,
                    "f_bavail": 1 << 20, "f_files": 1 << 20, "f_ffree": 1 << 20, "f_namemax": 255}  # fmt: skip

    class Fuse(mfusepy.FUSE):
        def rename_fuse_3(self, old, new, flags):
            return -errno.EINVAL if flags else self.rename_fuse_2(old, new)

        def utimens_fuse_3(self, path, buf, fip):
            times = None  # the time of the server
            if buf and buf.contents.modtime.tv_nsec < 10**9:
                parts = (buf.contents.actime, buf.contents.modtime)
                times = tuple(each.tv_sec * 10**9 + each.tv_nsec % 10**9 for each in parts)
            return self.operations.utimens(path.decode(self.encoding, self.errors), times)

    return Fuse, Nfs


def main():
    point, port = sys.argv[1], int(sys.argv[2])
    fuse, nfs = _operations(Client(port))
    with contextlib.suppress(RuntimeError):
        fuse(
            nfs(), point, foreground=True, nothreads=True, fsname="nfs", subtype="nfs", use_ino=True,
            attr_timeout=0, entry_timeout=0, negative_timeout=0,
        )  # fmt: skip


# --- the other side ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(place, port=PORT):
    """Serve `place`/export; yield its path on the server. `place` must be on a filesystem with file handles."""
    place = Path(place)
    (place / "export").mkdir(parents=True)
    (place / "recovery").mkdir()
    (place / "config").write_text(CONFIG.format(port=port, mount_port=port + 1, place=place))
    command = ["ganesha.nfsd", "-F", "-f", "config", "-p", f"{place}/pid", "-L", f"{place}/log"]
    with _portmapper():
        yield from _serve(command, place, port)


@contextlib.contextmanager
def _portmapper():
    """Run rpcbind: the server insists on registering, although no client asks it."""
    if _answers(111):
        yield
        return
    process = subprocess.Popen(["rpcbind", "-f"], stdin=subprocess.DEVNULL)
    try:
        faultfs.wait(lambda: process.poll() is not None or _answers(111), "rpcbind did not come up")
        yield
    finally:
        process.terminate()
        process.wait(10)


def _serve(command, place, port):
    server = subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        faultfs.wait(lambda: server.poll() is not None or _answers(port), "the NFS server did not come up")
        if server.poll() is not None:
            raise OSError(f"the NFS server ended with {server.returncode}: see {place}/log")
        yield str(place / "export")
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(10)


def _answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def mounted(point, port=PORT):
    """Mount the export as another host."""
    with faultfs.daemon("lab.nfs", point, str(port)) as where:
        yield where


if __name__ == "__main__":
    main()
