"""A space: a directory of queues that can change together.

Layer: objects.  Touches: the space's directory, .space/ in it; the queues do the rest.
Every directory of native queues is a space already. What belongs to all of them lies in .space/, and is made by the
first transaction.
"""

from __future__ import annotations

import os
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar

from dirqueue import codecs
from dirqueue import settings as settings_
from dirqueue.codecs import Codec
from dirqueue.disk import fs
from dirqueue.disk.directory import not_found
from dirqueue.errors import Empty
from dirqueue.layouts.base import Purged
from dirqueue.lease import Lease
from dirqueue.message import Message, instant
from dirqueue.queue import Queue
from dirqueue.queueset import QueueSet
from dirqueue.settings import StrPath, check_count, check_path, check_seconds
from dirqueue.space import reads, stored
from dirqueue.space.ground import Ground
from dirqueue.space.transaction import Transaction
from dirqueue.stats import Stats

if TYPE_CHECKING:
    from dirqueue.space.export import Exported, Imported

T = TypeVar("T")

#: Seconds between two looks of `wait_empty`.
PAUSE = 0.05


class Space(Generic[T]):
    """The queues in the directory at `root`, by name; created by the first put.

    Args:
        root: The directory.
        create: Whether a put may create it and its queues; if False, it must exist now.
        codec: How bodies become bytes, in all its queues: as of `Queue`.
        settings: Those that its queues are opened with: as of `Queue`.
    """

    def __init__(
        self, root: StrPath, *, create: bool = True, codec: Any = codecs.BYTES, **settings: Any
    ) -> None:
        self.path = os.path.abspath(check_path(root))
        self.codec: Codec[Any] = codecs.find(codec) if codec is not codecs.BYTES else codec
        #: How old in seconds what a process left in .space/ has to be before a purge removes it.
        self.stale = settings_.build(settings).stale
        self._ground = Ground(self.path, create=create, codec=self.codec, settings=settings)
        if not create and not self._ground.directory.find():
            raise not_found(self.path)
        self._sets: dict[tuple[str, ...], QueueSet] = {}
        self._finalizer: Any = None

    @classmethod
    def create(cls, root: StrPath, *, codec: Any = codecs.BYTES, **settings: Any) -> Space[Any]:
        """Create a space with settings that its new queues are created with; SettingsError if it has others."""
        where = os.path.abspath(check_path(root))
        stored.create(where, settings)
        return cls(where, codec=codec)

    @classmethod
    def temporary(cls, **settings: Any) -> Space[Any]:
        """Return a new space in memory, where there is a filesystem for that; it is removed by `close`."""
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - a directory of its own in it
        space = cls(tempfile.mkdtemp(prefix="dirqueue-", dir=memory), **{"sync": False, **settings})
        space._finalizer = weakref.finalize(space, _remove, space.path)
        return space

    def __repr__(self) -> str:
        return f"Space({self.path!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Space cannot be pickled: send its path, and open Space(path) where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the descriptors, and of what this process owns in the space; the next use opens it again."""
        self._ground.close()
        if self._finalizer is not None:
            self._finalizer()

    # --- queues --------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue[T]:
        """Return the queue of that name; any text is one."""
        return self._ground.queue(name)

    def queues(
        self, *names: str, prefix: str = "", order: Literal["fair", "given", "time"] = "fair"
    ) -> QueueSet:
        """Return several queues as one: those named, or all whose names begin with `prefix`."""
        return QueueSet([self.queue(name) for name in names or self.names(prefix=prefix)], order=order)

    def names(self, *, prefix: str = "", names: Iterable[str] = (), limit: int | None = None) -> list[str]:
        """Return the names of the queues that there are, in order.

        Args:
            prefix: Only those whose names begin so.
            names: Only these; with a prefix, these and those.
            limit: At most so many.
        """
        if limit is not None:
            check_count("limit", limit)
        wanted = {names} if isinstance(names, str) else set(names)
        found = [
            name
            for name in reads.names(self._ground.directory)
            if (name in wanted) or (name.startswith(prefix) and (bool(prefix) or not wanted))
        ]
        return sorted(found)[:limit]

    # --- messages ------------------------------------------------------------------------------------------

    def put(
        self,
        queue: str,
        body: T | str,
        *,
        delay: float = 0,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        id: str | None = None,
        skip_existing: bool = False,
    ) -> str:
        """Put one message; return its id: the one given, or the one drawn.

        Args:
            queue: The name of the queue.
            body: bytes or str, or what the codec takes.
            delay: Seconds before anybody may get it.
            ttl: Seconds from now after which it is not delivered any more.
            priority: 1 is the most urgent; only in a queue created with priorities.
            attributes: A small map of text that it carries beside its body.
            id: An id of your own, unique in the space until the message is gone: Conflict if it is taken.
            skip_existing: If a message has this id already, put nothing, and raise nothing.
        """
        if id is None:
            target: Queue[Any] = self.queue(queue)
            return target.put(body, delay=delay, ttl=ttl, priority=priority, attributes=attributes)
        with self.transaction() as transaction:
            transaction.put(
                queue,
                body,
                delay=delay,
                ttl=ttl,
                priority=priority,
                attributes=attributes,
                id=id,
                skip_existing=skip_existing,
            )
        return id

    def get(
        self,
        *queues: str,
        timeout: float | None = None,
        lease: float | None = None,
        holder: str | None = None,
    ) -> Lease[T]:
        """Claim the next message of any of these queues; of any queue that there is now, if none is named.

        Args:
            queues: Their names.
            timeout: Seconds to wait before Empty is raised; without limit if None, one look if 0.
            lease: Seconds to hold it; the setting of its queue if None.
            holder: Who holds it: any text. `Message.holder` gives it back, a transaction of the same holder may change
                the message, and from then on its version is counted.
        """
        if len(queues) == 1:
            return self.queue(queues[0]).get(timeout=timeout, lease=lease, holder=holder)
        chosen = queues or tuple(self.names())
        if not chosen:
            raise Empty(f"there is no queue in {self.path!r}", path=self.path)
        if chosen not in self._sets:
            self._sets[chosen] = self.queues(*chosen)
        return self._sets[chosen].get(timeout=timeout, lease=lease, holder=holder)

    def transaction(self, *, holder: str | None = None) -> Transaction:
        """Begin several changes that happen together or not at all; see `Transaction`.

        Args:
            holder: On whose behalf: what it puts is told to be of this holder until it is claimed, and messages that
                this holder has leased may be changed without the lease.
        """
        return Transaction(self._ground, holder)

    # --- looking -------------------------------------------------------------------------------------------

    def message(self, id: str, queue: str | None = None) -> Message[T]:
        """Return a message by its id, one of your own or one drawn; MessageNotFound if there is none.

        Args:
            id: The id.
            queue: The queue to look in; all of them if None.
        """
        return reads.message(self, self._ground, id, queue)

    def messages(self, queue: str, *, limit: int | None = None) -> list[Message[T]]:
        """Return the messages of a queue that are waiting or held, the oldest first; bodies are read when asked for.

        Args:
            queue: The name of the queue.
            limit: At most so many.
        """
        if limit is not None:
            check_count("limit", limit)
        return reads.messages(self.queue(queue), self.codec, limit)

    def queue_of(self, what: Lease[Any] | Message[Any]) -> str:
        """Return the name of the queue that a lease or a message is of."""
        return self._ground.queue_of(what)

    def stats(
        self, *, prefix: str = "", names: Iterable[str] = (), limit: int | None = None
    ) -> dict[str, Stats]:
        """Count the messages of each queue by state: name -> Stats."""
        return {
            name: self.queue(name).stats() for name in self.names(prefix=prefix, names=names, limit=limit)
        }

    def empty(self, *queues: str) -> bool:
        """Return whether none of these queues has a message that is waiting or held, at one moment.

        What a committed transaction put is there, even if nobody has brought it to its end yet.
        """
        return reads.empty(self, queues or tuple(self.names()))

    def wait_empty(self, *queues: str, timeout: float | None = None) -> bool:
        """Wait until these queues are empty; return False if they are not in time."""
        until = None if timeout is None else time.monotonic() + check_seconds("timeout", timeout)
        while not self.empty(*queues):
            left = PAUSE if until is None else min(PAUSE, until - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)
        return True

    def now(self) -> datetime:
        """Return the time by the clock of the file server."""
        directory = self._ground.directory
        directory.make()
        return instant(directory.clock.now())

    # --- copies --------------------------------------------------------------------------------------------

    def export(self, file: IO[str]) -> Exported:
        """Write every waiting message as a line of JSON; return how many, and whether they are of one moment."""
        from dirqueue.space import export

        return export.export(self, self._ground.directory, file)

    def import_(self, file: Iterable[str]) -> Imported:
        """Put what `export` wrote, with the same ids of one's own; return how many were put, and how many skipped.

        A message with an id of its own is skipped if the space has one of that id; others are put again.
        """
        from dirqueue.space import export

        return export.import_(self, self._ground, file)

    # --- cleaning ------------------------------------------------------------------------------------------

    def purge(self) -> Purged:
        """Remove what crashes and time left behind, in every queue and in .space/; never needed for correctness."""
        from dirqueue.space import purge

        return purge.purge(self, self._ground.directory)


def _remove(path: str) -> None:
    fd = fs.open(os.path.dirname(path), fs.DIRECTORY)
    try:
        fs.remove_tree(os.path.basename(path), fd)
    finally:
        fs.close(fd)
