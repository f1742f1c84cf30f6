"""A queue as the sink of a stream: each batch of each query is written once.

Layer: edges.  Touches: batches (see layouts/native/staged.py).
Spark makes one writer object for the tasks of a batch and another for its commit, so that everything the commit has
to know travels in the tasks' messages. An abort, which has no messages of failed tasks, finds their staging directories
by name, as these are named after the checkpoint. The identity is (query, batch): a batch that Spark runs again after a
crash is the same.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from dirqueue.disk import fs
from dirqueue.disk.identity import TIME_DIGITS, UNIQUE_DIGITS
from dirqueue.errors import DirQueueError
from dirqueue.layouts.native import names, staged
from dirqueue.spark.columns import check_write
from dirqueue.spark.options import SINK, Options, open_native
from dirqueue.spark.write import (
    How,
    Staging,
    Written,
    abort_parts,
    commit_parts,
    refuse_overwrite,
)


class StreamWriter(DataSourceStreamArrowWriter):
    """One batch of a stream."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        options = Options(given, SINK)
        refuse_overwrite(overwrite=overwrite)
        check_write(schema)
        self._queue = options.path()
        self._how = How.chosen(options, schema)
        native = open_native(self._queue, create=True, **self._how.settings)
        self._ours = _prefix(options.text("checkpointLocation"))
        # NFS: each batch has another name, so that no host takes it for the last one, which is gone.
        staging = self._ours and f"{self._ours}{random.randrange(10**UNIQUE_DIGITS):0{UNIQUE_DIGITS}d}"  # noqa: S311
        self._staging = Staging.begin(native, staging).name

    def write(self, iterator: Iterator[Any]) -> Written:
        from pyspark import TaskContext

        from dirqueue.spark.task import write_parts  # COST: pyarrow, in tasks only

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query:
            raise DirQueueError(
                "this version of Spark does not pass the id of the stream to its tasks: pyspark 4.2 or newer does"
            )
        written = write_parts(self._queue, self._how, self._staging, iterator)
        written.app = f"stream-{query}"
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        first = next((message for message in messages if message is not None), None)
        if first is None:
            return self.abort(messages, batchId)
        identity = staged.Identity(first.app, batchId)
        commit_parts(self._queue, self._how, first.staging, messages, identity)
        return abort_parts(self._queue, self._how, self._staging)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        staged = {self._staging, *(message.staging for message in messages if message is not None)}
        for staging in sorted(staged.union(self._found())):
            abort_parts(self._queue, self._how, staging)

    def _found(self) -> list[str]:
        """Return all staging directories of this stream: one batch of it runs at a time."""
        if self._ours is None or not os.path.isdir(self._queue):
            return []
        parsed = map(names.parse, fs.names_in(self._queue, -1))
        return [
            name.id
            for name in parsed
            if name is not None and name.kind == names.STAGING and name.id.startswith(self._ours)
        ]


def _prefix(checkpoint: str | None) -> str | None:
    """Return the first digits of this stream's ids; None where Spark does not pass the checkpoint."""
    if checkpoint is None:
        return None
    digits = int(hashlib.sha256(checkpoint.encode()).hexdigest(), 16) % 10 ** (TIME_DIGITS - 2)
    return f"10{digits:0{TIME_DIGITS - 2}d}"  # a time long past, so that purge goes by that of the file
