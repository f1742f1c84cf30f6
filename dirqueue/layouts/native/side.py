"""What lies beside and after messages: notes of failures, dead/ and done/.

Layer: layouts.  Touches: ID.error beside a message, dead/, done/.
Invariant: a message goes to where ended ones are kept by one rename of its exact name; a note may be lost, never the
message.
"""

from __future__ import annotations

import errno
import os

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import DEAD, DONE
from dirqueue.message import Failure, instant
from dirqueue.settings import Settings


class Side:
    """Notes, and the messages that ended."""

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._made: set[str] = set()

    def to_done(self, held: Claim) -> None:
        """Keep an acknowledged message."""
        self._make_room(DONE)
        # The time of the claim is kept as the file's own time; after a crash here the lease is still ours.
        set_time(self._directory, held.place, held.leased * 1000)
        self._into(DONE, held, self._directory.clock.now())
        if self._settings.sync:
            self._directory.sync(DONE)

    def to_dead(self, held: Claim, reason: str | None, now: int) -> None:
        """Keep a message that failed for good; without a reason its last note goes along."""
        if not fs.exists(held.place, self._directory.fd):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), held.place)
        self._make_room(DEAD)
        note = f"{DEAD}/{held.id}.{names.ERROR}"
        if reason is not None:
            self.write_note(note, reason, held.leased)
        else:
            self.carry_note(note_of(held.place, held.id), note)
        self._into(DEAD, held, now)
        fs.discard(note_of(held.place, held.id), self._directory.fd)
        self.sync_both(held.place, DEAD)

    def _into(self, folder: str, held: Claim, now: int) -> None:
        """Move the exact name we hold to where ended messages are kept."""
        target = f"{folder}/{held.id}.{now}.{held.attempts}"
        try:
            self._directory.move(held.place, target)
        except FileNotFoundError:
            # RACE: the directory may be missing instead of the message, if another process removed it.
            if fs.exists(folder, self._directory.fd) or not fs.exists(held.place, self._directory.fd):
                raise
            self._made.discard(folder)
            self._make(folder)
            self._directory.move(held.place, target)

    def _make_room(self, folder: str) -> None:
        """Make dead/ or done/; a full disk costs the ballast."""
        try:
            self._make(folder)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._directory.drop_ballast():
                raise
            self._make(folder)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            fs.make_inner(folder, self._directory.fd)
            if self._settings.sync:
                self._directory.sync()  # whoever made it may not have come to this yet
            self._made.add(folder)

    def sync_both(self, place: str, folder: str) -> None:
        """Make durable that a message left one directory for another."""
        if self._settings.sync:
            try:
                self._directory.sync(folder)
                self._directory.sync(place.rpartition("/")[0] or ".")
            except FileNotFoundError:
                pass  # the directory it left was empty and is gone
            except OSError as error:
                raise access_error(self._directory.path, "make durable a change in", error) from error

    def write_note(self, note: str, error: str, leased: int) -> None:
        """Keep why it failed. A full disk must not keep a message from being given back, so this may fail."""
        import json

        record = {"error": error, "at": self._directory.clock.now(), "leased_at": leased or None}
        try:
            fs.replace_file(note, json.dumps(record).encode(), self._directory.fd, sync=False)
        except OSError:
            fs.discard(note + ".new", self._directory.fd)

    def carry_note(self, old: str, new: str) -> None:
        """Take why it failed along. The message matters more, so this may fail."""
        try:
            fs.rename_in(old, new, self._directory.fd)
        except OSError:
            pass


def note_of(place: str, id: str) -> str:
    """Return where the note of a message lies."""
    return f"{place[: place.rfind('/') + 1]}{id}.{names.ERROR}"


def read_note(directory: Directory, note: str) -> Failure | None:
    """Return what a note says; None if there is none, or it is not as we write them."""
    import json

    try:
        directory.need()
        record = json.loads(fs.read_file(note, directory.fd))
        leased = record.get("leased_at")
        return Failure(
            str(record["error"]), instant(int(record["at"])), instant(int(leased)) if leased else None
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
