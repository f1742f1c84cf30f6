"""Cleaning a space: every queue, what processes that are gone left in .space/, and ids whose message is gone.

Layer: objects.  Touches: conditional names in every queue, .space/.
Invariant: a register goes only after every name of its transaction has come to its end, as listings show that were
begun after its directory was fenced: nothing in a fenced directory can be committed, and no name of it can be made.
Crash: at any call; the next purge goes on. Two purges at once do no harm: each change is of an exact name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.layouts.base import Purged
from dirqueue.layouts.native import conditions, held_lots, holders, pins
from dirqueue.layouts.native.conditions import GONE, OPEN, REGISTERS, SPACE, Condition
from dirqueue.layouts.native.register import Register
from dirqueue.layouts.native.resolve import settle
from dirqueue.layouts.native.sight import names_below
from dirqueue.space import ids, probe, reads, stored
from dirqueue.space.sides import orphans

if TYPE_CHECKING:
    from dirqueue.space.space import Space

LOCK = f"{SPACE}/purge.lock"
#: How the names begin of what is being removed.
AWAY = "removed-"
#: How the names begin of what is made and removed, or renamed, within a moment, by a process that lives.
UNFINISHED = (stored.UNFINISHED, probe.BOX, f"{SPACE}/{AWAY}")


def purge(space: Space[Any], directory: Directory) -> Purged:
    """Clean the whole space once; `busy` if another process is doing it."""
    from filelock import FileLock, Timeout

    total = Purged()
    for name in space.names():
        total += space.queue(name).purge()
    if not directory.find() or not fs.exists(SPACE, directory.fd):
        return total
    try:
        with FileLock(os.path.join(space.path, LOCK), timeout=0):
            return total + Purged(other=clean(space, directory))
    except Timeout:
        return total + Purged(busy=1)
    except OSError as error:
        raise access_error(space.path, "purge", error) from error


def clean(space: Space[Any], directory: Directory) -> int:
    """Fence processes that are gone, bring all their names to their ends, forget them; return what was removed."""
    fd, now = directory.fd, directory.clock.now()
    if not directory.clock.plausible:
        return 0
    stale = micros(space.stale)
    gone: list[str] = []
    for process in _listed(REGISTERS, fd):
        path = f"{REGISTERS}/{process}"
        facts = _facts(path, fd)
        if facts is None or facts.st_mtime_ns // 1000 + stale >= now:
            continue
        if process.endswith(GONE):
            gone.append(path)
        else:
            _fence(path, fd)
    removed = ids.clean(directory) + _unfinished(directory, now - stale)
    for path in (*orphans(directory, stale), *_unused_holders(directory, now - stale)):
        removed += fs.discard(path, fd)
    processes = {os.path.basename(path).removesuffix(GONE) for path in gone}
    if gone and not sweep(directory, processes) + _settle_lots(space, processes):
        removed += sum(fs.remove_tree(path, fd) for path in gone)
    return removed


def _unfinished(directory: Directory, before: int) -> int:
    """Remove queues and settings that a process began to make before then, and probes; return their number.

    RACE: renamed away first: a creator or prober that was stopped and goes on finds nothing, and makes another; a
    queue that is half removed would be one without its settings.
    """
    fd, removed = directory.fd, 0
    for name in _listed(SPACE, fd):
        path, away = f"{SPACE}/{name}", f"{SPACE}/{AWAY}{name}"
        facts = _facts(path, fd) if path.startswith(UNFINISHED) else None
        if facts is None:
            continue
        if name.startswith(AWAY):
            away = path
        elif facts.st_mtime_ns // 1000 >= before:
            continue
        else:
            try:
                fs.rename_in(path, away, fd)
            except FileNotFoundError:
                continue  # finished since, or another purge was faster
        if S_ISDIR(facts.st_mode):
            fs.remove_tree(away, fd)
        else:
            fs.discard(away, fd)
        removed += 1
    return removed


def _unused_holders(directory: Directory, before: int) -> list[str]:
    """Return the texts of long holders that nobody has used since, and that no token of a task is of.

    RACE: a holder that was stopped for so long before its claim is shown by its token; nothing else rests on the text.
    """
    old = {
        each
        for each in _listed(holders.HOLDERS, directory.fd)
        if (facts := _facts(f"{holders.HOLDERS}/{each}", directory.fd)) and facts.st_mtime_ns // 1000 < before
    }
    if old:
        old -= {text.partition(f".{holders.LONG}")[2][:32] for _, text in reads.every_name(directory.fd)}
    return [f"{holders.HOLDERS}/{each}" for each in sorted(old)]


def _fence(path: str, fd: int) -> None:
    """Take the registers of a process away from it, in one call. A live one begins another directory."""
    try:
        # It is kept for as long again: its owner may still be waiting for a reply.
        fs.utime(path, dir_fd=fd)
        fs.rename_in(path, path + GONE, fd)
    except OSError:
        pass  # RACE: it left by itself, or another purge was faster


def sweep(directory: Directory, processes: set[str]) -> int:
    """Bring every name of these processes to its end; return how many could not be."""
    register = Register(directory, REGISTERS)
    left = 0
    try:
        for prefix, condition in _conditional(directory.fd):
            if condition.txn.rpartition("-")[0] in processes:
                left += not _settled(directory.fd, prefix, condition, register)
    except PermissionError:
        return left + 1  # another user's, with names in it that cannot be seen
    return left


def _settled(fd: int, prefix: str, condition: Condition, register: Register) -> bool:
    """Bring one name to its end; return whether it is there."""
    verdict = register.decide(condition.txn)
    if verdict == OPEN:
        return False
    try:
        settle(fd, prefix, condition, verdict, register)
    except FileNotFoundError:
        pass  # another client was faster
    except OSError:
        return False
    return not fs.exists(prefix + condition.text, fd)


def _settle_lots(space: Space[Any], processes: set[str]) -> int:
    """Bring every lot that a transaction of these processes holds to its end; return how many could not be."""
    left = 0
    for queue in space.names():
        directory = space.queue(queue).layout.directory
        for consumer in pins.consumers(directory) if directory.find() else ():
            base = f"{pins.PINS}/{consumer}"
            for name in _listed(base, directory.fd):
                txn = held_lots.transaction_of(name)
                if txn is not None and txn.rpartition("-")[0] in processes:
                    left += held_lots.settle(directory, base, name) == name
    return left


def _conditional(fd: int) -> Iterator[tuple[str, Condition]]:
    """Yield every conditional name of the space, in whatever directory."""
    for prefix, text in (*reads.every_name(fd), *names_below(ids.IDS, fd)):
        condition = conditions.parse(text)
        if condition is not None:
            yield prefix, condition


def _listed(path: str, fd: int) -> list[str]:
    try:
        return sorted(fs.names_in(path, fd))
    except FileNotFoundError:
        return []


def _facts(path: str, fd: int) -> os.stat_result | None:
    try:
        return fs.stat(path, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
