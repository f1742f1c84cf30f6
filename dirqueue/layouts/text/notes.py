"""What is known of messages that the file itself does not say: leases, attempts, delays, reasons.

Layer: layouts.  Pure values, no I/O: the journal is read and written elsewhere, and each record is applied here.
Memory is proportional to what is held, delayed, has failed before or is dead.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Any

from dirqueue.layouts.text.grammar import digest, items

#: Puts within so many microseconds share a time.
TICK = 10_000
#: How many times of puts are remembered; every second one is dropped when there are more.
TIMES = 4096


#: The `until` of a message that nobody gets any more.
DEAD = -1


class Note:
    """What is known of one message."""

    __slots__ = ("at", "attempts", "digest", "error", "looked", "plain", "since", "token", "until")

    def __init__(
        self,
        digest: str,
        until: int = 0,
        attempts: int = 0,
        token: str = "",
        since: int = 0,
        error: str | None = None,
        at: int = 0,
    ) -> None:
        self.digest = digest
        #: When the lease or the delay ends; 0 if there is none.
        self.until = until
        self.attempts = attempts
        self.token = token
        #: When it was claimed last.
        self.since = since
        #: Why and when it failed last.
        self.error = error
        self.at = at
        #: In which age of the file its text was looked at; see `Notes.age`.
        self.looked = -1
        #: Whether it is known to have no variables.
        self.plain = False

    def values(self) -> list[Any]:
        """Return it for the journal."""
        return [self.digest, self.until, self.attempts, self.token, self.since, self.error, self.at]


class Notes:
    """All notes, by offset, and what the journal says besides."""

    def __init__(self) -> None:
        self.queue = ""
        #: When the first record was written, in microseconds; 0 if there is no journal.
        self.began = 0
        self.by_offset: dict[int, Note] = {}
        #: The offsets of what is held, by the token of the lease.
        self.held: dict[str, int] = {}
        #: Offsets whose notes changed since the cursor last took them, and of messages that wait again without one.
        self.changed: list[int] = []
        self.freed: list[int] = []
        #: How often somebody else changed the file, as far as this object knows.
        self.age = 0
        #: Whether all offsets are new since the cursor last asked.
        self.moved = False
        self._times: list[tuple[int, int]] = []

    # --- records -------------------------------------------------------------------------------------------

    def apply(self, record: bytes) -> None:
        """Take one record of the journal."""
        kind, _, rest = record.partition(b" ")
        getattr(self, "_" + kind.decode())(rest)

    def _put(self, rest: bytes) -> None:
        at, offset, until, block = rest.split(b" ", 3)
        self.time(int(offset), int(at))
        if until != b"0":
            self.delay(int(offset), block_of(block), int(until))

    def delay(self, offset: int, block: bytes, until: int) -> None:
        """Note that the messages of a block wait."""
        for item in items(block, 0, offset):
            if item.control == "-":
                self.set(item.offset, Note(digest(item.text), until))

    def _came(self, rest: bytes) -> None:
        at, offset, _ = rest.split(b" ", 2)
        self.time(int(offset), int(at))

    def _hold(self, rest: bytes) -> None:
        offset, known_by, until, attempts, since, token = rest.decode().split(" ")
        self.hold(int(offset), known_by, int(until), int(attempts), int(since), token)

    def hold(
        self,
        offset: int,
        known_by: str,
        until: int,
        attempts: int,
        since: int,
        token: str,
        *,
        plain: bool = False,
    ) -> None:
        """Note that a message is held."""
        old = self.by_offset.get(offset)
        error, at = (old.error, old.at) if old is not None else (None, 0)
        note = Note(known_by, until, attempts, token, since, error, at)
        note.plain = plain
        self.set(offset, note)

    def _free(self, rest: bytes) -> None:
        at, offset, known_by, until, attempts, error = rest.decode().split(" ", 5)
        place, why = int(offset), json.loads(error)
        old = self.by_offset.get(place)
        since, when = (old.since, int(at)) if old else (0, int(at))
        if why is None:
            why, when = (old.error, old.at) if old else (None, 0)
        self.set(place, Note(known_by, int(until), int(attempts), "", since, why, when))

    def _flip(self, rest: bytes) -> None:
        at, offset, known_by, _, after, attempts, reason = rest.decode().split(" ", 6)
        self.flip(int(offset), known_by, after, int(attempts), json.loads(reason), int(at))

    def flip(
        self, offset: int, known_by: str, after: str, attempts: int, reason: str | None, at: int
    ) -> None:
        """Note that a message is marked."""
        if after == "!":
            old = self.by_offset.get(offset)
            self.set(offset, Note(known_by, DEAD, attempts, "", old.since if old else 0, reason, at))
        else:
            self.drop(offset)
            if after == "-":
                self.freed.append(offset)

    def _again(self, rest: bytes) -> None:
        self._base(rest.split(b" ", 3)[3])
        self.age += 1
        self.moved = True

    def _base(self, rest: bytes) -> None:
        told = json.loads(rest)
        self.queue, self.began = told["queue"], told["began"]
        self._times = [(offset, at) for offset, at in told["times"]]
        self.by_offset = {offset: Note(*values) for offset, *values in told["notes"]}
        self.held = {note.token: offset for offset, note in self.by_offset.items() if note.token}
        self.changed, self.freed = [], []
        self.moved = True

    def _next(self, _rest: bytes) -> None:
        """Nothing: another part of the journal follows."""

    def base(self) -> bytes:
        """Return all of it for a record that replaces everything before it."""
        notes = [[offset, *note.values()] for offset, note in self.by_offset.items()]
        return json.dumps(
            {"queue": self.queue, "began": self.began, "times": self._times, "notes": notes}
        ).encode()

    # --- single notes --------------------------------------------------------------------------------------

    def set(self, offset: int, note: Note) -> None:
        """Take a note, instead of the one that may be there."""
        old = self.by_offset.get(offset)
        if old is not None and old.token:
            self.held.pop(old.token, None)
        note.looked = self.age
        self.by_offset[offset] = note
        if note.token:
            self.held[note.token] = offset
        self.changed.append(offset)

    def drop(self, offset: int) -> None:
        """Forget a note."""
        old = self.by_offset.pop(offset, None)
        if old is not None and old.token:
            self.held.pop(old.token, None)

    # --- times ---------------------------------------------------------------------------------------------

    def time(self, offset: int, at: int) -> None:
        """Note when what lies there was put."""
        times = self._times
        if times and (at - times[-1][1] < TICK or offset <= times[-1][0]):
            return
        times.append((offset, at))
        if len(times) > TIMES:
            del times[1::2]

    def put_at(self, offset: int) -> int:
        """Return when what lies there was put, in microseconds; if that was before the journal, when that began."""
        where = bisect_right(self._times, (offset, 1 << 62))
        return self._times[where - 1][1] if where else self.began


def block_of(text: bytes) -> bytes:
    """Return the bytes of a block from its form in a record."""
    return str(json.loads(text)).encode("utf-8", "surrogateescape")


def block_text(block: bytes) -> bytes:
    """Return a block of any bytes as a record holds it."""
    return json.encoder.encode_basestring_ascii(block.decode("utf-8", "surrogateescape")).encode()
