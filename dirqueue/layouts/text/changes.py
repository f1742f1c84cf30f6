"""One change of one message, in a turn: its record, its line in the file, and what is known of it.

Layer: layouts.  Touches: through turn.py, the file and its journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dirqueue.layouts.text import mirror
from dirqueue.layouts.text.cursor import Cursor
from dirqueue.layouts.text.grammar import Item
from dirqueue.layouts.text.notes import Note
from dirqueue.layouts.text.turn import Ledger


class Changes:
    """The changes of a message that waits, is held, or has ended."""

    def __init__(self, ledger: Ledger, cursor: Cursor) -> None:
        self._ledger = ledger
        self._cursor = cursor

    def flip(
        self, offset: int, known_by: str, before: str, after: str, attempts: int, reason: str | None, now: int
    ) -> None:
        """Change the state that the first character of its line says."""
        why = "null" if reason is None else json.dumps(reason)
        record = f"flip {now} {offset} {known_by} {before} {after} {attempts} {why}".encode()
        ledger = self._ledger
        if self._is_plain(offset):
            writes = []
        else:
            told = mirror.ended(attempts, reason)
            writes = self._writes(offset, {**told, "done": mirror.time_of(now)} if after == "=" else told)
        ledger.change(record, [(offset, after.encode()), *writes])
        ledger.notes.flip(offset, known_by, after, attempts, reason, now)

    def hold(
        self,
        offset: int,
        known_by: str,
        until: int,
        attempts: int,
        since: int,
        token: str,
        item: Item | None = None,
    ) -> None:
        """Note that somebody holds it; `item` is the message, if it was just read."""
        ledger = self._ledger
        record = f"hold {offset} {known_by} {until} {attempts} {since} {token}".encode()
        plain = not item.tail if item is not None else self._is_plain(offset)
        writes = [] if plain else self._writes(offset, mirror.held(token, until, attempts), item)
        ledger.note(record, writes)
        ledger.notes.hold(offset, known_by, until, attempts, since, token, plain=plain)

    def leave(self, offset: int, known_by: str, until: int, attempts: int, since: int, token: str) -> None:
        """Note that somebody else holds it, whose variables are not ours to write."""
        self._ledger.note(f"hold {offset} {known_by} {until} {attempts} {since} {token}".encode(), [])
        self._ledger.notes.hold(offset, known_by, until, attempts, since, token)

    def free(self, offset: int, note: Note, until: int, attempts: int, error: str | None, now: int) -> None:
        """Note that nobody holds it: it waits, or is delayed."""
        record = f"free {now} {offset} {note.digest} {until} {attempts} {json.dumps(error)}".encode()
        ledger = self._ledger
        writes = [] if self._is_plain(offset) else self._writes(offset, mirror.ended(attempts, error))
        ledger.note(record, writes)
        ledger.notes.apply(record)

    def _is_plain(self, offset: int) -> bool:
        """Return whether it is known to have no variables."""
        note = self._ledger.notes.by_offset.get(offset)
        return note is not None and note.plain

    def _writes(
        self, offset: int, values: Mapping[str, str], item: Item | None = None
    ) -> list[tuple[int, bytes]]:
        item = item or self._cursor.item(offset)
        return mirror.writes(item, values) if item is not None and item.tail else []
