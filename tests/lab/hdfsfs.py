"""A mounted directory with the rules of HDFS over FUSE; as a program: SOURCE POINT CACHE_SECONDS.

Creation is never exclusive; a rename onto an existing file fails with EIO, onto an existing directory moves into it;
there are no hard links and no fsync; a file gets its content some time after close() has returned; the kernel keeps
attributes and names for CACHE_SECONDS. It tests these rules, not HDFS itself.
"""

import contextlib
import errno
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path


def main():
    import mfusepy

    root, point, cache = sys.argv[1], sys.argv[2], float(sys.argv[3])
    dice = random.Random(os.getpid())

    class Hdfs(mfusepy.Operations):
        use_ns = True

        def __init__(self):
            self.open_files = {}
            self.handles = itertools.count(3)  # atomic: the daemon has threads

        def real(self, path):
            return root + path

        def getattr(self, path, fh=None):
            facts = os.lstat(self.real(path))
            keys = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
            found = {key: getattr(facts, key) for key in keys}
            return found | {f"st_{k}": getattr(facts, f"st_{k}_ns") for k in ("atime", "mtime", "ctime")}

        def readdir(self, path, fh):
            return [".", "..", *os.listdir(self.real(path))]

        def create(self, path, mode, fi=None):
            # O_EXCL is ignored: a second creation truncates the file.
            with open(self.real(path), "wb"):
                pass
            os.chmod(self.real(path), mode & 0o777)
            handle = next(self.handles)
            self.open_files[handle] = bytearray()
            return handle

        def open(self, path, flags):
            os.stat(self.real(path))
            return next(self.handles)

        def read(self, path, size, offset, fh):
            with open(self.real(path), "rb") as file:
                file.seek(offset)
                return file.read(size)

        def write(self, path, data, offset, fh):
            buffer = self.open_files[fh]
            if offset != len(buffer):
                raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
            buffer += data
            return len(data)

        def release(self, path, fh):
            data = self.open_files.pop(fh, None)
            if data:
                # By inode, as in the name node: the file may have another name by then.
                backing = os.open(self.real(path), os.O_WRONLY)
                threading.Timer(dice.uniform(0.0, 0.1), self.store, (backing, bytes(data))).start()

        def store(self, backing, data):
            os.write(backing, data)
            os.close(backing)

        def rename(self, old, new):
            target = self.real(new)
            if os.path.isdir(target):
                target = os.path.join(target, os.path.basename(old))
            elif os.path.exists(target):
                raise mfusepy.FuseOSError(errno.EIO)
            os.rename(self.real(old), target)

        def unlink(self, path):
            os.unlink(self.real(path))

        def mkdir(self, path, mode):
            os.mkdir(self.real(path), mode)

        def rmdir(self, path):
            os.rmdir(self.real(path))

        def utimens(self, path, times=None):
            os.utime(self.real(path))  # the library asks only for the time of the server

        def statfs(self, path):
            return {"f_bsize": 4096, "f_blocks": 1 << 20, "f_bavail": 1 << 20, "f_bfree": 1 << 20}

        def link(self, target, source):
            raise mfusepy.FuseOSError(errno.EPERM)

        def fsync(self, path, datasync, fh):
            return 0

    mfusepy.FUSE(Hdfs(), point, foreground=True, attr_timeout=cache, entry_timeout=cache, fsname="hdfs")


@contextlib.contextmanager
def mounted(source, point, cache=60.0):
    """Mount it in a separate process within the block."""
    Path(point).mkdir(parents=True, exist_ok=True)
    daemon = subprocess.Popen([sys.executable, __file__, str(source), str(point), str(cache)])
    try:
        deadline = time.monotonic() + 60
        while not os.path.ismount(point):
            assert daemon.poll() is None, "the daemon ended"
            assert time.monotonic() < deadline, "no mount"
            time.sleep(0.02)
        yield Path(point)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(point)], check=False, timeout=60)
        try:
            daemon.wait(1)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


if __name__ == "__main__":
    main()
