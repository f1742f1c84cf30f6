"""The values and errors of the index's `entroq` 0.15, by the same names and with the same fields.

Layer: edges.  Pure values.  Documents are left out: dirqueue has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass
class TaskID:
    """One version of a task."""

    id: str
    version: int
    queue: str = ""


@dataclass
class TaskData:
    """A task to insert."""

    queue: str
    #: When it can be claimed; None = now.
    at: datetime | None = None
    value: Any = None
    attempt: int = 0
    err: str = ""
    #: An id of your own; None to have one drawn.
    id: str | None = None


@dataclass
class TaskChange:
    """What a task of `from_queue` becomes."""

    id: str
    version: int
    queue: str
    #: When it can be claimed; None = now, which gives it back.
    at: datetime | None = None
    from_queue: str = ""
    value: Any = None
    attempt: int = 0
    err: str = ""
    reset_claims: bool = False


@dataclass
class TaskArrival:
    """When a task can be claimed, in seconds from now, and nothing else of it."""

    id: str
    version: int
    queue: str
    by_s: float = 0.0


@dataclass
class Task:
    """A task at one version."""

    id: str
    version: int
    queue: str
    at: datetime
    claimant: str
    value: Any
    created: datetime | None = None
    modified: datetime | None = None
    claims: int = 0
    attempt: int = 0
    err: str = ""

    def as_id(self) -> TaskID:
        """Return what a delete or a dependency names."""
        return TaskID(self.id, self.version, self.queue)

    def as_change(self, **overrides: Any) -> TaskChange:
        """Return a change of this task; without `at` it is given back."""
        same = {"queue": self.queue, "value": self.value, "attempt": self.attempt, "err": self.err}
        return TaskChange(self.id, self.version, from_queue=self.queue, **(same | overrides))


@dataclass
class ModifyResult:
    """What a modification made, in the order asked for."""

    tasks_inserted: list[Task] = field(default_factory=list)
    tasks_changed: list[Task] = field(default_factory=list)
    docs_inserted: list[Any] = field(default_factory=list)
    docs_changed: list[Any] = field(default_factory=list)


Operation = Callable[["Modification"], None]


class Modification:
    """Operations that happen together or not at all: `Modification(Modification.deleting(task), ...)`.

    `then_stop` stops a worker whose handler returned it, once it is committed.
    """

    def __init__(self, *ops: Operation, then_stop: bool = False) -> None:
        self.then_stop = then_stop
        self.task_inserts: list[TaskData] = []
        self.task_changes: list[TaskChange] = []
        self.task_arrivals: list[TaskArrival] = []
        self.task_deletes: list[TaskID] = []
        self.task_depends: list[TaskID] = []
        for operation in ops:
            operation(self)

    def is_empty(self) -> bool:
        """Return whether it would do nothing."""
        return not (self.task_inserts or self.task_changes or self.task_arrivals or self.task_deletes) and (
            not self.task_depends
        )

    @classmethod
    def inserting(cls, item: TaskData) -> Operation:
        """Insert a task."""
        return lambda whole: whole.task_inserts.append(item)

    @classmethod
    def changing(cls, item: Task | TaskChange, **overrides: Any) -> Operation:
        """Change a task; without `at` it is given back."""
        change = item.as_change(**overrides) if isinstance(item, Task) else item
        return lambda whole: whole.task_changes.append(change)

    @classmethod
    def arriving(cls, item: Task, by_s: float) -> Operation:
        """Renew a claim for so many seconds, or end it with 0."""
        arrival = TaskArrival(item.id, item.version, item.queue, by_s)
        return lambda whole: whole.task_arrivals.append(arrival)

    @classmethod
    def deleting(cls, item: Task | TaskID) -> Operation:
        """Delete a task."""
        id = _id(item)
        return lambda whole: whole.task_deletes.append(id)

    @classmethod
    def depending(cls, item: Task | TaskID) -> Operation:
        """Require that a task is at its version."""
        id = _id(item)
        return lambda whole: whole.task_depends.append(id)


def _id(item: Task | TaskID) -> TaskID:
    return item.as_id() if isinstance(item, Task) else item


class DependencyError(Exception):
    """A modification was refused, and nothing was done: the lists say what was in its way."""

    def __init__(
        self,
        message: str = "",
        missing: Iterable[TaskID] = (),
        mismatched: Iterable[TaskID] = (),
        collisions: Iterable[TaskID] = (),
        inserts: Iterable[TaskID] = (),
        depends: Iterable[TaskID] = (),
        deletes: Iterable[TaskID] = (),
        changes: Iterable[TaskID] = (),
        claims: Iterable[TaskID] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.missing = list(missing)
        self.mismatched = list(mismatched)
        self.collisions = list(collisions)
        self.inserts = list(inserts)
        self.depends = list(depends)
        self.deletes = list(deletes)
        self.changes = list(changes)
        self.claims = list(claims)

    def has_missing(self) -> bool:
        """Return whether a task was not there at its version."""
        return bool(self.depends or self.deletes or self.changes)


class InvalidArgumentError(Exception):
    """The request makes no sense; asking again does not help."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class UnsupportedError(Exception):
    """EntroQ has it, and dirqueue does not."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class TransportError(Exception):
    """The disk refused. `safe_to_retry`: nothing was done, as far as is known."""

    def __init__(self, message: str, *, cause: Exception, safe_to_retry: bool) -> None:
        super().__init__(message)
        self.cause = cause
        self.safe_to_retry = safe_to_retry
