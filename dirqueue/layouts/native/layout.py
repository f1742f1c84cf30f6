"""The native layout: a file name is the whole state of a message.

Layer: layouts.  Touches: every name of names.py in the queue, in dead/ and in done/.
Invariant: a message has exactly one name after every call here; each change renames or unlinks the exact name
that was seen, to a name that nobody else can make.
Crash: between any two calls the message keeps the name it had, or already has the next one.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.fork import renew_in_child
from dirqueue.disk.fs import CHUNK, READ
from dirqueue.disk.identity import ID_DIGITS, PROCESS, new_token
from dirqueue.errors import LeaseLost, QueueError, access_error
from dirqueue.layouts.base import Claim, Purged, lost
from dirqueue.layouts.native import inspect, names
from dirqueue.layouts.native.amend import Looker
from dirqueue.layouts.native.cursor import NEVER, Cursor
from dirqueue.layouts.native.inspect import DEAD
from dirqueue.layouts.native.names import LEASED, Name, parse
from dirqueue.layouts.native.publish import Publisher
from dirqueue.message import Entry
from dirqueue.settings import Settings

#: How many snapshots one claim may use up before it says that there is nothing for it.
LOOKS = 50
#: Seconds between two looks for consumers of lots that are past their timeout.
LOST_SECONDS = 30.0
#: How often a claim that came late is renewed before it is handed over.
RENEWALS = 3


class Native(Looker):
    """The default layout."""

    name: ClassVar[str] = "native"
    lacks: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self.directory = directory
        self.settings = settings
        # In any other order a message put by us may be the next one to claim; in this one there is nothing to add.
        self._out_of_turn = settings.order != "fifo" or settings.priorities
        self._publisher = Publisher(directory, settings, self._insert if self._out_of_turn else None)
        self._cursor = Cursor(directory, settings)
        self._lock = threading.RLock()  # a signal handler may get while we do
        renew_in_child(self._renew_in_child)
        #: When lost consumers are looked for next, by the monotonic clock.
        self._lost_at = 0.0
        self._made: set[str] = set()
        # Bound once: these are looked at for every message.
        self._keep_done, self._sync = settings.keep_done, settings.sync
        self._lease, self._spans = float(settings.lease), _spans(settings.lease)

    def _renew_in_child(self) -> None:
        # What another thread of the parent was changing may be half done.
        self._lock, self._cursor = threading.RLock(), Cursor(self.directory, self.settings)

    # --- producers -----------------------------------------------------------------------------------------

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        """Write one message and make it visible."""
        return self._publisher.put(data, delay, priority)

    def _insert(self, prefix: str, id: str) -> None:
        with self._lock:
            self._cursor.insert(prefix, id)

    def put_many(
        self, bodies: Iterable[bytes], *, delay: float = 0, priority: int | None = None
    ) -> list[str]:
        """Make many messages visible at once."""
        ids = self._publisher.put_many(bodies, delay, priority)
        if self._out_of_turn:
            self._cursor.stale()
        return ids

    def put_path(
        self, path: str, *, delay: float = 0, priority: int | None = None, link: bool = False
    ) -> str:
        """Move or link a file in."""
        id = self._publisher.put_path(path, delay, priority, link=link)
        if self._out_of_turn:
            self._cursor.stale()
        return id

    def count(self) -> int:
        """Return how many messages are waiting or held."""
        return sum(1 for _ in self.entries(states.LIVE))

    # --- consumers -----------------------------------------------------------------------------------------

    def claim(self, seconds_: float) -> Claim | None:
        """Take the next message for so many seconds; None if there is none."""
        directory, cursor = self.directory, self._cursor
        if directory.fd < 0 and not directory.find():
            return None
        fd, clock = directory.fd, directory.clock
        here = time.time_ns()
        # clock.now(), without the call
        now = here // 1000 + clock.offset if clock.since <= here < clock.till else clock.now()
        length, half_ns = self._spans if seconds_ == self._lease else _spans(seconds_)
        last_look = None
        while True:
            # RACE: one tuple and one pop, so that threads need no lock for what most claims find.
            prefix, run = cursor.row
            if not run or time.monotonic_ns() >= cursor.expires:
                last_look = last_look or cursor.looks + LOOKS
                if cursor.looks > last_look or not self._look(now):
                    return None
                continue
            try:
                name = run.pop()
            except IndexError:
                continue
            id, attempts, until = name, 1, now + length
            if len(name) != ID_DIGITS:
                seen = self._spent(prefix, name, now)
                if seen is None:
                    continue
                id, attempts, until = seen.id, seen.attempts, max(until, seen.until + 1)
            # new_token(), without the call
            place = f"{prefix}{id}.{until}.{attempts}.{PROCESS.stem}{next(PROCESS.count)}"
            try:
                fs.rename(prefix + name, place, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError as error:
                if prefix and isinstance(error, PermissionError):
                    self._close(prefix)
                    continue
                if not self._took_anyway(error, prefix + name, place):
                    self._missed()
                    continue
            try:
                file = fs.open(place, READ, dir_fd=fd)
                try:
                    data = fs.read(file, CHUNK)
                finally:
                    fs.close(file)
            except OSError as error:
                self._unreadable(Claim(id, place, now, until, attempts), error)
                continue
            # A longer body is read when it is asked for.
            held = Claim(id, place, now, until, attempts, data if len(data) < CHUNK else None)
            if time.time_ns() - here < half_ns or self._refreshed(held, seconds_):
                return held

    def _look(self, now: int) -> bool:
        """Find names to try; False if there are none."""
        try:
            with self._lock:
                try:
                    found = self._cursor.fill(now)
                except FileNotFoundError:
                    # The whole queue was removed; there may be another one at its path by now.
                    self._cursor.stale()
                    found = self.directory.reopen() and self._cursor.fill(now)
                if self._cursor.leftovers:
                    self._tidy()
                if self._cursor.has_pins and time.monotonic() >= self._lost_at and self._release_lost():
                    self._cursor.stale()
                    found = self._cursor.fill(self.directory.clock.now())
            return found
        except FileNotFoundError:
            return False
        except OSError as error:
            raise access_error(self.directory.path, "list", error) from error

    def _spent(self, prefix: str, name: str, now: int) -> Name | None:
        """Return a message that was delivered or delayed before, this delivery counted; None if it was the last."""
        seen = parse(name)
        if seen is None:
            return None
        if 0 < self.settings.max_attempts <= seen.attempts:
            self.bury_unclaimed(prefix, seen, now)
            return None
        return seen._replace(attempts=min(seen.attempts + 1, names.MAX_ATTEMPTS))

    def _refreshed(self, held: Claim, seconds_: float) -> bool:
        """RACE: we were stopped between the look at the clock and here, and half of the lease or more is over."""
        try:
            for _ in range(RENEWALS):
                self.renew(held, seconds_)
                if self.directory.clock.now() + int(seconds_ * 500_000) <= held.ends:
                    break  # else stopped again
        except LeaseLost:
            return False  # all of it was over, and somebody has taken the message
        return True

    def _release_lost(self) -> int:
        """Give back what lost consumers pinned: purging is never needed for that."""
        from dirqueue.layouts.native import pins

        self._lost_at = time.monotonic() + LOST_SECONDS
        return pins.release_stale(self.directory, self.settings)

    def _close(self, prefix: str) -> None:
        """Step over a directory of another user's; what we may use comes after it."""
        with self._lock:
            self._cursor.close(prefix)

    def _missed(self) -> None:
        with self._lock:
            self._cursor.missed()

    def _took_anyway(self, error: OSError, src: str, place: str) -> bool:
        """Sort out a failed claim: lost race (False), lost reply (True), full disk (try again), a real error."""
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return self.directory.mount.replies_can_be_lost and fs.exists(place, self.directory.fd)
        try:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and self.directory.drop_ballast():
                fs.move(src, place, self.directory.fd)
                return True
        except FileNotFoundError:
            return False
        except OSError as again:
            error = again
        raise access_error(self.directory.path, "claim from", error) from error

    def _unreadable(self, held: Claim, error: OSError) -> None:
        """A claimed file that cannot be read must not come back for ever: it counts as a failure."""
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return  # our lease ran out before we opened it
        try:
            self._set_aside(held, error)
        except LeaseLost:
            pass  # the same, a moment later

    def _set_aside(self, held: Claim, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
            self.release(held)  # our trouble, not the message's
            raise access_error(self.directory.path, "read from", error) from error
        reason = f"cannot be read: {os.strerror(error.errno or 0)}"
        try:
            if 0 < self.settings.max_attempts <= held.attempts or error.errno == errno.ELOOP:
                self.bury(held, reason)
            else:
                self.retry(held, self.settings.pause(held.attempts), reason)
        except LeaseLost:
            pass  # our lease ran out meanwhile

    def bury_unclaimed(self, prefix: str, seen: Name, now: int) -> None:
        """Move a message that used up its attempts without a word (its consumers died) to dead/."""
        who = f", last held by {seen.token}" if seen.token else ""
        held = Claim(seen.id, prefix + seen.text, 0, seen.until, seen.attempts)
        reason = (
            f"delivered {seen.attempts} times and never acknowledged{who}" if seen.kind == LEASED else None
        )
        try:
            self._to_dead(held, reason, now)
        except FileNotFoundError:
            self._missed()
        except PermissionError:
            pass  # its directory or dead/ is another user's: somebody who may will do it
        except OSError as error:
            raise access_error(self.directory.path, "bury a message of", error) from error

    def watched(self) -> list[str]:
        return self._cursor.watched

    def arrived(self, name: str) -> None:
        self._cursor.arrived = name

    def wakes_in(self) -> float | None:
        """Return the seconds until the next known lease ends or delay is over."""
        soonest = self._cursor.soonest
        if soonest == NEVER or self.directory.fd < 0:
            return None
        return max(0.0, (soonest - self.directory.clock.now()) / 1_000_000)

    def ack(self, held: Claim) -> None:
        """The work is done: remove the exact name we hold."""
        directory = self.directory
        if directory.fd < 0:
            directory.need()
        try:
            if self._keep_done:
                self._to_done(held)
            elif directory.mount.replies_can_be_lost:
                # NFS: a repeated unlink says ENOENT, and so does a lost lease; a rename to a name of ours can tell.
                gone = f"{held.place}.ack"
                fs.move(held.place, gone, directory.fd)
                fs.discard(gone, directory.fd)
            else:
                fs.unlink(held.place, dir_fd=directory.fd)
        except OSError as error:
            raise self._lost(error, held, "ack") from error
        if held.attempts > 1:
            fs.discard(self._note(held.place, held.id), directory.fd)
        if self._sync:
            try:
                self.directory.sync(held.place.rpartition("/")[0] or ".")
            except FileNotFoundError:
                pass  # the emptied directory is gone with its names, and whoever removed it synced nothing we need
            except OSError as error:
                raise access_error(self.directory.path, "make durable an ack in", error) from error

    def renew(self, held: Claim, seconds_: float) -> None:
        """Hold on for so many seconds from now, under a new name."""
        until = max(self.directory.clock.now() + micros(seconds_), held.ends + 1)
        prefix = held.place[: held.place.rfind("/") + 1]
        place = f"{prefix}{held.id}.{until}.{held.attempts}.{new_token()}"
        self._end(held, place, "renew")
        held.place, held.ends = place, until

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        """It failed: claimable again after the delay, this delivery counted."""
        # Whoever lost the lease must not touch the note beside it; the rename below says so.
        if error is not None and self._is_there(held):
            self._write_note(self._note(held.place, held.id), error, held.leased)
        until = self.directory.clock.now() + micros(delay)
        prefix = held.place[: held.place.rfind("/") + 1]
        self._end(held, f"{prefix}{held.id}.{until}.{held.attempts}", "retry")

    def _is_there(self, held: Claim) -> bool:
        try:
            return fs.exists(held.place, self.directory.fd)
        except OSError:
            return False  # the rename will meet the same and say it

    def release(self, held: Claim) -> None:
        """Give it back at once, this delivery not counted."""
        prefix = held.place[: held.place.rfind("/") + 1]
        counted = held.attempts - 1
        # NFS: the proof of a lost reply is a name that nobody else can make, and others can make ID.
        plain = not counted and not self.directory.mount.replies_can_be_lost
        name = held.id if plain else f"{held.id}.{self.directory.clock.now()}.{counted}"
        self._end(held, prefix + name, "release")

    def bury(self, held: Claim, reason: str) -> None:
        """Move it to dead/ with the reason."""
        try:
            self._to_dead(held, reason, self.directory.clock.now())
        except QueueError:
            raise
        except OSError as error:
            if not self._given_back(error, held, "reject"):
                raise self._lost(error, held, "reject") from error

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
        )

    def hold(self, handle: str) -> Claim:
        """Take over a lease that this or another process holds, by its exact name."""
        return inspect.held(self.directory, handle)

    def _end(self, held: Claim, place: str, doing: str) -> None:
        """Rename the exact name we hold."""
        try:
            self.directory.move(held.place, place)
        except OSError as error:
            if not self._given_back(error, held, doing):
                raise self._lost(error, held, doing) from error
        self._cursor.stale()

    def _given_back(self, error: OSError, held: Claim, doing: str) -> bool:
        """NFS: a lost reply, and the next consumer was quick. Nobody else can have taken a lease that is live."""
        gone = error.errno == errno.ENOENT and self.directory.mount.replies_can_be_lost and doing != "renew"
        return gone and self.directory.clock.now() < held.ends

    def _lost(self, error: OSError, held: Claim, doing: str) -> Exception:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return lost(held, doing)
        return access_error(self.directory.path, f"{doing} a message of", error)

    # --- dead and done -------------------------------------------------------------------------------------

    def _to_dead(self, held: Claim, reason: str | None, now: int) -> None:
        if not fs.exists(held.place, self.directory.fd):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), held.place)
        self._make_room(DEAD)
        note = f"{DEAD}/{held.id}.{names.ERROR}"
        if reason is not None:
            self._write_note(note, reason, held.leased)
        else:
            self._carry_note(self._note(held.place, held.id), note)
        self._into(DEAD, held, now)
        fs.discard(self._note(held.place, held.id), self.directory.fd)
        self._sync_both(held.place, DEAD)

    # --- making and cleaning ------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the directory."""
        self.directory.make()

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        """Remove what crashes and time have left behind."""
        from dirqueue.layouts.native import purge

        return purge.purge(self, progress)

    def _tidy(self) -> None:
        """Remove a few leftovers that a listing came upon: cron's purge is a comfort, not a need."""
        from dirqueue.layouts.native import purge

        while self._cursor.leftovers:
            purge.leftovers(self, *self._cursor.leftovers.pop())

    def close(self) -> None:
        """Let go of the directory."""
        self.directory.close()


def _spans(lease: float) -> tuple[int, int]:
    """Return a lease in microseconds, and the half of it in nanoseconds."""
    return micros(lease), int(lease * 5e8)
