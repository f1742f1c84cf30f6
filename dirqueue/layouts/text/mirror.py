r"""Variables of a message that mirror what the journal knows of it, for people and for programs of textqueue.

    \put=TIME   \lease=WHO until TIME   \tries=N   \error=WHY   \done=TIME   \mutex=WHO

Only messages that have such variables have them kept: those put with the setting `annotate`, or whose writer reserved
the room. They are written over in place, never wider than they are; what is longer is cut and ends in ~. The journal
is the truth. Read back from the file are only `tries`, where the journal knows nothing of the message, and `mutex`, by
which a program that does not lock says that it has the message.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from dirqueue.layouts.text.grammar import Item

#: How wide the variables of an annotated message are.
WIDTHS = {b"lease": 64, b"tries": 3, b"error": 60, b"done": 20}


def reserved(now: int) -> bytes:
    """Return the lines that an annotated message gets when it is put."""
    blank = (b"\\%b=%b\n" % (name, b" " * width) for name, width in WIDTHS.items())
    return b"\\put=%b\n" % time_of(now).encode() + b"".join(blank)


def time_of(micros: int) -> str:
    """Return an instant as a variable has it."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def writes(item: Item, values: Mapping[str, str]) -> list[tuple[int, bytes]]:
    """Return what is to be written where, so that the variables of an item have these values."""
    found = []
    for variable in item.variables:
        name, equals, old = variable.value.partition(b"=")
        value = values.get(name.decode("latin-1")) if equals else None
        if value is None:
            continue
        new = " ".join(value.split()).encode("ascii", "replace")
        if len(new) > len(old):
            new = new[: max(0, len(old) - 1)] + b"~"[: len(old)]
        new = new.ljust(len(old))
        if new != old:
            found.append((variable.offset + 1 + len(name) + 1, new))
    return found


def held(token: str, until: int, attempts: int) -> dict[str, str]:
    """Return what the variables of a message say that is held."""
    return {"lease": f"{token} until {time_of(until)}", "tries": str(attempts), "mutex": token}


def ended(attempts: int, error: str | None) -> dict[str, str]:
    """Return what they say when a lease is over."""
    told = {"lease": "", "mutex": "", "tries": str(attempts)}
    return told if error is None else {**told, "error": error}


def value_of(item: Item, name: bytes) -> str:
    """Return what a variable says, without the spaces that fill it; empty if there is none."""
    for variable in item.variables:
        known, _, value = variable.value.partition(b"=")
        if known == name:
            return value.decode("utf-8", "replace").strip()
    return ""


def tries(item: Item) -> int:
    """Return how often an item says that it was delivered."""
    text = value_of(item, b"tries") if item.tail else ""
    return int(text) if text.isdecimal() and text.isascii() else 0
