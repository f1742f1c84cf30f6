"""The text layout: one file, read from its first line to its last, and a journal beside it.

Layer: layouts.  Touches: through turn.py, the file and what names.py lists beside it.
Invariant: a message that waits, is delayed or held is `-` in the file, a finished one `=`, a dead one `!`: if dirqueue
vanished, nothing would be lost to textqueue. No message of up to 4,096 bytes lies in two pages, so it is there whole or
not at all, also for a reader that does not lock. A longer one is written as a comment and then shown.
Crash: see turn.py and merge.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar

from dirqueue import states as states_
from dirqueue.disk import fs, identity
from dirqueue.disk.beside import Beside
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory, not_found
from dirqueue.disk.plain import check_plain_file
from dirqueue.errors import DirQueueError, LayoutError, MessageNotFound, QueueError, QueueNotFound
from dirqueue.layouts.base import Claim, Committer, Producer, Purged, bad_handle, lost, none_buried, refuse
from dirqueue.layouts.pausing import RESUMED_SECONDS, Pausable
from dirqueue.layouts.text import mirror, names
from dirqueue.layouts.text.changes import Changes
from dirqueue.layouts.text.cursor import Cursor, Found
from dirqueue.layouts.text.grammar import PAGE, digest, encode, padding
from dirqueue.layouts.text.inspect import Looker, by_id, moved_on
from dirqueue.layouts.text.notes import Note, block_text
from dirqueue.layouts.text.turn import Gone, Ledger, Restless, read_all
from dirqueue.message import Entry, Extras
from dirqueue.settings import Settings, check_seconds

T = TypeVar("T")
_ORDER = "a text queue is read from its first line to its last"


class Text(Looker, Pausable):
    """Messages are lines of one file."""

    name: ClassVar[str] = "text"
    lacks: ClassVar[dict[str, str]] = {
        "priority": f"{_ORDER}: move a line to change its turn",
        "lifo": _ORDER,
        "random": _ORDER,
        "removal": "an acknowledged message stays in the file as a line that begins with =, until `clear` removes it",
        "apart": "all messages are in one file, whatever their state: peek('dead') and redrive() find them there",
        "attributes": "a line is the body, and there is no place beside it",
        "link": "the body is copied into the file, so there is nothing to link",
    }

    def __init__(self, directory: Directory, settings: Settings) -> None:
        if not isinstance(directory, Beside):
            raise LayoutError(
                f"{directory.path!r} is a directory, and a text queue is a file: give the path of a file",
                path=directory.path,
            )
        self.directory: Directory = directory
        self.need_locks = directory.need_locks
        self._side = directory.side
        self.settings = settings
        self.space: Committer | None = None
        self.buried = none_buried()
        self.ledger = Ledger(directory)
        self._margin = micros(settings.margin)
        self.cursor = Cursor(self.ledger, self._margin)
        self.changes = Changes(self.ledger, self.cursor)
        #: When a claim may find something that it did not find now.
        self._wakes_at = 0
        if settings.priorities:
            refuse(self, "priority", "order by priority")
        if settings.order != "fifo":
            refuse(self, settings.order, f"deliver in the order {settings.order}")

    def __str__(self) -> str:
        return self.name

    def create(self) -> None:
        """Make the file, empty but for the stamp."""
        self.ledger.run(lambda: None, create=True, sync=self.settings.sync)

    # --- producers -----------------------------------------------------------------------------------------

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        return self.put_lines([encode(data)], delay)[0]

    def put_many(
        self, bodies: Iterable[bytes], *, delay: float = 0, priority: int | None = None
    ) -> list[str]:
        encoded = [encode(body) for body in bodies]
        return self.put_lines(encoded, delay) if encoded else []

    def put_path(
        self, path: str, *, delay: float = 0, priority: int | None = None, link: bool = False
    ) -> str:
        """Copy the file's contents in, and unlink it."""
        try:
            check_plain_file(path, self.settings)
            id = self.put_lines([encode(fs.read_file(os.path.abspath(path), -1, 0))], delay)[0]
            fs.unlink(path)
        except OSError as error:
            raise self.ledger.failed(f"put the file {path!r} into", error) from error
        return id

    def put_lines(self, messages: list[tuple[bytes, bytes]], delay: float) -> list[str]:
        """Put messages that are encoded already: their lines, and the text in them; return their ids."""
        made: list[str] = []

        def change() -> list[str]:
            ledger = self.ledger
            seal = ledger.in_turn()
            made.clear()
            now = self.directory.clock.now()
            if not seal.clean and now < seal.soft_until:
                raise Restless(seal.soft_until - now)  # somebody is in the middle of a line
            at = at_first = ledger.size
            pieces = [] if seal.clean else [b"\n"]
            at += len(pieces)
            long: list[int] = []
            more = mirror.reserved(now) if self.settings.annotate else b""
            for each, text in messages:
                lines = each + more
                pad = padding(len(lines), at, lines)
                if pad:
                    pieces.append(pad)
                    at += len(pad)
                made.append(f"{at:012d}-{digest(text)}")
                if len(lines) > PAGE:
                    long.append(at)
                pieces.append(lines)
                at += len(lines)
            block = b"".join(pieces)
            until = now + micros(delay) if delay else 0
            record = b"put %d %d %d %b" % (now, at_first, until, block_text(block))
            if long:
                block = _hidden(block, [offset - at_first for offset in long])
            ledger.append(record, block, long)
            ledger.notes.time(at_first, now)
            if until:
                ledger.notes.delay(at_first, block, until)
            return made

        try:
            return self.ledger.run(change, create=True, sync=self.settings.sync)
        except OSError as error:
            if made and error.errno == errno.EIO and self.settings.sync:
                self._take_back(made)
            raise self.ledger.failed("put to", error) from error
        except Gone:
            raise not_found(self.directory.path) from None
        except Restless:
            raise self._busy("put to") from None

    def _take_back(self, ids: list[str]) -> None:
        """Cancel what could not be made durable, if nobody has it yet."""
        for id in ids:
            try:
                self.cancel(Entry(id, states_.READY, id, 0))
            except DirQueueError:
                pass  # somebody has it, or the disk fails again

    def _busy(self, doing: str) -> QueueError:
        path = self.directory.path
        return QueueError(
            f"cannot {doing} {path!r}: another program keeps changing it; try again later", path=path
        )

    # --- consumers -----------------------------------------------------------------------------------------

    def claim(self, seconds_: float) -> Claim | None:
        self._wakes_at = 0
        if (self.directory.fd < 0 and not self.directory.find()) or self.rests():
            return None
        try:
            return self.ledger.run(lambda: self._claim(micros(seconds_)), patient=False)
        except Restless as restless:
            self._wakes_at = self.directory.clock.now() + restless.micros
            return None
        except Gone:
            return None
        except OSError as error:
            raise self.ledger.failed("claim from", error) from error

    def _claim(self, duration: int) -> Claim | None:
        cursor = self.cursor
        now = self.directory.clock.now()
        most = self.settings.max_attempts
        while (found := cursor.next(now)) is not None:
            note, offset, item = found.note, found.offset, found.item
            attempts = note.attempts if note else mirror.tries(item)
            if item.tail and self.leave_to_others(found, now, duration):
                continue
            if most and attempts >= most:
                self.changes.flip(offset, found.digest, "-", "!", attempts, _worn_out(note, attempts), now)
                self.buried.append(f"{offset:012d}-{found.digest}")
                continue
            token = identity.new_token()
            until = now + duration
            self.changes.hold(offset, found.digest, until, attempts + 1, now, token, item)
            id = f"{offset:012d}-{found.digest}"
            return Claim(id, f"{id}@{token}", now, until, attempts + 1, item.body)
        self._wakes_at = cursor.wakes_at()
        return None

    def leave_to_others(self, found: Found, now: int, duration: int) -> bool:
        """Note that a program which does not lock holds a message, if its mutex says so; return whether it does.

        For as long as a lease; then it is delivered, as after any consumer that died.
        """
        note = found.note
        if (note is not None and note.token) or not mirror.value_of(found.item, b"mutex"):
            return False
        attempts, token = note.attempts if note else 0, f"mutex-{identity.new_token()}"
        self.changes.leave(found.offset, found.digest, now + duration, attempts, now, token)
        return True

    def wakes_in(self) -> float | None:
        if not self._wakes_at or self._rests:
            return RESUMED_SECONDS if self._rests else None
        return max(0.0, (self._wakes_at - self.directory.clock.now()) / 1_000_000)

    def watched(self) -> list[str]:
        # A message that is given back changes only the journal.
        return [os.path.join(self._side, names.LOCK)]

    def arrived(self, name: str) -> None:
        pass

    def ack(self, held: Claim) -> None:
        def change() -> None:
            offset, note = self._held(held, "ack")
            now = self.directory.clock.now()
            self.changes.flip(offset, note.digest, "-", "=", note.attempts, None, now)

        self.in_turn(change, "ack a message of", sync=self.settings.sync)

    def renew(self, held: Claim, seconds_: float) -> None:
        def change() -> None:
            offset, note = self._held(held, "renew")
            until = max(self.directory.clock.now() + micros(seconds_), note.until + 1)
            token = identity.new_token()
            self.changes.hold(offset, note.digest, until, note.attempts, note.since, token)
            held.place, held.ends = f"{held.id}@{token}", until

        self.in_turn(change, "renew a message of")

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        def change() -> None:
            offset, note = self._held(held, "retry")
            now = self.directory.clock.now()
            self.changes.free(offset, note, now + micros(delay) if delay else 0, note.attempts, error, now)

        self.in_turn(change, "retry a message of")

    def release(self, held: Claim) -> None:
        def change() -> None:
            offset, note = self._held(held, "release")
            self.changes.free(offset, note, 0, max(0, note.attempts - 1), None, self.directory.clock.now())

        self.in_turn(change, "release a message of")

    def bury(self, held: Claim, reason: str) -> None:
        def change() -> None:
            offset, note = self._held(held, "reject")
            self.changes.flip(
                offset, note.digest, "-", "!", note.attempts, reason, self.directory.clock.now()
            )

        self.in_turn(change, "reject a message of", sync=self.settings.sync)

    def _held(self, held: Claim, doing: str) -> tuple[int, Note]:
        """Return where a message is that we hold, and its note; LeaseLost if we do not."""
        notes = self.ledger.notes
        if "@" not in held.place:  # a tool's: the place of a message that nobody holds
            try:
                where, found = self._unclaimed(Entry(held.id, states_.READY, held.place, 0), doing)
            except MessageNotFound:
                raise lost(held, doing) from None
            return where, found or Note(names.parse_id(held.id)[1])
        offset = notes.held.get(held.token)
        if offset is None:
            raise lost(held, doing)
        note = notes.by_offset[offset]
        if note.looked == notes.age:
            good = fs.pread(self.ledger.file, 1, offset) == b"-"
        else:
            item = self.cursor.item(offset)
            good = item is not None and item.control == "-" and digest(item.text) == note.digest
            note.looked = notes.age
        if not good:
            notes.drop(offset)
            raise lost(held, doing)
        return offset, note

    def entry(self, held: Claim) -> Entry:
        offset, _ = names.parse_id(held.id)
        put = self.ledger.put_at(offset)
        return Entry(held.id, "leased", held.place, put, held.ends, held.attempts, held.token)

    def hold(self, handle: str) -> Claim:
        parsed = names.parse_handle(handle)
        if parsed is None:
            raise bad_handle(handle)
        id, token = parsed
        held = Claim(id, handle, 0, 0, 1)
        self._look()
        offset = self.ledger.notes.held.get(token)
        if offset is None:
            raise lost(held, "take over")
        note = self.ledger.notes.by_offset[offset]
        held.leased, held.ends, held.attempts = note.since, note.until, note.attempts
        return held

    # --- changers and cleaners -----------------------------------------------------------------------------

    def cancel(self, entry: Entry) -> None:
        def change() -> None:
            offset, note = self._unclaimed(entry, "cancel")
            known_by = names.parse_id(entry.id)[1]
            self.changes.flip(
                offset, known_by, "-", "#", note.attempts if note else 0, None, self.directory.clock.now()
            )

        self.in_turn(change, "cancel a message of", sync=self.settings.sync)

    def carrying(self, extras: Extras) -> Producer:
        refuse(self, "attributes", "carry attributes, nor let a message expire")

    def extras(self, entry: Entry) -> Extras | None:
        return None

    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry:
        if priority is not None:
            refuse(self, "priority", "order by priority")
        if delay is not None:
            check_seconds("delay", delay)
        changed: list[Entry] = []

        def change() -> None:
            offset, note = self._unclaimed(entry, "change")
            if delay is None:
                changed.append(entry)
                return
            now = self.directory.clock.now()
            until = now + micros(delay) if delay else 0
            note = note or Note(names.parse_id(entry.id)[1])
            self.changes.free(offset, note, until, note.attempts, None, now)
            state = states_.DELAYED if until else states_.READY
            changed.append(entry._replace(state=state, until=until))

        self.in_turn(change, "change a message of")
        return changed[0]

    def redrive(self, entry: Entry) -> bool:
        def change() -> None:
            offset = self._where(entry, "!")
            self.changes.flip(
                offset, names.parse_id(entry.id)[1], "!", "-", 0, None, self.directory.clock.now()
            )

        try:
            self.in_turn(change, "redrive a message of", sync=self.settings.sync)
        except (MessageNotFound, QueueNotFound):
            return False
        return True

    def remove(self, entry: Entry) -> bool:
        """Make it a comment. `sweep` removes many, and their lines."""

        def change() -> None:
            for control in "-=!":
                try:
                    offset = self._where(entry, control)
                except MessageNotFound:
                    continue
                self.changes.flip(
                    offset, names.parse_id(entry.id)[1], control, "#", 0, None, self.directory.clock.now()
                )
                return
            raise moved_on(entry.id)

        try:
            self.in_turn(change, "remove a message of")
        except (MessageNotFound, QueueNotFound):
            return False
        return True

    def in_turn(self, change: Callable[[], T], doing: str, *, sync: bool = False) -> T:
        """Call a function in a turn; errors say what could not be done."""
        try:
            return self.ledger.run(change, sync=sync)
        except Gone:
            raise not_found(self.directory.path) from None
        except Restless:
            raise self._busy(doing) from None
        except OSError as error:
            raise self.ledger.failed(doing, error) from error

    def _unclaimed(self, entry: Entry, doing: str) -> tuple[int, Note | None]:
        offset = self._where(entry, "-")
        note = self.ledger.notes.by_offset.get(offset)
        if note is not None and note.token:
            if entry.state in states_.UNCLAIMED:
                raise moved_on(entry.id)
            raise MessageNotFound(
                f"cannot {doing} {entry.id}: it is {entry.state}, and only an unclaimed message can be",
                message_id=entry.id,
            )
        return offset, note

    def _where(self, entry: Entry, control: str) -> int:
        """Return where a message is, in a turn; MessageNotFound if it is not there in that state."""
        offset, known_by = names.parse_id(entry.id)
        item = self.cursor.item(offset) if offset < self.ledger.size else None
        if item is None or digest(item.text) != known_by or item.foreign:
            item = by_id(read_all(self.ledger.file, self.ledger.size), entry.id)
        if item is None or item.control != control:
            raise moved_on(entry.id)
        return item.offset

    def sweep(self, states: tuple[str, ...]) -> int:
        """Remove all messages in these states, and their lines, by one new file; return their number."""
        from dirqueue.layouts.text.sweep import swept

        if not self.directory.find():
            return 0
        try:
            return self.ledger.run(lambda: swept(self.ledger, frozenset(states), sync=self.settings.sync))
        except Gone:
            return 0
        except Restless:
            raise self._busy("clear") from None
        except OSError as error:
            raise self.ledger.failed("clear", error) from error

    def replace(self, data: bytes) -> None:
        """Save the file as a person edited it, from whatever copy; what happened since then is merged with it."""
        from dirqueue.layouts.text.sweep import replaced

        sync = self.settings.sync
        self.in_turn(lambda: replaced(self.ledger, data, sync=sync), "replace", sync=sync)

    def purge_lock(self) -> str:
        self.need_locks()
        self.directory.make()
        return os.path.join(self._side, names.PURGE_LOCK)

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        from dirqueue.layouts.text.sweep import purged

        try:
            return self.ledger.run(lambda: purged(self, self.ledger, self.settings, progress))
        except Gone:
            return Purged()
        except Restless:
            return Purged(busy=1)

    def bury_unclaimed(self, offset: int, note: Note, now: int) -> None:
        """Make a message dead that is out of attempts, in a turn."""
        self.changes.flip(offset, note.digest, "-", "!", note.attempts, _worn_out(note, note.attempts), now)

    def drop_dead(self, offset: int, note: Note, now: int) -> bool:
        """Make a dead message a comment, in a turn; return False if it is not dead."""
        item = self.cursor.item(offset)
        if item is None or item.control != "!" or digest(item.text) != note.digest:
            return False
        self.changes.flip(offset, note.digest, "!", "#", note.attempts, None, now)
        return True

    def close(self) -> None:
        self.ledger.close()


def _worn_out(note: Note | None, attempts: int) -> str:
    if note is None or not note.token:
        return (note and note.error) or f"delivered {attempts} times"
    return f"delivered {attempts} times and never acknowledged, last held by {note.token}"


def _hidden(block: bytes, places: list[int]) -> bytes:
    """Return a block in which the messages at these places are comments."""
    changed = bytearray(block)
    for place in places:
        changed[place] = 35
    return bytes(changed)
