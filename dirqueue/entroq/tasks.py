"""EntroQ's words as values: tasks, modifications, queries, what can be wrong with them; and what a store of tasks does.

Layer: edges.  Pure values, no I/O.
Times are milliseconds since the epoch and durations milliseconds, as on EntroQ's wire. Values are bytes; `values.py`
has their JSON. A task without an id of its own has a UUID that says its native id, both ways.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from dirqueue.disk.identity import ID_DIGITS
from dirqueue.errors import DirQueueError

#: How long a claim holds a task, and how long it may.
DURATION, MAX_DURATION = 30_000, 24 * 3_600_000
#: The longest id of a task or a claimant, in characters.
LONGEST_ID = 64
#: The largest version, claim count or attempt: EntroQ's are 32 bits.
MAX_INT32 = 2**31 - 1
YEAR = 365 * 24 * 3_600_000
#: What one request may hold.
MAX_OPERATIONS, MAX_QUEUES = 10_000, 1_000


# --- tasks -------------------------------------------------------------------------------------------------


class TaskId(NamedTuple):
    """One version of a task; with a queue, only if it is in that one."""

    id: str
    version: int
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it is at one version."""

    id: str
    version: int
    queue: str
    #: From when on it can be claimed.
    at: int
    #: Who holds it, or put it; empty if nobody.
    claimant: str = ""
    value: bytes = b""
    created: int = 0
    #: When this version came to be; of a claim's or a modification's answer by the same clock reading as `at`.
    modified: int = 0
    claims: int = 0
    attempt: int = 0
    err: str = ""

    @property
    def key(self) -> TaskId:
        """What a change, a delete or a dependency of this version names."""
        return TaskId(self.id, self.version, self.queue)


@dataclass(frozen=True, slots=True)
class TaskData:
    """What a new task is to be, or what a task is to become."""

    queue: str = ""
    value: bytes = b""
    #: An id of the client's own; empty to have one drawn.
    id: str = ""
    attempt: int = 0
    err: str = ""
    #: When it arrives; None: `by` milliseconds from the store's now on.
    at: int | None = None
    by: int = 0
    #: Of an insert: whether a task that has this id already is as good.
    skip_colliding: bool = False

    def arrival(self, now: int) -> int:
        """Return when it arrives, in the store's time; what is past is now."""
        return max(now, now + self.by if self.at is None else self.at)


class Mode(enum.Enum):
    """What a change leaves alone."""

    DEFAULT = "CHANGE_DEFAULT"
    #: Only the arrival changes; queue, value, attempt and err stay.
    LEASE = "CHANGE_LEASE"
    #: As by default, and the claims are counted from 0 again.
    RESET_CLAIMS = "CHANGE_RESET_CLAIMS"


@dataclass(frozen=True, slots=True)
class Change:
    """One task becomes another version; an empty `data.queue` leaves it in its queue."""

    old: TaskId
    data: TaskData
    mode: Mode = Mode.DEFAULT


@dataclass(frozen=True, slots=True)
class Modification:
    """Changes that happen together or not at all."""

    claimant: str = ""
    inserts: Sequence[TaskData] = ()
    changes: Sequence[Change] = ()
    deletes: Sequence[TaskId] = ()
    depends: Sequence[TaskId] = ()

    def __len__(self) -> int:
        return len(self.inserts) + len(self.changes) + len(self.deletes) + len(self.depends)

    def used(self) -> Iterator[TaskId]:
        """Yield every version that has to be there."""
        yield from (change.old for change in self.changes)
        yield from self.deletes
        yield from self.depends

    def check(self) -> None:
        """Raise InvalidArgument if no store could carry it out."""
        if not len(self):
            raise InvalidArgument(
                "the modification is empty: name at least one insert, change, delete or depend"
            )
        if len(self) > MAX_OPERATIONS:
            raise InvalidArgument(
                f"the modification has {len(self):,} operations, and {MAX_OPERATIONS:,} are allowed"
            )
        check_text("claimantId", self.claimant, empty=True)
        seen: set[str] = set()
        for each in self.inserts:
            if not each.queue:
                raise InvalidArgument("an insert names no queue")
            _check_data(each)
            if each.id:
                _once(each.id, seen)
        for used in self.used():
            check_text("id", used.id)
            check_number("version", used.version)
            _once(used.id, seen)
        for change in self.changes:
            _check_data(change.data)
            _check_mode(change)


