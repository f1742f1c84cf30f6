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

from dirqueue.errors import Full, QueueNotFound, SettingsError
from dirqueue.layouts.native import Native, staged
from dirqueue.spark.columns import BYTES, carries, check_write
from dirqueue.spark.options import WRITE, Options, open_native, open_queue

#: A job whose tasks wait for executors, or for their first rows, may do so for this long.
PATIENCE_SECONDS = 86_400.0


@dataclass
class Written(WriterCommitMessage):
    """What one task attempt wrote."""

    staging: str
    parts: list[str] = field(default_factory=list)
    count: int = 0
    app: str = ""


class Packing(NamedTuple):
    """How rows become messages."""

    #: The most records in a message; None = as many as fit.
    records: int | None
    #: The most bytes in its body, but at least one record.
    size: int

    @classmethod
    def chosen(cls, options: Options) -> Packing | None:
        """Return what the options of a write ask for; None if each row is a message."""
        records, size = options.whole("recordsPerMessage"), options.whole("recordBytes")
        return None if records is None and size is None else cls(records, size or BYTES)


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
        from dirqueue.spark.task import write_parts  # COST: pyarrow, in tasks only

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
