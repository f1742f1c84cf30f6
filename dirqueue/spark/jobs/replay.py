"""Making dead messages ready again, chosen by a SQL condition.

Layer: edges.  Touches: dead messages, by their exact names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from dirqueue.spark.jobs.progress import Progress, followed
from dirqueue.spark.options import local, open_queue

COLUMNS = (
    "id string, value binary, error string, attempts int, priority int, size long, enqueued_at timestamp, "
    "until timestamp, queue string"
)


@dataclass(frozen=True)
class Replayed:
    """The number of messages that matched, and of those that became ready again."""

    matched: int
    #: Fewer than `matched` if others redrove or removed some meanwhile; 0 in a dry run.
    redriven: int


def replay(
    spark: SparkSession,
    queue: str | os.PathLike[str],
    where: str = "true",
    *,
    dry_run: bool = False,
    records: bool = False,
    progress: Progress | None = None,
) -> Replayed:
    """Make dead messages ready again, with no attempts counted.

    Args:
        where: A SQL condition over id, value, error, attempts, priority, size, enqueued_at, until (when it died) and
            queue, e.g. "error LIKE 'Timeout%' AND attempts < 10".
        dry_run: Only count.
        records: Ask the condition of each record, which is then `value`, with its number in `record`; a message goes
            back whole if one of its records matches.
        progress: Called while it runs with the number of tasks that are done and of all tasks.
    """
    path = local(queue)
    open_queue(path)
    chosen = (
        spark.read.format("dirqueue")
        .option("state", "dead")
        .option("records", records)
        .schema(COLUMNS + ", record int" * records)
        .load(path)
        .withColumn("value", f.col("value").cast("string"))  # does not fail for bodies that are not UTF-8
        .where(where)
        .select("id")  # the records of a message are read by one task, which looks at each id once
    )
    with followed(spark, progress):
        if dry_run:
            return Replayed(int(chosen.distinct().count()), 0)
        rows = chosen.mapInArrow(_redrive(path), "matched long, redriven long").collect()
    return Replayed(sum(row[0] for row in rows), sum(row[1] for row in rows))


def _redrive(path: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        wanted = {id for batch in batches for id in batch.column(0).to_pylist()}
        if not wanted:
            return
        layout = open_queue(path).layout
        found = [entry for entry in layout.entries(("dead",)) if entry.state == "dead" and entry.id in wanted]
        done = sum(layout.redrive(entry) for entry in found)
        if done and layout.settings.sync:
            layout.directory.sync()
        yield pa.RecordBatch.from_pydict({"matched": [len(wanted)], "redriven": [done]})

    return run
