"""What lies beside and after messages: notes of failures, dead/ and done/.

Layer: layouts.  Touches: ID.error beside a message; the exact names that go to another room.
Invariant: a message goes to its next room by one rename of its exact name; a note may be lost, never the message.
"""

from __future__ import annotations

import errno
import os

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.failure import trace_of
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import names, staging
from dirqueue.layouts.native.names import DEAD, DONE
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.message import Failure, instant
from dirqueue.settings import Settings

ROOMS = tuple(f"{room}/" for room in sorted(names.ROOMS))


class Side:
    """Notes, and the messages that ended."""

    def __init__(self, directory: Directory, settings: Settings, rooms: Rooms) -> None:
        self._directory = directory
        self._rooms = rooms
        self._sync = settings.sync

    def to_done(self, held: Claim) -> None:
        """Keep an acknowledged message."""
        place = names.ended(
            DONE, held.id, self._directory.clock.now(), held.attempts, names.raised(held.place)
        )
        # The time of the claim is kept as the file's own time; after a crash here the lease is still ours.
        set_time(self._directory, held.place, held.leased * 1000)
        self._rooms.move(held.place, place)
        self.sync_both(held.place, place)

    def to_dead(self, held: Claim, reason: str | None, now: int) -> None:
        """Keep a message that failed for good; without a reason its last note goes along."""
        if not fs.exists(held.place, self._directory.fd):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), held.place)
        place = names.ended(DEAD, held.id, now, held.attempts, names.raised(held.place))
        self.move(held, place, reason)
        self.sync_both(held.place, place)

    def move(self, held: Claim, place: str, reason: str | None) -> None:
        """Move the exact name to another room, and its note with it; a reason becomes the new note.

        CRASH: between the two a note is alone, and purge removes it when it is old.
        """
        old, new = note_of(held.place, held.id), note_of(place, held.id)
        if reason is not None:
            self._write(new, reason, held.leased)
        try:
            self._rooms.move(held.place, place)
        except OSError:
            if reason is not None and old != new:
                fs.discard(new, self._directory.fd)
            raise
        # A first delivery has no note yet; what nobody holds (`leased` is 0) has one from its first failure on.
        if reason is None and held.attempts > bool(held.leased):
            self.carry_note(old, new)
        elif held.attempts > 1 and old != new:
            fs.discard(old, self._directory.fd)

    def sync_both(self, old: str, new: str) -> None:
        """Make durable that a message left one directory for another."""
        if self._sync:
            try:
                if new.startswith(ROOMS):
                    self._rooms.make_durable(names.folder_of(new)[:-1])
                folders = dict.fromkeys((names.folder_of(new), names.folder_of(old)))
                self._directory.sync(*(folder[:-1] or "." for folder in folders))
            except FileNotFoundError:
                pass  # the directory it left was empty and is gone
            except OSError as error:
                raise access_error(self._directory.path, "make durable a change in", error) from error

    def _write(self, note: str, error: str, leased: int) -> None:
        """Keep why it failed. A full disk must not keep a message from being given back, so this may fail."""
        text = note_text(error, self._directory.clock.now(), leased)
        try:
            self._rooms.make(names.folder_of(note)[:-1], flush=False)
            staging.replace(self._directory, note, text, sync=False)
        except OSError:
            fs.discard(note + ".new", self._directory.fd)

    def carry_note(self, old: str, new: str) -> None:
        """Take why it failed along. The message matters more, so this may fail."""
        if old != new:
            try:
                fs.rename_in(old, new, self._directory.fd)
            except OSError:
                pass


def note_of(place: str, id: str) -> str:
    """Return where the note of a message lies."""
    return f"{names.folder_of(place)}{id}.{names.ERROR}"


def note_text(error: str, at: int, leased: int) -> bytes:
    """Return what a note says: why and when a delivery failed, and when it was claimed, in microseconds."""
    import json

    record = {"error": error, "at": at, "leased_at": leased or None}
    trace = trace_of(error)
    if trace is not None:
        record["trace"] = trace
    return json.dumps(record).encode()


def read_note(directory: Directory, note: str) -> Failure | None:
    """Return what a note says; None if there is none, or it is not as we write them."""
    import json

    try:
        directory.need()
        record = json.loads(fs.read_file(note, directory.fd))
        leased, trace = record.get("leased_at"), record.get("trace")
        return Failure(
            str(record["error"]),
            instant(int(record["at"])),
            instant(int(leased)) if leased else None,
            str(trace) if trace else None,
        )
    except (OSError, *names.MALFORMED):
        return None


def set_time(directory: Directory, place: str, nanoseconds: int) -> None:
    """Set the time of a message's file; not if it has other names, because then its times are not ours alone."""
    if fs.stat(place, dir_fd=directory.fd, follow_symlinks=False).st_nlink == 1:
        try:
            fs.utime(place, ns=(nanoseconds, nanoseconds), dir_fd=directory.fd, follow_symlinks=False)
        except PermissionError:
            pass  # another user put it, and only that one may; the time is worth less than the ack
