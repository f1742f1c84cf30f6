"""A queue as the sink of a stream: each batch of each query is written once.

Layer: edges.  Touches: batches (see layouts/native/batch.py).
Spark makes one writer object for the tasks of a batch and another for its commit, so that everything the commit has
to know travels in the tasks' messages, or is the same by construction: the staging directory is named after the
checkpoint. The identity is (query, batch): a batch that Spark runs again after a crash is the same batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from dirqueue.errors import DirQueueError
from dirqueue.layouts.native import batch
from dirqueue.names import ID_DIGITS

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
        native = open_queue(self._queue, create=True, **self._settings).native
        self._staging = batch.begin(native.home, _staging(options.text("checkpointLocation")))

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
        first = next((message for message in messages if message is not None), None)
        if first is not None:
            identity = batch.Identity(first.app, batchId)
            commit_parts(self._queue, self._settings, first.staging, messages, identity)
        self.abort([], batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        for staging in {self._staging, *(message.staging for message in messages if message is not None)}:
            abort_parts(self._queue, self._settings, staging)


def _staging(checkpoint: str | None) -> str | None:
    """Return the one id that both writers of a batch come to; None where Spark keeps the checkpoint to itself.

    A late task of the batch before finds the directory of the next one: nobody names its part, and it goes with it.
    """
    if checkpoint is None:
        return None
    digits = int(hashlib.sha256(checkpoint.encode()).hexdigest(), 16) % 10 ** (ID_DIGITS - 2)
    return f"10{digits:0{ID_DIGITS - 2}d}"  # the time in it is long past, so that purge goes by the file's
