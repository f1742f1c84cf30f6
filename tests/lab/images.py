"""Power loss: images of a mounted filesystem, taken at any instant, mounted again and read.

A filesystem on a loop device writes to an image file; a copy of that file is what a disk would hold had the power gone
at that moment. Copies are taken while the work goes on and looked at afterwards, one at a time, with the original
unmounted: two btrfs of one identity must never be mounted together.
"""

import contextlib
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
    """Make an image file with an empty filesystem."""
    with open(image, "wb") as file:
        file.truncate((megabytes or SIZES[kind]) << 20)
    run(*MAKE[kind], str(image))


@contextlib.contextmanager
def mounted(kind, image, point, options="loop"):
    """Mount an image (or a device); always unmounted, lazily if somebody is still there."""
    Path(point).mkdir(parents=True, exist_ok=True)
    run("mount", "-t", kind, "-o", options, str(image), str(point))
    try:
        yield str(point)
    finally:
        if run("umount", str(point), check=False).returncode:
            run("umount", "-l", str(point), check=False)
        if kind == "btrfs":
            run("btrfs", "device", "scan", "--forget", check=False)


def copy(image, target):
    """Copy an image as it is now, holes kept."""
    run("cp", "--sparse=always", str(image), str(target))


class Album:
    """Copies of an image, each with what had been promised when it was taken."""

    def __init__(self, image, folder, limit):
        self._image = image
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._limit = limit
        self.taken = []

    @property
    def full(self):
        return len(self.taken) >= self._limit

    def take(self, **known):
        if not self.full:
            target = self._folder / f"{len(self.taken)}.img"
            copy(self._image, target)
            self.taken.append((target, known))

    def look(self, kind, point, judge):
        """Mount each copy and let `judge(path, **known)` list complaints; return them all. Copies are removed."""
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
