"""Lots of pinned messages that a transaction ends: `7.mv.T` is lot 7 unless T commits, and then acknowledged.

Layer: layouts.  Touches: the exact name of a held lot.
Invariant: as for every conditional name, anybody may bring it to its end once T is decided (see resolve.py).
Crash: the lot is `7.mv.T` until its consumer is given up, or a purge of the space forgets T: both settle it first.
"""

from __future__ import annotations

import re

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.native.conditions import ABORTED, COMMITTED, MV, TXN
from dirqueue.layouts.native.register import register_beside

ACKED = ".ack"
_HELD = re.compile(rf"(0|[1-9][0-9]{{0,18}})\.{MV}\.({TXN})")


def transaction_of(name: str) -> str | None:
    """Return the transaction that holds a lot; None if this is not the name of a held one."""
    match = _HELD.fullmatch(name)
    return match and match[2]


def is_pinned(directory: Directory, name: str) -> bool:
    """Return whether this is the name of a held lot whose messages are still there."""
    txn = transaction_of(name)
    return txn is not None and register_beside(directory).look(txn) != COMMITTED


def settle(directory: Directory, folder: str, name: str) -> str:
    """Bring a held lot to its end, aborting its transaction if it is open; return the name that it has then.

    Any other name is returned as it is; so is that of a lot whose transaction is another user's.
    """
    match = _HELD.fullmatch(name)
    if match is None:
        return name
    verdict = register_beside(directory).decide(match[2])
    if verdict not in (COMMITTED, ABORTED):
        return name
    plain = match[1] + (ACKED if verdict == COMMITTED else "")
    try:
        fs.rename_in(f"{folder}/{name}", f"{folder}/{plain}", directory.fd)
    except FileNotFoundError:
        pass  # RACE: another client did it
    return plain
