"""Ending a lease: ack, renew, retry, release, bury.

Layer: layouts.  Touches: the exact name of a held message.
Invariant: each renames or unlinks the exact name that is held; if that is gone, the lease was lost: nothing changes.
Crash: the message is held as before, or has ended.
"""

from __future__ import annotations

import errno

from dirqueue.disk import fs, identity
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory, not_found
from dirqueue.errors import LeaseLost, QueueError, access_error
from dirqueue.layouts.base import Claim, lost
from dirqueue.layouts.native import holders, names, sidefile
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.names import LEASED_PREFIX, LEASED_ROOM
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.side import Side, note_of
from dirqueue.settings import Settings

#: The reason in dead/ of a message whose time was over.
EXPIRED = "expired"


class Settler:
    """The ends of leases."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        cursor: Cursor,
        rooms: Rooms,
        side: Side,
        extras: ExtrasStore,
    ) -> None:
        self.directory = directory
        self._extras = extras
        self._cursor = cursor
        self._rooms = rooms
        self._side = side
        # Bound once: these are looked at for every message.
        self._keep_done, self._sync = settings.keep_done, settings.sync
        self._keep_expired = settings.keep_expired

    def ack(self, held: Claim) -> None:
        """The work is done: remove the exact name we hold."""
        directory, place = self.directory, held.place
        fd = directory.fd
        if fd < 0:
            raise not_found(directory.path)
        try:
            if self._keep_done:
                self._side.to_done(held)
            elif directory.mount.replies_can_be_lost:
                # NFS: a repeated unlink says ENOENT, and so does a lost lease; a rename to a name of ours can tell.
                gone = f"{place}.ack"
                fs.move(place, gone, fd)
                fs.discard(gone, fd)
            else:
                fs.unlink(place, dir_fd=fd)
        except QueueError:
            raise
        except OSError as error:
            raise self._lost(error, held, "ack") from error
        if held.attempts > 1:
            fs.discard(note_of(place, held.id), fd)
        if self._keep_done:
            return
        if held.extras is not None:
            self._extras.discard(held.id)
        if self._sync:
            self._make_durable(names.folder_of(place))
        if "~" in place:
            # CRASH: after the flush: a message that is back must find its side file.
            sidefile.forget(directory, held.id, names.card_at(place))

    def _make_durable(self, folder: str) -> None:
        """Make an ack durable."""
        directory = self.directory
        try:
            if folder == LEASED_PREFIX and not directory.mount.renames_are_flushed_apart:
                self._rooms.sync_leased()
            else:  # all of the filesystem; or a name of the earlier format
                directory.sync(folder[:-1] or ".")
        except FileNotFoundError:
            pass  # the emptied directory is gone with its names, and whoever removed it synced nothing we need
        except OSError as error:
            raise access_error(directory.path, "make durable an ack in", error) from error

    def renew(self, held: Claim, seconds: float) -> None:
        """Hold on for so many seconds from now, under a new name."""
        until = max(self.directory.clock.now() + micros(seconds), held.ends + 1)
        card = names.raised(held.place)
        token = holders.next_token(held.token) if card else identity.new_token()
        place = names.leased(held.id, until, held.attempts, token, card)
        try:
            self._rooms.move(held.place, place)
        except OSError as error:
            raise self._lost(error, held, "renew") from error
        held.place, held.ends = place, until

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        """It failed: claimable again after the delay, this delivery counted."""
        # Whoever lost the lease must not write a note; the rename says that it is lost.
        reason = error if self._is_there(held) else None
        until = self.directory.clock.now() + micros(delay)
        target = names.later(held.id, until, held.attempts, names.raised(held.place))
        place = self._give_back(held, target, "retry", reason)
        if not delay:
            self._cursor.returned(place)

    def _is_there(self, held: Claim) -> bool:
        try:
            return fs.exists(held.place, self.directory.fd)
        except OSError:
            return False  # the rename will meet the same and say it

    def release(self, held: Claim) -> None:
        """Give it back at once, this delivery not counted."""
        counted, card = held.attempts - 1, names.raised(held.place)
        # NFS: the proof of a lost reply is a name that nobody else can make, and others can make ID.
        plain = not counted and not card and not self.directory.mount.replies_can_be_lost
        place = held.id if plain else names.later(held.id, self.directory.clock.now(), counted, card)
        self._cursor.returned(self._give_back(held, place, "release", None))

    def bury(self, held: Claim, reason: str) -> None:
        """Move it to dead/ with the reason."""
        try:
            self._side.to_dead(held, reason, self.directory.clock.now())
        except QueueError:
            raise
        except OSError as error:
            if not self._given_back(error, held):
                raise self._lost(error, held, "reject") from error

    def expire(self, held: Claim) -> bool:
        """Its time is over: to dead/, or away. Return False if another client was faster."""
        try:
            if self._keep_expired:
                self.bury(held, EXPIRED)
            else:
                self.ack(held)
        except LeaseLost:
            return False
        return True

    def _give_back(self, held: Claim, place: str, doing: str, reason: str | None) -> str:
        """Move the exact name we hold to where others can claim it; return where it is."""
        try:
            try:
                self._side.move(held, place, reason)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # No space for a bucket: it waits where it is.
                name = place.rpartition("/")[2]
                if name == held.id:
                    name = names.waiting(name, self.directory.clock.now(), held.attempts - 1, "")
                place = f"{LEASED_ROOM}/{name}"
                self._side.move(held, place, reason)
        except OSError as error:
            if not self._given_back(error, held):
                raise self._lost(error, held, doing) from error
        return place

    def _given_back(self, error: OSError, held: Claim) -> bool:
        """NFS: a lost reply, and the next consumer was quick. Nobody else can have taken a lease that is live."""
        gone = error.errno == errno.ENOENT and self.directory.mount.replies_can_be_lost
        return gone and self.directory.clock.now() < held.ends

    def _lost(self, error: OSError, held: Claim, doing: str) -> Exception:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return lost(held, doing)
        return access_error(self.directory.path, f"{doing} a message of", error)
