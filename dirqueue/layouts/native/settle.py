"""Ending a lease: ack, renew, retry, release, bury.

Layer: layouts.  Touches: the exact name of a held message.
Invariant: each renames or unlinks the exact name that is held; if that is gone, the lease was lost: nothing changes.
Crash: the message is held as before, or has ended.
"""

from __future__ import annotations

import errno

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_token
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts.base import Claim, lost
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.side import Side, note_of
from dirqueue.settings import Settings


class Settler:
    """The ends of leases."""

    def __init__(self, directory: Directory, settings: Settings, cursor: Cursor, side: Side) -> None:
        self.directory = directory
        self._cursor = cursor
        self._side = side
        # Bound once: these are looked at for every message.
        self._keep_done, self._sync = settings.keep_done, settings.sync

    def ack(self, held: Claim) -> None:
        """The work is done: remove the exact name we hold."""
        directory = self.directory
        if directory.fd < 0:
            directory.need()
        try:
            if self._keep_done:
                self._side.to_done(held)
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
            fs.discard(note_of(held.place, held.id), directory.fd)
        if self._sync:
            try:
                self.directory.sync(held.place.rpartition("/")[0] or ".")
            except FileNotFoundError:
                pass  # the emptied directory is gone with its names, and whoever removed it synced nothing we need
            except OSError as error:
                raise access_error(self.directory.path, "make durable an ack in", error) from error

    def renew(self, held: Claim, seconds: float) -> None:
        """Hold on for so many seconds from now, under a new name."""
        until = max(self.directory.clock.now() + micros(seconds), held.ends + 1)
        prefix = held.place[: held.place.rfind("/") + 1]
        place = f"{prefix}{held.id}.{until}.{held.attempts}.{new_token()}"
        self._end(held, place, "renew")
        held.place, held.ends = place, until

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        """It failed: claimable again after the delay, this delivery counted."""
        # Whoever lost the lease must not touch the note beside it; the rename below says so.
        if error is not None and self._is_there(held):
            self._side.write_note(note_of(held.place, held.id), error, held.leased)
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
            self._side.to_dead(held, reason, self.directory.clock.now())
        except QueueError:
            raise
        except OSError as error:
            if not self._given_back(error, held, "reject"):
                raise self._lost(error, held, "reject") from error

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
