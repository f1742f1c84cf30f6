"""The capabilities of a mounted filesystem, and its quirks by name.

Layer: disk.
To add a quirk, add an attribute with its meaning here, then use it in the one place concerned.
"""

from __future__ import annotations

import errno
import os

from dirqueue.disk import fs

#: Local filesystems: one kernel, one clock, no lost replies. All others are treated as network filesystems.
LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs f2fs zfs overlay bcachefs jfs reiserfs nilfs2 rootfs unknown".split()
)
#: Names reach the disk in the order of the calls, and a flush of one directory carries along what came before it:
#: journals of one order, memory, and servers that make each change of a name durable before they answer.
ORDERED = frozenset("tmpfs ramfs ext3 ext4 xfs nfs nfs4".split())
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
#: syncfs() there writes back everything and reports errors (Linux 5.8); elsewhere each file is synced alone.
SYNCFS = frozenset(("ext4", "xfs", "btrfs", "tmpfs"))
#: Bytes to reserve so that a claim succeeds on a full disk; XFS needs the most for one rename.
BALLAST = {"tmpfs": 0, "ramfs": 0, "xfs": 1 << 20, "btrfs": 1 << 20}
BALLAST_ELSEWHERE = 128 << 10


class Mount:
    """The properties of one mount."""

    def __init__(self, fstype: str) -> None:
        self.fstype = fstype
        network = fstype not in LOCAL
        #: A call may have been executed although its reply was lost: the repeated call fails with ENOENT or EEXIST.
        self.replies_can_be_lost = network
        #: Times and sizes of files and directories may be out of date, and may come from another clock.
        self.attributes_are_cached = network
        #: inotify reports only the changes made by this host.
        self.inotify_is_silent = network
        #: A lock that is taken here may bind this host only (nolock, FUSE), and no call tells.
        self.locks_may_be_local = network
        #: Other hosts may see the full length of a file only some time after its close (HDFS).
        self.closes_late = network
        #: A rename onto a file may be refused, with EIO (HDFS).
        self.may_not_replace = fstype.startswith("fuse")
        #: There is no rename that refuses to replace; on a local filesystem the first publish finds out.
        self.no_exclusive_rename = network
        #: There are no hard links; the first link finds out.
        self.no_hard_links = False
        #: There are no symbolic links; the first one finds out.
        self.no_symlinks = False
        #: A call waits for a server, so several at once are faster than one after the other.
        self.calls_are_slow = network
        #: A flush of one directory shows what was renamed into it, and may leave out that it left another one.
        self.renames_are_flushed_apart = fstype == "btrfs"
        #: After a power cut no later change of a name is there without the earlier ones.
        self.ordered = fstype in ORDERED
        self.syncfs = fstype in SYNCFS
        #: Roughly how many bytes the name of a message adds to the size of its directory.
        self.name_bytes = 20 if fstype == "tmpfs" else 40
        self.ballast = BALLAST.get(fstype, 0 if network else BALLAST_ELSEWHERE)

    def publish(self, src: str, dst: str, dir_fd: int) -> None:
        """Give a complete file its visible name; FileExistsError if the name is taken.

        The first real publish is the probe: FUSE reports correctly only if the target is free, as it is here.
        """
        if not self.no_exclusive_rename:
            try:
                fs.rename_noreplace(src, dst, dir_fd)
                return
            except NotImplementedError:
                self.no_exclusive_rename = True
        # NFS: a link whose reply was lost is repeated; if the name is free again by then, the message is delivered
        # twice. A repeated rename fails because its source is gone, and unique ids keep it from overwriting.
        if not (self.replies_can_be_lost or self.no_hard_links):
            try:
                _by_link(src, dst, dir_fd)
                return
            except NotImplementedError:
                self.no_hard_links = True
        fs.move(src, dst, dir_fd)

    def rename(self, src: str, dst: str, dir_fd: int) -> None:
        """Rename to a name that nobody else can make; where the filesystem can refuse to replace, it does.

        Never by a link: a message with two names could be acknowledged by one and be delivered again by the other.
        """
        if not self.no_exclusive_rename:
            try:
                fs.rename_noreplace(src, dst, dir_fd)
                return
            except NotImplementedError:
                self.no_exclusive_rename = True
        fs.move(src, dst, dir_fd)

    @property
    def publishes_by(self) -> str:
        """The call that publishes, for the doctor: noreplace, link or rename."""
        if not self.no_exclusive_rename:
            return "noreplace"
        return "rename" if self.replies_can_be_lost or self.no_hard_links else "link"


def _by_link(src: str, dst: str, dir_fd: int) -> None:
    try:
        fs.link(src, dst, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
    except FileExistsError:
        # NFS: done, reply lost, repeated: then both names are the same file.
        if not fs.same_file(src, dst, dir_fd):
            raise
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL):
            raise NotImplementedError from None
        raise
    # CRASH: the message is published, and ID.new is its second name; purge sees nlink 2 and removes ID.new.
    try:
        fs.unlink(src, dir_fd=dir_fd)
    except FileNotFoundError:
        pass  # NFS: the same for the unlink


def of(dir_fd: int, path: str) -> Mount:
    """Return the properties of the mount that an open directory is on.

    Not cached across queues: after an unmount a device number may be given to another filesystem.
    """
    return Mount(fstype_of(fs.fstat(dir_fd).st_dev, path))


def fstype_of(device: int, path: str) -> str:
    """Look up the type in the mount table: by device number, or (btrfs, overlay) by the longest path."""
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
