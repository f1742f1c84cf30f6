"""Cleaning: removing lines by a new file, and what purge does.

Layer: layouts.  Touches: new, the file, journal.POSITION; in a turn.
Crash: before the rename it leaves `new`, which the next sweep or purge removes; after it, a file that has seen a record
which is there. Between the record and the rename the old file is merged with the record: the lines stay, sweep again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.beside import reserve
from dirqueue.disk.clock import micros
from dirqueue.errors import QueueError
from dirqueue.layouts.base import Purged
from dirqueue.layouts.text import merge, names, stamp
from dirqueue.layouts.text.grammar import BOM, PAGE, Item, items, padding
from dirqueue.layouts.text.journal import KEPT_SECONDS
from dirqueue.layouts.text.notes import Note
from dirqueue.layouts.text.stamp import Seal
from dirqueue.layouts.text.turn import Ledger, read_all
from dirqueue.settings import Settings

if TYPE_CHECKING:
    from dirqueue.layouts.text.layout import Text

_LINES = {"=": frozenset((states.DONE,)), "!": frozenset((states.DEAD,))}


def swept(ledger: Ledger, wanted: frozenset[str], *, sync: bool) -> int:
    """Write the file anew without the messages in these states; return how many they were."""
    data = read_all(ledger.file, ledger.size)
    now = ledger.directory.clock.now()
    gone = {item.offset for item in items(data) if _state(ledger, item, now) in wanted}
    if not gone:
        return 0
    _need_alone(ledger, "clear")
    text, moved = _without(data, gone)
    found = next((each for each in stamp.find(text) if each.queue == ledger.notes.queue), None)
    if found is None:  # somebody has written over it
        lines, found = stamp.lines(ledger.notes.queue)
        text += b"" if text.endswith((b"\n", b"\r")) else b"\n"
        found = found._replace(offset=len(text) + found.offset, slot=len(text) + found.offset)
        text += lines
    _renote(ledger, moved)
    told = json.loads(ledger.notes.base()) | {"block": "", "flips": []}
    ledger.record(b"again %d %d %d %b" % (now, ledger.journal.end, len(text), json.dumps(told).encode()))
    end, slot = ledger.journal.end, found.slot
    number = stamp.seen_text(end)
    text = text[:slot] + number + text[slot + len(number) :]
    _put_in_place(ledger, text, sync=sync)
    seal = Seal(0, -1, 0, 0, 0, 0, end, found.offset, slot, 0, 0, 1, len(text), 0)
    ledger.stamp(seal._replace(slot=seal.other()), before=text[-PAGE:])
    return len(gone)


def _state(ledger: Ledger, item: Item, now: int) -> str:
    if item.control != "-":
        return next(iter(_LINES.get(item.control, ("",))))
    note = ledger.notes.by_offset.get(item.offset)
    if note is not None and note.token:
        return states.LEASED
    return states.DELAYED if note is not None and note.until > now else states.READY


def _without(data: bytes, gone: set[int]) -> tuple[bytes, dict[int, int]]:
    """Return the file without some items, and where the others have gone; none crosses a page that did not before."""
    pieces: list[bytes] = [BOM] if data.startswith(BOM) else []
    size = len(pieces) * len(BOM)
    moved: dict[int, int] = {}
    before = size
    for item in items(data):
        between = data[before : item.offset]  # blank lines
        before = item.end
        if item.offset in gone or _is_padding(item):
            continue
        lines = data[item.offset : item.end]
        pad = b"" if item.foreign else padding(len(lines), size + len(between), lines)
        pieces += [between, pad, lines]
        moved[item.offset] = size + len(between) + len(pad)
        size += len(between) + len(pad) + len(lines)
    pieces.append(data[before:])
    return b"".join(pieces), moved


def _is_padding(item: Item) -> bool:
    return item.control == "#" and not item.text.strip(b" ") and not item.tail


def _renote(ledger: Ledger, moved: dict[int, int]) -> None:
    notes = ledger.notes
    notes.by_offset = {moved[offset]: note for offset, note in notes.by_offset.items() if offset in moved}
    notes.held = {note.token: offset for offset, note in notes.by_offset.items() if note.token}
    notes.age += 1
    notes.moved = True


def _need_alone(ledger: Ledger, doing: str) -> None:
    """Raise QueueError if another program has the file open: it would go on with the old one."""
    if reserve(ledger.file) is False:
        path = ledger.directory.path
        raise QueueError(
            f"cannot {doing} {path!r}: another program has it open, and would go on with the old file; close it there "
            f"first (fuser {path!r} names it); nothing was changed",
            path=path,
        )


def replaced(ledger: Ledger, text: bytes, *, sync: bool) -> None:
    """Put another text in the place of the file, and merge what it has not seen."""
    _need_alone(ledger, "replace")
    _put_in_place(ledger, text, sync=sync)
    merge.merged(ledger, text)


def _put_in_place(ledger: Ledger, text: bytes, *, sync: bool) -> None:
    """Rename a new file over the old one, and go on with it."""
    directory = ledger.directory
    facts = fs.fstat(ledger.file)
    fs.discard(names.NEW, directory.fd)
    fs.create(names.NEW, text, directory.fd, sync=sync, mode=fs.PRIVATE_MODE)
    new = fs.open(names.NEW, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
    try:
        fs.chmod(new, facts.st_mode & 0o7777)
        fs.rename(names.NEW, directory.path, src_dir_fd=directory.fd)
        if sync:
            directory.sync()
        fs.close(ledger.file)
    except BaseException:
        fs.close_quietly(new)
        raise
    ledger.file, ledger.size = new, len(text)


def purged(layout: Text, ledger: Ledger, settings: Settings, progress: Callable[[], None] | None) -> Purged:
    """Bury what is out of attempts, end what is past its time, and remove what was left beside the file."""
    now = ledger.directory.clock.now()
    margin = micros(settings.margin)
    buried = dead = 0
    for offset, note in list(ledger.notes.by_offset.items()):
        if progress:
            progress()
        if note.token and _is_worn_out(note, settings) and note.until + margin <= now:
            layout.bury_unclaimed(offset, note, now)
            buried += 1
        elif settings.keep_dead_for and note.at and note.at + micros(settings.keep_dead_for) < now:
            dead += layout.drop_dead(offset, note, now)
    new = int(fs.discard(names.NEW, ledger.directory.fd))
    other = ledger.journal.trim(now - micros(KEPT_SECONDS))
    for name in fs.names_in(".", ledger.directory.fd):
        if name.startswith(".clock-") and _is_old(ledger, name, now - micros(settings.stale)):
            new += fs.discard(name, ledger.directory.fd)
    return Purged(new=new, dead=dead, buried=buried, other=other)


def _is_worn_out(note: Note, settings: Settings) -> bool:
    return bool(settings.max_attempts) and note.attempts >= settings.max_attempts


def _is_old(ledger: Ledger, name: str, oldest: int) -> bool:
    try:
        return fs.mtime_of(name, ledger.directory.fd) * 1_000_000 < oldest
    except FileNotFoundError:
        return False
