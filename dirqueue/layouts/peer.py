"""What the formats of other programs have in common: no place for anything but messages.

Layer: layouts.
Invariant: nothing lies in the directory but names that the other program itself would make, or passes over.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import BinaryIO, ClassVar, NoReturn, Protocol, Self, cast

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory, not_found
from dirqueue.disk.fork import renew_in_child
from dirqueue.errors import MessageNotFound, QueueError, access_error
from dirqueue.layouts.base import Claim, Committer, Layout, Producer, none_buried, refuse, refuse_holder
from dirqueue.layouts.pausing import RESUMED_SECONDS, Pausable
from dirqueue.message import Details, Entry, Extras, Failure
from dirqueue.settings import Settings

#: How many names one claim may try before it finds nothing.
LOOKS = 10_000


#: Later than any time.
NEVER = 1 << 62


class Hint(Protocol):
    """What the consuming half knows of the directory."""

    #: When the first of what is held back may be claimed, in microseconds; NEVER if nothing is.
    soonest: int
    run: list[str]

    def refresh(self) -> None:
        """Look again before the next claim."""


class Peer(Pausable):
    """The part of a layout that refuses, and the part that is alike in all of them."""

    name: ClassVar[str]
    lacks: ClassVar[dict[str, str]]
    _cursor: Hint

    def __init__(self, directory: Directory, settings: Settings) -> None:
        directory.lend()
        self.directory = directory
        self.space: Committer | None = None
        self.settings = settings
        self.buried = none_buried()
        self._lock = threading.RLock()  # a signal handler may put or get while we do
        renew_in_child(self._renew_in_child)
        if settings.priorities:
            refuse(self._self(), "priority", "order by priority")
        if settings.keep_done:
            refuse(self._self(), "done", "keep done messages")

    def __str__(self) -> str:
        return self.name

    def _renew_in_child(self) -> None:
        # What another thread of the parent was changing may be half done.
        self._lock = threading.RLock()
        cursor = getattr(self, "_cursor", None)
        if cursor is not None:
            cursor.run = []
            cursor.refresh()

    def wakes_in(self) -> float | None:
        if self._rests:
            return RESUMED_SECONDS
        soonest = self._cursor.soonest
        if soonest == NEVER or self.directory.fd < 0:
            return None
        return max(0.0, (soonest - self.directory.clock.now()) / 1_000_000)

    def watched(self) -> list[str]:
        return []

    def arrived(self, name: str) -> None:
        pass

    def _self(self: Self) -> Layout:
        return cast("Layout", self)

    @abstractmethod
    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str: ...

    def put_many(
        self, bodies: Iterable[bytes], *, delay: float = 0, priority: int | None = None
    ) -> list[str]:
        """Put one after the other: what is put before an error stays put."""
        return [self.put(body) for body in bodies]

    def bury(self, held: Claim, reason: str) -> None:
        refuse(self._self(), "dead", "keep a dead message; ack it, or put it into another queue first")

    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry:
        refuse(self._self(), "change", "change a message that waits")

    def redrive(self, entry: Entry) -> bool:
        refuse(self._self(), "dead", "redrive dead messages")

    def carrying(self, extras: Extras) -> Producer:
        refuse(self._self(), "attributes", "carry attributes, nor let a message expire")

    def extras(self, entry: Entry) -> Extras | None:
        return None

    def claim_for(self, holder: str, seconds: float) -> Claim | None:
        refuse_holder(self._self())

    def details(self, entry: Entry) -> Details | None:
        return None

    def holder(self, entry: Entry) -> str:
        return entry.token

    def leased_at(self, entry: Entry) -> datetime | None:
        return None

    def failure(self, entry: Entry) -> Failure | None:
        return None

    def _open(self) -> None:
        """Open the directory again if the queue object was closed."""
        if self.directory.fd < 0:
            self.directory.need()

    def _made_again(self) -> bool:
        """Return whether the directory we have open was removed and there is another at its path now."""
        return fs.fstat(self.directory.fd).st_nlink == 0 and self.directory.reopen()

    def load(self, place: str) -> bytes:
        self._open()
        try:
            return fs.read_file(place.partition("@")[0], self.directory.fd, 0)
        except OSError as error:
            raise self._unreachable(place, error) from error

    def stream(self, place: str) -> BinaryIO:
        self._open()
        try:
            return io.BufferedReader(
                io.FileIO(fs.open(place.partition("@")[0], fs.READ, dir_fd=self.directory.fd), "rb")
            )
        except OSError as error:
            raise self._unreachable(place, error) from error

    def size(self, place: str) -> int:
        self._open()
        try:
            return fs.size_of(place.partition("@")[0], self.directory.fd)
        except OSError as error:
            raise self._unreachable(place, error) from error

    def purge_lock(self) -> str:
        import tempfile

        # COMPAT: other programs delete or count whatever else is in their directories.
        facts = fs.fstat(self.directory.fd)
        name = f"dirqueue-{os.getuid()}-{facts.st_dev}-{facts.st_ino}.lock"
        return os.path.join(tempfile.gettempdir(), name)

    def close(self) -> None:
        self.directory.close()

    def _unreachable(self, id: str, error: OSError) -> Exception:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return moved_on(id)
        return access_error(self.directory.path, f"read message {id} of", error)

    def _unclaimed(self, entry: Entry) -> None:
        if entry.state != "ready":
            raise MessageNotFound(
                f"cannot cancel {entry.id}: it is {entry.state}, and only an unclaimed message can be",
                message_id=entry.id,
            )

    def _listed(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Pass them on; an error names the queue that could not be listed."""
        try:
            yield from entries
        except FileNotFoundError:
            raise not_found(
                self.directory.path
            ) from None  # removed meanwhile, or NFS: removed by another host
        except OSError as error:
            self._fail("list", error)

    def _fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the error that says what could not be done; one of ours says it already."""
        try:
            if isinstance(error, QueueError):
                raise error
            raise access_error(self.directory.path, doing, error) from error
        finally:
            del error  # its traceback holds this frame: a cycle would keep the descriptors in it open


def moved_on(id: str) -> MessageNotFound:
    """Return the error for a message that is not where it was seen."""
    return MessageNotFound(
        f"message {id} is not there any more: it was claimed, finished or changed meanwhile", message_id=id
    )
