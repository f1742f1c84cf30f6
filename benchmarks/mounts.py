"""Places to measure on: tmpfs, and loop-mounted ext4 and xfs when we are root.

The machine's own disk is not one of them: an ext4 without a journal checks recently deleted inodes at every creation,
so that a queue there measures the filesystem's trap and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

IMAGE_SIZE = 4 << 30
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F", "-N", "1200000"], "xfs": ["mkfs.xfs", "-q", "-f"]}


def filesystems(wanted: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield each filesystem that can be had and an empty directory on it; say what is left out."""
    for name in wanted:
        if name == "tmpfs":
            if os.access("/dev/shm", os.W_OK):
                with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dirqueue-bench-") as path:
                    yield name, Path(path)
            else:
                print(f"{name}: left out, /dev/shm is not writable", file=sys.stderr)
        elif os.geteuid() != 0 or shutil.which(MAKE[name][0]) is None:
            print(f"{name}: left out, needs root and {MAKE[name][0]}", file=sys.stderr)
        else:
            yield from _mounted(name)


def _mounted(name: str) -> Iterator[tuple[str, Path]]:
    # On tmpfs, so that what is measured is the filesystem and not the disk under it.
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dirqueue-bench-") as base:
        image, point = Path(base, "image"), Path(base, "mount")
        with image.open("wb") as file:
            file.truncate(IMAGE_SIZE)
        subprocess.run([*MAKE[name], str(image)], check=True, stdout=subprocess.DEVNULL)
        point.mkdir()
        subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
        try:
            yield name, point
        finally:
            subprocess.run(["umount", str(point)], check=True)