@dataclass(frozen=True, slots=True)
class Modified:
    """What came of a modification: the new tasks and versions, in the order in which they were asked for.

    Inserts that were skipped because their id is taken are not among them.
    """

    inserted: Sequence[Task] = ()
    changed: Sequence[Task] = ()


def _check_data(data: TaskData) -> None:
    check_text("id", data.id, empty=True)
    check_number("attempt", data.attempt)
    if data.at is None and not -YEAR * 10_000 <= data.by <= YEAR * 200:
        raise InvalidArgument(f"an arrival {data.by} milliseconds from now is more than 200 years away")
    if data.at is not None and data.at > YEAR * 250:
        raise InvalidArgument(f"an arrival at {data.at} milliseconds is after the year 2200")


def _check_mode(change: Change) -> None:
    data = change.data
    if change.mode is Mode.LEASE:
        if data.queue and change.old.queue and data.queue != change.old.queue:
            raise InvalidArgument(
                f"a lease of task {change.old.id} cannot move it from {change.old.queue!r} to {data.queue!r}"
            )
        if data.value or data.attempt or data.err or data.id:
            raise InvalidArgument(f"a lease of task {change.old.id} may set only its arrival")
    elif data.id and data.id != change.old.id:
        raise InvalidArgument(f"a change of task {change.old.id} cannot give it another id, {data.id}")


def _once(id: str, seen: set[str]) -> None:
    if id in seen:
        raise InvalidArgument(f"the task {id} is named twice: once is allowed in one modification")
    seen.add(id)


def check_text(name: str, text: str, *, empty: bool = False) -> None:
    """Check an id of a task or a claimant."""
    if not text and not empty:
        raise InvalidArgument(f"{name} is empty")
    if len(text) > LONGEST_ID:
        raise InvalidArgument(
            f"{name} has {len(text)} characters, and {LONGEST_ID} are allowed: {text!r:.40}"
        )
    if "\0" in text or not text.isprintable():
        raise InvalidArgument(f"{name} may hold printable characters only: {text!r:.40}")


def check_number(name: str, number: int) -> None:
    """Check a version or an attempt."""
    if not 0 <= number <= MAX_INT32:
        raise InvalidArgument(f"{name} is a number from 0 to {MAX_INT32}, not {number}")


# --- queries -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimQuery:
    """Who wants a task, of which queues, for how long."""

    queues: Sequence[str]
    claimant: str = ""
    duration: int = DURATION

    def check(self) -> None:
        """Raise InvalidArgument if it cannot be asked."""
        if not self.queues or not all(self.queues):
            raise InvalidArgument("a claim names at least one queue, and no queue has an empty name")
        if len(self.queues) > MAX_QUEUES:
            raise InvalidArgument(f"a claim may name {MAX_QUEUES:,} queues, not {len(self.queues):,}")
        check_text("claimantId", self.claimant, empty=True)
        if not 1 <= self.duration <= MAX_DURATION:
            raise InvalidArgument(
                f"a claim lasts 1 to {MAX_DURATION} milliseconds (24 hours), not {self.duration}"
            )


