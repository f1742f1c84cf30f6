"""A queue as the sink of a stream: each batch of each query is written once.

Layer: edges.  Touches: batches (see layouts/native/batch.py).
Spark makes one writer object for the tasks of a batch and another for its commit, so that everything the commit has
to know travels in the tasks' messages. The identity is (query, batch): a batch that Spark runs again after a crash
is the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from dirqueue.errors import DirQueueError
from dirqueue.layouts.native import batch
from dirqueue.names import new_id

from .columns import check_write
from .opening import SINK, Options, open_queue
from .write import Written, abort_parts, commit_parts, refuse_overwrite, sync_setting, write_parts


class StreamWriter(DataSourceStreamArrowWriter):
    """One batch of a stream."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        options = Options(given, SINK)
        refuse_overwrite(overwrite=overwrite)
        check_write(schema)
        self._queue = options.path()
        self._settings = sync_setting(options)
        self._staging = new_id()
        open_queue(self._queue, create=True, **self._settings).native  # noqa: B018 - refused here, not in a task

    def write(self, iterator: Iterator[Any]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query:
            raise DirQueueError(
                "this Spark does not tell its tasks the id of the stream (pyspark 4.2 or newer does)"
            )
        written = write_parts(self._queue, self._settings, self._staging, iterator)
        written.app = f"stream-{query}"
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        app = next((message.app for message in messages if message is not None), None)
        if app is not None:
            commit_parts(self._queue, self._settings, messages, batch.Identity(app, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        for staging in {message.staging for message in messages if message is not None}:
            abort_parts(self._queue, self._settings, staging)
