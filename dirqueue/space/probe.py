"""Whether a filesystem does what transactions rest on.

Layer: objects.  Touches: .space/probe-TOKEN/, which it removes again.
Crash: .space/probe-TOKEN/ is left, and a purge of the space renames and removes it when it is stale.
A commit is a rename onto a register that an abort may have made a directory, so a rename of a file onto a directory
must fail; where it moves the file into the directory instead (HDFS behind FUSE), both would succeed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_token
from dirqueue.errors import Unsupported, access_error
from dirqueue.layouts.native.conditions import SPACE

#: How the names begin of directories in which it is tried.
BOX = f"{SPACE}/probe-"
#: How often it is tried again after a purge took the directory for the leftover of a dead process.
TRIES = 6
#: Devices that were found to be good, and whether they have hard links.
_known: dict[int, bool] = {}


def check(directory: Directory) -> bool:
    """Return whether there are hard links; Unsupported if transactions cannot work there. Looked at once per mount."""
    device = fs.fstat(directory.fd).st_dev
    if device not in _known:
        try:
            _known[device] = _probe(directory)
        except OSError as error:
            raise access_error(directory.path, "try out transactions in", error) from error
    return _known[device]


def _probe(directory: Directory) -> bool:
    fd = directory.fd
    for _ in range(TRIES):
        box = f"{BOX}{new_token()}"
        fs.make_inner(SPACE, fd)
        fs.make_inner(box, fd)
        try:
            why, links = _tried(box, fd)
            # RACE: we were stopped for so long that a purge renamed it: then what failed in it proves nothing.
            if not fs.exists(box, fd):
                continue
            if why:
                raise _refusal(directory, why)
            return links
        except FileNotFoundError:
            if fs.exists(box, fd):
                raise
        finally:
            fs.remove_tree(box, fd)
    raise OSError(errno.EBUSY, "what is tried out is removed each time", BOX)


def _tried(box: str, fd: int) -> tuple[str, bool]:
    """Return why transactions cannot work, empty if they can; and whether there are hard links."""
    for name in ("empty", "full", "other"):
        fs.make_inner(f"{box}/{name}", fd)
    fs.create(f"{box}/file", b"", fd, sync=False)
    fs.create(f"{box}/full/inside", b"", fd, sync=False)
    if not _fails(lambda: fs.rename_in(f"{box}/file", f"{box}/empty", fd)):
        return "it renames a file onto a directory", False
    if not _fails(lambda: fs.mkdir(f"{box}/file", fs.DIR_MODE, dir_fd=fd)):
        return "it makes a directory over a file", False
    if not _fails(lambda: fs.rename_in(f"{box}/other", f"{box}/full", fd)):
        return "it renames a directory onto one that is not empty", False
    if _fails(lambda: fs.rename_in(f"{box}/full", f"{box}/empty", fd)):
        return "it cannot rename a directory onto an empty one", False
    return "", _links(box, fd)


def _links(box: str, fd: int) -> bool:
    try:
        fs.link(f"{box}/file", f"{box}/second", src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        return fs.stat(f"{box}/file", dir_fd=fd, follow_symlinks=False).st_nlink == 2
    except OSError:
        return False


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return True
    return False


def _refusal(directory: Directory, why: str) -> Unsupported:
    return Unsupported(
        f"the filesystem of {directory.path!r} ({directory.mount.fstype}) cannot carry transactions: {why}; "
        "plain queues work there",
        path=directory.path,
        capability="transaction",
    )
