"""Side files: what the name of a task has no room for.

    .space/side/HH/ID.S     a line of JSON, then the body if it was replaced

ID is without its priority, HH two digits of its hash, S the number in the card of the name that means it.

Layer: layouts.  Touches: .space/side/.
Invariant: written, durably if the queue syncs, before the rename to the name that means it; never changed after that.
The version in it is that of the first name that may mean it: no name of an earlier version does.
Crash: one that no name means is left, perhaps incomplete. Purge removes it when it is stale and nothing can come to
mean it any more: its message is gone, or has reached that version.
"""

from __future__ import annotations

import errno
import json
import os
import random
import zlib
from typing import NoReturn

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS, new_token
from dirqueue.layouts.native import names
from dirqueue.layouts.native.conditions import SPACE
from dirqueue.layouts.native.names import MALFORMED
from dirqueue.message import Card, Details

SIDES = f"{SPACE}/side"
#: The numbers of side files: drawn, so that two clients that change one message do not wait for each other.
NUMBERS = 999_999_999
#: From the directory of a queue.
BESIDE = ".."


def path_of(id: str, number: int) -> str:
    """Return where a side file lies in its space."""
    own = id[-ID_DIGITS:]
    return f"{SIDES}/{zlib.crc32(own.encode()) & 0xFF:02x}/{own}.{number}"


def new_number() -> int:
    """Return a number for a side file that is about to be written."""
    return random.randint(1, NUMBERS)  # noqa: S311 - a name, no secret


def dumps(details: Details) -> bytes:
    """Return the content of a side file; no two are alike, so that a writer can tell its own."""
    record = {
        "version": details.version,
        "failures": details.failures,
        "error": details.error,
        "at": details.at,
        "id": details.own_id,
        "body": details.body is not None,
        "by": new_token(),
    }
    return json.dumps(record).encode() + b"\n" + (details.body or b"")


def loads(data: bytes) -> Details:
    """Return what a side file says; ValueError if it is not as we write them."""
    line, _, body = data.partition(b"\n")
    try:
        record = json.loads(line)
        return Details(
            int(record["version"]),
            int(record["failures"]),
            None if record["error"] is None else str(record["error"]),
            int(record["at"]),
            str(record["id"]),
            body if record["body"] else None,
        )
    except MALFORMED as error:
        raise ValueError("not a side file") from error


def read(directory: Directory, place: str) -> Details | None:
    """Return what the side file of a message says, by the place of its name in a queue; None if it has none.

    Raises:
        FileNotFoundError: the message has another name by now.
        OSError: plain; EBADMSG if the side file is missing or damaged.
    """
    card = names.card_at(place)
    if card is None or not card.side:
        return None
    id = place.rpartition("/")[2].partition(".")[0]
    try:
        details = loads(fs.read_file(f"{BESIDE}/{path_of(id, card.side)}", directory.fd))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        _gone(directory, place)
    if details.version > card.version:
        _gone(directory, place)
    return details


def _gone(directory: Directory, place: str) -> NoReturn:
    """RACE: what replaces a side file is named before the old one is removed."""
    if fs.exists(place, directory.fd):
        raise OSError(errno.EBADMSG, "its side file is missing or damaged", place)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)


def body_of(directory: Directory, place: str) -> bytes | None:
    """Return the replaced body of a message; None if it has its first one. Raises as `read`."""
    if "~" not in place:
        return None
    details = read(directory, place)
    return details.body if details is not None else None


def forget(directory: Directory, id: str, card: Card | None) -> None:
    """Remove the side file of a message that is gone."""
    if card is not None and card.side:
        fs.discard(f"{BESIDE}/{path_of(id, card.side)}", directory.fd)
