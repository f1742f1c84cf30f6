"""Claiming: the next message that the cursor knows, by one rename.

Layer: layouts.  Touches: claimable names; in passing, what crashes left.
Invariant: a claim renames the exact name that was seen to one that nobody else can make, with a later end.
Crash: the message has its old name, or is leased to a process that is gone, and comes back when the lease has run out.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.fs import CHUNK, READ, READ_ONCE
from dirqueue.disk.identity import ID_DIGITS, PROCESS
from dirqueue.errors import LeaseLost, access_error
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import holders, links, names, sidefile
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.names import ERROR, LEASED, LEASED_PREFIX, LEASED_ROOM, Name, parse
from dirqueue.layouts.native.resolve import NEVER
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.settle import Settler
from dirqueue.layouts.native.side import Side
from dirqueue.message import Card
from dirqueue.settings import Settings

#: How many snapshots one claim may use up before it returns that there is nothing.
LOOKS = 50
#: Seconds between two looks for consumers of lots that are past their timeout.
LOST_SECONDS = 30.0
#: How often a claim that came late is renewed before it is handed over.
RENEWALS = 3


class Claimer:
    """The claiming half of the native layout."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        cursor: Cursor,
        rooms: Rooms,
        settler: Settler,
        side: Side,
        extras: ExtrasStore,
        buried: deque[str],
    ) -> None:
        self._extras = extras
        self._buried = buried
        self.directory = directory
        self._settings = settings
        self._cursor = cursor
        self._rooms = rooms
        self._settler = settler
        self._side = side
        #: Whether leased/ was there after the last listing: until then ENOENT may mean either.
        self._room_seen = False
        #: When lost consumers are looked for next, by the monotonic clock.
        self._lost_at = 0.0
        #: How a body is opened; changed by the first one of another user.
        self._flags = READ_ONCE
        # Bound once: these are looked at for every message.
        self._lease, self._spans = float(settings.lease), _spans(settings.lease)

    def claim(self, seconds: float, holder: str = "") -> Claim | None:
        """Take the next message for so many seconds; None if there is none.

        Args:
            seconds: How long to hold it.
            holder: Who holds it, as tokens have it (holders.py): then the message gets a card, if it has none.
        """
        directory, cursor = self.directory, self._cursor
        fd = directory.fd
        if fd < 0:
            return None
        clock, here = directory.clock, time.time_ns()
        # COST: clock.now() and new_token() below without their calls: 0.15 µs of 12 for get and ack.
        now = here // 1000 + clock.offset if clock.since <= here < clock.till else clock.now()
        length, half_ns = self._spans if seconds == self._lease else _spans(seconds)
        last_look = None
        # COST: names.leased() written out, as the token is.
        stem, first = (holders.stem(holder), Card(1).text) if holder else (PROCESS.stem, "")
        while True:
            # RACE: one tuple and one pop, so that threads need no lock for what most claims find.
            prefix, run, linked = cursor.row
            if not run or time.monotonic() >= cursor.snapshot.expires:
                last_look = last_look or cursor.looks + LOOKS
                if cursor.looks > last_look or not self._look(now):
                    return None
                continue
            try:
                name = run.pop()
            except IndexError:
                continue
            path = prefix + name
            data = None
            if linked and name in linked:
                data = self._linked(path, fd)
                if data is None:
                    continue
            id, attempts, until, folder, card = name, 1, now + length, prefix, first
            if len(name) != ID_DIGITS:
                folder, seen, card = self._spent(path, now, first)
                if seen is None:
                    continue
                id, attempts, until = seen.id, seen.attempts, max(until, seen.until + 1)
            place = f"leased/{id}.{until}.{attempts}.{stem}{next(PROCESS.count)}{card}"
            try:
                fs.rename(path, place, src_dir_fd=fd, dst_dir_fd=fd)
            except OSError as error:
                if not self._took_anyway(error, folder, path, place):
                    continue
            if attempts > 1 and folder != LEASED_PREFIX:
                self._side.carry_note(f"{folder}{id}.{ERROR}", f"leased/{id}.{ERROR}")
            held = Claim(id, place, now, until, attempts, data)
            if (data is None and not self._read(held)) or (self._extras.there and self._expired(held)):
                continue
            if time.time_ns() - here < half_ns or self._refreshed(held, seconds):
                return held

    def _linked(self, path: str, fd: int) -> bytes | None:
        """Return the body of a link before it is claimed; None if it is gone or not ours.

        The target of a link never changes and a name is never used again, so what is read now is what is claimed.
        """
        try:
            if "~" in path and (body := sidefile.body_of(self.directory, path)) is not None:
                return body
            return links.read(path, fd)
        except OSError as error:
            self._cursor.tried(path)
            if error.errno == errno.ELOOP:
                self._cursor.leave_out(path)
            elif error.errno in (errno.ENOENT, errno.ESTALE):
                self._missed(names.folder_of(path))
            elif error.errno == errno.EINVAL:
                self._cursor.stale()  # RACE: a file by now
            else:
                raise access_error(self.directory.path, "read from", error) from error
        return None

    def _read(self, held: Claim) -> bool:
        """Read the body of a claimed file, up to a limit: a longer one is read when it is asked for."""
        fd = self.directory.fd
        try:
            if "~" in held.place and (body := sidefile.body_of(self.directory, held.place)) is not None:
                held.data = body
                return True
            try:
                file = self._open(held.place, fd)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                held.data = links.read(held.place, fd)  # a link that no listing showed
                return True
            try:
                data = fs.read(file, CHUNK)
            finally:
                fs.close(file)
        except OSError as error:
            self._unreadable(held, error)
            return False
        held.data = data if len(data) < CHUNK else None
        return True

    def _open(self, place: str, fd: int) -> int:
        try:
            return fs.open(place, self._flags, dir_fd=fd)
        except OSError as error:
            if error.errno != errno.EPERM or self._flags == READ:
                raise
        self._flags = READ  # another user's file
        return fs.open(place, READ, dir_fd=fd)

    def _expired(self, held: Claim) -> bool:
        """Read what a claimed message carries. Return whether its time is over: then it has ended."""
        held.extras = extras = self._extras.read(held.id)
        if extras is None or not 0 < extras.expires <= held.leased:
            return False
        if self._settler.expire(held) and self._settings.keep_expired:
            self._buried.append(held.id)
        return True

    def _look(self, now: int) -> bool:
        """Find names to try; False if there are none."""
        self._room_seen = False
        try:
            with self._cursor.lock:
                try:
                    found = self._cursor.fill(now)
                except FileNotFoundError:
                    # The whole queue was removed; there may be another one at its path by now.
                    self._cursor.reopened()
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

    def _tidy(self) -> None:
        """Remove a few leftovers that a listing came upon: cron's purge is a comfort, not a need."""
        from dirqueue.layouts.native import purge

        while self._cursor.leftovers:
            purge.leftovers(
                self.directory, self._settings, self.bury_unclaimed, *self._cursor.leftovers.pop()
            )

    def _release_lost(self) -> int:
        """Give back what lost consumers pinned: purging is never needed for that."""
        from dirqueue.layouts.native import pins

        self._lost_at = time.monotonic() + LOST_SECONDS
        return pins.release_stale(self.directory, self._settings)

    def _spent(self, path: str, now: int, first: str) -> tuple[str, Name | None, str]:
        """Return what a name says that is not simply ready: its directory, itself with this delivery counted, its card.

        No name if it was the last delivery. A message without a card gets one if `first` says what a first card is.
        """
        self._cursor.tried(path)
        folder = names.folder_of(path)
        seen = parse(path[len(folder) :])
        if seen is None:
            return folder, None, ""
        if 0 < self._settings.max_attempts <= seen.attempts:
            self.bury_unclaimed(folder, seen, now)
            return folder, None, ""
        counted = min(seen.attempts + 1, names.MAX_ATTEMPTS)
        card = seen.card.raised() if seen.card is not None else Card(counted) if first else None
        return folder, seen._replace(attempts=counted), "" if card is None else card.text

    def _refreshed(self, held: Claim, seconds: float) -> bool:
        """RACE: we were stopped between the look at the clock and here, and half of the lease or more is over."""
        try:
            for _ in range(RENEWALS):
                self._settler.renew(held, seconds)
                if self.directory.clock.now() + int(seconds * 500_000) <= held.ends:
                    break  # else stopped again
        except LeaseLost:
            return False  # it has expired, and another consumer has the message
        return True

    def _took_anyway(self, error: OSError, folder: str, src: str, place: str) -> bool:
        """Sort out a failed claim: lost race (False), lost reply (True), full disk (try again), a real error."""
        if error.errno in (errno.ENOENT, errno.ESTALE):
            if self.directory.mount.replies_can_be_lost and fs.exists(place, self.directory.fd):
                return True
            if not self._room_seen and self._made_room(src, place):
                return True
            self._missed(folder)
            return False
        if folder and isinstance(error, PermissionError):
            self._cursor.close(folder)
            return False
        try:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and self.directory.drop_ballast():
                fs.move(src, place, self.directory.fd)
                return True
        except FileNotFoundError:
            self._missed(folder)
            return False
        except OSError as again:
            error = again
        raise access_error(self.directory.path, "claim from", error) from error

    def _missed(self, folder: str) -> None:
        if folder != LEASED_PREFIX:  # a lease that was renewed or ended is no sign of other consumers
            self._cursor.missed()

    def _made_room(self, src: str, place: str) -> bool:
        """The first miss after a listing: make leased/ if that is what is missing, and claim again."""
        self._room_seen = True
        try:
            if not self._rooms.make(LEASED_ROOM):
                return False
        except FileNotFoundError:
            return False  # the whole queue is gone: the next look will tell
        except OSError as error:
            raise access_error(self.directory.path, "claim from", error) from error
        try:
            self._rooms.move(src, place)
        except OSError as error:
            return self._took_anyway(error, names.folder_of(src), src, place)
        return True

    def _unreadable(self, held: Claim, error: OSError) -> None:
        """Count an unreadable file as a failed delivery, so that it does not come back endlessly."""
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return  # our lease ran out before we opened it
        try:
            self._set_aside(held, error)
        except LeaseLost:
            pass  # the same, a moment later

    def _set_aside(self, held: Claim, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
            self._settler.release(held)  # our trouble, not the message's
            raise access_error(self.directory.path, "read from", error) from error
        reason = f"cannot be read: {os.strerror(error.errno or 0)}"
        if error.errno == errno.EBADMSG:
            reason = f"cannot be read: {error.strerror}"
        try:
            if 0 < self._settings.max_attempts <= held.attempts or error.errno in (
                errno.ELOOP,
                errno.EBADMSG,
            ):
                self._settler.bury(held, reason)
                self._buried.append(held.id)
            else:
                self._settler.retry(held, self._settings.pause(held.attempts), reason)
        except LeaseLost:
            pass  # our lease ran out meanwhile

    def bury_unclaimed(self, prefix: str, seen: Name, now: int) -> None:
        """Move a message that used up its attempts without a word (its consumers died) to dead/."""
        holder = f", last held by {seen.token}" if seen.token else ""
        held = Claim(seen.id, prefix + seen.text, 0, seen.until, seen.attempts)
        reason = (
            f"delivered {seen.attempts} times and never acknowledged{holder}" if seen.kind == LEASED else None
        )
        try:
            self._side.to_dead(held, reason, now)
            self._buried.append(held.id)
        except FileNotFoundError:
            self._cursor.missed()
        except PermissionError:
            pass  # its directory or dead/ is another user's: a process that may write there will do it
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return  # no inode for a bucket must not keep others from being consumed; another look will do it
            raise access_error(self.directory.path, "bury a message of", error) from error

    def wakes_in(self) -> float | None:
        """Return the seconds until the next known lease ends or delay is over."""
        soonest = self._cursor.soonest
        if soonest == NEVER or self.directory.fd < 0:
            return None
        return max(0.0, (soonest - self.directory.clock.now()) / 1_000_000)


def _spans(lease: float) -> tuple[int, int]:
    """Return a lease in microseconds, and the half of it in nanoseconds."""
    return micros(lease), int(lease * 5e8)
