"""Looking at every name, and whether that is enough to say of something that it is gone.

Layer: layouts.  Touches: nothing.
A walk misses what is renamed from where it has not been yet to where it was already. It has missed nothing if no
directory has changed since a while before it began: then all listings are of the moment when it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.native import conditions, names
from dirqueue.layouts.native.names import ACKED, ATTRIBUTES, DELAYED, LEASED, NEW, READY, Name

#: As deep as messages lie: in a part of a lot of a consumer in .spark/pins/ of a queue.
DEPTH = 5
#: Time without a change that the time of a directory can prove: it is that of the kernel's last tick; some
#: filesystems tell whole seconds; and where times are cached, longer than any client keeps them. In microseconds.
QUIET, QUIET_WHOLE, QUIET_CACHED = 50_000, 2_000_000, 3_600_000_000
#: The longest time that is waited for directories not to change, in microseconds.
PAUSE = 3_000_000
MESSAGES = frozenset((READY, DELAYED, LEASED, ACKED, NEW))


def lacks(folders: Iterable[str], begun: int, root: Directory) -> int:
    """Return for how many microseconds more nothing must change before a walk can prove anything; 0 if it has.

    Args:
        folders: The directories that it has listed.
        begun: When it began, by the clock of the server.
        root: What they lie in.
    """
    quiet = quiet_at(folders, root)
    return QUIET if quiet is None else max(0, quiet - begun)


def quiet_at(folders: Iterable[str], root: Directory) -> int | None:
    """Return from when on it is certain that these directories have not changed; None if one is gone."""
    try:
        return max(_quiet_at(each, root) for each in folders)
    except FileNotFoundError:
        return None


def _quiet_at(folder: str, root: Directory) -> int:
    """Return the time from which on it is certain that a directory has not changed since, in microseconds."""
    changed = fs.stat(folder, dir_fd=root.fd, follow_symlinks=False).st_mtime_ns
    if root.mount.attributes_are_cached:
        return changed // 1000 + QUIET_CACHED
    return changed // 1000 + (QUIET if changed % 1_000_000_000 else QUIET_WHOLE)


def names_below(
    folder: str, fd: int, folders: list[str] | None = None, depth: int = DEPTH
) -> Iterator[tuple[str, str]]:
    """Yield (directory with its slash, name) of every file in a directory, and in those in it, whoever's it is.

    Args:
        folder: Where to begin.
        fd: Of the directory that it is in.
        folders: To which the directories are added that were listed.
        depth: How many directories deep.
    """
    inner = []
    if folders is not None:
        folders.append(folder)
    try:
        for entry in list(fs.listing(folder, fd)):
            if entry.is_dir(follow_symlinks=False):
                inner.append(f"{folder}/{entry.name}")
            else:
                yield f"{folder}/", entry.name
    except (FileNotFoundError, NotADirectoryError):
        return  # RACE: emptied and removed since it was listed
    for each in inner if depth else ():
        yield from names_below(each, fd, folders, depth - 1)


def names_in_queue(fd: int, folders: list[str]) -> Iterator[str]:
    """Yield the name of every file in a queue, but for what messages carry; directories that are not ours are left out.

    Args:
        fd: The directory of the queue.
        folders: To which the directories are added that were listed.
    """
    folders.append(".")
    inner = []
    for entry in list(fs.listing(".", fd)):
        if not entry.is_dir(follow_symlinks=False):
            yield entry.name
        elif entry.name != ATTRIBUTES and _is_ours(entry.name):
            inner.append(entry.name)
    for each in inner:
        yield from (text for _, text in names_below(each, fd, folders))


def _is_ours(text: str) -> bool:
    return names.is_furniture(text) or names.parse_directory(text) is not None


def message_of(text: str) -> Name | None:
    """Return what the name of a message says, visible or not; of a conditional one, what it stands for."""
    condition = conditions.parse(text)
    name = condition.base if condition is not None else names.parse(text)
    return name if name is not None and name.kind in MESSAGES else None
