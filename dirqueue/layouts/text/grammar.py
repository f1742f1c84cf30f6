r"""The grammar of a text queue, in bytes.

    -queued   =processed   !failed   #comment
     a continuation of the line above        \a variable of the item above

Layer: layouts.  Pure values, no I/O.
What textqueue 1.1 reads, this reads, with the same offsets; lines that it refuses are *foreign* here: counted, never
touched. Three things differ on purpose: a byte order mark at the beginning is passed over, a byte that is not UTF-8
spoils only its own message, and a lone carriage return, which ends a line for both, does not shift what follows.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from typing import NamedTuple

try:
    from _blake2 import (
        blake2b,
    )  # COST: hashlib takes milliseconds to import, and this is all that is needed of it
except ImportError:  # another Python
    from hashlib import blake2b

QUEUED, CLEARED, FAILED, COMMENT = "-", "=", "!", "#"
BOM = b"\xef\xbb\xbf"
#: The kernel shows and keeps whole pages: what lies in one is there whole or not at all.
PAGE = 4096
#: Looked at to tell whether a file is a text queue.
ENOUGH = 65536
ENCODING = b"encoding=base64"

_EOL = rb"(?:\r\n|\n|\r)"
_ITEM = re.compile(rb"([-=!#])([^\r\n]*)((?:%b [^\r\n]*)*)((?:%b\\[^\r\n]*)*)(%b|\Z)" % (_EOL, _EOL, _EOL))
_LINE = re.compile(rb"[^\r\n]*(?:%b|\Z)" % _EOL)
_VARIABLE = re.compile(rb"\\([^\r\n]*)")


_CONTROLS = {ord(each): each for each in "-=!#"}
#: First characters of lines that end an item, for certain.
_ALONE = frozenset((b"", b"\n", b"-", b"=", b"!", b"#"))


class Variable(NamedTuple):
    """One variable: where its backslash is, and what follows it."""

    offset: int
    value: bytes


class Item(NamedTuple):
    """One message or comment, or a foreign line (whose control is its own first character, or empty)."""

    offset: int
    control: str
    #: The text as textqueue gives it: lines joined by newlines.
    text: bytes
    #: The lines of the variables, with the line end before the first; and where that is.
    tail: bytes
    tail_offset: int
    #: The first byte behind it.
    end: int
    #: Whether its last line ends.
    complete: bool

    @property
    def variables(self) -> list[Variable]:
        """Its variables, in order."""
        return [Variable(self.tail_offset + m.start(), m[1]) for m in _VARIABLE.finditer(self.tail)]

    @property
    def body(self) -> bytes:
        """What was put."""
        if self.tail and self.variables[0].value.rstrip() == ENCODING:
            try:
                return a2b_base64(self.text, strict_mode=True)
            except NotBase64:  # edited by hand: what is there is delivered
                pass
        return self.text

    @property
    def foreign(self) -> bool:
        """Whether no version of the format has such a line."""
        return self.control not in ("-", "=", "!", "#")


def item_at(data: bytes, at: int, base: int = 0) -> Item | None:
    """Return the item whose control character is at that index; None if there is none. `base` is added to offsets."""
    # COST: one line that nothing belongs to is by far the most common item; the expression takes twice as long for it.
    end = data.find(b"\n", at)
    if end >= 0 and data[end + 1 : end + 2] in _ALONE and data.find(b"\r", at, end) < 0:
        control = _CONTROLS.get(data[at])
        if control is None:
            return None
        return Item(base + at, control, data[at + 1 : end], b"", base + end, base + end + 1, complete=True)
    found = _ITEM.match(data, at)
    if found is None:
        return None
    head, more, tail, ends = found.group(2, 3, 4, 5)
    text = head
    if more:
        if b"\r" in more:
            more = more.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if more.endswith(b"\n ") and not ends and not tail:
            more = more[
                :-2
            ]  # COMPAT: textqueue takes the newline before a bare continuation for the last one
        text = head + more.replace(b"\n ", b"\n")
    return Item(
        base + at,
        _CONTROLS[data[at]],
        text,
        tail,
        base + found.start(4),
        base + found.end(),
        complete=bool(ends),
    )


def items(data: bytes, at: int = 0, base: int = 0) -> Iterator[Item]:
    """Yield everything from a line's beginning on, in order: messages, comments and foreign lines."""
    if base + at == 0 and data.startswith(BOM):
        at = len(BOM)
    size = len(data)
    while at < size:
        byte = data[at]
        if byte in b"\r\n":
            at += 1
            continue
        item = item_at(data, at, base)
        if item is None:
            found = _LINE.match(data, at)
            assert found is not None  # noqa: S101 - it matches anything
            control = data[at : at + 1].decode("latin-1")
            item = Item(
                base + at, control, found[0], b"", 0, base + found.end(), complete=found[0][-1:] in b"\r\n"
            )
        yield item
        at = item.end - base


def digest(text: bytes) -> str:
    """Return what a text is known by wherever it is moved."""
    return blake2b(text, digest_size=6).hexdigest()


def encode(body: bytes, control: bytes = b"-") -> tuple[bytes, bytes]:
    """Return the lines of a message, and its text in them.

    A body that the format cannot hold goes as base64, with a variable that says so.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        return _encoded(body, control)
    if b"\r" in body or b"\0" in body:
        return _encoded(body, control)
    if b"\n" in body:
        return b"%b%b\n" % (control, body.replace(b"\n", b"\n ")), body
    return b"%b%b\n" % (control, body), body


def _encoded(body: bytes, control: bytes) -> tuple[bytes, bytes]:
    text = b2a_base64(body, newline=False)
    return b"%b%b\n\\%b\n" % (control, text, ENCODING), text


def padding(length: int, at: int, item: bytes = b"") -> bytes:
    """Return what is written at `at` before an item, so that the item lies in one page.

    One that is longer is moved to where none of its pages begins with a dash: then no part of it can be taken for a
    message by a reader that does not lock.
    """
    room = PAGE - at % PAGE
    if length <= room:
        return b""
    if length <= PAGE:
        return fill(room)
    for shift in range(PAGE):
        inside = -(at + shift) % PAGE or PAGE
        if 45 not in item[inside::PAGE]:
            return fill(shift)
    return b""


def fill(length: int) -> bytes:
    """Return a comment of that many bytes, its newline included."""
    if length < 2:
        return b"\n" * length
    return b"#" + b" " * (length - 2) + b"\n"


def looks_like(data: bytes, *, whole: bool) -> bool:
    """Return whether the beginning of a file is that of a text queue: each line begins as the format allows."""
    data = data.removeprefix(BOM)
    if not whole:
        data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
    if data[:1] in (b" ", b"\\"):
        return False
    return all(line[:1] in b"-=!# \\" for line in data.replace(b"\r", b"\n").split(b"\n"))
