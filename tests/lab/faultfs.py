"""A mounted directory that behaves like a faulty network filesystem: FUSE over a plain directory.

    with faultfs.mounted(source, point, lost=0.1, nolink=True, cache=1.0): ...

`lost`: the fraction of renames, links of both kinds, unlinks, mkdirs and creations whose reply is lost; the call is
repeated, and the caller gets the second answer ("no such file", "file exists"). `nolink`: hard links are refused.
`cache`: the seconds for which the kernel caches attributes and names; `negative`: it caches missing names too. `skew`:
the seconds that the clock of the server is ahead. `refuse`: errno by call name. `slow`: the seconds that each call
takes. Two mounts of one source are two hosts. `renameat2` with flags is refused, as by most FUSE filesystems.

The daemon is a separate process. If it dies, every call on its mount hangs or fails: `mounted` always unmounts, lazily
if necessary, and every wait is bounded.
"""

import argparse
import contextlib
import errno
import functools
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

#: Seconds for a mount to appear; the machine may be busy.
PATIENCE = 60.0
#: Calls whose lost reply makes a difference.
LOSABLE = ("rename", "link", "symlink", "unlink", "mkdir", "rmdir", "create")


def _operations(options):
    """Return the filesystem; imported late, so that only the daemon needs libfuse."""
    import mfusepy

    dice = random.Random(options.seed)
    refuse = {name: getattr(errno, code) for name, code in json.loads(options.refuse).items()}
    counts = dict.fromkeys(LOSABLE, 0)

    def faulty(method):
        name = method.__name__

        @functools.wraps(method)
        def call(self, *args):
            if options.slow:
                time.sleep(options.slow)
            if name in refuse:
                raise mfusepy.FuseOSError(refuse[name])
            result = method(self, *args)
            if name in counts and dice.random() < options.lost:
                counts[name] += 1
                if name == "create":
                    os.close(result)
                self.note()
                return method(self, *args)
            return result

        return call

    class Faulty(mfusepy.Operations):
        use_ns = True

        def __init__(self, root):
            self.root = root

        def note(self):
            if options.counts:
                Path(options.counts).write_text(json.dumps(counts), encoding="ascii")

        def _real(self, path):
            return self.root + path

        def getattr(self, path, fh=None):
            facts = os.fstat(fh) if fh is not None else os.lstat(self._real(path))
            keys = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size")
            found = {key: getattr(facts, key) for key in keys}
            for key in ("atime", "mtime", "ctime"):
                found[f"st_{key}"] = getattr(facts, f"st_{key}_ns")
            return found

        @faulty
        def readdir(self, path, fh):
            with os.scandir(self._real(path)) as found:
                names = [entry.name for entry in found]
            kinds = [(".", {"st_mode": stat.S_IFDIR}, 0), ("..", {"st_mode": stat.S_IFDIR}, 0)]
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    facts = os.lstat(f"{self._real(path)}/{name}")
                    kinds.append((name, {"st_mode": facts.st_mode, "st_ino": facts.st_ino}, 0))
            return kinds

        @faulty
        def open(self, path, flags):
            return os.open(self._real(path), flags)

        @faulty
        def create(self, path, mode, flags=os.O_WRONLY):
            return os.open(self._real(path), flags | os.O_CREAT | os.O_EXCL, mode)

        @faulty
        def read(self, path, size, offset, fh):
            return os.pread(fh, size, offset)

        @faulty
        def write(self, path, data, offset, fh):
            return os.pwrite(fh, data, offset)

        def truncate(self, path, length, fh=None):
            os.truncate(fh if fh is not None else self._real(path), length)
            return 0

        def flush(self, path, fh):
            os.close(os.dup(fh))
            return 0

        @faulty
        def fsync(self, path, datasync, fh):
            os.fsync(fh)
            return 0

        @faulty
        def fsyncdir(self, path, datasync, fh):
            return 0

        def release(self, path, fh):
            os.close(fh)
            return 0

        @faulty
        def rename(self, old, new):
            os.rename(self._real(old), self._real(new))
            return 0

        @faulty
        def link(self, target, source):
            if options.nolink:
                raise mfusepy.FuseOSError(errno.EPERM)
            os.link(self._real(source), self._real(target), follow_symlinks=False)
            return 0

        @faulty
        def symlink(self, target, source):
            os.symlink(source, self._real(target))
            return 0

        @faulty
        def readlink(self, path):
            return os.readlink(self._real(path))

        @faulty
        def unlink(self, path):
            os.unlink(self._real(path))
            return 0

        @faulty
        def mkdir(self, path, mode):
            os.mkdir(self._real(path), mode)
            return 0

        @faulty
        def rmdir(self, path):
            os.rmdir(self._real(path))
            return 0

        def chmod(self, path, mode):
            os.chmod(self._real(path), mode)
            return 0

        def chown(self, path, uid, gid):
            os.chown(self._real(path), uid, gid, follow_symlinks=False)
            return 0

        @faulty
        def utimens(self, path, times=None):
            os.utime(self._real(path), ns=times, follow_symlinks=False)
            return 0

        def statfs(self, path):
            facts = os.statvfs(self._real(path))
            keys = (
                "f_bavail",
                "f_bfree",
                "f_blocks",
                "f_bsize",
                "f_ffree",
                "f_files",
                "f_frsize",
                "f_namemax",
            )
            return {key: getattr(facts, key) for key in keys}

    class Fuse(mfusepy.FUSE):
        def rename_fuse_3(self, old, new, flags):
            return -errno.EINVAL if flags else self.rename_fuse_2(old, new)

        def utimens_fuse_3(self, path, buf, fip):
            now = time.time_ns() + int(options.skew * 1e9)
            times = [now, now]
            if buf:
                for place, each in enumerate((buf.contents.actime, buf.contents.modtime)):
                    if each.tv_nsec < 10**9:  # otherwise UTIME_NOW: the time of the server
                        times[place] = each.tv_sec * 10**9 + each.tv_nsec
            return self.operations.utimens(path.decode(self.encoding, self.errors), tuple(times))

    return Fuse, Faulty


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("point")
    parser.add_argument("--lost", type=float, default=0.0)
    parser.add_argument("--cache", type=float, default=0.0)
    parser.add_argument("--negative", type=float, default=0.0)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--refuse", default="{}")
    parser.add_argument("--counts", default="")
    parser.add_argument("--nolink", action="store_true")
    options = parser.parse_args()
    fuse, faulty = _operations(options)
    with contextlib.suppress(RuntimeError):
        fuse(
            faulty(os.path.realpath(options.source)),
            options.point,
            foreground=True,
            nothreads=True,
            fsname="faultfs",
            subtype="faultfs",
            use_ino=True,
            attr_timeout=options.cache,
            entry_timeout=options.cache,
            negative_timeout=options.negative,
        )


