"""The names that dirq gives to directories and elements, and nothing else.

    6afa4960/                       an intermediate directory: 8 hexadecimal digits
    6afa4960/6afa497d807d2c         an element: seconds (8), microseconds (5), a digit of its maker (1)

Layer: layouts.  Pure values, no I/O.
Invariant: names made by one process never repeat and never go back, whatever its clock does.
"""

from __future__ import annotations

import os
import re
import threading
import time

from dirqueue.errors import InvalidId

DIRECTORY = re.compile(r"[0-9a-f]{8}")
ELEMENT = re.compile(r"[0-9a-f]{14}")
NAME = re.compile(r"[0-9a-f]{8}/[0-9a-f]{14}")
ELEMENT_LENGTH = 14
NAME_LENGTH = 23
TEMPORARY, LOCK = ".tmp", ".lck"
#: dirq-normal: where elements are being added, and removed.
STAGING, OBSOLETE = "temporary", "obsolete"
#: Eight digits of seconds end in the year 2106.
MAX_SECONDS = 0xFFFFFFFF

_hexadecimal = re.compile(r"[0-9a-f]*").fullmatch
_is_directory = DIRECTORY.fullmatch
_state = threading.RLock()
_last = 0


def element(digit: str) -> str:
    """Return a new element name that ends in the digit of its maker."""
    global _last
    with _state:
        now = time.time_ns() // 1000
        if now <= _last:
            now = _last + 1
        _last = now
    seconds, micros = divmod(now, 1_000_000)
    return "%013x%s" % ((seconds << 20) + micros, digit)  # noqa: UP031 - five digits are 20 bits; this is the fastest


def digit(wanted: int | None = None) -> str:
    """Return the last digit of the names of one queue object: the one asked for, or any."""
    if wanted is None:
        wanted = os.urandom(1)[0]
    return f"{wanted % 16:x}"


def folder(granularity: int) -> str:
    """Return the intermediate directory for now."""
    now = int(time.time())
    if granularity > 1:
        now -= now % granularity
    return f"{now:08x}"


def micros_of(name: str) -> int:
    """Return when an element was added, in microseconds since the epoch, by its maker's clock."""
    digits = int(name[-14:-1], 16)
    return (digits >> 20) * 1_000_000 + (digits & 0xFFFFF)


def directories(found: list[str]) -> list[str]:
    """Return those that are intermediate directories by their names, sorted."""
    return sorted(name for name in found if len(name) == 8 and _is_directory(name))


def elements(found: list[str]) -> list[str]:
    """Return those that are elements by their names, in no order."""
    chosen = [name for name in found if len(name) == ELEMENT_LENGTH]
    # One search over all of them is much cheaper than one each; the slow way is for directories with litter.
    if _hexadecimal("".join(chosen)):
        return chosen
    return [name for name in chosen if ELEMENT.fullmatch(name)]


def check(name: object) -> str:
    """Return the name of an element if it is one; nothing else from outside may reach a path."""
    if isinstance(name, str) and len(name) == NAME_LENGTH and NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "..."
    raise InvalidId(
        f"{shown} is not a name of an element: that is 8 and 14 hexadecimal digits with a slash between",
        message_id=shown,
    )


def _after_fork() -> None:
    global _state
    _state = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
