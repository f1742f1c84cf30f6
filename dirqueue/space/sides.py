"""Side files that go along with a transaction: written before any name means them, removed when none does any more.

Layer: objects.  Touches: .space/side/.
Invariant: a side file is durable before the rename to the name that means it, if the transaction is; only a file that
no name can mean any more is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import resolve, sidefile
from dirqueue.layouts.native.conditions import OPEN, REGISTERS
from dirqueue.layouts.native.register import Register
from dirqueue.message import Details, Entry
from dirqueue.queue import Queue
from dirqueue.space.work import Aborted, Sidefile

#: How often the directory of one is made again.
TRIES = 6


def write_sides(sides: Iterable[Sidefile], txn: str, fd: int, *, sync: bool) -> None:
    """Write side files. Raises Aborted if a number is taken (another one will be drawn), and plain OSError."""
    folders = set()
    for path, details in sides:
        _write(path, sidefile.dumps(details, txn), fd, sync=sync)
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


def orphans(
    names: Iterable[str], queue: Callable[[str], Queue[Any]], root: Directory, stale: int, *, abort: bool
) -> list[str]:
    """Return the side files that are stale, and that no name means or can come to mean.

    RACE: it is decided first what can still be named, then every name is looked at, twice: a listing may miss a name
    that is being renamed.

    Args:
        names: The queues of the space.
        queue: Opens one.
        root: The directory of the space.
        stale: How old one has to be, in microseconds.
        abort: Whether to abort open transactions that wrote some; else theirs are left out.
    """
    register = Register(root, REGISTERS)
    verdict = register.decide if abort else register.look
    found: dict[str, dict[int, Details]] = {}
    for id, number in _old(root, stale):
        details = _read(sidefile.path_of(id, number), root)
        if details is not None and not (details.txn and verdict(details.txn) == OPEN):
            found.setdefault(id, {})[number] = details
    for name in names if found else ():
        layout = queue(name).layout
        for entry in (*layout.entries(), *layout.entries()):
            own = entry.id[-ID_DIGITS:]
            if own in found:
                found[own] = {n: said for n, said in found[own].items() if not _means(entry, n, said)}
    return [sidefile.path_of(id, number) for id, numbers in found.items() for number in numbers]


def _means(entry: Entry, number: int, details: Details) -> bool:
    """Return whether a message means a side file, or may come to mean it by a change by itself."""
    meant = entry.card.side if entry.card is not None else 0
    return number == meant or (not details.txn and entry.version < details.version)


def _read(path: str, root: Directory) -> Details | None:
    try:
        return sidefile.loads(fs.read_file(path, root.fd))
    except (FileNotFoundError, ValueError):
        return None  # RACE: gone; or not as we write them, and left alone


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
