"""What to claim next: the first message of the file that nobody holds and that is due.

Layer: layouts.  Touches: nothing; reads the file in a turn.
The file is searched from where the last search ended, so a claim costs the same however long the file is. What comes
back (released, retried, due, over) is in two heaps; memory is proportional to that.
"""

from __future__ import annotations

from heapq import heappop, heappush

from dirqueue.disk import fs
from dirqueue.layouts.text.grammar import BOM, Item, digest, item_at
from dirqueue.layouts.text.notes import DEAD, Note
from dirqueue.layouts.text.turn import Ledger

#: How much of the file is read at once.
CHUNK = 256 << 10
#: After others marked something, what lies before the place of the search is looked at again, at most so often; in
#: microseconds.
AGAIN = 200_000
#: How many messages one claim may look at before it finds nothing.
LOOKS = 100_000


class Found:
    """A message that may be claimed."""

    __slots__ = ("digest", "item", "note", "offset")

    def __init__(self, item: Item, note: Note | None, known_by: str) -> None:
        self.item = item
        self.offset = item.offset
        self.note = note
        self.digest = known_by


class Cursor:
    """Where one object is in the file."""

    def __init__(self, ledger: Ledger, margin: int) -> None:
        self._ledger = ledger
        self._margin = margin
        self._restart()

    def _restart(self) -> None:
        #: Everything before this was looked at.
        self._at = 0
        self._buffer, self._start, self._returns = b"", 0, False
        #: Offsets before `_at` that may be claimable again; and (when, offset) of those that will be.
        self._back: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._age = self._ledger.notes.age
        self._looked_again = 0

    def _catch_up(self) -> None:
        """Take what became known since the last claim."""
        notes = self._ledger.notes
        if notes.moved:
            notes.moved = False
            self._restart()
            for offset, note in notes.by_offset.items():
                self._put_by(offset, note)
        else:
            for offset in notes.changed:
                if offset in notes.by_offset:
                    self._put_by(offset, notes.by_offset[offset])
            for offset in notes.freed:
                if offset < self._at:
                    heappush(self._back, offset)
        if notes.changed or notes.freed:
            notes.changed.clear()
            notes.freed.clear()

    def _put_by(self, offset: int, note: Note) -> None:
        """Remember when a message that is noted may be claimed."""
        if note.until > 0:
            heappush(self._due, (self._free_at(note), offset))
        elif not note.until and offset < self._at:
            heappush(self._back, offset)

    def _free_at(self, note: Note) -> int:
        return note.until + self._margin if note.token else note.until

    def next(self, now: int) -> Found | None:
        """Return the next message that may be claimed; it counts as looked at."""
        self._catch_up()
        self._look_again(now)  # the order is that of the file
        notes, due, back = self._ledger.notes, self._due, self._back
        while due and due[0][0] <= now:
            _, offset = heappop(due)
            note = notes.by_offset.get(offset)
            if note is not None and self._free_at(note) <= now and offset < self._at:
                heappush(back, offset)
        for _ in range(LOOKS):
            offset = heappop(back) if back else self._search()
            soft = offset >= 0 and self._is_soft(offset, now)
            if soft:
                self._at = min(self._at, offset)
            if offset < 0 or soft:
                return None
            found = self.check(offset, now)
            if found is not None:
                return found
        return None

    def _look_again(self, now: int) -> None:
        """Begin at the top, if others have marked something since the last time."""
        if self._age == self._ledger.notes.age or 0 <= now - self._looked_again < AGAIN:
            return
        self._looked_again = now
        self._age = self._ledger.notes.age
        self._at, self._buffer, self._start = 0, b"", 0
        self._back.clear()

    def wakes_at(self) -> int:
        """Return when something may be claimable that is not now, in microseconds; 0 if nothing is known."""
        times = [self._due[0][0]] if self._due else []
        seal = self._ledger.seal
        if seal is not None and seal.soft and self._at <= seal.soft:
            times.append(seal.soft_until)
        if self._age != self._ledger.notes.age:
            times.append(self._looked_again + AGAIN)
        return min(times, default=0)

    def _search(self) -> int:
        """Return the offset of the next line that begins with a dash; -1 if there is none."""
        size = self._ledger.size
        while self._at < size:
            buffer, start = self._buffer, self._start
            inside = self._at - start
            if not 0 <= inside < len(buffer):
                # One byte more before it: a line begins behind a line's end.
                self._start = start = max(0, self._at - 1)
                self._buffer = buffer = fs.pread(self._ledger.file, CHUNK, start)
                self._returns = b"\r" in buffer
                inside = self._at - start
                if len(buffer) <= inside:
                    return -1
            if start + inside == 0:
                inside = len(BOM) if buffer.startswith(BOM) else 0
                if buffer[inside : inside + 1] == b"-":
                    self._at = inside + 1
                    return inside
                self._at = inside + 1
                continue
            place = _line_with_dash(buffer, inside, returns=self._returns)
            if place:
                self._at = start + place + 1
                return start + place
            self._at = start + len(buffer)
        return -1

    def check(self, offset: int, now: int) -> Found | None:
        """Return the message at an offset, if it is still to be claimed."""
        notes = self._ledger.notes
        note = notes.by_offset.get(offset)
        if note is not None and note.until != DEAD and self._free_at(note) > now:
            return None  # it is among those that are due later
        item = self.item(offset)
        if item is None or item.control != "-":
            if note is not None and note.until != DEAD:
                notes.drop(offset)
            return None
        known_by = digest(item.text)
        if note is not None and (note.digest != known_by or note.until == DEAD):
            notes.drop(offset)  # somebody typed another text over it, or made it wait again
            note = None
        return Found(item, note, known_by)

    def _is_soft(self, offset: int, now: int) -> bool:
        """Return whether somebody may still be writing that message."""
        seal = self._ledger.seal
        return seal is not None and 0 < seal.soft <= offset and now < seal.soft_until

    def item(self, offset: int) -> Item | None:
        """Read the item at an offset, as it is now."""
        ledger = self._ledger
        length = 4096
        inside = offset - self._start
        if 0 <= inside < len(self._buffer):
            item = item_at(self._buffer, inside, self._start)
            if item is not None and item.end - self._start < len(self._buffer):
                data = fs.pread(ledger.file, item.end - offset + 1, offset)
                if data == self._buffer[inside : item.end - self._start + 1]:
                    return item
        while True:
            data = fs.pread(ledger.file, length, offset)
            item = item_at(data, 0, offset)
            # It may go on behind what was read.
            if item is None or item.end - offset < len(data) or len(data) < length:
                return item
            length *= 4


def _line_with_dash(buffer: bytes, at: int, *, returns: bool) -> int:
    """Return the index of the first dash at or behind `at` that begins a line; 0 if there is none."""
    found = buffer.find(b"\n-", max(0, at - 1))
    if returns:
        other = buffer.find(b"\r-", max(0, at - 1))
        if other >= 0 and (found < 0 or other < found):
            found = other
    return found + 1
