"""A table written to a queue: executors write parts, one rename makes all of it visible.

Layer: edges.  Touches: batches (see layouts/native/staged.py).
Invariant: abort never undoes a commit point: Spark calls it even after a commit that raised.
Crash: see staged.py; a task attempt that dies leaves a part that nobody names, and the commit removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dirqueue.errors import Full, QueueNotFound, SettingsError
from dirqueue.layouts.native import Native, staged
from dirqueue.queue import too_large
from dirqueue.renewer import RENEWER
from dirqueue.settings import MAX_PRIORITY, Settings, check_seconds
from dirqueue.spark.columns import bodies_of, check_write
from dirqueue.spark.options import WRITE, Options, open_native, open_queue


@dataclass
class Written(WriterCommitMessage):
    """What one task attempt wrote."""

    staging: str
    parts: list[str] = field(default_factory=list)
    count: int = 0
    app: str = ""


def write_parts(queue: str, settings: dict[str, Any], staging: str, rows: Iterator[Any]) -> Written:
    """Write the rows of one task attempt; remove them again if it fails."""
    native = open_native(queue, **settings)
    writer = staged.Writer(native.directory, native.settings, staging)
    alive = _Staging(native, staging)
    alive.renew()  # the start of a task may have taken as long as the first row will
    RENEWER.watch(alive, native.settings.stale / 4)
    try:
        for each in rows:
            _write_rows(writer, native.settings, each)
        parts = writer.finish()
    except BaseException:
        writer.discard()
        raise
    finally:
        RENEWER.forget(alive)
    return Written(staging, parts, writer.count)


class _Staging:
    """The staging directory of a job, kept from becoming stale while a task waits for its next row."""

    def __init__(self, native: Native, staging: str) -> None:
        self._native = native
        self._name = staging

    def renew(self) -> None:
        staged.touch(self._native.directory, self._name)


def _write_rows(writer: staged.Writer, settings: Settings, rows: Any) -> None:
    """Write one Arrow batch; each priority goes to separate parts."""
    bodies = bodies_of(rows)
    limit = settings.max_size
    if limit and bodies and max(map(len, bodies)) > limit:
        raise too_large(max(map(len, bodies)), limit)
    columns = rows.schema.names
    delays = [_delay(each) for each in rows.column("delay").to_pylist()] if "delay" in columns else None
    if "priority" not in columns:
        writer.add(bodies, settings.default_priority if settings.priorities else None, delays)
        return
    by_priority: dict[int | None, list[int]] = {}
    for index, priority in enumerate(rows.column("priority").to_pylist()):
        by_priority.setdefault(_priority(priority, settings), []).append(index)
    for priority, chosen in by_priority.items():
        some = None if delays is None else [delays[index] for index in chosen]
        writer.add([bodies[index] for index in chosen], priority, some)


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
    settings: dict[str, Any],
    staging: str,
    messages: Sequence[Written | None],
    identity: staged.Identity | None,
) -> None:
    """Make visible what the winning attempts wrote."""
    written = [message for message in messages if message is not None]
    native = open_native(queue, **settings)
    parts = [part for message in written for part in message.parts]
    total = sum(message.count for message in written)
    limit = native.settings.max_messages
    repeated = identity is not None and staged.newest(native.directory, identity.app) >= identity.version
    if limit and not repeated and native.count() + total > limit:
        raise Full(f"{queue!r} has no room for {total} messages: max_messages={limit}", path=queue)
    staged.commit(native.directory, native.settings, staging, parts, identity)


def abort_parts(queue: str, settings: dict[str, Any], staging: str) -> None:
    """Remove what the attempts of a failed job wrote."""
    try:
        directory = open_queue(queue, **settings).layout.directory
    except QueueNotFound:
        return  # all of it went with the queue
    staged.abort(directory, staging)


def sync_setting(options: Options) -> dict[str, Any]:
    """Return the setting that a writer may choose."""
    return {} if options.text("sync") is None else {"sync": options.flag("sync", default=True)}


class BatchWriter(DataSourceArrowWriter):
    """One `save()`. Pickled: the same staging directory reaches every task, the commit and the abort."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        options = Options(given, WRITE)
        refuse_overwrite(overwrite=overwrite)
        check_write(schema)
        self._queue = options.path()
        self._settings = sync_setting(options)
        self._identity = _identity(options)
        native = open_native(self._queue, create=True, **self._settings)
        self._staging = staged.begin(native.directory)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_parts(self._queue, self._settings, self._staging, iterator)

    def commit(self, messages: list[Any]) -> None:
        commit_parts(self._queue, self._settings, self._staging, messages, self._identity)

    def abort(self, messages: list[Any]) -> None:
        abort_parts(self._queue, self._settings, self._staging)


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
