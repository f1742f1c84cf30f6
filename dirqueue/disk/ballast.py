"""Reserved space that is freed when a claim fails on a full disk: even a rename may need room.

Layer: disk.  Touches: `.ballast` in the queue, or in a queue beside it.
Queues in one directory share it: two of them keep a reserve, and any of them may drop one of these.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from stat import S_ISREG
from typing import Protocol

from dirqueue.disk import fs
from dirqueue.disk.mount import Mount

NAME = ".ballast"
#: How many queues in one directory keep a reserve, and how many entries are read to find them.
ENOUGH = 2
LOOK_AT = 64


class Ballasted(Protocol):
    """The attributes of a directory that are used here."""

    path: str
    fd: int
    mount: Mount


def keep(directory: Ballasted) -> None:
    """Reserve the space, unless enough queues beside this one do. No room or no permission is no error."""
    size = directory.mount.ballast
    if not size or kept(directory):
        return
    try:
        fd = fs.open(NAME, fs.CREATE, fs.FILE_MODE, dir_fd=directory.fd)
    except OSError:
        return
    try:
        fs.fallocate(fd, size)
    except OSError:
        fs.discard(NAME, directory.fd)
    finally:
        fs.close(fd)


def kept(directory: Ballasted) -> bool:
    """Return whether there is a reserve that this queue can use."""
    return fs.exists(NAME, directory.fd) or len(list(itertools.islice(_beside(directory), ENOUGH))) == ENOUGH


def drop(directory: Ballasted) -> bool:
    """Free a reserve, that of this queue first; return whether there was one."""
    if not fs.discard(NAME, directory.fd) and not any(fs.discard(each, -1) for each in _beside(directory)):
        return False
    try:
        fs.syncfs(directory.fd)  # btrfs reuses freed space only after a commit
    except (OSError, NotImplementedError):
        pass
    return True


def _beside(directory: Ballasted) -> Iterator[str]:
    """Yield the reserves of the queues in the same directory, on the same filesystem."""
    above = os.path.dirname(directory.path)
    if not directory.mount.ballast:
        return
    try:
        device = fs.fstat(directory.fd).st_dev
        with fs.scandir(above) as entries:
            paths = [os.path.join(above, entry.name, NAME) for entry in itertools.islice(entries, LOOK_AT)]
    except OSError:
        return
    for path in paths:
        try:
            facts = fs.stat(path, follow_symlinks=False)
        except OSError:
            continue
        if S_ISREG(facts.st_mode) and (facts.st_dev, facts.st_size) == (device, directory.mount.ballast):
            yield path
