"""The queues of a job, and how they are spread over executors.

Layer: edges.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from dirqueue.errors import QueueNotFound
from dirqueue.spark.jobs.progress import Progress, followed


def find_queues(given: str | os.PathLike[str] | Iterable[str]) -> list[str]:
    """Return the queues that paths, patterns and directories with queues under them stand for."""
    from dirqueue.tools import discover

    several = [os.fspath(given)] if isinstance(given, (str, os.PathLike)) else [os.fspath(p) for p in given]
    found: list[str] = []
    for each in several:
        matches = [each] if os.path.isdir(each) else sorted(filter(os.path.isdir, glob.glob(each)))
        if not matches:
            raise QueueNotFound(f"there is no queue at {each!r}", path=each)
        for match in matches:
            found += list(discover.find(match)) or [match]
    return list(dict.fromkeys(os.path.abspath(path) for path in found))


def spread(
    spark: SparkSession,
    paths: list[str],
    each: Callable[[str], Iterator[tuple[Any, ...]]],
    schema: str,
    names: list[str],
    tasks: int | None,
    progress: Progress | None,
) -> list[tuple[Any, ...]]:
    """Run `each(path)` for every path on the executors; return all rows."""
    if not paths:
        return []

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            rows = [row for path in batch.column(0).to_pylist() for row in each(path)]
            if rows:
                columns = [list(column) for column in zip(*rows, strict=True)]
                yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)

    pieces = tasks or min(len(paths), 64)
    frame = spark.createDataFrame([(path,) for path in paths], "path string").repartition(pieces)
    with followed(spark, progress):
        return [tuple(row) for row in frame.mapInArrow(run, schema).collect()]