# --- the other side ----------------------------------------------------------------------------------------


def is_mounted(point):
    """Return whether the kernel lists the mount; accessing it could hang."""
    return f" {point} " in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")


@contextlib.contextmanager
def mounted(source, point, **faults):
    """Mount `source` at `point` (both made if missing) with these faults; always unmounted at the end."""
    source = os.path.realpath(source)
    os.makedirs(source, exist_ok=True)
    options = []
    for name, value in faults.items():
        if value is True:
            options.append(f"--{name}")
        elif value is not False and value is not None:
            options += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    with daemon("lab.faultfs", point, *options, before=[source]) as where:
        yield where


@contextlib.contextmanager
def daemon(module, point, *options, before=()):
    """Run a module that mounts something at `point` and wait for it; unmount and end it afterwards."""
    point = os.path.realpath(point)
    os.makedirs(point, exist_ok=True)
    command = [sys.executable, "-m", module, *before, point, *options]
    tests = str(Path(__file__).resolve().parent.parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        wait(lambda: is_mounted(point) or process.poll() is not None, f"{module} did not come up")
        if process.poll() is not None:
            raise OSError(f"{module} ended with {process.returncode}")
        yield point
    finally:
        unmount(point)
        _end(process)


def unmount(point):
    for command in (
        ["fusermount3", "-u", point],
        ["fusermount3", "-u", "-z", point],
        ["umount", "-l", point],
    ):
        if not is_mounted(point):
            return
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(command, check=False, timeout=20, stderr=subprocess.DEVNULL)


def _end(daemon):
    """Wait for the daemon, then kill it: it does not end while a file there is open."""
    try:
        daemon.wait(1)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait(10)


def wait(condition, complaint, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
