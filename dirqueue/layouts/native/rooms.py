"""The rooms of a queue: made by whoever needs one, never by whoever only looks.

Layer: layouts.  Touches: leased/, later/, dead/, done/ and the buckets in them; the exact names that move there.
Invariant: rooms stay; a bucket goes by rmdir, which cannot take a message with it, and comes again when it is needed.
Crash: an empty directory is left, which the next consumer or purge removes.
"""

from __future__ import annotations

import errno

from dirqueue.disk import fs
from dirqueue.disk.directory import Descriptor, Directory
from dirqueue.errors import access_error
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import LEASED_ROOM

#: How often a bucket is made again for one message when others remove it as empty.
TRIES = 20
#: Buckets that a process remembers as made and durable.
REMEMBERED = 64


class Rooms:
    """Moves messages into rooms."""

    def __init__(self, directory: Directory, *, sync: bool) -> None:
        self._directory = directory
        self._sync = sync
        #: What this process has made durable; not that it is still there.
        self._durable: set[str] = set()
        #: leased/, open for its flushes, and of which directory it is.
        self._leased: tuple[int, int] | None = None

    def sync_leased(self) -> None:
        """Make durable what left leased/."""
        # COST: opening it for each ack would be two calls more. RACE: close() of another thread lets go of it.
        leased = self._leased
        if leased is None or leased[0] != self._directory.generation:
            generation = self._directory.generation
            opened = Descriptor(fs.open(LEASED_ROOM, fs.DIRECTORY, dir_fd=self._directory.fd))
            leased = self._leased = (generation, opened)
        fs.sync_fd(leased[1])

    def close(self) -> None:
        """Let go of leased/."""
        self._leased = None

    def make_queue(self) -> None:
        """Open the queue, or make it: with leased/, so that no consumer needs an inode of a full disk."""
        if not self._directory.find():
            self._directory.make()
            try:
                self.make(LEASED_ROOM)
            except OSError as error:
                raise access_error(self._directory.path, "make the queue", error) from error

    def move(self, src: str, place: str) -> None:
        """Rename the exact `src` into a room; FileNotFoundError if `src` is gone.

        RACE: the same error says that the bucket is not there, or was removed as empty a moment ago.
        """
        directory = self._directory
        for _ in range(TRIES):
            try:
                return directory.move(src, place)
            except FileNotFoundError:
                if not fs.exists(src, directory.fd):
                    raise
                self.make(names.folder_of(place)[:-1])
        raise OSError(errno.EBUSY, "the bucket is removed as fast as it is made", place)

    def make(self, room: str, *, flush: bool = True) -> bool:
        """Make a room or a bucket and return whether it is new; a full disk costs the ballast.

        Without `flush` it is left to whoever needs it durable: an error that is ignored must not be one of a flush.
        """
        try:
            made = self._make(room)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._directory.drop_ballast():
                raise
            made = self._make(room)
        if flush:
            self.make_durable(room)
        return made

    def _make(self, room: str) -> bool:
        above, _, bucket = room.partition("/")
        try:
            made = fs.make_inner(room, self._directory.fd)
        except FileNotFoundError:
            if not bucket:
                raise
            fs.make_inner(above, self._directory.fd)
            made = fs.make_inner(room, self._directory.fd)
        if made:
            self._durable.discard(room)
            if room == LEASED_ROOM:
                self._leased = None
        return made

    def make_durable(self, room: str) -> None:
        """Make durable that there is this room or bucket: whoever made it may not have come to this yet."""
        if not self._sync or room in self._durable:
            return
        above, _, bucket = room.partition("/")
        self._directory.sync(*((".", above) if bucket else ()))
        if len(self._durable) >= REMEMBERED:
            self._durable.clear()
        self._durable.add(room)
