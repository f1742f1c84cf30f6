"""What one mounted filesystem can do.

Layer: above fs, below layouts.
"""

from __future__ import annotations

import errno
import os

from dirqueue.disk import fs

#: Filesystems of this machine: one kernel, one clock, no lost replies. Anything else is treated as a network one.
LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs f2fs zfs overlay bcachefs jfs reiserfs nilfs2 rootfs unknown".split()
)
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
#: syncfs() there writes back everything and reports errors (Linux 5.8); elsewhere each file is synced alone.
SYNCFS = frozenset(("ext4", "xfs", "btrfs", "tmpfs"))
#: How much to hold back so that a claim finds room on a full disk; XFS needs the most for one rename.
BALLAST = {"tmpfs": 0, "ramfs": 0, "xfs": 1 << 20, "btrfs": 1 << 20}
BALLAST_ELSEWHERE = 128 << 10


class Mount:
    """The facts of one mount."""

    def __init__(self, fstype: str) -> None:
        self.fstype = fstype
        self.remote = fstype not in LOCAL
        self.syncfs = fstype in SYNCFS
        #: What a message's name adds to the size of its directory, roughly.
        self.name_bytes = 20 if fstype == "tmpfs" else 40
        self.ballast = BALLAST.get(fstype, 0 if self.remote else BALLAST_ELSEWHERE)
        #: How a name is published here without overwriting; narrowed by what the first publish meets.
        #: NFS: a link whose reply was lost is made a second time when the name is free again, and then the message
        #: comes twice. A repeated rename finds its source gone; that ids are unique keeps it from overwriting.
        self._noreplace = not self.remote
        self._ways = [_by_rename] if self.remote else [_by_link, _by_rename]

    def publish(self, src: str, dst: str, dir_fd: int) -> None:
        """Give a complete file its visible name. FileExistsError if the name is taken.

        The first real publish is the probe: its target is free, and only with a free one does FUSE tell the truth.
        """
        if self._noreplace:
            try:
                return fs.rename_noreplace(src, dst, dir_fd)
            except NotImplementedError:
                self._noreplace = False
        while True:
            way = self._ways[0]
            try:
                return way(src, dst, dir_fd)
            except NotImplementedError:
                # RACE: several threads may learn it at once. _by_rename, the last, never raises this.
                self._ways = [each for each in self._ways if each is not way]

    @property
    def publishes_by(self) -> str:
        """Name the way that is in use, for the doctor."""
        return "noreplace" if self._noreplace else self._ways[0].__name__.removeprefix("_by_")


def _by_link(src: str, dst: str, dir_fd: int) -> None:
    try:
        fs.link(src, dst, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
    except FileExistsError:
        # NFS: done, reply lost, asked again: then both names are one file.
        if not _same(src, dst, dir_fd):
            raise
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL):
            raise NotImplementedError from None
        raise
    # CRASH: here the message is published, and ID.new is its second name; purge sees nlink 2 and drops it.
    try:
        fs.unlink(src, dir_fd=dir_fd)
    except FileNotFoundError:
        pass  # NFS: the same, for the unlink


def _by_rename(src: str, dst: str, dir_fd: int) -> None:
    fs.move(src, dst, dir_fd)


def _same(one: str, other: str, dir_fd: int) -> bool:
    try:
        first = fs.stat(one, dir_fd=dir_fd, follow_symlinks=False)
        second = fs.stat(other, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return first.st_ino == second.st_ino


def of(dir_fd: int, path: str) -> Mount:
    """Return the facts of the mount that an open directory is on.

    Found out anew for each queue: a device number is given to another filesystem after an unmount.
    """
    return Mount(_fstype(fs.fstat(dir_fd).st_dev, path))


def _fstype(device: int, path: str) -> str:
    """Look the type up in the kernel's table: by device number, or (btrfs, overlay) by the longest path."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    real = os.path.realpath(path)
    best, found = -1, "unknown"
    try:
        fd = fs.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found  # no /proc: not Linux, or a bare chroot; a local disk is the likely case
    try:
        table = b"".join(iter(lambda: fs.read(fd, fs.CHUNK), b"")).decode("utf-8", "surrogateescape")
    finally:
        fs.close(fd)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        parts = left.split(" ")
        point = parts[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        score = len(point) + (1 << 20 if parts[2] == wanted else 0)
        if (inside or parts[2] == wanted) and score > best:
            best, found = score, right.split(" ", 1)[0]
    return found