@dataclass(frozen=True, slots=True)
class TasksQuery:
    """Which tasks to list: those of a queue, those with these ids (in their order), or those of both."""

    queue: str = ""
    ids: Sequence[str] = ()
    #: At most so many; 0 = all.
    limit: int = 0
    omit_values: bool = False
    #: Only tasks that this claimant holds or that can be claimed; empty = all.
    claimant: str = ""

    def check(self) -> None:
        """Raise InvalidArgument if it cannot be asked."""
        if not self.queue and not self.ids:
            raise InvalidArgument("a listing of tasks names a queue or ids of tasks")
        if len(self.ids) > MAX_OPERATIONS:
            raise InvalidArgument(f"a listing may name {MAX_OPERATIONS:,} ids, not {len(self.ids):,}")
        check_number("limit", self.limit)


@dataclass(frozen=True, slots=True)
class QueuesQuery:
    """Which queues to count: those named and those with one of the prefixes; all if there is neither."""

    prefixes: Sequence[str] = ()
    exact: Sequence[str] = ()
    #: At most so many; 0 = all.
    limit: int = 0

    def check(self) -> None:
        """Raise InvalidArgument if it cannot be asked."""
        if len(self.prefixes) + len(self.exact) > MAX_QUEUES:
            raise InvalidArgument(f"a listing of queues may name {MAX_QUEUES:,} names and prefixes")
        check_number("limit", self.limit)

    def matches(self, name: str) -> bool:
        """Return whether a queue is wanted."""
        if not self.prefixes and not self.exact:
            return True
        return name in self.exact or any(name.startswith(prefix) for prefix in self.prefixes)


class QueueStat(NamedTuple):
    """How many tasks a queue has: held now, claimable now, not yet; and the largest count of claims."""

    name: str
    size: int
    claimed: int = 0
    available: int = 0
    future: int = 0
    max_claims: int = 0


# --- what can be wrong -------------------------------------------------------------------------------------


class EntroqError(DirQueueError):
    """Base of the errors of EntroQ's semantics."""


class InvalidArgument(EntroqError, ValueError):
    """The request cannot be carried out by any store; the text says what is wrong with it."""


class DependencyError(EntroqError, LookupError):
    """A modification was refused: nothing was done. All that was in its way is listed.

    `inserts` are ids that are taken; `changes`, `deletes` and `depends` are not there in the version (and queue) that
    was named; `claims` are held by another claimant.
    """

    _fields: ClassVar[tuple[str, ...]] = ("inserts", "changes", "deletes", "depends", "claims")

    def __init__(
        self,
        text: str = "",
        *,
        inserts: Iterable[TaskId] = (),
        changes: Iterable[TaskId] = (),
        deletes: Iterable[TaskId] = (),
        depends: Iterable[TaskId] = (),
        claims: Iterable[TaskId] = (),
    ) -> None:
        self.inserts = list(inserts)
        self.changes = list(changes)
        self.deletes = list(deletes)
        self.depends = list(depends)
        self.claims = list(claims)
        super().__init__(text or self._sentence())

    def __bool__(self) -> bool:
        """Whether anything is in the way."""
        return bool(self.inserts or self.changes or self.deletes or self.depends or self.claims)

    def details(self) -> Iterator[tuple[str, TaskId]]:
        """Yield what kind of use failed (INSERT, CHANGE, DELETE, DEPEND, CLAIM), and of which task."""
        for kind in self._fields:
            for each in getattr(self, kind):
                yield kind[:-1].upper(), each

    def _sentence(self) -> str:
        shown = [f"{kind} {each.id}:v{each.version}" for kind, each in self.details()]
        return f"nothing was done: {', '.join(shown[:5])}" + (
            f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        )


class Access(NamedTuple):
    """What somebody wants to do with a queue: CLAIM, DELETE, CHANGE, INSERT, READ."""

    queue: str
    actions: tuple[str, ...]


class PermissionDenied(EntroqError):
    """The caller may not do that; `failed` says what with which queues, as far as the judge told."""

    _fields: ClassVar[tuple[str, ...]] = ("failed",)

    def __init__(self, text: str, *, failed: Iterable[Access] = ()) -> None:
        super().__init__(text)
        self.failed = list(failed)


class Unauthenticated(PermissionDenied):
    """The caller did not say who it is, in a way that is accepted."""


