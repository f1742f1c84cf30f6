"""A source and a sink of Spark in Python that are no queue: what Spark takes for any stream of this kind.

The source makes rows of 100 bytes in memory, in two partitions and one batch; the sink drops them. Workers import this module.
"""

# ruff: noqa: N802, N803 - names of Spark
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

#: Rows in one Arrow batch, as many as a queue gives.
ROWS = 4096


class Floor(DataSource):
    """Rows from nowhere to nowhere; the option rows says how many."""

    @classmethod
    def name(cls):
        return "floor"

    def schema(self):
        return "value binary"

    def streamReader(self, schema):
        return Reader(int(self.options["rows"]))

    def streamWriter(self, schema, overwrite):
        return Writer()


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All rows in one batch."""

    def __init__(self, rows):
        self._rows = rows

    def prepareForTriggerAvailableNow(self):
        pass

    def initialOffset(self):
        return {"rows": 0}

    def latestOffset(self, start, limit):
        return {"rows": self._rows}

    def partitions(self, start, end):
        half = (end["rows"] - start["rows"]) // 2
        return [InputPartition(half), InputPartition(half)] if half else []

    def read(self, partition):
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 100] * ROWS, pa.binary())})
        for begin in range(0, partition.value, ROWS):
            yield batch.slice(0, min(ROWS, partition.value - begin))


class Writer(DataSourceStreamArrowWriter):
    """Drops every row."""

    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages, batchId):
        pass

    def abort(self, messages, batchId):
        pass
