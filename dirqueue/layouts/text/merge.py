"""Somebody else was at the file: a person with an editor, a program of textqueue, or one of ours that was killed.

    what is found                               what is done
    only more bytes, and other marks            the new bytes are recorded too; the last item may still grow
    anything else                               wait until it has been quiet for a moment; then, by the stamp:
      up to date                                edited while nothing happened: every edit counts
      older                                     saved from a copy of that moment: the records since then are redone
      newer than the journal, or of another     the journal lost its end, or somebody put another file here: accepted
      none, and not empty                       a copy from before the first stamp: all records that are kept are redone
      none, and empty                           emptied on purpose: accepted

Redone means: a block that is missing is appended, each of its messages in the state it had reached; a mark is made
where the message is still in the state before it. So what a person deleted, commented out or marked stays so, what was
put meanwhile is there, and what was finished meanwhile does not come back. All changes are appends and single bytes: an
editor that is still open can save again, and the same is done again.

Layer: layouts.  Touches: what turn.py touches, in a turn.
Crash: at any call; the stamp is still the old one, and the next turn does it again. A record `again` whose block is
there says what was already appended.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple
from zlib import crc32

from dirqueue.disk import fs
from dirqueue.disk.beside import append, reserve
from dirqueue.layouts.text import stamp
from dirqueue.layouts.text.grammar import PAGE, Item, digest, items, padding
from dirqueue.layouts.text.notes import DEAD, Note, Notes, block_of, block_text
from dirqueue.layouts.text.stamp import Seal, Stamp
from dirqueue.layouts.text.turn import QUIET, Ledger, Restless, read_all

#: Above what others append of this size, the end alone is recorded: a copy that was saved later may lack the rest.
LONGEST_CAME = 1 << 20
_RESTORED = b"# dirqueue: what follows came while somebody else was saving an older copy of this file.\n"
_MESSAGES = ("-", "=", "!")


def reconcile(ledger: Ledger, seal: Seal | None, facts: os.stat_result) -> None:
    """Find out what happened, mend it, and seal."""
    known = _read_journal(ledger, seal)
    if seal is not None and known and _only_more(ledger, seal, facts):
        _take_more(ledger, seal, facts)
        return
    now = ledger.directory.clock.now()
    quiet_at = facts.st_ctime_ns // 1000 + QUIET
    young = now < quiet_at <= now + 2 * QUIET  # else the clock was set
    if young and (known or facts.st_size) and not _cut_short(ledger, seal, facts):
        raise Restless(quiet_at - now)
    _Merge(ledger, read_all(ledger.file, facts.st_size), facts).run(known=known, seal=seal)


def merged(ledger: Ledger, data: bytes) -> None:
    """Merge what a file has not seen that was just put in the place of another, in a turn; and seal."""
    _Merge(ledger, data, fs.fstat(ledger.file)).run(known=True, seal=None)


def _read_journal(ledger: Ledger, seal: Seal | None) -> bool:
    """Read all records that are whole, also those of a turn that was cut short; return whether there is a journal."""
    if seal is None or ledger.seal is None or not ledger.follow(seal):
        ledger.forget()
        part = ledger.journal.last() if seal is None else seal.part
        if part is None or not ledger.journal.exists(part):
            part = ledger.journal.last()
        if part is None:
            return False
        ledger.journal.open(part)
    journal, record = ledger.journal, b""
    for _, record in journal.read():
        ledger.notes.apply(record)
    if record.startswith(b"next"):
        # CRASH: another part was about to begin. It never counted; this one goes on over the mark.
        journal.turn_over(ledger.notes.base())
    return bool(ledger.notes.queue)


def _only_more(ledger: Ledger, seal: Seal, facts: os.stat_result) -> bool:
    """Return whether the file is the same but for marks and for what was appended, and has seen all records."""
    if facts.st_ino != seal.inode or facts.st_size < seal.size or ledger.journal.end != seal.end:
        return False
    last = stamp.seen_text(seal.seen)
    if fs.pread(ledger.file, len(last), seal.other()) != last:
        return False
    return _anchored(ledger, seal)


def _anchored(ledger: Ledger, seal: Seal) -> bool:
    """Return whether what was the end of the file is where it was."""
    return crc32(fs.pread(ledger.file, seal.size - seal.anchor_at, seal.anchor_at)) == seal.anchor


def _cut_short(ledger: Ledger, seal: Seal | None, facts: os.stat_result) -> bool:
    """Return whether this is what a process of ours left that was killed: then there is nobody to wait for.

    Its record is behind the end that the seal knows. Either nothing but its block was added to the file, or the file
    is a new one that has seen the record, which nobody else could know.
    """
    if seal is None or ledger.journal.end <= seal.end:
        return False
    around = fs.pread(ledger.file, PAGE, max(0, seal.stamp - PAGE // 2))
    stamps = [each for each in stamp.find(around) if each.queue == ledger.notes.queue]
    if any(each.seen == ledger.journal.end and each.before in (seal.seen, each.seen) for each in stamps):
        return True
    if (
        facts.st_ino != seal.inode
        or facts.st_size < seal.size
        or seal.seen not in [each.seen for each in stamps]
    ):
        return False
    return _anchored(ledger, seal)


def _take_more(ledger: Ledger, seal: Seal, facts: os.stat_result) -> None:
    """Record what others appended; the last of it may be in the middle of being written."""
    notes, size = ledger.notes, facts.st_size
    now = ledger.directory.clock.now()
    notes.age += 1
    soft, soft_until, clean = seal.soft, seal.soft_until, seal.clean
    anchor_at, anchor = seal.anchor_at, seal.anchor
    if size > seal.size:
        block = fs.pread(
            ledger.file, min(size - seal.size, LONGEST_CAME), max(seal.size, size - LONGEST_CAME)
        )
        at = size - len(block)
        record = b"came %d %d %b" % (now, at, block_text(block))
        ledger.record(record)
        notes.apply(record)
        soft, clean = _last(block, at, seal), int(block[-1:] in b"\r\n")
        soft_until = facts.st_ctime_ns // 1000 + QUIET
        anchor_at, anchor = stamp.anchor(block, size, seal.stamp)
    journal = ledger.journal
    # The facts are those from before we looked: what came since then is seen by the next turn.
    ledger.write_seal(
        Seal(
            facts.st_ino, size, facts.st_ctime_ns, journal.part, journal.end, journal.chain,
            seal.seen, seal.stamp, seal.slot, soft, soft_until, clean, anchor_at, anchor,
        )
    )  # fmt: skip


def _last(block: bytes, at: int, seal: Seal) -> int:
    """Return where the last item begins after a block was added, which may go on with the one before it."""
    last = seal.soft or max(0, seal.anchor_at - 1)
    rest = 0 if seal.clean else block.find(b"\n") + 1  # the end of a line is no item
    if rest or seal.clean:
        for item in items(block, rest, at):
            last = last if item.foreign else item.offset
    return last


def _facts(of: os.stat_result) -> tuple[int, int]:
    return of.st_size, of.st_ctime_ns


def _since(found: Stamp, seal: Seal | None) -> int:
    """Return up to where a file has seen the journal.

    CRASH: whoever wrote the later number died before the seal. If the earlier one is not that of the seal, it was
    written over the number of an old copy that somebody saved at that moment.
    """
    if seal is not None and found.seen > seal.end and 0 <= found.before != seal.seen:
        return found.before
    return found.seen


class _Place(NamedTuple):
    """A message in the file."""

    offset: int
    control: str
    digest: str


class _Missing:
    """A message that the file lacks: its lines behind the control character, and the state that it has reached."""

    __slots__ = ("control", "digest", "lines")

    def __init__(self, lines: bytes, control: str, known_by: str) -> None:
        self.lines = lines
        self.control = control
        self.digest = known_by


class _Merge:
    """One merge of the journal into the file that is there."""

    def __init__(self, ledger: Ledger, data: bytes, facts: os.stat_result) -> None:
        self._ledger = ledger
        self._facts = facts
        self._data = data
        #: Control characters that are to be changed, by offset.
        self._marks: dict[int, str] = {}
        #: Messages to be appended, by their offset in the record.
        self._missing: dict[int, _Missing] = {}
        self._at: dict[int, _Place] | None = None
        self._by_digest: dict[str, list[_Place]] = {}
        #: What is missing of a block that is there in part.
        self._rest = b""
        #: Whether there is no stamp: then a text counts as missing, or as not yet marked, only if it is nowhere so.
        self._unmarked = False
        self._counted: dict[int, set[str]] = {}

    def run(self, *, known: bool, seal: Seal | None) -> None:
        """Merge, and seal."""
        ledger, data = self._ledger, self._data
        notes = ledger.notes
        found = [each for each in stamp.find(data) if each.seen >= 0]
        if not known:
            self._begin(found)
        ours = [each for each in found if each.queue == notes.queue]
        since = min((_since(each, seal) for each in ours), default=-1)
        if ours and since > ledger.journal.end:
            ledger.journal.start(since, notes.base())  # the journal lost its end
        elif data and known and (ours or not found):
            self._unmarked = not ours
            self._redo(max(since, 0))
        moved = self._rekey() if data else {}
        self._write(since, moved, self._own(ours, found))

    def _begin(self, found: list[Stamp]) -> None:
        """Begin a journal for a file that has none; one that was lost is continued behind the stamp."""
        ledger = self._ledger
        ledger.notes.began = self._facts.st_mtime_ns // 1000
        ledger.notes.queue = found[0].queue if found else os.urandom(6).hex()
        ledger.journal.start(max((each.seen for each in found), default=0), ledger.notes.base())

    def _own(self, ours: list[Stamp], found: list[Stamp]) -> Stamp | None:
        """Return our stamp; None if there is none. That of another queue becomes ours."""
        if ours or not found:
            return ours[0] if ours else None
        name = found[0].offset - len(" seen=") - len(found[0].queue)
        fs.pwrite(self._ledger.file, self._ledger.notes.queue.encode(), name)
        return found[0]

    # --- what the file has not seen ------------------------------------------------------------------------

    def _redo(self, since: int) -> None:
        for _, record in self._ledger.journal.history(since):
            kind, _, rest = record.partition(b" ")
            if kind == b"put":
                _, offset, _, block = rest.split(b" ", 3)
                self._redo_block(int(offset), block_of(block))
            elif kind == b"came":
                _, offset, block = rest.split(b" ", 2)
                self._redo_block(int(offset), block_of(block))
            elif kind == b"flip":
                _, place, known_by, before, after, _, _ = rest.decode().split(" ", 6)
                self._redo_flip(int(place), known_by, before, after)
            elif kind == b"again":
                _, _, offset, told = rest.split(b" ", 3)
                self._redo_again(int(offset), json.loads(told))

    def _redo_block(self, offset: int, block: bytes) -> None:
        if not self._unmarked and self._there(offset, block):
            return
        for item in items(block, 0, offset):
            if item.control in _MESSAGES and not self._has(item):
                lines = block[item.offset - offset + 1 : item.end - offset]
                self._missing[item.offset] = _Missing(lines, item.control, digest(item.text))

    def _there(self, offset: int, block: bytes) -> bool:
        """Return whether a block is in the file; one that was cut short is completed."""
        if self._data.find(block, offset) >= 0:
            return True
        tail = self._data[offset:]
        if tail and len(tail) < len(block) and block.startswith(tail) and not self._rest:
            self._rest = block[len(tail) :]
            self._data += self._rest
            self._at = None
            return True
        return False

    def _has(self, item: Item) -> bool:
        """Return whether a message is where it was put, in whatever state."""
        if self._unmarked:
            return self._count(digest(item.text), "", "")
        there = self._places().get(item.offset)
        if there is None or there.digest != digest(item.text):
            return False
        if there.control == "#" and item.end - item.offset > PAGE:
            self._marks[item.offset] = item.control  # CRASH: a long one is shown when it is complete
        return True

    def _redo_flip(self, offset: int, known_by: str, before: str, after: str) -> None:
        missing = self._missing.get(offset)
        if missing is not None and missing.digest == known_by:
            missing.control = after
            return
        there = self._places().get(offset)
        if there is not None and there.digest == known_by and not self._unmarked:
            control = self._control(there)
            if control == before:
                self._marks[offset] = after
            if control in (before, after):
                return
        if self._unmarked and self._count(known_by, after, after):
            return
        for missing in self._missing.values():
            if missing.digest == known_by and missing.control == before:
                missing.control = after
                return
        for place in self._by_digest.get(known_by, ()):
            if self._control(place) == before:
                self._marks[place.offset] = after
                return

    def _redo_again(self, offset: int, told: dict[str, Any]) -> None:
        block = str(told["block"]).encode("utf-8", "surrogateescape")
        if block and not self._unmarked and self._there(offset, block):
            self._missing.clear()  # CRASH: what was missing before it is in it
            for where, known_by, after in told["flips"]:
                place = self._places().get(where)
                if place is not None and place.digest == known_by:
                    self._marks[where] = after

    def _count(self, known_by: str, control: str, what: str) -> bool:
        """Find a message of that text (and state, if one is named) that was not counted for this yet; count it."""
        self._places()
        for place in self._by_digest.get(known_by, ()):
            counted = self._counted.setdefault(place.offset, set())
            if what not in counted and control in ("", place.control):
                counted.add(what)
                return True
        return False

    def _control(self, place: _Place) -> str:
        return self._marks.get(place.offset, place.control)

    def _places(self) -> dict[int, _Place]:
        """Return all messages and comments of the file, by offset."""
        if self._at is None:
            self._at, self._by_digest = {}, {}
            for item in items(self._data):
                if not item.foreign:
                    place = _Place(item.offset, item.control, digest(item.text))
                    self._at[item.offset] = place
                    self._by_digest.setdefault(place.digest, []).append(place)
        return self._at

    # --- what is written -----------------------------------------------------------------------------------

    def _rekey(self) -> dict[int, int]:
        """Return where each message that is noted has gone: old offset -> new one, or -1 - the key in `_missing`."""
        moved: dict[int, int] = {}
        notes = self._ledger.notes.by_offset
        if not notes:
            return moved
        places = self._places()
        taken: set[int] = set()
        lost: list[tuple[int, Note]] = []
        for offset, note in notes.items():
            there = places.get(offset)
            if there is not None and there.digest == note.digest and self._fits(self._control(there), note):
                moved[offset] = offset
                taken.add(offset)
            elif self._is_missing(offset, note):
                moved[offset] = -1 - offset
            else:
                lost.append((offset, note))
        for offset, note in lost:
            for place in self._by_digest.get(note.digest, ()):
                if place.offset not in taken and self._fits(self._control(place), note):
                    moved[offset] = place.offset
                    taken.add(place.offset)
                    break
        return moved

    def _is_missing(self, offset: int, note: Note) -> bool:
        missing = self._missing.get(offset)
        return missing is not None and missing.digest == note.digest and self._fits(missing.control, note)

    @staticmethod
    def _fits(control: str, note: Note) -> bool:
        """Return whether a note still says something of a message that is marked so."""
        return control == "!" if note.until == DEAD else control == "-"

    def _write(self, since: int, moved: dict[int, int], own: Stamp | None) -> None:
        ledger = self._ledger
        size = len(self._data)
        block, places, own = self._block(own)
        marks = [
            (offset, self._places()[offset].digest, after)
            for offset, after in self._marks.items()
            if self._data[offset : offset + 1] != after.encode()
        ]
        self._renote(moved, places)
        told = json.loads(ledger.notes.base())
        told |= {"block": block.decode("utf-8", "surrogateescape"), "flips": marks}
        now = ledger.directory.clock.now()
        facts = self._facts
        seal = Seal(
            facts.st_ino, facts.st_size, facts.st_ctime_ns, 0, 0, 0, own.seen, own.offset, own.slot, 0, 0, 1, 0, 0
        )  # fmt: skip
        if not reserve(ledger.file) and _facts(fs.fstat(ledger.file)) != _facts(facts):
            raise Restless(QUIET)  # RACE: saved again since we looked
        ledger.record(b"again %d %d %d %b" % (now, max(since, 0), size, json.dumps(told).encode()))
        for piece in (self._rest, block):
            done = 0
            while done < len(piece):
                done += append(ledger.file, piece[done:])
        for offset, _, after in marks:
            fs.pwrite(ledger.file, after.encode(), offset)
        ledger.size = size + len(block)
        ledger.notes.age += 1
        ledger.notes.moved = True
        ledger.stamp(seal, block, self._data[-PAGE:])

    def _block(self, own: Stamp | None) -> tuple[bytes, dict[int, int], Stamp]:
        """Return what is to be appended, where each missing message will be, and the stamp as it will be found."""
        size = len(self._data)
        pieces: list[bytes] = []
        places: dict[int, int] = {}
        missing = {key: value for key, value in self._missing.items() if value.control != "#"}

        def add(lines: bytes) -> int:
            nonlocal size
            pad = padding(len(lines), size, lines)
            pieces.extend((pad, lines))
            size += len(pad) + len(lines)
            return size - len(lines)

        if (missing or own is None) and self._data[-1:] not in (b"\n", b"\r", b""):
            pieces.append(b"\n")
            size += 1
        if own is None:
            lines, own = stamp.lines(self._ledger.notes.queue)
            at = add(lines) + own.offset
            own = own._replace(offset=at, slot=at)
        if missing:
            add(_RESTORED)
        for key, each in missing.items():
            whole = each.control.encode() + each.lines
            places[key] = add(whole if whole.endswith((b"\n", b"\r")) else whole + b"\n")
        return b"".join(pieces), places, own

    def _renote(self, moved: dict[int, int], places: dict[int, int]) -> None:
        old: Notes = self._ledger.notes
        found: dict[int, Note] = {}
        for offset, note in old.by_offset.items():
            where = moved.get(offset)
            if where is not None and where < 0:
                where = places.get(-1 - where)
            if where is not None:
                found[where] = note
        old.by_offset = found
        old.held = {note.token: offset for offset, note in found.items() if note.token}
