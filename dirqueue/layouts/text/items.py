"""Single items of a text queue, for programs that know its lines: claim this one, mark it, set its variable.

Layer: layouts.  Touches: through turn.py, the file and its journal.
"""

from __future__ import annotations

from dirqueue.disk import identity
from dirqueue.disk.clock import micros
from dirqueue.errors import LeaseLost
from dirqueue.layouts.base import Claim
from dirqueue.layouts.text import mirror
from dirqueue.layouts.text.grammar import Item, digest, encode
from dirqueue.layouts.text.layout import Text
from dirqueue.layouts.text.names import id_of


def take(layout: Text, offset: int, known_by: str, seconds: float) -> Claim | None:
    """Claim the message at an offset; None if it is not that one, or somebody has it."""

    def change() -> Claim | None:
        now = layout.directory.clock.now()
        found = layout.cursor.check(offset, now)
        if found is None or found.digest != known_by:
            return None
        if layout.leave_to_others(found, now, micros(seconds)):
            return None
        attempts = (found.note.attempts if found.note else mirror.tries(found.item)) + 1
        token, until = identity.new_token(), now + micros(seconds)
        layout.changes.hold(offset, known_by, until, attempts, now, token, found.item)
        id = id_of(offset, known_by)
        return Claim(id, f"{id}@{token}", now, until, attempts, found.item.body)

    return layout.in_turn(change, "claim from")


def mark(layout: Text, item: Item, after: str) -> None:
    """Change the control character of an item that nobody holds; LeaseLost if it is not there as it was."""

    def change() -> None:
        _look_at(layout, item)
        note = layout.ledger.notes.by_offset.get(item.offset)
        attempts, now = note.attempts if note else 0, layout.directory.clock.now()
        layout.changes.flip(item.offset, digest(item.text), item.control, after, attempts, None, now)

    layout.in_turn(change, "mark a message of")


def set_variable(layout: Text, item: Item, index: int, value: bytes) -> None:
    """Write a variable over, in its place and of its length; LeaseLost if the item is not there as it was."""

    def change() -> None:
        found = _look_at(layout, item)
        variable = found.variables[index]
        if len(variable.value) != len(value):
            raise _moved(item)
        layout.ledger.change(None, [(variable.offset + 1, value)])

    layout.in_turn(change, "set a variable of")


def append(layout: Text, text: bytes, variables: tuple[bytes, ...]) -> str:
    """Put a message with variables; return its id."""
    lines, known = encode(text)
    return layout.put_lines([(lines + b"".join(b"\\%b\n" % each for each in variables), known)], 0)[0]


def _look_at(layout: Text, item: Item) -> Item:
    found = layout.cursor.item(item.offset) if item.offset < layout.ledger.size else None
    if found is None or found.text != item.text or found.control != item.control:
        raise _moved(item)
    return found


def _moved(item: Item) -> LeaseLost:
    id = id_of(item.offset, digest(item.text))
    return LeaseLost(
        f"cannot change {id}: it is not there any more, or was marked meanwhile; nothing was changed",
        message_id=id, token="", reason="gone",
    )  # fmt: skip
