"""What can be seen of messages, and done to those that nobody holds.

Layer: layouts.  Touches: notes (ID.error), done/, and the exact names of ready, delayed and dead messages.
Invariant: as in layout.py: one exact name goes to one that nobody else can make.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import BinaryIO

from dirqueue import settings, states
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_token
from dirqueue.errors import MessageNotFound, QueueNotFound, SettingsError, access_error
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import inspect, names
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.inspect import DONE
from dirqueue.layouts.native.names import MALFORMED, parse
from dirqueue.message import Entry, Failure, instant
from dirqueue.settings import Settings, check_seconds


class Looker:
    """The half of the native layout that needs no lease."""

    directory: Directory
    settings: Settings
    _cursor: Cursor
    _made: set[str]

    # --- lookers -------------------------------------------------------------------------------------------

    def check_id(self, id: object) -> str:
        """Return the id if it is one."""
        return names.check_id(id)

    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]:
        """Yield what there is, as names tell it: messages by state, `new`, and `foreign` for what is not ours."""
        return inspect.entries(self.directory, frozenset(states))

    def find(self, id: str) -> Entry | None:
        """Return where a message is, in whatever state."""
        return inspect.find(self.directory, id)

    def load(self, place: str) -> bytes:
        """Return a whole body."""
        try:
            self.directory.need()
            return fs.read_file(place, self.directory.fd, 0)
        except OSError as error:
            raise self._unreachable(place, error) from error

    def stream(self, place: str) -> BinaryIO:
        """Open a body for reading."""
        try:
            self.directory.need()
            return io.BufferedReader(io.FileIO(fs.open(place, fs.READ, dir_fd=self.directory.fd), "rb"))
        except OSError as error:
            raise self._unreachable(place, error) from error

    def size(self, place: str) -> int:
        """Return the length of a body."""
        try:
            self.directory.need()
            return fs.size_of(place, self.directory.fd)
        except OSError as error:
            raise self._unreachable(place, error) from error

    def _unreachable(self, place: str, error: OSError) -> Exception:
        id = place.rpartition("/")[2].partition(".")[0]
        if isinstance(error, QueueNotFound) or error.errno in (errno.ENOENT, errno.ESTALE):
            return moved_on(id)
        return access_error(self.directory.path, f"read message {id} of", error)

    def leased_at(self, entry: Entry) -> datetime | None:
        """Return when it was last claimed: kept as the time of a done file, or with the reason of a failure."""
        if entry.state == DONE:
            try:
                self.directory.need()
                facts = fs.stat(entry.place, dir_fd=self.directory.fd, follow_symlinks=False)
                # A cancelled message was never claimed, and has no time; a file with other names keeps its own.
                claimed = facts.st_mtime_ns // 1000 if facts.st_nlink == 1 else 0
                return instant(claimed) if claimed else None
            except FileNotFoundError:
                return None
        failure = self.failure(entry)
        return failure.leased_at if failure else None

    def failure(self, entry: Entry) -> Failure | None:
        """Return the reason kept beside a message."""
        import json

        try:
            self.directory.need()
            record = json.loads(fs.read_file(self._note(entry.place, entry.id), self.directory.fd))
            leased = record.get("leased_at")
            return Failure(
                str(record["error"]), instant(int(record["at"])), instant(int(leased)) if leased else None
            )
        except (OSError, *MALFORMED):
            return None  # none was kept, or it is not as we write them

    # --- changes of what nobody holds ----------------------------------------------------------------------

    def cancel(self, entry: Entry) -> None:
        """Remove an unclaimed message."""
        self.directory.need()
        self._unclaimed(entry, "cancel")
        held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
        try:
            if self.settings.keep_done:
                self._to_done(held)
            else:
                # A rename to a name of ours first: a lost reply cannot look like a lost race.
                prefix = entry.place[: entry.place.rfind("/") + 1]
                gone = f"{prefix}{entry.id}.{self.directory.clock.now()}.0.{new_token()}.ack"
                self.directory.move(entry.place, gone)
                fs.discard(gone, self.directory.fd)
        except FileNotFoundError:
            raise moved_on(entry.id) from None
        except OSError as error:
            raise access_error(self.directory.path, "cancel a message of", error) from error
        fs.discard(self._note(entry.place, entry.id), self.directory.fd)
        self._sync_both(entry.place, ".")

    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry:
        """Give an unclaimed message another priority or delay, by one rename."""
        self.directory.need()
        self._unclaimed(entry, "change")
        if priority is not None:
            if not self.settings.priorities:
                raise SettingsError(
                    f"{self.directory.path!r} was created without priorities: create it with priorities=True"
                )
            settings.check_priority(priority)
        if delay is not None:
            check_seconds("delay", delay)
        id = entry.id if priority is None else names.with_priority(entry.id, priority)
        # A slice or batch holds one priority; the queue itself holds any.
        prefix = entry.place[: entry.place.rfind("/") + 1] if id == entry.id else ""
        until = entry.until if delay is None else self.directory.clock.now() + micros(delay) if delay else 0
        name = (
            f"{id}.{until or self.directory.clock.now()}.{entry.attempts}" if until or entry.attempts else id
        )
        if prefix + name != entry.place:
            try:
                self.directory.move(entry.place, prefix + name)
            except FileNotFoundError:
                raise moved_on(entry.id) from None
            except OSError as error:
                raise access_error(self.directory.path, "change a message of", error) from error
            if id != entry.id and entry.attempts:
                self._carry_note(self._note(entry.place, entry.id), self._note(prefix + name, id))
            self._sync_both(entry.place, prefix or ".")
        self._cursor.stale()
        found = parse(name)
        assert found is not None  # noqa: S101 - built two lines above
        return inspect.entry_of(found, prefix, self.directory.clock.now())

    def _unclaimed(self, entry: Entry, doing: str) -> None:
        if entry.state not in states.UNCLAIMED:
            raise MessageNotFound(
                f"cannot {doing} {entry.id}: it is {entry.state}, and only an unclaimed message can be",
                message_id=entry.id,
            )

    def redrive(self, entry: Entry) -> bool:
        """Make a dead message ready again, its attempts forgotten; False if somebody was faster."""
        try:
            self.directory.mount.publish(entry.place, entry.id, self.directory.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise access_error(self.directory.path, "redrive a message of", error) from error
        fs.discard(self._note(entry.place, entry.id), self.directory.fd)
        self._cursor.stale()
        self._sync_both(entry.place, ".")
        return True

    def remove(self, entry: Entry) -> bool:
        """Delete a message in whatever state, by its exact name; False if that name is gone."""
        try:
            fs.unlink(entry.place, dir_fd=self.directory.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise access_error(self.directory.path, "remove a message of", error) from error
        fs.discard(self._note(entry.place, entry.id), self.directory.fd)
        return True

    # --- what is kept beside and after messages ------------------------------------------------------------

    def _to_done(self, held: Claim) -> None:
        self._make_room(DONE)
        # The time of the claim is kept as the file's own time; after a crash here the lease is still ours.
        set_time(self.directory, held.place, held.leased * 1000)
        self._into(DONE, held, self.directory.clock.now())
        if self.settings.sync:
            self.directory.sync(DONE)

    def _into(self, folder: str, held: Claim, now: int) -> None:
        """Move the exact name we hold to where ended messages are kept."""
        target = f"{folder}/{held.id}.{now}.{held.attempts}"
        try:
            self.directory.move(held.place, target)
        except FileNotFoundError:
            # RACE: not the message but the directory may be what is missing, if somebody removed it.
            if fs.exists(folder, self.directory.fd) or not fs.exists(held.place, self.directory.fd):
                raise
            self._made.discard(folder)
            self._make(folder)
            self.directory.move(held.place, target)

    def _make_room(self, folder: str) -> None:
        """Make dead/ or done/; a full disk costs the ballast."""
        try:
            self._make(folder)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.directory.drop_ballast():
                raise
            self._make(folder)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            fs.make_inner(folder, self.directory.fd)
            if self.settings.sync:
                self.directory.sync()  # whoever made it may not have come to this yet
            self._made.add(folder)

    def _sync_both(self, place: str, folder: str) -> None:
        if self.settings.sync:
            try:
                self.directory.sync(folder)
                self.directory.sync(place.rpartition("/")[0] or ".")
            except FileNotFoundError:
                pass  # the directory it left was empty and is gone
            except OSError as error:
                raise access_error(self.directory.path, "make durable a change in", error) from error

    def _note(self, place: str, id: str) -> str:
        return f"{place[: place.rfind('/') + 1]}{id}.{names.ERROR}"

    def _write_note(self, note: str, error: str, leased: int) -> None:
        """Keep why it failed. A full disk must not keep a message from being given back, so this may fail."""
        import json

        record = {"error": error, "at": self.directory.clock.now(), "leased_at": leased or None}
        try:
            fs.replace_file(note, json.dumps(record).encode(), self.directory.fd, sync=False)
        except OSError:
            fs.discard(note + ".new", self.directory.fd)

    def _carry_note(self, old: str, new: str) -> None:
        """Take why it failed along. The message matters more, so this may fail."""
        try:
            fs.rename_in(old, new, self.directory.fd)
        except OSError:
            pass


def set_time(directory: Directory, place: str, nanoseconds: int) -> None:
    """Set the time of a message's file; not if it has other names, because then its times are not ours alone."""
    if fs.stat(place, dir_fd=directory.fd, follow_symlinks=False).st_nlink == 1:
        try:
            fs.utime(place, ns=(nanoseconds, nanoseconds), dir_fd=directory.fd, follow_symlinks=False)
        except PermissionError:
            pass  # another user put it, and only that one may; the time is worth less than the ack


def moved_on(id: str) -> MessageNotFound:
    """Return the error for a message that is not where it was seen."""
    return MessageNotFound(
        f"message {id} is not there any more: it was claimed, finished or changed meanwhile", message_id=id
    )
