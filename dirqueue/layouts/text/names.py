"""Ids, handles and the names beside the file.

    .NAME.dirqueue/lock               flocked for a turn; its content is the seal
    .NAME.dirqueue/journal.POSITION   what was done; POSITION is that of its first byte in the whole journal
    .NAME.dirqueue/queue.json         settings
    .NAME.dirqueue/new                a file about to replace NAME
    .NAME.dirqueue/purge.lock         locked while one purges

An id is OFFSET-DIGEST: where the message was when it was first seen, and what its text is known by. A handle is
ID@TOKEN.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

import re

from dirqueue.errors import InvalidId

LOCK = "lock"
JOURNAL = "journal."
NEW = "new"
PURGE_LOCK = "purge.lock"
POSITION_DIGITS = 16

_ID = re.compile(r"(\d{12})-([0-9a-f]{12})", re.ASCII)
_HANDLE = re.compile(r"(\d{12})-([0-9a-f]{12})@([A-Za-z0-9_-]{1,128})", re.ASCII)


def id_of(offset: int, digest: str) -> str:
    """Return the id of a message."""
    return f"{offset:012d}-{digest}"


def parse_id(id: str) -> tuple[int, str]:
    """Return offset and digest of an id."""
    return int(id[:12]), id[13:25]


def check_id(id: object) -> str:
    """Return an id given from outside; InvalidId if it is none."""
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise InvalidId(
        f"{id!r:.60} is not the id of a message in a text file: they look like 000000000142-be603ad82b17",
        message_id=str(id)[:60],
    )


def parse_handle(handle: object) -> tuple[str, str] | None:
    """Return the id and the token of a handle; None if it is none."""
    found = _HANDLE.fullmatch(handle) if isinstance(handle, str) else None
    return (found[0].partition("@")[0], found[3]) if found else None


def segment(position: int) -> str:
    """Return the name of the part of the journal that begins there."""
    return f"{JOURNAL}{position:0{POSITION_DIGITS}d}"


def segment_position(name: str) -> int | None:
    """Return where a part of the journal begins; None if it is not a part of it."""
    digits = name.removeprefix(JOURNAL)
    return int(digits) if len(digits) == POSITION_DIGITS and digits.isdecimal() and digits.isascii() else None
