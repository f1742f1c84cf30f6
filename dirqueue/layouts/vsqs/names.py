"""The names that VSQS gives to messages, and nothing else.

    T           ready, T being the time it was put          T.new       being written
    T.X         in flight until X

Layer: layouts.  Pure values, no I/O.
Times are microseconds (16 digits) or, as the document of VSQS has it but no released code does, milliseconds (13).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dirqueue.errors import InvalidId

MILLISECOND_DIGITS = 13
_TIME = r"[1-9][0-9]{12}|[1-9][0-9]{15}"
_ID = re.compile(_TIME)
_NAME = re.compile(rf"({_TIME})(?:\.({_TIME}|new))?")


class Name(NamedTuple):
    """A parsed name; the times in microseconds, `until` 0 if it is ready and -1 if it is being written."""

    id: str
    put: int
    until: int


def parse(text: str) -> Name | None:
    """Return the parsed name, or None if it is not one of VSQS."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    id, until = match.groups()
    return Name(id, micros_of(id), 0 if until is None else -1 if until == "new" else micros_of(until))


def micros_of(digits: str) -> int:
    """Return a time of either unit in microseconds."""
    return int(digits) * (1000 if len(digits) == MILLISECOND_DIGITS else 1)


def leased(id: str, until: int) -> tuple[str, int]:
    """Return the name of a message in flight, in the unit of its id, and the time in it."""
    if len(id) == MILLISECOND_DIGITS:
        rounded = -(-until // 1000)
        return f"{id}.{rounded}", rounded * 1000
    return f"{id}.{until}", until


def check_id(id: object) -> str:
    """Return the id if it is one; nothing else from outside may reach a path."""
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise InvalidId(
        f"{id!r:.60} is not a message id of VSQS: ids are 16 or 13 digits", message_id=str(id)[:60]
    )