class Exhausted(EntroqError):
    """The service has as many waiting claims or connections as it takes: try again later."""


class Unavailable(EntroqError):
    """The service is going down."""


class Unimplemented(EntroqError):
    """EntroQ has it, and dirqueue does not."""


# --- a store -----------------------------------------------------------------------------------------------


class Store(Protocol):
    """Where tasks are. Every method may be called by several threads at once, and blocks only for the disk."""

    def time(self) -> int:
        """Return the store's now."""
        ...

    def claim(self, query: ClaimQuery) -> Task | None:
        """Claim one task at random of the first of the queues, shuffled, that has one; None if none has.

        Its version and its claims are one more, its arrival is `duration` from now.
        """
        ...

    def give_back(self, task: Task) -> None:
        """Undo a claim that nobody will use: the task can be claimed at once, and the claim is not counted.

        Nothing happens if the task is not at this version any more.
        """
        ...

    def modify(self, modification: Modification) -> Modified:
        """Do all of it or nothing; DependencyError lists all that is in the way, InvalidArgument what makes no sense.

        A change of what another claimant holds is refused; one without an arrival releases the task.
        """
        ...

    def tasks(self, query: TasksQuery) -> Iterator[Task]:
        """Yield tasks as they are now; values are read as they are yielded."""
        ...

    def queues(self, query: QueuesQuery) -> list[QueueStat]:
        """Return the queues that have tasks, by name."""
        ...

    def next_arrival(self, queues: Sequence[str]) -> int | None:
        """Return when the next task of these queues can be claimed: now or before if one can; None if there is none."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


# --- ids ---------------------------------------------------------------------------------------------------

#: A UUID has 122 bits to fill: 84 for the digits of an id, 30 for a priority, 8 that say that it is one of ours.
_PRIORITY_BITS, _MARK_BITS = 30, 8
#: The mark, by how many digits an id has beside its priority: those of VSQS peers have fewer.
_MARKS = {ID_DIGITS: 0xD1, 16: 0xD2, 13: 0xD3}
_DIGITS = {mark: digits for digits, mark in _MARKS.items()}


def uuid_of(native: str) -> str:
    """Return the UUID (version 8) that says a native id; `native_of` reads it."""
    digits = min(len(native), ID_DIGITS)
    mark = _MARKS[digits]
    number, priority = int(native[-digits:]), int(native[:-digits] or 0)
    filled = ((number << _PRIORITY_BITS) | priority) << _MARK_BITS | mark
    low = filled & (2**62 - 1)
    middle = (filled >> 62) & 0xFFF
    high = filled >> 74
    return str(uuid.UUID(int=(high << 80) | (8 << 76) | (middle << 64) | (2 << 62) | low))


def native_of(id: str) -> str | None:
    """Return the native id that a UUID of ours says; None if it is not one of ours."""
    if len(id) != 36 or id[14] != "8":
        return None
    try:
        whole = uuid.UUID(id)
    except ValueError:
        return None
    number = whole.int
    filled = (number >> 80) << 74 | ((number >> 64) & 0xFFF) << 62 | (number & (2**62 - 1))
    digits = _DIGITS.get(filled & (2**_MARK_BITS - 1))
    if digits is None:
        return None
    filled >>= _MARK_BITS
    priority, rest = filled & (2**_PRIORITY_BITS - 1), str(filled >> _PRIORITY_BITS)
    native = f"{priority or ''}{rest}"
    return native if len(rest) == digits and uuid_of(native) == id else None


__all__ = [
    "Access",
    "Change",
    "ClaimQuery",
    "DependencyError",
    "EntroqError",
    "Exhausted",
    "InvalidArgument",
    "Mode",
    "Modification",
    "Modified",
    "PermissionDenied",
    "QueueStat",
    "QueuesQuery",
    "Store",
    "Task",
    "TaskData",
    "TaskId",
    "TasksQuery",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "native_of",
    "uuid_of",
]
