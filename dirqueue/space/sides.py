"""Side files that go along with a transaction: written before any name means them, removed when none does any more.

Layer: objects.  Touches: .space/side/.
Invariant: a side file is durable before the rename to the name that means it, if the transaction is; only a file that
no name can mean any more is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import resolve, sidefile
from dirqueue.layouts.native.resolve import NEVER
from dirqueue.layouts.native.sight import PAUSE, message_of
from dirqueue.space import reads
from dirqueue.space.work import Aborted, Sidefile

#: How often the directory of one is made again.
TRIES = 6
#: Side files: id -> number -> the version of the first name that may mean it.
_Found = dict[str, dict[int, int]]


def write_sides(sides: Iterable[Sidefile], made: list[str], fd: int, *, sync: bool) -> None:
    """Write side files, and add the paths of those that are ours to `made`.

    Raises:
        Aborted: a number is taken; another one will be drawn.
        OSError: plain.
    """
    folders = set()
    for path, details in sides:
        _write(path, sidefile.dumps(details), fd, sync=sync)
        made.append(path)
        folders.add(path.rpartition("/")[0])
    for folder in sorted(folders) if sync else ():
        fs.sync_directory(folder, fd)


def _write(path: str, data: bytes, fd: int, *, sync: bool) -> None:
    for _ in range(TRIES):
        try:
            return fs.create(path, data, fd, sync=sync)
        except FileExistsError:
            if fs.read_file(path, fd) == data:
                return None  # NFS: made, reply lost; no two are alike
            raise Aborted from None
        except FileNotFoundError:
            _make_room(path.rpartition("/")[0], fd, sync=sync)
    raise Aborted


def _make_room(folder: str, fd: int, *, sync: bool) -> None:
    resolve.make_rooms(folder, fd)
    while sync and folder:
        folder = folder.rpartition("/")[0]
        fs.sync_directory(folder or ".", fd)


def drop_sides(paths: Iterable[str], fd: int) -> None:
    """Remove side files that no name means; what is left is removed by a purge."""
    for path in paths:
        fs.discard(path, fd)


def orphans(root: Directory, stale: int) -> list[str]:
    """Return the side files that are stale, and that no name of the space means or can come to mean.

    A put is staged before its side file is written, so that its conditional name means it. A change is of a message
    that is there, with an earlier version: while it has that, a writer that was stopped may still go on. Of a message
    that is not seen they are left, unless it is certain that it is gone.

    Args:
        root: The directory of the space.
        stale: How old one has to be, in microseconds.
    """
    found: _Found = {}
    for id, number in _old(root, stale):
        found.setdefault(id, {})[number] = _version(sidefile.path_of(id, number), root)
    try:
        left, lacks = _unmeant(root, found) if found else ({}, 0)
        if left.keys() != found.keys() and lacks <= PAUSE:
            time.sleep(lacks / 1_000_000)  # a purge has changed directories itself, a moment ago
            left, _ = _unmeant(root, found)
    except PermissionError:
        return []  # another user's, with names in it that cannot be seen
    return [sidefile.path_of(id, number) for id, numbers in left.items() for number in numbers]


def _unmeant(root: Directory, found: _Found) -> tuple[_Found, int]:
    """Return those of these that no name can mean, without the ids of which that is not certain.

    And the microseconds without a change after which it may be.
    """
    seen, lacks = reads.sight(root)
    left = {} if lacks else dict(found)
    for name in filter(None, (message_of(text) for _, text in seen)):
        own, meant = name.id[-ID_DIGITS:], name.card.side if name.card is not None else 0
        if own in found:
            # A message never has a version again that it had: one that it has left behind is proof by itself.
            at = name.card.version if name.card is not None else name.attempts
            numbers = left.get(own, found[own])
            left[own] = {n: first for n, first in numbers.items() if n != meant and first <= at}
    return left, lacks


def _version(path: str, root: Directory) -> int:
    """Return the version of the first name that may mean a side file; NEVER if it is incomplete."""
    try:
        return sidefile.loads(fs.read_file(path, root.fd)).version
    except (FileNotFoundError, ValueError):
        return NEVER


def _old(root: Directory, stale: int) -> Iterator[tuple[str, int]]:
    """Yield the id and the number of side files that are old."""
    now, sides = root.clock.now(), sidefile.SIDES
    for part in fs.names_in(sides, root.fd) if fs.exists(sides, root.fd) else ():
        for name in fs.names_in(f"{sides}/{part}", root.fd):
            id, _, number = name.partition(".")
            try:
                old = fs.mtime_of(f"{sides}/{part}/{name}", root.fd) * 1_000_000 + stale < now
            except FileNotFoundError:
                continue
            if old and number.isdecimal():
                yield id, int(number)
