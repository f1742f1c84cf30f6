"""A disk that logs every write: a FUSE file under a loop device, replayed in any order that a real disk may choose.

Between two flushes a disk may write blocks in any order or not at all. The log holds the writes and the flushes; an
image is everything up to a flush plus any subset of the writes after it.

    python -m lab.blocklog POINT LOG MEGABYTES      the daemon: POINT/disk is the disk
"""

import contextlib
import errno
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

from lab import faultfs, images

HEADER = struct.Struct("<cQI")
PIECE = 1 << 16


def main():
    import mfusepy

    point, log, size = sys.argv[1], open(sys.argv[2], "wb", buffering=0), int(sys.argv[3]) << 20  # noqa: SIM115
    disk = bytearray(size)

    class Disk(mfusepy.Operations):
        use_ns = True

        def getattr(self, path, fh=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path == "/disk":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def readdir(self, path, fh):
            return [".", "..", "disk"]

        def open(self, path, flags):
            return 3

        def read(self, path, length, offset, fh):
            return bytes(disk[offset : offset + length])

        def write(self, path, data, offset, fh):
            disk[offset : offset + len(data)] = data
            log.write(HEADER.pack(b"W", offset, len(data)) + data)
            return len(data)

        def fsync(self, path, datasync, fh):
            log.write(HEADER.pack(b"F", 0, 0))
            return 0

        def flush(self, path, fh):
            return 0

        def truncate(self, path, length, fh=None):
            return 0

    with contextlib.suppress(RuntimeError):
        mfusepy.FUSE(Disk(), point, foreground=True, nothreads=True, fsname="blocklog", subtype="blocklog")


@contextlib.contextmanager
def disk(place, megabytes):
    """Give a loop device on a logging disk: (device, log file). Always removed at the end."""
    point, log = place / "fuse", place / "log"
    point.mkdir()
    tests = str(Path(__file__).resolve().parent.parent)
    env = os.environ | {"PYTHONPATH": tests}
    command = [sys.executable, "-m", "lab.blocklog", str(point), str(log), str(megabytes)]
    daemon = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    device = ""
    try:
        faultfs.wait(
            lambda: faultfs.is_mounted(str(point)) or daemon.poll() is not None, "the disk did not come up"
        )
        device = images.run("losetup", "--find", "--show", str(point / "disk")).stdout.decode().strip()
        yield device, log
    finally:
        if device:
            images.run("losetup", "-d", device, check=False)
            time.sleep(0.05)
        faultfs.unmount(str(point))
        try:
            daemon.wait(2)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait(10)


def length(log):
    return os.path.getsize(log)


def read(log):
    """Yield ("W", offset, data, end) and ("F", 0, b"", end), `end` is the position in the log after it."""
    data, place = Path(log).read_bytes(), 0
    while place + HEADER.size <= len(data):
        kind, offset, size = HEADER.unpack_from(data, place)
        place += HEADER.size
        yield kind.decode(), offset, data[place : place + size], place + size
        place += size


def crashes(log, megabytes, target, *, since, count, seed):
    """Yield the end of the log for each of `count` images written to `target`: a power loss somewhere after `since`."""
    records = list(read(log))
    first = next(number for number, record in enumerate(records) if record[3] > since)
    dice = random.Random(seed)
    moments = sorted(dice.randrange(first, len(records)) for _ in range(count))
    base, done = bytearray(megabytes << 20), 0
    pending = []
    for moment in moments:
        for kind, offset, data, _end in records[done : moment + 1]:
            if kind == "F":
                for at, block in pending:
                    base[at : at + len(block)] = block
                pending = []
            else:
                pending.append((offset, data))
        done = moment + 1
        chosen = [write for write in pending if dice.random() < 0.5]
        dice.shuffle(chosen)
        picture = bytearray(base)
        for at, block in chosen:
            picture[at : at + len(block)] = block
        _write(target, picture)
        yield records[moment][3]


def _write(target, picture):
    """Write an image; empty blocks become holes."""
    with open(target, "wb", buffering=0) as file:
        os.ftruncate(file.fileno(), len(picture))
        for at in range(0, len(picture), PIECE):
            piece = picture[at : at + PIECE]
            if piece.count(0) != len(piece):
                os.pwrite(file.fileno(), piece, at)


if __name__ == "__main__":
    main()
