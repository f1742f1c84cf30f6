r"""The stamp in the file and the seal beside it: what tells whether somebody else was at the file.

    # dirqueue: this is a live queue. Edit it with `dirqueue edit FILE`, or while nobody uses it.
    \dirqueue=QUEUE seen=POSITION.CHECK

The stamp says up to where the file has seen the journal. It moves with a copy of the file, so a file that was saved
from an old copy carries an old number. The seal is the content of the lock file: the facts of the file after the last
turn.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

_HEAD = b"# dirqueue: this is a live queue. Edit it with `dirqueue edit FILE`, or while nobody uses it.\n"
_STAMP = re.compile(
    rb"^# dirqueue: this is a live queue\.[^\r\n]*\r?\n\\dirqueue=([0-9a-f]{12}) seen=((\d{16})\.([0-9a-f]{2}))",
    re.MULTILINE,
)
#: POSITION.CHECK
WIDTH = 19
#: The length of a seal.
SEAL = 256
#: How much of the end of the file the seal remembers, at most.
ANCHOR = 128


class Stamp(NamedTuple):
    """A stamp that was found in a file."""

    queue: str
    seen: int
    #: Where POSITION is.
    offset: int
    #: Whether the number is whole: a copy may have been made while it was changed.
    whole: bool


def seen_text(position: int) -> bytes:
    """Return the number of a stamp."""
    return b"%016d.%02x" % (position, position * 2654435761 >> 7 & 255)


def lines(queue: str, position: int) -> tuple[bytes, int]:
    """Return the lines of a stamp, and where in them its number is."""
    front = _HEAD + b"\\dirqueue=%b seen=" % queue.encode()
    return front + seen_text(position) + b"\n", len(front)


def find(data: bytes) -> list[Stamp]:
    """Return the stamps in a file."""
    found = []
    for each in _STAMP.finditer(data) if b"\\dirqueue=" in data else ():
        position = int(each[3])
        found.append(Stamp(each[1].decode(), position, each.start(2), each[2] == seen_text(position)))
    return found


class Seal(NamedTuple):
    """The facts of the file after a turn, and where the journal was then."""

    inode: int
    size: int
    changed: int  #: st_ctime_ns
    part: int
    end: int
    chain: int
    #: Up to where the file has seen the journal.
    seen: int
    #: Where the number of the stamp is; 0 if there is none.
    stamp: int
    #: The last item was appended by somebody else: its offset, and until when more of it may come; or 0.
    soft: int
    soft_until: int
    #: Whether the last line ends.
    clean: int
    #: Where the last item's text begins, and what it is known by: an edit that moves anything moves it too.
    anchor_at: int
    anchor: int

    def dump(self) -> bytes:
        """Return it as the lock file holds it."""
        text = b"%d %d %d %d %d %d %d %d %d %d %d %d %d" % self
        return (b"%b %08x" % (text, crc32(text))).ljust(SEAL - 1) + b"\n"


def load(data: bytes) -> Seal | None:
    """Return the seal that a lock file holds; None if it holds none, or a damaged one."""
    text, _, check = data.rstrip().rpartition(b" ")
    if not text or check != b"%08x" % crc32(text):
        return None
    try:
        return Seal(*map(int, text.split(b" ")))
    except (TypeError, ValueError):
        return None


def anchor(tail: bytes, size: int, number_at: int) -> tuple[int, int]:
    """Return where the text of the last line begins and what it is known by, given the last bytes of a file.

    The number of a stamp changes, so the line of one does not count.
    """
    start = max(tail.rfind(b"\n", 0, len(tail) - 1) + 2, len(tail) - ANCHOR)
    at = size - max(0, len(tail) - start)
    if number_at and number_at + WIDTH > at:
        return size, 0
    return at, crc32(tail[start:])
