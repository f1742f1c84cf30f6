"""What the queues of a space stand on: its directory, its open queues, and what this process owns in it.

Layer: objects.  Touches: the space's directory, .space/ in it; the queues do the rest.
A `Space` and its transactions use it together; a lease of one of its queues finds its way back by it.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterable
from stat import S_ISDIR
from typing import Any

from dirqueue import codecs
from dirqueue.codecs import Codec
from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_id, new_token
from dirqueue.errors import QueueAccess, QueueError, SettingsError, Unsupported, access_error
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import holders
from dirqueue.layouts.native.conditions import REGISTERS
from dirqueue.layouts.native.register import Register
from dirqueue.lease import Lease, finish, unshared
from dirqueue.message import Message, Put
from dirqueue.queue import Queue
from dirqueue.space import ids, naming, probe, stored
from dirqueue.space.commit import Attempt
from dirqueue.space.owner import Owner
from dirqueue.space.transaction import Transaction
from dirqueue.space.work import Aborted, Consumed, Insert, Refused, Work

#: How often a queue is made again that a purge took for the leftover of a dead process.
TRIES = 6


class Root(Directory):
    """The directory of a space: as that of a queue, without a reserve of its own."""

    def keep_ballast(self) -> None:
        """Keep none: its queues do."""


class Ground:
    """One open space."""

    def __init__(self, path: str, *, create: bool, codec: Codec[Any], settings: dict[str, Any]) -> None:
        self.path = path
        self.codec = codec
        self._settings = settings
        self._create = create
        self.directory = Root(path, create=create)
        #: What its new queues are created with.
        self._stored = stored.read(self.directory)
        self.queues: dict[str, Queue[Any]] = {}
        #: The directories of queues: of those that were opened here, and of others.
        self._own: dict[Layout, str] = {}
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._real: set[str] = set()
        self._directories: dict[str, str] = {}
        self._owner: Owner | None = None

    def close(self) -> None:
        """Let go of the descriptors, and of what this process owns in the space; the next use opens it again."""
        if self._owner is not None:
            self._owner.leave()
        for queue in self.queues.values():
            queue.close()
        self.directory.close()

    # --- queues --------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue[Any]:
        """Return the queue of that name."""
        queue = self.queues.get(name)
        if queue is None:
            path = os.path.join(self.path, self.directory_of(name))
            if self._stored and self._create and not os.path.isdir(path):
                self._create_queue(path)
            queue = Queue(path, codec=self.codec, create=self._create, **self._settings)
            queue.layout.space = self
            queue = self.queues.setdefault(name, queue)
        return queue

    def _create_queue(self, path: str) -> None:
        """Create a queue with the settings of the space, in one step: nobody meets it without them."""
        self.directory.make()
        for _ in range(TRIES):
            new = f"{stored.UNFINISHED}{new_token()}"
            try:
                Queue.create(os.path.join(self.path, new), **self._stored).close()
                fs.rename_in(new, os.path.basename(path), self.directory.fd)
                self.directory.sync()
                return
            except OSError as error:
                fs.remove_tree(new, self.directory.fd)
                # RACE: another client made it, and has used it already.
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    return
                # RACE: or we were stopped for so long that a purge took it away; then once more.
                if error.errno != errno.ENOENT:
                    raise access_error(path, "create", error) from error
        raise QueueAccess(
            f"cannot create {path!r}: what is being made is removed {TRIES} times",
            path=path,
            errno=errno.EBUSY,
            strerror="busy",
        )

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

    def transacted(self, name: str) -> Queue[Any]:
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

    # --- what leases and messages ask for ------------------------------------------------------------------

    def queue_of(self, what: Lease[Any] | Message[Any]) -> str:
        """Return the name of the queue that a lease or a message is of."""
        if not isinstance(what, Lease | Message):
            raise SettingsError(f"a queue is told of a lease or a message, not of {what!r:.60}")
        return self.name_of(os.path.basename(what.path))

    def written(self, holder: str) -> str:
        """Return how a holder is written in tokens; a long one is kept in the space."""
        written = holders.who(holder)
        if not written.startswith(holders.LONG):
            return written
        self.directory.make()
        try:
            return holders.keep(holder, ".", self.directory.fd)
        except OSError as error:
            raise access_error(self.path, "keep the name of a holder in", error) from error

    def make_durable(self, *paths: str) -> None:
        """Flush the directories of names that came or went."""
        for folder in sorted({path.rpartition("/")[0] for path in paths if path}):
            try:
                self.directory.sync(folder)
            except FileNotFoundError:
                pass  # it was empty, and is gone
            except OSError as error:
                raise access_error(self.path, "make durable a change in", error) from error

    def commit_with(self, lease: Lease[Any], then: Iterable[Any]) -> None:
        """Acknowledge a lease and put these together: what `lease.ack(then=...)` does."""
        if isinstance(then, Put):  # a tuple, whose fields would be taken for what is to be put
            raise SettingsError("then= takes a list of Put(queue, body), not one: write then=[Put(...)]")
        puts = list(then)
        for each in puts:
            if not isinstance(each, Put):
                raise SettingsError(f"then= takes a list of Put(queue, body), not {each!r:.60}")
        if puts and self._quick(lease, puts):
            return
        transaction = Transaction(self)
        transaction.ack(lease)
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
        transaction.commit()

    def _quick(self, lease: Lease[Any], puts: list[Put]) -> bool:
        """Try the commonest transaction at once; False, with nothing done, if it has to be looked at more closely.

        COST: 65 µs of CPU instead of 112 for a get and an ack with one put, on tmpfs (benchmarks/space.py).
        """
        held = unshared(lease)
        if held is None:
            return False
        layout, claim = held
        source, own = self._own.get(layout), layout.settings
        if (
            source is None
            or claim.attempts != 1
            or "~" in claim.place
            or own.keep_done
            or claim.extras is not None
        ):
            return False
        inserts, sync, codec = [], own.sync, self.codec
        for queue, body, delay, priority, id, _, ttl, attributes in puts:
            if delay or priority is not None or id is not None or queue not in self._real:
                return False
            if ttl is not None or attributes:
                return False
            target = self.queues[queue].layout
            settings = target.settings
            if settings.max_size or settings.max_messages or settings.priorities:
                return False
            data = body if codec is codecs.BYTES and type(body) is bytes else codecs.encode(codec, body)
            new = new_id()
            place: str = target.place_for(new, None)  # type: ignore[attr-defined]
            link = target.link_at if settings.links else None  # type: ignore[attr-defined]
            inserts.append(Insert(f"{self._directories[queue]}/{place}", new, data, link))
            sync = sync or settings.sync
        consume = Consumed(f"{source}/{claim.place}", claim.id)
        try:
            attempt = Attempt(self.owner(), Work((consume,), tuple(inserts), sync))
        except OSError as error:
            raise access_error(self.path, "begin a transaction in", error) from error
        try:
            attempt.run()
        except (Refused, Aborted):
            return False
        finally:
            if attempt.committed:
                finish(lease, "acked")
        return True

    def move_lease(self, lease: Lease[Any], queue: str, error: str | None) -> None:
        """Move a leased message to another queue: what `lease.move` does."""
        transaction = Transaction(self)
        transaction.move(lease, queue, error=error)
        transaction.commit()

    def find_own(self, id: str) -> str | None:
        """Return the message that has an id of the user's own; None if there is none."""
        if not self.directory.find():
            return None
        return ids.find(self.directory, Register(self.directory, REGISTERS), ids.check(id))


def _same(dir_fd: int, name: str, other: int) -> bool:
    """Return whether a name leads to an open directory, not through a link."""
    try:
        one, two = fs.stat(name, dir_fd=dir_fd, follow_symlinks=False), fs.fstat(other)
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
