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
from stat import S_ISDIR
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar

from dirqueue import codecs
from dirqueue import settings as settings_
from dirqueue.codecs import Codec
from dirqueue.disk import fs
from dirqueue.disk.directory import Directory, not_found
from dirqueue.disk.identity import new_id
from dirqueue.errors import Empty, QueueError, SettingsError, Unsupported, access_error
from dirqueue.layouts.base import Layout, Purged
from dirqueue.layouts.native.conditions import REGISTERS
from dirqueue.layouts.native.register import Register
from dirqueue.lease import Lease
from dirqueue.message import Message, Put, instant
from dirqueue.queue import Queue
from dirqueue.queueset import QueueSet
from dirqueue.settings import StrPath, check_count, check_path, check_seconds
from dirqueue.space import ids, naming, probe, reads, stored
from dirqueue.space.commit import Attempt
from dirqueue.space.owner import Owner
from dirqueue.space.transaction import Transaction
from dirqueue.space.work import Aborted, Consumed, Insert, Refused, Work
from dirqueue.stats import Stats

if TYPE_CHECKING:
    from dirqueue.space.export import Exported, Imported

T = TypeVar("T")

#: Seconds between two looks of `wait_empty`.
PAUSE = 0.05


class Root(Directory):
    """The directory of a space: as that of a queue, without a reserve of its own."""

    def keep_ballast(self) -> None:
        """Keep none: its queues do."""


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
        self._settings = settings
        #: How old in seconds what a process left in .space/ has to be before a purge removes it.
        self.stale = settings_.build(settings).stale
        self._create = create
        self.directory = Root(self.path, create=create)
        if not create and not self.directory.find():
            raise not_found(self.path)
        #: What its new queues are created with.
        self._stored = stored.read(self.directory)
        self._queues: dict[str, Queue[Any]] = {}
        #: The directories of queues: of those that were opened here, and of others.
        self._own: dict[Layout, str] = {}
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._real: set[str] = set()
        self._directories: dict[str, str] = {}
        self._sets: dict[tuple[str, ...], QueueSet] = {}
        self._owner: Owner | None = None
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
        if self._owner is not None:
            self._owner.leave()
        for queue in self._queues.values():
            queue.close()
        self.directory.close()
        if self._finalizer is not None:
            self._finalizer()

    # --- queues --------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue[T]:
        """Return the queue of that name; any text is one."""
        queue = self._queues.get(name)
        if queue is None:
            path = os.path.join(self.path, self.directory_of(name))
            if self._stored and self._create and not os.path.isdir(path):
                Queue.create(path, **self._stored).close()
            queue = Queue(path, codec=self.codec, create=self._create, **self._settings)
            queue.layout.space = self
            queue = self._queues.setdefault(name, queue)
        return queue

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
            for name in reads.names(self.directory)
            if (name in wanted) or (name.startswith(prefix) and (bool(prefix) or not wanted))
        ]
        return sorted(found)[:limit]

    def directory_of(self, name: str) -> str:
        """Return the directory of a queue, in the space."""
        found = self._directories.get(name)
        if found is None:
            found = self._directories[name] = naming.encode(name)
        return found

    def name_of(self, directory: str) -> str:
        """Return the name of the queue in a directory of the space."""
        return naming.decode(directory) or directory

    def directory_of_layout(self, layout: Layout) -> str:
        """Return the directory of an open queue; SettingsError if it is not in this space."""
        found = self._own.get(layout) or self._names.get(layout)
        if found is None:
            directory = layout.directory
            inside = (
                directory.find() and self.directory.find() and _same(directory.fd, "..", self.directory.fd)
            )
            name = os.path.basename(directory.path)
            if not inside or not _same(self.directory.fd, name, directory.fd):
                raise SettingsError(
                    f"{directory.path!r} is not a queue of the space {self.path!r}: "
                    "a transaction is within one space"
                )
            self._check_native(layout)
            found = name
            if layout.space is self:
                self._own[layout] = name
            else:
                self._names[layout] = name
        return found

    def transacted(self, name: str) -> Queue[T]:
        """Return a queue that can take part in transactions: a directory of this filesystem, in the native layout."""
        queue = self.queue(name)
        if name not in self._real:
            self._check_layout(queue.layout)
            try:
                queue.layout.create()
            except QueueError:
                raise
            except OSError as error:
                raise access_error(queue.path, "make the queue", error) from error
            self._check_native(queue.layout)
            self._real.add(name)
            self._own[queue.layout] = self.directory_of(name)
        return queue

    def _check_layout(self, layout: Layout) -> None:
        path = layout.directory.path
        if layout.name != "native":
            raise Unsupported(
                f"{path!r} is in the {layout.name} layout, whose names cannot carry a condition: "
                "transactions take native queues",
                path=path,
                capability="transaction",
            )

    def _check_native(self, layout: Layout) -> None:
        """Check that a queue is native, and a directory of the space itself."""
        self._check_layout(layout)
        path = layout.directory.path
        try:
            self.directory.need()
            facts = fs.stat(os.path.basename(path), dir_fd=self.directory.fd, follow_symlinks=False)
            device = fs.fstat(self.directory.fd).st_dev
        except OSError as error:
            raise access_error(path, "look at", error) from error
        if not S_ISDIR(facts.st_mode):
            raise Unsupported(
                f"{path!r} is a link: a queue that takes part in transactions is a directory of its space",
                path=path,
                capability="transaction",
            )
        if facts.st_dev != device:
            raise Unsupported(
                f"{path!r} is on another filesystem than its space: no rename leads from one to the other",
                path=path,
                capability="transaction",
            )

    def owner(self) -> Owner:
        """Return what this process owns in the space; Unsupported if the filesystem cannot carry transactions."""
        if self._owner is None:
            self.directory.make()
            probe.check(self.directory)
            self._owner = Owner(self.directory)
            weakref.finalize(self, self._owner.leave)
        elif self.directory.fd < 0:
            self.directory.need()
        return self._owner

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
        self._transact([Put(queue, body, delay, priority, id, skip_existing, ttl, attributes)])
        return id

    def _transact(self, puts: Iterable[Put], *, ack: Lease[Any] | None = None) -> None:
        """Put these together, and acknowledge a lease with them."""
        with self.transaction() as transaction:
            if ack is not None:
                transaction.ack(ack)
            for each in puts:
                transaction.put(
                    each.queue,
                    each.body,
                    delay=each.delay,
                    ttl=each.ttl,
                    priority=each.priority,
                    attributes=each.attributes,
                    id=each.id,
                    skip_existing=each.skip_existing,
                )

    def get(self, *queues: str, timeout: float | None = None, lease: float | None = None) -> Lease[T]:
        """Claim the next message of any of these queues; of any queue that there is now, if none is named.

        Args:
            queues: Their names.
            timeout: Seconds to wait before Empty is raised; without limit if None, one look if 0.
            lease: Seconds to hold it; the setting of its queue if None.
        """
        if len(queues) == 1:
            return self.queue(queues[0]).get(timeout=timeout, lease=lease)
        chosen = queues or tuple(self.names())
        if not chosen:
            raise Empty(f"there is no queue in {self.path!r}", path=self.path)
        if chosen not in self._sets:
            self._sets[chosen] = self.queues(*chosen)
        return self._sets[chosen].get(timeout=timeout, lease=lease)

    def transaction(self) -> Transaction:
        """Begin several changes that happen together or not at all; see `Transaction`."""
        return Transaction(self)

    def commit_with(self, lease: Lease[Any], then: Iterable[Any]) -> None:
        """Acknowledge a lease and put these together: what `lease.ack(then=...)` does."""
        puts = list(then)
        for each in puts:
            if not isinstance(each, Put):
                raise SettingsError(f"then= takes a list of Put(queue, body), not {each!r:.60}")
        if puts and self._quick(lease, puts):
            return
        self._transact(puts, ack=lease)

    def _quick(self, lease: Lease[Any], puts: list[Put]) -> bool:
        """Try the commonest transaction at once; False, with nothing done, if it has to be looked at more closely.

        COST: 65 µs of CPU instead of 112 for a get and an ack with one put, on tmpfs (benchmarks/space.py).
        """
        layout, claim = lease.layout, lease.claim
        source = self._own.get(layout)
        if source is None or lease.shared or claim.attempts != 1 or layout.settings.keep_done or claim.extras:
            return False
        inserts, sync = [], layout.settings.sync
        for queue, body, delay, priority, id, _, ttl, attributes in puts:
            if delay or priority is not None or id is not None or queue not in self._real:
                return False
            if ttl is not None or attributes:
                return False
            target = self._queues[queue].layout
            settings = target.settings
            if settings.max_size or settings.max_messages or settings.priorities:
                return False
            data = (
                body
                if self.codec is codecs.BYTES and type(body) is bytes
                else codecs.encode(self.codec, body)
            )
            new = new_id()
            place: str = target.place_for(new, 0, None)  # type: ignore[attr-defined]
            link = target.link_at if settings.links else None  # type: ignore[attr-defined]
            inserts.append(Insert(f"{self._directories[queue]}/{place}", new, data, link=link))
            sync = sync or settings.sync
        consume = Consumed(f"{source}/{claim.place}", claim.id)
        try:
            attempt = Attempt(self.owner(), Work((consume,), tuple(inserts), sync=sync))
        except OSError as error:
            raise access_error(self.path, "begin a transaction in", error) from error
        try:
            attempt.run()
        except (Refused, Aborted):
            return False
        finally:
            if attempt.committed:
                lease.finish("acked")
        return True

    def move_lease(self, lease: Lease[Any], queue: str, error: str | None) -> None:
        """Move a leased message to another queue: what `lease.move` does."""
        transaction = self.transaction()
        transaction.move(lease, queue, error=error)
        transaction.commit()

    # --- looking -------------------------------------------------------------------------------------------

    def find_own(self, id: str) -> str | None:
        """Return the message that has an id of the user's own; None if there is none."""
        if not self.directory.find():
            return None
        return ids.find(self.directory, Register(self.directory, REGISTERS), ids.check(id))

    def message(self, id: str, queue: str | None = None) -> Message[T]:
        """Return a message by its id, one of your own or one drawn; MessageNotFound if there is none.

        Args:
            id: The id.
            queue: The queue to look in; all of them if None.
        """
        return reads.message(self, id, queue)

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
        self.directory.make()
        return instant(self.directory.clock.now())

    # --- copies --------------------------------------------------------------------------------------------

    def export(self, file: IO[str]) -> Exported:
        """Write every waiting message as a line of JSON; return how many, and whether they are of one moment."""
        from dirqueue.space import export

        return export.export(self, file)

    def import_(self, file: Iterable[str]) -> Imported:
        """Put what `export` wrote, with the same ids of one's own; return how many were put, and how many skipped.

        A message with an id of its own is skipped if the space has one of that id; others are put again.
        """
        from dirqueue.space import export

        return export.import_(self, file)

    # --- cleaning ------------------------------------------------------------------------------------------

    def purge(self) -> Purged:
        """Remove what crashes and time left behind, in every queue and in .space/; never needed for correctness."""
        from dirqueue.space import purge

        return purge.purge(self)


def _same(dir_fd: int, name: str, other: int) -> bool:
    """Return whether a name leads to an open directory, not through a link."""
    try:
        one, two = fs.stat(name, dir_fd=dir_fd, follow_symlinks=False), fs.fstat(other)
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)


def _remove(path: str) -> None:
    fd = fs.open(os.path.dirname(path), fs.DIRECTORY)
    try:
        fs.remove_tree(os.path.basename(path), fd)
    finally:
        fs.close(fd)
