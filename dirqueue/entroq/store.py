"""EntroQ's tasks in a space: claims and modifications as renames, listings as listings.

A task is a message; its version, claims, arrival and claimant are in its name, attempt and err in its side file. A
modification is a transaction of the space. Where a task was last seen is remembered, so that whoever changes or ends
what it has just claimed costs no listing; a name that is not right any more only costs a second look.

Layer: edges.  Touches: nothing that the space does not.
Invariant: what is remembered is a hint. The exact name that a transaction renames is the version: if it is gone,
everything is looked up again, and what is told then is true then.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.entroq.tasks import (
    Change,
    ClaimQuery,
    DependencyError,
    InvalidArgument,
    Mode,
    Modification,
    Modified,
    QueuesQuery,
    QueueStat,
    Task,
    TaskData,
    TaskId,
    TasksQuery,
    native_of,
    uuid_of,
)
from dirqueue.entroq.watch import DirectoryWatch
from dirqueue.errors import Conflict, Contended, Empty, MessageNotFound, SettingsError
from dirqueue.layouts.native import inspect, names
from dirqueue.message import Entry, Message
from dirqueue.queue import Queue
from dirqueue.space import Committed, Space, Transaction, Written
from dirqueue.tools import metrics

#: How queues of an EntroQ behave: any task may come first, none dies by being claimed, a lease ends when it says.
SETTINGS: dict[str, Any] = {"order": "random", "max_attempts": 0, "margin": 0}
#: Tasks whose last place is remembered.
HINTS = 100_000
#: How often a modification is tried again that others were in the way of, and that is still possible.
TRIES = 5
#: Who holds what somebody without a name has claimed.
NOBODY = "\0"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Seen(NamedTuple):
    """A task as it was last seen."""

    queue: str
    entry: Entry
    #: A digest of its value, and attempt and err; None if nobody has read them.
    content: tuple[bytes, int, str] | None = None


class DirectoryStore:
    """The tasks in the directory at `root`.

    Args:
        root: The directory; it is made if it is not there.
        settings: Those that its queues are opened with.
    """

    def __init__(self, root: str, **settings: Any) -> None:
        self.space: Space[bytes] = _open(os.path.abspath(root), settings)
        self._find_own = self.space._ground.find_own  # noqa: SLF001 - what users get is a message, at a listing
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._lock = threading.Lock()
        #: Queues whose directory was there.
        self._there: dict[str, Queue[bytes]] = {}

    def close(self) -> None:
        self.space.close()

    def watch(self) -> DirectoryWatch:
        """Return what tells of changes that other processes make."""
        return DirectoryWatch(self.space.path, self._queue)

    def time(self) -> int:
        return _milliseconds(self.space.now())

    # --- claims --------------------------------------------------------------------------------------------

    def claim(self, query: ClaimQuery) -> Task | None:
        query.check()
        queues = list(query.queues)
        random.shuffle(queues)
        for name in queues:
            queue = self._queue(name)
            if queue is None:
                continue
            try:
                lease = queue.get(
                    timeout=0, lease=(query.duration * 1000 + 0.5) / 1e6, holder=query.claimant or NOBODY
                )
            except Empty:
                continue
            try:
                task = self._task(lease.message, name)
            except MessageNotFound:
                continue  # RACE: it was taken away from us already
            return replace(task, modified=task.at - query.duration)
        return None

    def give_back(self, task: Task) -> None:
        found = self._find(task.key)
        if found is None or found.entry.version != task.version:
            return
        transaction = self.space.transaction(holder=task.claimant or NOBODY)
        transaction.change(self._message(found), delay=0, attempts=max(0, found.entry.attempts - 1))
        try:
            transaction.commit()
        except Conflict:
            pass  # RACE: it is not at this version any more

    # --- modifications -------------------------------------------------------------------------------------

    def modify(self, modification: Modification) -> Modified:
        modification.check()
        for tries in range(TRIES):
            found, wrong = self._look(modification, fresh=tries > 0)
            if wrong and not tries:
                found, wrong = self._look(modification, fresh=True)  # what was remembered may be old
            if wrong:
                raise wrong
            try:
                return self._commit(modification, found)
            except Contended as contended:
                raise DependencyError(str(contended)) from contended
            except Conflict:
                continue
        raise DependencyError(f"nothing was done: others were in the way {TRIES} times; try again")

    def _look(self, modification: Modification, *, fresh: bool) -> tuple[dict[str, Seen], DependencyError]:
        """Find every task that a modification uses; return them, and all that is wrong."""
        now = self.time()
        found: dict[str, Seen] = {}
        claims: list[TaskId] = []

        def absent(old: TaskId) -> bool:
            seen = self._find(old, fresh=fresh)
            if (
                seen is None
                or seen.entry.version != old.version
                or (old.queue and old.queue != seen.queue)
                or seen.entry.state not in states.LIVE
            ):
                return True
            found[old.id] = seen
            return False

        def unusable(old: TaskId) -> bool:
            if absent(old):
                return True
            seen = found[old.id]
            claimant = _claimant(self._message(seen))
            if seen.entry.until // 1000 > now and claimant not in ("", modification.claimant):
                claims.append(old)
            return False

        return found, DependencyError(
            inserts=[
                TaskId(data.id, 0, data.queue)
                for data in modification.inserts
                if data.id and not data.skip_colliding and self._native(data.id, drawn=True) is not None
            ],
            changes=[change.old for change in modification.changes if unusable(change.old)],
            deletes=[old for old in modification.deletes if unusable(old)],
            depends=[old for old in modification.depends if absent(old)],
            claims=claims,
        )

    def _commit(self, modification: Modification, found: dict[str, Seen]) -> Modified:
        transaction = self.space.transaction(holder=modification.claimant or NOBODY)
        for old in modification.depends:
            transaction.need(self._message(found[old.id]))
        for old in modification.deletes:
            transaction.cancel(self._message(found[old.id]))
        contents = [
            self._change(transaction, change, found[change.old.id]) for change in modification.changes
        ]
        for data in modification.inserts:
            transaction.put(
                data.queue,
                data.value,
                **_arrival(data, self.time),
                id=data.id or None,
                skip_existing=data.skip_colliding,
                failures=data.attempt,
                error=data.err or None,
            )
        done = transaction.commit()
        with self._lock:
            for old in modification.deletes:
                self._seen.pop(old.id, None)
        return self._modified(modification, done, found, contents)

    def _change(self, transaction: Transaction, change: Change, seen: Seen) -> tuple[bytes, int, str]:
        """Have one task changed; return its new value, attempt and err."""
        data, message = change.data, self._message(seen)
        fields: dict[str, Any] = _arrival(data, self.time)
        value, attempt, err = data.value, data.attempt, data.err
        if change.mode is Mode.LEASE:
            value, attempt, err = self._content(message)
        else:
            # What stays the same is not written: a renewal is one rename, as whoever renews may send everything.
            same = message.data == value if seen.content is None else seen.content[0] == _digest(value)
            if not same:
                fields["body"] = value
            old_attempt, old_err = seen.content[1:] if seen.content else self._content(message)[1:]
            if (old_attempt, old_err) != (attempt, err):
                fields |= {"failures": attempt, "error": err or None}
            if data.queue and data.queue != seen.queue:
                fields["queue"] = data.queue
            if change.mode is Mode.RESET_CLAIMS:
                fields["attempts"] = 0
        transaction.change(message, **fields, hold=True)
        return value, attempt, err

    def _modified(
        self,
        modification: Modification,
        done: Committed,
        found: dict[str, Seen],
        contents: Sequence[tuple[bytes, int, str]],
    ) -> Modified:
        now = _milliseconds(done.at) if done.at is not None else self.time()
        inserted, changed = [], []
        for data, put in zip(modification.inserts, done.puts, strict=True):
            if put is not None:
                content = (data.value, data.attempt, data.err)
                inserted.append(self._written(put, data.id, content, modification.claimant, now, 0))
        steps = done.changes[len(modification.deletes) :]
        for change, put, content in zip(modification.changes, steps, contents, strict=True):
            assert put is not None  # noqa: S101 - a change leaves a message
            entry = found[change.old.id].entry
            at = _milliseconds(put.until) if put.until else now
            claimant = modification.claimant if at > now else ""
            own = change.old.id
            changed.append(self._written(put, own, content, claimant, now, entry.put // 1000))
        return Modified(inserted, changed)

    def _written(
        self, put: Written, id: str, content: tuple[bytes, int, str], claimant: str, now: int, created: int
    ) -> Task:
        """Return a task as a transaction has just written it, and remember where."""
        id = id or uuid_of(put.id)
        value, attempt, err = content
        self._remember(id, put.queue, _entry(put, now * 1000), content)
        return Task(
            id=id,
            version=put.version,
            queue=put.queue,
            at=max(now, _milliseconds(put.until)) if put.until else now,
            claimant=claimant,
            value=value,
            created=created or names.micros_of(put.id) // 1000,
            modified=now,
            claims=put.attempts,
            attempt=attempt,
            err=err,
        )

    # --- reads ---------------------------------------------------------------------------------------------

    def tasks(self, query: TasksQuery) -> Iterator[Task]:
        query.check()
        now, count = self.time(), 0
        for name, message in self._messages(query):
            if query.limit and count == query.limit:
                return
            entry = message.entry
            if query.claimant and entry.until // 1000 > now and _claimant(message) != query.claimant:
                continue
            try:
                task = self._task(message, name, omit=query.omit_values)
            except MessageNotFound:
                continue  # RACE: it is another version by now
            count += 1
            yield task

    def _messages(self, query: TasksQuery) -> Iterator[tuple[str, Message[bytes]]]:
        if query.ids:
            for id in dict.fromkeys(query.ids):
                seen = self._find(TaskId(id, -1, query.queue), fresh=True)
                if seen is not None and query.queue in ("", seen.queue):
                    yield seen.queue, self._message(seen)
        elif self._queue(query.queue) is not None:
            for message in self.space.messages(query.queue):
                yield query.queue, message

    def queues(self, query: QueuesQuery) -> list[QueueStat]:
        query.check()
        found: list[QueueStat] = []
        for name in self.space.names():
            if query.limit and len(found) == query.limit:
                break
            if query.matches(name) and (stat := self._stat(name)).size:
                found.append(stat)
        return found

    def _stat(self, name: str) -> QueueStat:
        queue = self._queue(name)
        if queue is None:
            return QueueStat(name, 0)
        now = self.time()
        size = claimed = later = most = 0
        for entry in queue.layout.entries(states.LIVE):
            if entry.state not in states.LIVE:
                continue
            size += 1
            most = max(most, entry.attempts)
            if entry.until // 1000 > now:
                later += 1
                claimed += entry.attempts > 0 and bool(entry.token)
        return QueueStat(name, size, claimed, size - later, later - claimed, most)

    def families(self, queues: Sequence[str]) -> list[metrics.Family]:
        """Count queues as `dirqueue metrics` does."""
        return metrics.measure(os.path.join(self.space.path, _directory_of(name)) for name in queues)

    def next_arrival(self, queues: Sequence[str]) -> int | None:
        waits = [
            seconds
            for name in queues
            if (queue := self._queue(name)) is not None and (seconds := queue.layout.wakes_in()) is not None
        ]
        return self.time() + int(min(waits) * 1000) if waits else None

    # --- where tasks are -----------------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue[bytes] | None:
        """Return a queue that is there: to ask for tasks makes no directory."""
        queue = self._there.get(name)
        if queue is not None and queue.layout.directory.fd >= 0:
            return queue
        try:
            path = os.path.join(self.space.path, _directory_of(name))
        except SettingsError as error:
            raise InvalidArgument(str(error)) from None
        if not os.path.isdir(path) or os.path.islink(path):
            return None
        queue = self._there[name] = self.space.queue(name)
        return queue

    def _native(self, id: str, *, drawn: bool = False) -> str | None:
        """Return the native id of a task; None if there is none. With `drawn`, one that was drawn has to be there."""
        own = self._find_own(id)
        if own is not None:
            return own
        native = native_of(id)
        if native is not None and drawn and self._find(TaskId(id, -1), fresh=True) is None:
            return None
        return native

    def _find(self, old: TaskId, *, fresh: bool = False) -> Seen | None:
        """Return a task: where it was last seen if that is of this version, else after a look."""
        if not fresh:
            with self._lock:
                seen = self._seen.get(old.id)
            if seen is not None and seen.entry.version == old.version:
                return seen
        native = self._native(old.id)
        if native is None:
            return None
        for name in self._likely(old):
            queue = self._queue(name)
            entry = queue.layout.find(native) if queue is not None else None
            if entry is not None and entry.state in states.LIVE:
                return self._remember(old.id, name, entry)
        return None

    def _likely(self, old: TaskId) -> Iterable[str]:
        """Yield the queues that a task may be in, the likeliest first."""
        if old.queue:
            return (old.queue,)
        with self._lock:
            seen = self._seen.get(old.id)
        every = self.space.names()
        return every if seen is None else (seen.queue, *(name for name in every if name != seen.queue))

    def _remember(
        self, id: str, queue: str, entry: Entry, content: tuple[bytes, int, str] | None = None
    ) -> Seen:
        digested = None if content is None else (_digest(content[0]), content[1], content[2])
        seen = Seen(queue, entry, digested)
        with self._lock:
            self._seen[id] = seen
            self._seen.move_to_end(id)
            if len(self._seen) > HINTS:
                self._seen.popitem(last=False)
        return seen

    def _message(self, seen: Seen) -> Message[bytes]:
        return Message(seen.entry, self.space.queue(seen.queue).layout, self.space.codec)

    def _content(self, message: Message[bytes]) -> tuple[bytes, int, str]:
        details = message.layout.details(message.entry)
        attempt, err = (details.failures, details.error or "") if details else (0, "")
        return message.data, attempt, err

    def _task(self, message: Message[bytes], queue: str, *, omit: bool = False) -> Task:
        """Return a task as it lies there, and remember where; MessageNotFound if it does not any more."""
        entry = message.entry
        id = message.own_id or uuid_of(entry.id)
        if omit:
            details = message.layout.details(entry)
            content = (b"", details.failures, details.error or "") if details else (b"", 0, "")
            self._remember(id, queue, entry)
        else:
            content = self._content(message)
            self._remember(id, queue, entry, content)
        created = entry.put // 1000
        return Task(
            id=id,
            version=entry.version,
            queue=queue,
            at=(entry.until or entry.put) // 1000,
            claimant=_claimant(message),
            value=content[0],
            created=created,
            modified=max(created, self._modified_at(message)),
            claims=entry.attempts,
            attempt=content[1],
            err=content[2],
        )

    @staticmethod
    def _modified_at(message: Message[bytes]) -> int:
        try:
            facts = fs.stat(message.entry.place, dir_fd=message.layout.directory.fd, follow_symlinks=False)
        except OSError:
            return 0  # RACE: its name is another by now
        return facts.st_ctime_ns // 1_000_000


def _open(root: str, settings: dict[str, Any]) -> Space[bytes]:
    """Open a space whose new queues get EntroQ's settings, so that plain consumers go by them too.

    A queue that is there keeps its own, and so does a space that was created with others.
    """
    try:
        Space.create(root, **SETTINGS).close()
    except SettingsError:
        pass
    return Space(root, **settings)


def _directory_of(name: str) -> str:
    from dirqueue.space import naming

    return naming.encode(name)


def _arrival(data: TaskData, now: Any) -> dict[str, Any]:
    """Return when a task arrives, as a transaction takes it."""
    if data.at is None:
        return {"delay": (max(0, data.by) * 1000 + 0.5) / 1e6 if data.by > 0 else 0}
    at = data.arrival(now())
    return {"at": _EPOCH + timedelta(milliseconds=at)}


def _entry(put: Written, now: int) -> Entry:
    """Return what the new name of a message says."""
    folder = names.folder_of(put.place)
    name = names.parse(put.place[len(folder) :])
    assert name is not None  # noqa: S101 - built by a transaction
    return inspect.entry_of(name, folder, now)


def _claimant(message: Message[bytes]) -> str:
    holder = message.holder
    return "" if holder is None or holder == NOBODY else holder


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


def _milliseconds(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(milliseconds=1)
