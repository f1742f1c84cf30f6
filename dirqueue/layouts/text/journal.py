"""The journal beside the file: one record a line, appended under the lock.

    CHECK KIND FIELDS...        CHECK is the CRC of the record, begun with that of the record before it

    base  JSON                                      first of each part: all notes
    put   AT OFFSET UNTIL BLOCK                     the block was appended there; UNTIL if its messages wait
    came  AT OFFSET BLOCK                           the same, appended by somebody else and seen by us
    hold  OFFSET DIGEST UNTIL ATTEMPTS SINCE TOKEN  claimed or renewed
    free  AT OFFSET DIGEST UNTIL ATTEMPTS ERROR     released, retried, delay changed
    flip  AT OFFSET DIGEST BEFORE AFTER ATTEMPTS REASON
    again AT FROM OFFSET JSON                       the file was saved by others: what is redone on it, all notes anew
    next  -                                         last of a part; the next one is named by where this ends

Layer: layouts.  Touches: journal.POSITION.
Invariant: positions count from the first byte of the first part and never go back. A record counts if it and all
before it are whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from zlib import crc32

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.text import names

#: A part is followed by another at this length, or at four times its first record.
PART = 256 << 10
#: How much is read at once.
CHUNK = 1 << 20
#: Parts older than a day go, but the last ones of this length stay.
KEPT_SECONDS = 86400
KEPT_BYTES = 4 << 20

_READ_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Journal:
    """The journal, open at its last part."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._fd = -1
        #: Where the part begins, where the journal ends, and the CRC of its last record.
        self.part = self.end = self.chain = 0
        self._writable = False
        #: When the part is long enough.
        self.full = PART

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._fd >= 0:
            fs.close_quietly(self._fd)
            self._fd = -1

    def open(self, part: int) -> None:
        """Switch to a part; its records are read from the first on. FileNotFoundError if it is not there."""
        self.close()
        # Whoever only looks may have no right to write.
        self._fd = fs.open(names.segment(part), fs.READ, dir_fd=self._directory.fd)
        self._writable = False
        self.part = self.end = part
        self.chain, self.full = 0, part + PART

    def exists(self, part: int) -> bool:
        """Return whether a part is there."""
        return fs.exists(names.segment(part), self._directory.fd)

    def start(self, position: int, base: bytes) -> None:
        """Begin a part with a record of everything, and switch to it."""
        for part in self.parts():
            if part > self.part:  # CRASH: whoever began it died before it counted
                fs.discard(names.segment(part), self._directory.fd)
        self.close()
        self._fd = fs.open(
            names.segment(position), _READ_WRITE | os.O_TRUNC, fs.FILE_MODE, dir_fd=self._directory.fd
        )
        self._writable = True
        self.part = self.end = position
        self.chain = 0
        self.append(b"base " + base)
        self.full = position + max(PART, 4 * (self.end - position))

    def append(self, record: bytes) -> int:
        """Write a record at the end; return the position behind it."""
        chain = crc32(record, self.chain)
        line = b"%08x %b\n" % (chain, record)
        if not self._writable:
            fd = fs.open(names.segment(self.part), _READ_WRITE & ~os.O_CREAT, dir_fd=self._directory.fd)
            self.close()
            self._fd, self._writable = fd, True
        at, done = self.end - self.part, 0
        done = fs.pwrite(self._fd, line, at)
        while done < len(line):
            done += fs.pwrite(self._fd, line[done:], at + done)
        self.chain = chain
        self.end += len(line)
        return self.end

    def turn_over(self, base: bytes) -> None:
        """Begin another part; if that fails, go on with this one."""
        part, end, chain = self.part, self.end, self.chain
        try:
            self.append(b"next -")
            self.start(self.end, base)
        except OSError:
            self.open(part)
            self.end, self.chain, self.full = end, chain, end + PART

    def undo(self, end: int, chain: int) -> None:
        """Take back the last records; they have not counted yet."""
        fs.ftruncate(self._fd, end - self.part)
        self.end, self.chain = end, chain

    def sync(self) -> None:
        """Make durable what was recorded: for once the file does not say it yet."""
        fs.fsync(self._fd)

    def read(self, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the records from `end` on, each with the position behind it, as far as they are whole.

        With a limit, only up to that position.
        """
        rest = b""
        while limit is None or self.end < limit:
            ask = CHUNK if limit is None else min(CHUNK, limit - self.end - len(rest))
            data = fs.pread(self._fd, ask, self.end + len(rest) - self.part) if ask > 0 else b""
            if not data:
                return
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                record = line[9:]
                chain = crc32(record, self.chain)
                if line[:9] != b"%08x " % chain:
                    return
                self.chain = chain
                self.end += len(line) + 1
                if self.end - len(line) - 1 == self.part:
                    self.full = self.part + max(PART, 4 * len(line))
                yield self.end, record

    # --- parts ---------------------------------------------------------------------------------------------

    def parts(self) -> list[int]:
        """Return where the parts that are kept begin, in order."""
        found = (names.segment_position(name) for name in fs.names_in(".", self._directory.fd))
        return sorted(position for position in found if position is not None)

    def history(self, since: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records that end behind a position, from all parts that are kept, and the position behind each."""
        parts = [part for part in self.parts() if part <= self.part]
        first = max((part for part in parts if part <= since), default=parts[0] if parts else 0)
        for part in parts:
            if part < first:
                continue
            older = Journal(self._directory)
            try:
                older.open(part)
                for end, record in older.read(self.end if part == self.part else None):
                    if end > since:
                        yield end, record
            except FileNotFoundError:
                continue  # RACE: trimmed by a purge
            finally:
                older.close()

    def last(self) -> int | None:
        """Return the part that the others lead to; None if there is none. For when the seal is lost."""
        parts = self.parts()
        if not parts:
            return None
        at = 0
        while True:
            walker = Journal(self._directory)
            try:
                walker.open(parts[at])
                record = b""
                for _, found in walker.read():
                    record = found
                end = walker.end
            finally:
                walker.close()
            if not record.startswith(b"next") or end not in parts:
                later = [n for n, part in enumerate(parts) if part > parts[at]]
                if record or not later:
                    return parts[at]
                at = later[0]  # it has no whole record at all
            else:
                at = parts.index(end)

    def trim(self, older_than: int) -> int:
        """Remove parts that nobody needs any more, and those that nothing leads to; return their number."""
        gone = 0
        parts = self.parts()
        for part, following in zip(parts, [*parts[1:], 1 << 62], strict=True):
            name = names.segment(part)
            if part > self.part:
                gone += fs.discard(name, self._directory.fd)
            elif part < self.part and self.end - following > KEPT_BYTES:
                try:
                    if fs.mtime_of(name, self._directory.fd) * 1_000_000 < older_than:
                        gone += fs.discard(name, self._directory.fd)
                except FileNotFoundError:
                    pass
        return gone

    def drop_history(self) -> bool:
        """Remove all parts but the current one, because the disk is full; return whether there were any."""
        gone = [
            fs.discard(names.segment(part), self._directory.fd) for part in self.parts() if part != self.part
        ]
        return any(gone)
