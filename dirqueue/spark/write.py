"""A table written to a queue: executors write parts, one rename makes all of it visible.

Layer: edges.  Touches: batches (see layouts/native/staged.py).
Invariant: abort never undoes a commit point: Spark calls it even after a commit that raised.
Crash: see staged.py; a task attempt that dies leaves a part that nobody names, and the commit removes it. The staging
directory of a driver that dies is removed a day later (PATIENCE_SECONDS), and the queue's `stale`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dirqueue.bounds import too_large
from dirqueue.errors import Full, QueueNotFound, SettingsError
from dirqueue.layouts.native import Native, attempt, staged
from dirqueue.renewer import RENEWER
from dirqueue.settings import MAX_PRIORITY, Settings, check_seconds
from dirqueue.spark.columns import bodies_of, check_write
from dirqueue.spark.extras import Carried, carried_of, carries
from dirqueue.spark.options import WRITE, Options, open_native, open_queue
from dirqueue.spark.records import KINDS, Packer, Packing

#: A job whose tasks wait for executors, or for their first rows, may do so for this long.
PATIENCE_SECONDS = 86_400.0


@dataclass
class Written(WriterCommitMessage):
    """What one task attempt wrote."""

    staging: str
    parts: list[str] = field(default_factory=list)
    count: int = 0
    app: str = ""


class How(NamedTuple):
    """What a write asks for, as it travels to the tasks."""

    #: Settings of the queue that a writer may choose.
    settings: dict[str, Any]
    #: How rows become messages; None = one for each.
    packing: Packing | None
    #: Whether there are columns of what messages carry.
    carrying: bool

    @classmethod
    def chosen(cls, options: Options, schema: StructType) -> How:
        """Return what the options and the columns of a write ask for."""
        flags = [name for name in ("sync", "links") if options.text(name) is not None]
        settings = {name: options.flag(name, default=True) for name in flags}
        return cls(settings, Packing.chosen(options), carries(schema))


def write_parts(queue: str, how: How, staging: str, rows: Iterator[Any]) -> Written:
    """Write the rows of one task attempt; remove them again if it fails."""
    native = open_native(queue, **how.settings)
    writer = attempt.Writer(native.directory, native.settings, staging)
    task = _Messages(writer, native) if how.packing is None else _Packed(writer, native, how.packing)
    alive = Staging(native, staging)
    alive.renew()
    RENEWER.watch(alive, native.settings.stale / 4)
    try:
        for each in rows:
            task.add(each)
        task.finish()
        parts = writer.finish()
        alive.renew()  # to write into it set its time back
    except BaseException:
        writer.discard()
        raise
    finally:
        RENEWER.forget(alive)
    return Written(staging, parts, writer.count)


class Staging:
    """The staging directory of a job, kept from becoming stale while no task has a row for it.

    A task can renew it while it runs. Before the first task, and between two of them, nothing of the job runs that
    could: so each renewal sets its time ahead.
    """

    def __init__(self, native: Native, name: str) -> None:
        self._directory = native.directory
        self.name = name

    @classmethod
    def begin(cls, native: Native, name: str | None = None) -> Staging:
        """Make it, before the job has a task."""
        staging = cls(native, staged.begin(native.directory, name))
        staging.renew()
        return staging

    def renew(self) -> None:
        """Keep it for PATIENCE_SECONDS more; QueueError if it is gone."""
        staged.touch(self._directory, self.name, ahead=PATIENCE_SECONDS)


class _Messages:
    """Rows of one task as messages, one for each."""

    def __init__(self, writer: attempt.Writer, native: Native) -> None:
        self._writer = writer
        self._settings = native.settings
        self._clock = native.directory.clock

    def add(self, rows: Any) -> None:
        """Write one Arrow batch; each priority goes to separate parts."""
        bodies: list[bytes] = bodies_of(rows).to_pylist()
        priorities, delays, carried = _kinds(rows, self._settings)
        if priorities is None:
            self.put(bodies, _default(self._settings), delays, carried)
            return
        for priority in dict.fromkeys(priorities):
            chosen = [index for index, each in enumerate(priorities) if each == priority]
            self.put(
                [bodies[index] for index in chosen],
                priority,
                None if delays is None else [delays[index] for index in chosen],
                None if carried is None else [carried[index] for index in chosen],
            )

    def put(
        self,
        bodies: list[bytes],
        priority: int | None,
        delays: list[float] | None,
        carried: list[Carried | None] | None,
    ) -> None:
        """Write messages of one priority."""
        limit = self._settings.max_size
        if limit and bodies and max(map(len, bodies)) > limit:
            raise too_large(max(map(len, bodies)), limit)
        if carried is None:
            self._writer.add(bodies, priority, delays)
            return
        now = self._clock.now()
        self._writer.add(bodies, priority, delays, [each and each.extras(now) for each in carried])

    def finish(self) -> None:
        """Write what is left: nothing."""


class _Kind(NamedTuple):
    """What rows that share a message have in common."""

    priority: int | None
    delay: float = 0.0
    carried: Carried | None = None


class _Packed(_Messages):
    """Rows of one task as messages of records."""

    def __init__(self, writer: attempt.Writer, native: Native, packing: Packing) -> None:
        super().__init__(writer, native)
        self._packer = Packer(packing, native.settings.max_size)

    def add(self, rows: Any) -> None:
        """Pack one Arrow batch; rows of one message are of one kind."""
        bodies, plain = bodies_of(rows), _Kind(_default(self._settings))
        columns = _kinds(rows, self._settings)
        if columns == (None, None, None):
            self._put(plain, self._packer.add(plain, bodies))
            return
        chosen: dict[_Kind, list[int]] = {}
        filled = [
            [default] * len(bodies) if column is None else column
            for column, default in zip(columns, plain, strict=True)
        ]
        for index, each in enumerate(zip(*filled, strict=True)):
            chosen.setdefault(_Kind(*each), []).append(index)
        for kind, some in chosen.items():
            self._put(kind, self._packer.add(kind, bodies.take(some)))
        self.finish(KINDS)

    def _put(self, kind: _Kind, bodies: list[bytes]) -> None:
        count = len(bodies)
        self.put(
            bodies,
            kind.priority,
            [kind.delay] * count if kind.delay else None,
            [kind.carried] * count if kind.carried else None,
        )

    def finish(self, most: int = 0) -> None:
        for kind, body in self._packer.rest(most):
            self._put(kind, [body])


def _default(settings: Settings) -> int | None:
    return settings.default_priority if settings.priorities else None


def _kinds(
    rows: Any, settings: Settings
) -> tuple[list[int | None] | None, list[float] | None, list[Carried | None] | None]:
    """Return the priority and the delay of each row, and what it carries; None where there is no such column."""
    columns = rows.schema.names
    priorities = delays = None
    if "priority" in columns:
        priorities = [_priority(each, settings) for each in rows.column("priority").to_pylist()]
    if "delay" in columns:
        delays = [_delay(each) for each in rows.column("delay").to_pylist()]
    return priorities, delays, carried_of(rows)


def _priority(priority: int | None, settings: Settings) -> int | None:
    if not settings.priorities:
        if priority is None:
            return None
        raise SettingsError(
            f"priority={priority} needs a queue with priorities: Queue.create(path, priorities=True) makes one"
        )
    if priority is None:
        return settings.default_priority
    if not 1 <= priority <= MAX_PRIORITY:
        raise SettingsError(f"priority must be a whole number from 1 to {MAX_PRIORITY}, not {priority}")
    return priority


def _delay(delay: Any) -> float:
    return check_seconds("delay", float(delay)) if delay else 0.0


def commit_parts(
    queue: str,
    how: How,
    staging: str,
    messages: Sequence[Written | None],
    identity: staged.Identity | None,
) -> None:
    """Make visible what the winning attempts wrote."""
    written = [message for message in messages if message is not None]
    native = open_native(queue, **how.settings)
    parts = [part for message in written for part in message.parts]
    total = sum(message.count for message in written)
    limit = native.settings.max_messages
    repeated = identity is not None and staged.newest(native.directory, identity.app) >= identity.version
    if limit and not repeated and native.count() + total > limit:
        raise Full(f"{queue!r} has no room for {total} messages: max_messages={limit}", path=queue)
    staged.commit(native.directory, native.settings, staging, parts, identity, carrying=how.carrying)


def abort_parts(queue: str, how: How, staging: str) -> None:
    """Remove what the attempts of a failed job wrote."""
    try:
        directory = open_queue(queue, **how.settings).layout.directory
    except QueueNotFound:
        return  # all of it went with the queue
    staged.abort(directory, staging, carrying=how.carrying)


class BatchWriter(DataSourceArrowWriter):
    """One `save()`. Pickled: the same staging directory reaches every task, the commit and the abort."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        options = Options(given, WRITE)
        refuse_overwrite(overwrite=overwrite)
        check_write(schema)
        self._queue = options.path()
        self._how = How.chosen(options, schema)
        self._identity = _identity(options)
        native = open_native(self._queue, create=True, **self._how.settings)
        self._staging = Staging.begin(native).name

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_parts(self._queue, self._how, self._staging, iterator)

    def commit(self, messages: list[Any]) -> None:
        commit_parts(self._queue, self._how, self._staging, messages, self._identity)

    def abort(self, messages: list[Any]) -> None:
        abort_parts(self._queue, self._how, self._staging)


def refuse_overwrite(*, overwrite: bool) -> None:
    """Raise SettingsError for mode("overwrite")."""
    if overwrite:
        raise SettingsError(
            'mode("overwrite") would delete messages that others are working on: use mode("append"), and '
            "Queue(path).flush() if everything is to go"
        )


def _identity(options: Options) -> staged.Identity | None:
    app, version = options.text("txnAppId"), options.whole("txnVersion", 0)
    if (app is None) != (version is None):
        raise SettingsError("txnAppId and txnVersion go together: give both or neither")
    if app is None or version is None:
        return None
    identity = staged.Identity(app, version)
    staged.check_identity(identity)
    return identity
