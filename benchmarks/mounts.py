"""Places to measure on: tmpfs, loop-mounted ext4 and xfs as root, or given directories.

An ext4 without a journal is refused: there every creation checks recently deleted inodes, which takes up to a
millisecond after a few thousand deletions, whoever does it. A queue creates and deletes all day, so that every peer
would measure that and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

IMAGE_SIZE = 12 << 30
#: On a disk an image is written in full, so it is smaller.
DISK_IMAGE_SIZE = 1 << 30
#: XFS takes the sectors of its disk, today of 4 KiB mostly; of an image it would take 512 bytes, and each write to its
#: log would change a part of a block of the filesystem that the image lies on.
MAKE = {
    "ext4": "mkfs.ext4 -q -F -N 2500000 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0".split(),
    "xfs": "mkfs.xfs -q -f -K -s size=4096".split(),
}
SHM = "/dev/shm"
REFUSAL = (
    "it is an ext4 without a journal, where creating a file after many deletions takes up to a millisecond whoever "
    "does it: no comparison there means anything. Name a directory on tmpfs, xfs or an ext4 with a journal."
)


class Refused(Exception):
    """A place where measuring makes no sense, and why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """An empty directory to measure in."""

    name: str
    path: Path
    #: What the filesystem lies on, as far as a reader must know.
    about: str


@contextlib.contextmanager
def place(wanted: str, *, disk: Path | None = None, own: bool = False) -> Iterator[Place]:
    """Yield a place by the name of a filesystem or by a path.

    `disk` is where an image lies, memory if None. `own` asks for a mount that goes away with all that is in it: to
    delete a million files takes longer than to measure them.
    """
    if "/" in wanted:
        with _directory(wanted) as found:
            yield found
    elif wanted == "tmpfs":
        with _tmpfs(own=own) as found:
            yield found
    elif wanted in MAKE:
        with _image(wanted, disk) as found:
            yield found
    else:
        raise Refused(f"{wanted}: neither tmpfs, ext4, xfs nor a path (a path has a slash in it)")


@contextlib.contextmanager
def _directory(wanted: str) -> Iterator[Place]:
    fstype, device = filesystem_of(wanted)
    if fstype == "ext4" and not has_journal(device):
        raise Refused(f"{wanted}: {REFUSAL}")
    with tempfile.TemporaryDirectory(dir=wanted, prefix="dirqueue-bench-") as path:
        yield Place(fstype, Path(path), f"{fstype}, a directory of this machine")


@contextlib.contextmanager
def _tmpfs(*, own: bool) -> Iterator[Place]:
    if not os.access(SHM, os.W_OK):
        raise Refused(f"tmpfs: {SHM} is not writable")
    with tempfile.TemporaryDirectory(dir=SHM, prefix="dirqueue-bench-") as path:
        command = ["mount", "-t", "tmpfs", "-o", "nr_inodes=0", "tmpfs", path]
        mounted = own and os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
        try:
            yield Place("tmpfs", Path(path), "tmpfs")
        finally:
            if mounted:
                _unmount(path)


@contextlib.contextmanager
def _image(name: str, disk: Path | None) -> Iterator[Place]:
    if os.geteuid() != 0 or shutil.which(MAKE[name][0]) is None or shutil.which("mount") is None:
        raise Refused(f"{name}: needs root and {MAKE[name][0]} to make and mount an image")
    where = SHM if disk is None else str(disk)
    with tempfile.TemporaryDirectory(dir=where, prefix="dirqueue-bench-") as base:
        image, point = Path(base, "image"), Path(base, "mount")
        with image.open("wb") as file:
            if disk is None:
                file.truncate(IMAGE_SIZE)
            else:  # else each first write to a part of it would wait for the filesystem that the image lies on
                for _ in range(DISK_IMAGE_SIZE >> 20):
                    file.write(bytes(1 << 20))
                os.fsync(file.fileno())
        subprocess.run([*MAKE[name], str(image)], check=True, stdout=subprocess.DEVNULL)
        point.mkdir()
        done = subprocess.run(
            ["mount", "-o", "loop", str(image), str(point)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise Refused(f"{name}: cannot mount an image here ({done.stderr.strip()})")
        if disk is not None:
            # Else the image's own pages stand between: a flush would wait for a second filesystem.
            device = filesystem_of(point)[1]
            subprocess.run(["losetup", "--direct-io=on", device], check=False, stderr=subprocess.DEVNULL)
        try:
            under = "memory: the filesystem's cost, not a disk's" if disk is None else "this machine's disk"
            yield Place(
                name, point, f"{name}{' with a journal' if name == 'ext4' else ''}, an image in {under}"
            )
        finally:
            _unmount(point)


def _unmount(point: str | Path) -> None:
    """Unmount, lazily if a worker that was killed still holds it for a moment."""
    if subprocess.run(["umount", str(point)], check=False, capture_output=True).returncode:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def filesystem_of(path: str | Path) -> tuple[str, str]:
    """Return type and device of the filesystem that a path is on."""
    real, best, found = os.path.realpath(path), -1, ("unknown", "")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        device, point, fstype = line.split(" ")[:3]
        point = point.replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), (fstype, device)
    return found


def has_journal(device: str) -> bool:
    """Return whether an ext4 device has a journal: the kernel lists those that have one."""
    name = os.path.basename(os.path.realpath(device))
    try:
        return any(entry.startswith(f"{name}-") for entry in os.listdir("/proc/fs/jbd2"))
    except FileNotFoundError:
        return False


def filesystems(wanted: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield each filesystem that can be had and an empty directory on it; say what is left out."""
    for name in wanted:
        try:
            with place(name) as found:
                yield found.name, found.path
        except Refused as refusal:
            print(f"left out: {refusal}", file=sys.stderr)
