r"""The stamp in the file and the seal beside it: what tells whether somebody else was at the file.

    # dirqueue: this is a live queue. Edit it with `dirqueue edit FILE`, or while nobody uses it.
    \dirqueue=QUEUE seen=POSITION.CHECK POSITION.CHECK

The stamp says up to where the file has seen the journal. It moves with a copy of the file, so a file that was saved
from an old copy carries an old number. The two numbers are written in turn, and the later one counts. So a turn that
comes in the middle of somebody saving an old copy writes over one of its numbers and finds the other one: that it is
old is seen, and not forgotten. The seal is the content of the lock file: the facts of the file after the last turn.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

_HEAD = b"# dirqueue: this is a live queue. Edit it with `dirqueue edit FILE`, or while nobody uses it.\n"
_STAMP = re.compile(
    rb"^# dirqueue: this is a live queue\.[^\r\n]*\r?\n\\dirqueue=([0-9a-f]{12}) seen=([^\r\n]{19}) ([^\r\n]{19})",
    re.MULTILINE,
)
#: POSITION.CHECK, and two of them.
_NUMBER = re.compile(rb"(\d{16})\.[0-9a-f]{2}")
_WIDTH = 19
WIDTH = 2 * _WIDTH + 1
#: The length of a seal.
SEAL = 256
#: How much of the end of the file the seal remembers, at most.
ANCHOR = 128
_FIELDS = b" ".join([b"%d"] * 14)


class Stamp(NamedTuple):
    """A stamp that was found in a file."""

    queue: str
    #: The later of its numbers; -1 if neither is whole: a copy may have been made while they were changed.
    seen: int
    #: The earlier one.
    before: int
    #: Where its numbers begin, and where the one is that is written next.
    offset: int
    slot: int


def seen_text(position: int) -> bytes:
    """Return one number of a stamp."""
    return b"%016d.%02x" % (position, position * 2654435761 >> 7 & 255)


def lines(queue: str) -> tuple[bytes, Stamp]:
    """Return the lines of a stamp that has seen nothing, and what is found in them."""
    front = _HEAD + b"\\dirqueue=%b seen=" % queue.encode()
    return b"%b%b %b\n" % (front, seen_text(0), seen_text(0)), Stamp(queue, 0, 0, len(front), len(front))


def find(data: bytes) -> list[Stamp]:
    """Return the stamps in a file."""
    found = []
    for each in _STAMP.finditer(data) if b"\\dirqueue=" in data else ():
        one, other = _position(each[2]), _position(each[3])
        slot = each.start(3) if other < one else each.start(2)
        found.append(Stamp(each[1].decode(), max(one, other), min(one, other), each.start(2), slot))
    return found


def _position(text: bytes) -> int:
    """Return what a number says; -1 if it is not whole."""
    found = _NUMBER.fullmatch(text)
    position = int(found[1]) if found else -1
    return position if text == seen_text(position) else -1


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
    #: Where the numbers of the stamp are, and the one that is written next.
    stamp: int
    slot: int
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
        text = _FIELDS % self
        return (b"%b %08x" % (text, crc32(text))).ljust(SEAL - 1) + b"\n"

    def numbers(self, position: int) -> bytes:
        """Return the numbers of the stamp after `position` was written next to what the file has seen."""
        new, old = seen_text(position), seen_text(self.seen)
        return b"%b %b" % ((new, old) if self.slot == self.stamp else (old, new))

    def other(self) -> int:
        """Return where the number is that was written last."""
        return 2 * self.stamp + _WIDTH + 1 - self.slot


def load(data: bytes) -> Seal | None:
    """Return the seal that a lock file holds; None if it holds none, or a damaged one."""
    text, _, check = data.rstrip().rpartition(b" ")
    if not text or check != b"%08x" % crc32(text):
        return None
    try:
        return Seal(*map(int, text.split(b" ")))
    except (TypeError, ValueError):
        return None


def anchor(tail: bytes, size: int, stamp_at: int) -> tuple[int, int]:
    """Return where the text of the last line begins and what it is known by, given the last bytes of a file.

    The numbers of a stamp change, so the line of one does not count.
    """
    start = max(tail.rfind(b"\n", 0, len(tail) - 1) + 2, len(tail) - ANCHOR)
    at = size - max(0, len(tail) - start)
    if stamp_at + WIDTH > at:
        return size, 0
    return at, crc32(tail[start:])
