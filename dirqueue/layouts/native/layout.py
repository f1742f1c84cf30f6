"""The native layout: a file name is the whole state of a message.

    publish.py  put, put_many, put_path          inspect.py  what there is, and what is in it
    claim.py    the next message                 amend.py    change what nobody holds
    settle.py   the ends of a lease              purge.py    remove what crashes and time left
    side.py     notes, dead/ and done/           names.py    the grammar
    cursor.py   what to claim next               due.py      what has become claimable in the rooms
    extras.py   attributes, end of life
    rooms.py    leased/, later/, dead/, done/    pausing.py  whether anything may be claimed

Layer: layouts.  Touches: every name of names.py in the queue and in its rooms.
Invariant: a message has exactly one name after every call here; each change renames or unlinks the exact name
that was seen, to a name that nobody else can make.
Crash: between any two calls the message keeps the name it had, or already has the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import BinaryIO, ClassVar

from dirqueue.disk.directory import Directory
from dirqueue.errors import SettingsError, access_error
from dirqueue.layouts.base import Claim, Committer, Producer, Purged, none_buried
from dirqueue.layouts.native import holders, inspect, names, pausing
from dirqueue.layouts.native.amend import Amender
from dirqueue.layouts.native.claim import Claimer
from dirqueue.layouts.native.count import Counter
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.names import LEASED, Name
from dirqueue.layouts.native.publish import Publisher
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.settle import Settler
from dirqueue.layouts.native.side import Side
from dirqueue.message import Details, Entry, Extras, Failure
from dirqueue.settings import Settings
from dirqueue.states import UNCLAIMED


class Native:
    """The default layout."""

    name: ClassVar[str] = "native"
    lacks: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self.directory = directory
        self.space: Committer | None = None
        self.buried = none_buried()
        self.settings = settings

    @property
    def settings(self) -> Settings:
        """What the queue goes by. To set it is to begin anew with others: convert lifts the limit of attempts."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        directory = self.directory
        self._settings = settings
        # In any other order a message put by us may be the next one to claim; in this one there is nothing to add.
        self._out_of_turn = settings.order != "fifo" or settings.priorities
        self._counter = Counter(directory)
        rooms = self._rooms = Rooms(directory, sync=settings.sync)
        extras = self._extras = ExtrasStore(directory, rooms, sync=settings.sync)
        self._cursor = Cursor(directory, settings, extras)
        side = Side(directory, settings, rooms)
        noticed = self._cursor.insert if self._out_of_turn else None
        self._publisher = Publisher(directory, settings, rooms, noticed, extras)
        self._settler = Settler(directory, settings, self._cursor, rooms, side, extras)
        self._claimer = Claimer(
            directory, settings, self._cursor, rooms, self._settler, side, extras, self.buried
        )
        self._amender = Amender(directory, settings, self._cursor, rooms, side, extras)

    def __str__(self) -> str:
        return self.name

    # --- producers -----------------------------------------------------------------------------------------

    def put(
        self, data: bytes, delay: float = 0, priority: int | None = None, extras: Extras | None = None
    ) -> str:
        """Write one message and make it visible."""
        return self._publisher.put(data, delay, priority, extras)

    def carrying(self, extras: Extras) -> Producer:
        """Return what publishes messages that carry this."""
        return Carrying(self, extras)

    def put_many(
        self,
        bodies: Iterable[bytes],
        *,
        delay: float = 0,
        priority: int | None = None,
        extras: Extras | None = None,
    ) -> list[str]:
        """Make many messages visible at once."""
        ids = self._publisher.put_many(bodies, delay, priority, extras)
        if self._out_of_turn:
            self._cursor.stale()
        return ids

    def put_path(
        self,
        path: str,
        *,
        delay: float = 0,
        priority: int | None = None,
        link: bool = False,
        extras: Extras | None = None,
    ) -> str:
        """Move or link a file in."""
        id = self._publisher.put_path(path, delay, priority, link=link, extras=extras)
        if self._out_of_turn:
            self._cursor.stale()
        return id

    def keep_extras(self, id: str, extras: Extras) -> None:
        """Keep what a message will carry, for a transaction that publishes it. Raises plain OSError."""
        self._extras.write(id, extras)

    def drop_extras(self, id: str, *, written_by: int | None = None) -> None:
        """Remove what a message carried that a transaction has taken away, or has not published.

        Args:
            id: The message.
            written_by: Only if it was written until then, in microseconds.
        """
        if written_by is None or self._extras.is_older(id, written_by):
            self._extras.discard(id)

    def link_at(self, data: bytes, path: str, dir_fd: int) -> bool:
        """Write a body as a link to a path that nobody reads yet; False if it has to be a file."""
        return self._publisher.link_at(data, path, dir_fd)

    def place_for(self, id: str, priority: int | None) -> str:
        """Return where a message of that id is to be put now, for a transaction that publishes it."""
        return self._publisher.place_for(id, priority)

    def count(self) -> int:
        """Return how many messages are waiting or held."""
        return self._counter.count()

    # --- consumers -----------------------------------------------------------------------------------------

    def claim(self, seconds: float) -> Claim | None:
        """Take the next message for so many seconds; None if there is none."""
        return self._claimer.claim(seconds)

    def claim_for(self, holder: str, seconds: float) -> Claim | None:
        """Take the next message for a holder, and give it a card; None if there is none."""
        if not self.directory.find():
            return None
        return self._claimer.claim(seconds, self._written(holder))

    def _written(self, holder: str) -> str:
        """Return how a holder is written; a long one is kept in the space."""
        written = holders.who(holder)
        if not written.startswith(holders.LONG):
            return written
        if self.space is None:
            raise SettingsError(
                f"a holder of more than {holders.LONGEST} characters needs a Space to be kept in, not {holder!r:.60}"
            )
        try:
            return holders.keep(holder, "..", self.directory.fd)
        except OSError as error:
            raise access_error(self.directory.path, "keep the name of a holder beside", error) from error

    def bury_unclaimed(self, prefix: str, seen: Name, now: int) -> None:
        """Move a message that used up its attempts and was never settled (its consumers died) to dead/."""
        self._claimer.bury_unclaimed(prefix, seen, now)

    def watched(self) -> list[str]:
        return self._cursor.watched

    def arrived(self, name: str) -> None:
        self._cursor.arrived = name

    def wakes_in(self) -> float | None:
        """Return the seconds until the next known lease ends or delay is over."""
        return self._claimer.wakes_in()

    def ack(self, held: Claim) -> None:
        """The work is done: remove the exact name we hold."""
        self._settler.ack(held)

    def renew(self, held: Claim, seconds: float) -> None:
        """Hold on for so many seconds from now, under a new name."""
        self._settler.renew(held, seconds)

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        """It failed: claimable again after the delay, this delivery counted."""
        self._settler.retry(held, delay, error)

    def release(self, held: Claim) -> None:
        """Give it back at once, this delivery not counted."""
        self._settler.release(held)

    def bury(self, held: Claim, reason: str) -> None:
        """Move it to dead/ with the reason."""
        self._settler.bury(held, reason)

    def entry(self, held: Claim) -> Entry:
        """Return what is known of a held message."""
        id = held.id
        return Entry(
            id,
            LEASED,
            held.place,
            names.micros_of(id),
            held.ends,
            held.attempts,
            held.token,
            names.priority_of(id),
            names.card_at(held.place),
        )

    def hold(self, handle: str) -> Claim:
        """Take over a lease that this or another process holds, by its exact name."""
        held = inspect.held(self.directory, handle)
        held.extras = self._extras.look(held.id)
        return held

    # --- readers -------------------------------------------------------------------------------------------

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
        return inspect.load(self.directory, place)

    def stream(self, place: str) -> BinaryIO:
        """Open a body for reading."""
        return inspect.stream(self.directory, place)

    def size(self, place: str) -> int:
        """Return the length of a body."""
        return inspect.size(self.directory, place)

    def leased_at(self, entry: Entry) -> datetime | None:
        """Return when it was last claimed."""
        return inspect.leased_at(self.directory, entry)

    def failure(self, entry: Entry) -> Failure | None:
        """Return the reason kept beside a message."""
        return inspect.failure(self.directory, entry)

    def extras(self, entry: Entry) -> Extras | None:
        """Return what a message carries."""
        return self._extras.look(entry.id)

    def details(self, entry: Entry) -> Details | None:
        """Return what the side file of a message says."""
        return inspect.details(self.directory, entry)

    def holder(self, entry: Entry) -> str:
        """Return who its token is of."""
        return holders.text_of(entry, "..", self.directory.fd)

    # --- changes of what nobody holds ----------------------------------------------------------------------

    def cancel(self, entry: Entry) -> None:
        """Remove an unclaimed message."""
        self._amender.cancel(entry)

    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry:
        """Give an unclaimed message another priority or delay, by one rename."""
        return self._amender.change(entry, priority=priority, delay=delay)

    def redrive(self, entry: Entry) -> bool:
        """Make a dead message ready again, its attempts forgotten; False if somebody was faster."""
        return self._amender.redrive(entry)

    def remove(self, entry: Entry) -> bool:
        """Delete a message in whatever state, by its exact name; False if that name is gone."""
        return self._amender.remove(entry)

    # --- pausing -------------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Give nothing from now on."""
        done = pausing.pause(self.directory, sync=self.settings.sync)
        self._cursor.pause()
        return done

    def resume(self) -> bool:
        """Give messages again."""
        return pausing.resume(self.directory, sync=self.settings.sync)

    def paused(self) -> bool:
        """Return whether the queue gives nothing now."""
        return self.directory.find() and pausing.is_paused(self.directory)

    # --- making and cleaning -------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the directory."""
        self._rooms.make_queue()

    def purge_lock(self) -> str:
        """Return a path in the queue."""
        return os.path.join(self.directory.path, ".purge.lock")

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        """Remove what crashes and time have left behind."""
        from dirqueue.layouts.native import purge

        purged = purge.purge(self.directory, self.settings, self.bury_unclaimed, progress)
        return purged + Purged(expired=self._expire()) if self._extras.any() else purged

    def _expire(self) -> int:
        """End the messages whose time is over; return their number."""
        now, gone = self.directory.clock.now(), 0
        for entry in self.entries(UNCLAIMED):
            extras = self._extras.read(entry.id)
            if extras is not None and 0 < extras.expires <= now:
                held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
                held.extras = extras
                gone += self._settler.expire(held)
        return gone

    def close(self) -> None:
        """Let go of the directory."""
        self._rooms.close()
        self.directory.close()


class Carrying:
    """Publishes messages that carry the same."""

    def __init__(self, layout: Native, extras: Extras) -> None:
        self._layout = layout
        self._extras = extras

    def put(self, data: bytes, delay: float, priority: int | None) -> str:
        return self._layout.put(data, delay, priority, self._extras)

    def put_many(self, bodies: Iterable[bytes], *, delay: float, priority: int | None) -> list[str]:
        return self._layout.put_many(bodies, delay=delay, priority=priority, extras=self._extras)

    def put_path(self, path: str, *, delay: float, priority: int | None, link: bool = False) -> str:
        return self._layout.put_path(path, delay=delay, priority=priority, link=link, extras=self._extras)
