"""Draining a queue into files, exactly once: one run takes what is there and ends, so cron can run it.

Layer: edges.  Touches: pins of the queue, the output, the checkpoint.
Crash: the next run with the same checkpoint goes on; Spark's file sink writes each batch once by its own log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dirqueue.errors import DirQueueError, SettingsError
from dirqueue.spark.options import local, open_queue

FORMATS = ("parquet", "json", "csv", "orc", "text")
#: The body as text; files of text hold the body alone.
COLUMNS = (
    "id string, value string, enqueued_at timestamp, attempts int, priority int, size long, queue string"
)


@dataclass(frozen=True)
class Drained:
    """What one run took."""

    messages: int
    batches: int
    #: Waiting when the run ended: what came meanwhile.
    left: int


def drain(
    spark: SparkSession,
    queue: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    format: str = "parquet",
    batch: int | None = 100_000,
    binary: bool = False,
    keep: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Drained:
    """Move all that is in the queue to files, each message exactly once, and end.

    Args:
        output: A directory; new files are added to it.
        checkpoint: Where the run's memory is; OUTPUT.checkpoint if None. It belongs to this queue and this output.
        format: parquet, json, csv, orc or text.
        batch: Messages in one batch; all at once if None.
        binary: Keep the body as bytes (parquet and orc); otherwise it is UTF-8 text.
        keep: Keep drained messages in the queue's done/.
        progress: Called with the number of messages after each batch.
    """
    if format not in FORMATS:
        raise SettingsError(f"format must be one of {', '.join(FORMATS)}, not {format!r:.60}")
    if binary and format not in ("parquet", "orc"):
        raise SettingsError(f"binary bodies need parquet or orc, not {format}")
    path, target = local(queue), os.path.abspath(os.fspath(output))
    opened = open_queue(path)
    opened.native  # noqa: B018 - refused here, not in the stream
    schema = COLUMNS.replace("value string", "value binary") if binary else COLUMNS
    reader = spark.readStream.format("dirqueue").option("ackMode", "keep" if keep else "delete")
    if batch is not None:
        reader = reader.option("maxMessagesPerTrigger", batch)
    frame = reader.schema("value string" if format == "text" else schema).load(path)
    memory = os.path.abspath(os.fspath(checkpoint)) if checkpoint else f"{target}.checkpoint"
    query = (
        frame.writeStream.format(format)
        .option("checkpointLocation", memory)
        .trigger(availableNow=True)
        .start(target)
    )
    counted = _follow(query, progress)
    return Drained(
        sum(counted.values()), sum(1 for rows in counted.values() if rows), opened.queue.stats().ready
    )


def _follow(query: Any, progress: Callable[[int], None] | None) -> dict[int, int]:
    """Wait for the end; return the rows of each batch."""
    counted: dict[int, int] = {}
    try:
        over = False
        while not over:
            over = query.awaitTermination(1)
            for each in query.recentProgress:
                if each["batchId"] not in counted and progress and each["numInputRows"]:
                    progress(each["numInputRows"])
                counted[each["batchId"]] = max(each["numInputRows"], counted.get(each["batchId"], 0))
    except StreamingQueryException as error:
        raise DirQueueError(f"the drain stopped: {_reason(error)}") from error
    finally:
        query.stop()
    return counted


def _reason(error: BaseException) -> str:
    """Return the sentence that matters of a page of traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("dirqueue.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0] if lines else type(error).__name__
