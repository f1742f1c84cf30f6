"""Looking at a text queue: no lock, nothing touched, works where nothing may be written.

Layer: layouts.  Touches: nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import BinaryIO, cast

from dirqueue import states as states_
from dirqueue.disk import fs
from dirqueue.disk.beside import opened
from dirqueue.disk.directory import Directory
from dirqueue.errors import MessageNotFound
from dirqueue.layouts.base import Claim, Layout, refuse_holder
from dirqueue.layouts.text import names, stamp, turn
from dirqueue.layouts.text.grammar import Item, digest, item_at, items
from dirqueue.layouts.text.notes import Note
from dirqueue.layouts.text.turn import Ledger
from dirqueue.message import Details, Entry, Failure, instant

#: How much of a file is read at once by whoever reads it item by item.
AHEAD = 256 << 10
_STATES = {"-": states_.READY, "=": states_.DONE, "!": states_.DEAD}


class Looker:
    """The part of the layout that only looks."""

    directory: Directory
    ledger: Ledger

    def count(self) -> int:
        looked = self._look()
        if looked is None:
            return 0
        data = looked[0]
        found = data.count(b"\n-") + (data.count(b"\r-") if b"\r" in data else 0)
        return found + (data.removeprefix(b"\xef\xbb\xbf")[:1] == b"-")

    def _look(self) -> tuple[bytes, bool] | None:
        try:
            return self.ledger.look()
        except OSError as error:
            raise self.ledger.failed("look into", error) from error

    def data(self) -> bytes:
        """Return the whole file; nothing if it is missing."""
        looked = self._look()
        return b"" if looked is None else looked[0]

    def read_from(self, at: int, file: tuple[int, int] | None) -> tuple[bytes, int, tuple[int, int]]:
        """Return some bytes from a place on, that place, and which file it is; from the top if it is another file.

        The bytes end with an item; one that somebody may still be writing is left out.
        """
        try:
            fd = opened(self.directory.path, os.O_RDONLY)
        except FileNotFoundError:
            return b"", at, file or (0, 0)
        except OSError as error:
            raise self.ledger.failed("read", error) from error
        try:
            facts = fs.fstat(fd)
            if file != (facts.st_ino, facts.st_dev) or facts.st_size < at:
                at = 0
            length = AHEAD
            while True:
                data = fs.pread(fd, length, at)
                young = self.directory.clock.now() < facts.st_ctime_ns // 1000 + turn.QUIET
                if len(data) < length and not (young and self._may_grow(facts, at + len(data))):
                    break
                last = 0
                for item in items(data, 0, at):
                    last = item.offset - at
                if last or len(data) < length:
                    data = data[:last]
                    break
                length *= 4
            return data, at, (facts.st_ino, facts.st_dev)
        finally:
            fs.close(fd)

    def _may_grow(self, facts: os.stat_result, size: int) -> bool:
        """Return whether the last item may be somebody else's who is still writing it: ours are there at once."""
        seal = stamp.load(self.ledger.sealed_now())
        return seal is None or seal.size != size or (seal.inode, seal.soft) != (facts.st_ino, 0)

    def check_id(self, id: object) -> str:
        return names.check_id(id)

    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]:
        wanted = frozenset(states)
        looked = self._look()
        if looked is None:
            return
        data, true = looked
        by_offset = self.ledger.notes.by_offset
        orphans: dict[str, Note] = {} if true else {note.digest: note for note in by_offset.values()}
        notes = dict(by_offset)
        now = self.directory.clock.now()
        for item in items(data):
            if item.control == "#":
                continue
            entry = self._entry(item, notes, orphans, now)
            if not wanted or entry.state in wanted:
                yield entry

    def _entry(self, item: Item, notes: dict[int, Note], orphans: dict[str, Note], now: int) -> Entry:
        if item.foreign:
            return Entry("", states_.FOREIGN, str(item.offset), 0)
        known_by = digest(item.text)
        note = notes.get(item.offset)
        if note is None or note.digest != known_by:
            note = orphans.get(known_by)
        id = f"{item.offset:012d}-{known_by}"
        put = self.ledger.put_at(item.offset)
        state = _STATES[item.control]
        if note is None or state == states_.DONE:
            return Entry(id, state, id, put)
        if state == states_.DEAD:
            return Entry(id, state, id, put, note.at, note.attempts)
        if note.token:
            return Entry(id, states_.LEASED, f"{id}@{note.token}", put, note.until, note.attempts, note.token)
        waits = note.until > now
        state = states_.DELAYED if waits else states_.READY
        return Entry(id, state, id, put, note.until if waits else 0, note.attempts)

    def find(self, id: str) -> Entry | None:
        looked = self._look()
        if looked is None:
            return None
        data, _ = looked
        item = by_id(data, id)
        if item is None:
            return None
        notes = self.ledger.notes.by_offset
        orphans = {note.digest: note for note in notes.values()} if item.offset not in notes else {}
        return self._entry(item, notes, orphans, self.directory.clock.now())

    def load(self, place: str) -> bytes:
        return self._item(place).body

    def _item(self, place: str) -> Item:
        id = place.partition("@")[0]
        looked = self._look()
        item = None if looked is None else by_id(looked[0], id)
        if item is None:
            raise moved_on(id)
        return item

    def stream(self, place: str) -> BinaryIO:
        import tempfile

        data = self.load(place)
        # A real file: whoever gives it to a program as its input needs a descriptor.
        body = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        body.write(data)
        body.seek(0)
        return cast("BinaryIO", body)

    def size(self, place: str) -> int:
        return len(self.load(place))

    def _note(self, entry: Entry) -> Note | None:
        offset, known_by = names.parse_id(entry.id)
        notes = self.ledger.notes.by_offset
        note = notes.get(offset)
        if note is None or note.digest != known_by:
            note = next((each for each in notes.values() if each.digest == known_by), None)
        return note

    def leased_at(self, entry: Entry) -> datetime | None:
        note = self._note(entry)
        return instant(note.since) if note is not None and note.since else None

    def claim_for(self, holder: str, seconds: float) -> Claim | None:
        refuse_holder(cast("Layout", self))

    def details(self, entry: Entry) -> Details | None:
        return None

    def holder(self, entry: Entry) -> str:
        return entry.token

    def failure(self, entry: Entry) -> Failure | None:
        note = self._note(entry)
        if note is None or note.error is None:
            return None
        return Failure(note.error, instant(note.at), instant(note.since) if note.since else None)


def by_id(data: bytes, id: str) -> Item | None:
    """Return the message of an id: where it was, or the first unfinished one with its text."""
    offset, known_by = names.parse_id(id)
    if offset < len(data) and (offset == 0 or data[offset - 1 : offset] in (b"\n", b"\r", b"\xbf")):
        item = item_at(data, offset)
        if item is not None and item.control != "#" and digest(item.text) == known_by:
            return item
    best: Item | None = None
    for item in items(data):
        if item.control in _STATES and digest(item.text) == known_by:
            if item.control == "-":
                return item
            best = best or item
    return best


def moved_on(id: str) -> MessageNotFound:
    """Return the error for a message that is not where it was seen."""
    return MessageNotFound(
        f"message {id} is not there any more: it was claimed, finished or changed meanwhile", message_id=id
    )
