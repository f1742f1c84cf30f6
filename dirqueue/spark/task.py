"""One task of a write: its rows become messages in parts of the staging directory.

Layer: edges.  Touches: batches (see layouts/native/attempt.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from dirqueue.bounds import too_large
from dirqueue.errors import DirQueueError, SettingsError
from dirqueue.layouts.native import Native, attempt
from dirqueue.renewer import RENEWER
from dirqueue.settings import MAX_PRIORITY, Settings, check_seconds
from dirqueue.spark.extras import Carried, carried_of
from dirqueue.spark.options import open_native
from dirqueue.spark.records import KINDS, Packer
from dirqueue.spark.write import How, Packing, Staging, Written


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


class _Messages:
    """Rows of one task as messages, one for each."""

    def __init__(self, writer: attempt.Writer, native: Native) -> None:
        self._writer = writer
        self._settings = native.settings
        self._clock = native.directory.clock

    def add(self, rows: Any) -> None:
        """Write one Arrow batch; each priority goes to separate parts."""
        bodies: list[bytes] = _bodies(rows).to_pylist()
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
        bodies, plain = _bodies(rows), _Kind(_default(self._settings))
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


def _bodies(batch: pa.RecordBatch) -> pa.Array:
    """Return the bodies of an Arrow batch that is to be put, as an array of bytes."""
    column = batch.column("value")
    if column.null_count:
        raise DirQueueError(
            "column value holds a null, but every message has a body: filter such rows out first"
        )
    if not pa.types.is_large_binary(column.type) and not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    return column
