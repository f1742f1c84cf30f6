"""Changing what nobody holds: cancel, change, redrive, remove.

Layer: layouts.  Touches: the exact names of ready, delayed, dead and done messages, and their notes.
Invariant: as in layout.py: one exact name goes to one that nobody else can make.
"""

from __future__ import annotations

from dirqueue import settings, states
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_token
from dirqueue.errors import MessageNotFound, SettingsError, access_error
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import inspect, names, resolve, sidefile
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.inspect import moved_on
from dirqueue.layouts.native.names import parse
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.side import Side, note_of
from dirqueue.message import Entry
from dirqueue.settings import Settings, check_seconds


class Amender:
    """Changes of messages that nobody holds."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        cursor: Cursor,
        rooms: Rooms,
        side: Side,
        extras: ExtrasStore,
    ) -> None:
        self._extras = extras
        self._directory = directory
        self._settings = settings
        self._cursor = cursor
        self._rooms = rooms
        self._side = side

    def cancel(self, entry: Entry) -> None:
        """Remove an unclaimed message."""
        self._directory.need()
        self._unclaimed(entry, "cancel")
        held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
        try:
            if self._settings.keep_done:
                self._side.to_done(held)
            else:
                # A rename to a name of ours first: a lost reply cannot look like a lost race.
                gone = f"{names.folder_of(entry.place)}{entry.id}.{self._directory.clock.now()}.0.{new_token()}.ack"
                self._directory.move(entry.place, gone)
                fs.discard(gone, self._directory.fd)
                if self._extras.look(entry.id):
                    self._extras.discard(entry.id)
        except FileNotFoundError:
            raise moved_on(entry.id) from None
        except OSError as error:
            raise access_error(self._directory.path, "cancel a message of", error) from error
        fs.discard(note_of(entry.place, entry.id), self._directory.fd)
        self._side.sync_both(entry.place, entry.place)
        if not self._settings.keep_done:
            sidefile.forget(self._directory, entry.id, entry.card)

    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry:
        """Give an unclaimed message another priority or delay, by one rename."""
        self._directory.need()
        self._unclaimed(entry, "change")
        if priority is not None:
            if not self._settings.priorities:
                raise SettingsError(
                    f"{self._directory.path!r} was created without priorities: create it with priorities=True"
                )
            settings.check_priority(priority)
        if delay is not None:
            check_seconds("delay", delay)
        id = entry.id if priority is None else names.with_priority(entry.id, priority)
        now = self._directory.clock.now()
        until = entry.until if delay is None else now + micros(delay) if delay else 0
        if entry.card is not None:
            place = names.free(id, until or now, entry.attempts, names.raised(entry.place), now)
        elif until or entry.attempts:
            place = names.later(id, until or now, entry.attempts)
        else:  # a slice or batch holds one priority; the queue itself holds any
            place = names.folder_of(entry.place) + id if id == entry.id == _base(entry.place) else id
        if place != entry.place:
            self._move(entry, place, id)
        self._cursor.stale()
        found = parse(_base(place))
        assert found is not None  # noqa: S101 - built above
        return inspect.entry_of(found, names.folder_of(place), self._directory.clock.now())

    def _move(self, entry: Entry, place: str, id: str) -> None:
        try:
            self._extras.rename(entry.id, id)
            self._rooms.move(entry.place, place)
        except FileNotFoundError:
            raise moved_on(entry.id) from None
        except OSError as error:
            raise access_error(self._directory.path, "change a message of", error) from error
        if id != entry.id:
            self._extras.discard(entry.id)
        if entry.attempts:
            self._side.carry_note(note_of(entry.place, entry.id), note_of(place, id))
        self._side.sync_both(entry.place, place)

    def _unclaimed(self, entry: Entry, doing: str) -> None:
        if entry.state not in states.UNCLAIMED:
            raise MessageNotFound(
                f"cannot {doing} {entry.id}: it is {entry.state}, and only an unclaimed message can be",
                message_id=entry.id,
            )

    def redrive(self, entry: Entry) -> bool:
        """Make a dead message ready again, its attempts forgotten; False if somebody was faster."""
        try:
            self._extras.revive(entry.id)
            place = entry.id
            if entry.card is not None:
                place = names.waiting(entry.id, self._directory.clock.now(), 0, entry.card.raised().text)
            self._directory.mount.rename(entry.place, place, self._directory.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise access_error(self._directory.path, "redrive a message of", error) from error
        fs.discard(note_of(entry.place, entry.id), self._directory.fd)
        self._cursor.stale()
        return True

    def remove(self, entry: Entry) -> bool:
        """Delete a message in whatever state, by its exact name; False if that name is gone.

        A transaction that holds it is aborted first: it must not commit with a message that went otherwise.
        """
        try:
            place = resolve.settled(self._directory, entry.place)
            if place is None:
                return False
            fs.unlink(place, dir_fd=self._directory.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise access_error(self._directory.path, "remove a message of", error) from error
        fs.discard(note_of(place, entry.id), self._directory.fd)
        if self._extras.look(entry.id):
            self._extras.discard(entry.id)
        sidefile.forget(self._directory, entry.id, entry.card)
        return True


def _base(place: str) -> str:
    return place.rpartition("/")[2]
