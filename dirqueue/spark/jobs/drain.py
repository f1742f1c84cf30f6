"""A queue drained to files, exactly once: one run takes what is there and ends, so that cron can run it.

Layer: edges.  Touches: pins of the queue, the output, the checkpoint.
Crash: the next run with the same checkpoint resumes; Spark's file sink writes each batch once by its own log. A driver
that is stopped for longer than claimTimeout may write its last batch twice (see stream_source.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dirqueue.errors import DirQueueError, SettingsError
from dirqueue.spark.options import local, open_native, open_queue

FORMATS = ("parquet", "json", "csv", "orc", "text")
COLUMNS = (
    "id string, value binary, enqueued_at timestamp, attempts int, priority int, size long, queue string"
)
#: Where Spark's file sink writes down what it has written.
LOG = "_spark_metadata"


@dataclass(frozen=True)
class Drained:
    """What one run moved."""

    #: Messages, or records of them.
    messages: int
    batches: int
    #: Ready when the run ended: put while it ran.
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
    records: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Drained:
    """Move all messages of the queue to files, each exactly once, and end.

    A body that is not UTF-8 text goes to the column `raw` instead of `value`: as bytes, or as base64 in json and csv.
    Files of format text hold the bodies alone, byte for byte.

    Args:
        output: A directory; new files are added to it.
        checkpoint: A directory for the state of the job; OUTPUT.checkpoint if None. It belongs to this queue and this
            output.
        format: parquet, json, csv, orc or text.
        batch: Messages in one batch; all at once if None.
        binary: Write all bodies as bytes to `value` (parquet and orc).
        keep: Keep drained messages in the queue's done/.
        records: Write a row for each record, with its number in the column `record`.
        progress: Called with the number of messages after each batch.
    """
    if format not in FORMATS:
        raise SettingsError(f"format must be one of {', '.join(FORMATS)}, not {format!r:.60}")
    if binary and format not in ("parquet", "orc"):
        raise SettingsError(f"binary bodies need parquet or orc, not {format}")
    path, target = local(queue), os.path.abspath(os.fspath(output))
    memory = os.path.abspath(os.fspath(checkpoint)) if checkpoint else f"{target}.checkpoint"
    open_native(path)  # an error here, not in the stream
    _check_output(target, memory)
    reader = spark.readStream.format("dirqueue").option("ackMode", "keep" if keep else "delete")
    if records:
        reader = reader.option("records", "true")
    if batch is not None:
        reader = reader.option("maxMessagesPerTrigger", batch)
    frame = _select(reader.schema(COLUMNS + ", record int" * records).load(path), format, binary=binary)
    query = (
        frame.writeStream.format(format)
        .option("checkpointLocation", memory)
        .trigger(availableNow=True)
        .start(target)
    )
    counted = _follow(query, progress)
    return Drained(
        sum(counted.values()), sum(1 for rows in counted.values() if rows), open_queue(path).stats().ready
    )


def _select(frame: DataFrame, format: str, *, binary: bool) -> DataFrame:
    """Return the columns to write: bodies as text, those that are not UTF-8 as `raw`."""
    if binary:
        return frame
    if format == "text":
        return frame.selectExpr("cast(value AS string) AS value")
    valid = "is_valid_utf8(cast(value AS string))"
    raw = "base64(value)" if format in ("json", "csv") else "value"
    columns = [name for name in frame.columns if name not in ("id", "value")]
    return frame.selectExpr(
        "id",
        f"CASE WHEN {valid} THEN cast(value AS string) END AS value",
        *columns,
        f"CASE WHEN NOT {valid} THEN {raw} END AS raw",
    )


def _check_output(target: str, checkpoint: str) -> None:
    """Refuse an output that is not the one that the checkpoint has written to."""
    commits = os.path.join(checkpoint, "commits")
    if os.path.isdir(commits) and os.listdir(commits) and not os.path.isdir(os.path.join(target, LOG)):
        raise SettingsError(
            f"the checkpoint {checkpoint!r} has written to {target!r}, whose log {LOG} is gone: it was deleted, "
            f"moved or renamed. Put it back, or remove the checkpoint as well to begin a new output"
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
    """Return our own sentence out of a page of traces, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("dirqueue.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0] if lines else type(error).__name__
