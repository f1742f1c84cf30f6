"""The grammar of conditional names: what a transaction T is about to make appear, vanish or move.

    X.if.T    X if T commits, else nothing          staged: in nobody's way
    X.un.T    X unless T commits, then nothing      held: nobody may claim it
    X.mv.T    X unless T commits, then where T's plan says

X is the exact name of a message. T is `P-n`: P is the directory of one process among the registers of the space, n the
number of one of its transactions. Whether T is decided is written in its register (register.py), and whoever meets a
conditional name may bring it to its end (resolve.py).

Layer: pure values, no I/O.
Invariant: what `parse` accepts, `conditional` rebuilds letter for letter; no plain name is conditional, and vice versa.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import DELAYED, LEASED, READY, Name

IF, UN, MV = "if", "un", "mv"
#: Verdicts on a transaction. What is not open is final. UNKNOWN: there are no registers, so the name is foreign.
OPEN, COMMITTED, ABORTED, UNKNOWN = "open", "committed", "aborted", "unknown"
#: The directory in a space that belongs to all its queues, and the registers in it.
SPACE = ".space"
REGISTERS = f"{SPACE}/txn"
#: What a register's directory is renamed to when a purge fences it: nothing in it can be committed any more.
GONE = ".gone"
#: The highest number of a transaction; a process that used it up begins another directory.
MAX_NUMBER = 999_999_999

#: The name of a transaction.
TXN = r"[1-9][0-9]{24}-[1-9][0-9]{0,8}"
_CONDITIONAL = re.compile(rf"(.+)\.(if|un|mv)\.({TXN})")
_MESSAGES = frozenset((READY, DELAYED, LEASED))


class Condition(NamedTuple):
    """A parsed conditional name."""

    text: str
    #: The name that it stands for.
    base: Name
    how: str
    txn: str


def parse(text: str) -> Condition | None:
    """Return what a conditional name says, or None if it is none."""
    match = _CONDITIONAL.fullmatch(text)
    if match is None:
        return None
    base = names.parse(match[1])
    if base is None or base.kind not in _MESSAGES:
        return None
    return Condition(text, base, match[2], match[3])


def among(texts: Iterable[str]) -> list[Condition]:
    """Return those that are conditional names."""
    return [found for text in texts if (found := parse(text)) is not None]


def conditional(base: str, how: str, txn: str) -> str:
    """Return the name that says it."""
    return f"{base}.{how}.{txn}"


def register_of(txn: str, *, gone: bool = False) -> str:
    """Return where the register of a transaction lies among the registers."""
    process, _, number = txn.rpartition("-")
    return f"{process}{GONE if gone else ''}/{number}"


def here(condition: Condition, verdict: str) -> bool:
    """Return whether the message is where its conditional name lies, under that verdict."""
    return (condition.how == IF) == (verdict == COMMITTED)
