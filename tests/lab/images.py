"""Power loss: images of a mounted filesystem, taken at any instant, mounted again and read.

A filesystem on a loop device writes to an image file; a copy of that file is what a disk would hold after a power
loss at that moment. Copies are taken during the work and checked afterwards, one at a time, with the original
unmounted: two btrfs with the same UUID must never be mounted together.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

SIZES = {"ext4": 16, "xfs": 300, "btrfs": 120}
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "1024"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
LOOP_SET_FD, LOOP_CLR_FD, LOOP_CTL_GET_FREE = 0x4C00, 0x4C01, 0x4C82
MNT_DETACH = 2
PIECE = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def run(*command, check=True):
    return subprocess.run(
        command,
        check=check,
        timeout=120,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=os.environ | {"PATH": PATH},
    )


def make(kind, image, megabytes=None):
    """Create an image file with an empty filesystem."""
    with open(image, "wb") as file:
        file.truncate((megabytes or SIZES[kind]) << 20)
    run(*MAKE[kind], str(image))
    run(
        "fallocate", "--dig-holes", str(image), check=False
    )  # xfs writes a log of zeros, to be copied each time


@contextlib.contextmanager
def mounted(kind, image, point, options="loop"):
    """Mount an image (or a device); always unmounted, lazily if it is still in use.

    It uses system calls: thousands of images are mounted, and starting a program for each would take too long.
    """
    Path(point).mkdir(parents=True, exist_ok=True)
    words = options.split(",")
    with _loop(image) if "loop" in words else contextlib.nullcontext(str(image)) as device:
        more = ",".join(word for word in words if word not in ("loop", "rw"))
        _call("mount", device.encode(), os.fsencode(point), kind.encode(), ctypes.c_ulong(0), more.encode())
        try:
            yield str(point)
        finally:
            try:
                _call("umount2", os.fsencode(point), 0)
            except OSError:
                _call("umount2", os.fsencode(point), MNT_DETACH)
    if kind == "btrfs":
        run("btrfs", "device", "scan", "--forget", check=False)


def _call(name, *arguments):
    if getattr(_libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}: {arguments}")


@contextlib.contextmanager
def _loop(image):
    """Give a loop device for a file."""
    with open(image, "r+b") as file, open("/dev/loop-control", "rb") as control:
        for _ in range(100):
            device = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(fd, LOOP_SET_FD, file.fileno())
                break
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:  # EBUSY: another process took the device first
                    raise
        else:
            raise OSError(errno.EBUSY, "no free loop device")
    try:
        yield device
    finally:
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, LOOP_CLR_FD)
        os.close(fd)


def copy(image, target):
    """Copy an image as it is now, with its holes."""
    with open(image, "rb", buffering=0) as source, open(target, "wb", buffering=0) as sink:
        end, place = os.fstat(source.fileno()).st_size, 0
        os.ftruncate(sink.fileno(), end)
        while place < end:
            try:
                place = os.lseek(source.fileno(), place, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return  # holes to the end
            stop = os.lseek(source.fileno(), place, os.SEEK_HOLE)
            while place < stop:
                block = os.pread(source.fileno(), min(PIECE, stop - place), place)
                if block.count(0) != len(block):
                    os.pwrite(sink.fileno(), block, place)
                place += len(block)


class Album:
    """Copies of an image, each with what had been promised at that moment."""

    def __init__(self, image, folder, limit):
        self._image = image
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._limit = limit
        self._taking = False
        self.taken = []

    @property
    def full(self):
        return len(self.taken) >= self._limit

    def take(self, **known):
        if self.full or self._taking:  # called again by a finalizer that closes a file meanwhile
            return
        self._taking = True
        target = self._folder / f"{len(self.taken)}.img"
        copy(self._image, target)
        self.taken.append((target, known))
        self._taking = False

    def look(self, kind, point, judge):
        """Mount each copy and judge it with `judge(path, **known)`; return all violations and remove the copies."""
        options = "loop,nouuid" if kind == "xfs" else "loop"
        wrong = []
        for number, (image, known) in enumerate(self.taken):
            try:
                with mounted(kind, image, point, options) as path:
                    wrong += [f"image {number}: {each}" for each in judge(path, **known)]
            finally:
                image.unlink()
        shutil.rmtree(self._folder)
        return wrong
