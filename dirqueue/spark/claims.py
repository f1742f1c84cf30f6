"""Messages claimed for the length of a `with` block, as a DataFrame.

Layer: edges.  Touches: pins (see layouts/native/pins.py).
Crash: the heartbeat ends with the driver, and its messages go back to the queue after `timeout` seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dirqueue.disk.identity import new_token
from dirqueue.errors import SettingsError
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.settings import check_seconds
from dirqueue.space.transaction import Transaction, rename
from dirqueue.spark.consumer import TIMEOUT, Consumer, release_abandoned
from dirqueue.spark.living import living
from dirqueue.spark.options import PINNED, local, open_native


@contextmanager
def claim(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    limit: int | None = None,
    max_bytes: int | None = None,
    timeout: float = TIMEOUT,
    keep: bool = False,
    partitions: int | None = None,
    schema: str | StructType | None = None,
    records: bool = False,
    transaction: Transaction | None = None,
) -> Iterator[DataFrame]:
    """Claim messages while the block runs: they are acknowledged at its end, or given back on an exception.

    The DataFrame may be used as often as needed inside the block; it always holds the same messages. LeaseLost at the
    end of the block means that the driver was stopped for longer than `timeout` and others may have the messages by
    now: what the block wrote may then be written twice.

    Args:
        limit: The most messages to claim; all there are if None.
        max_bytes: The most bytes to claim (but at least one message).
        timeout: Seconds without a heartbeat of the driver after which the messages go back to the queue.
        keep: Keep acknowledged messages in done/.
        partitions: Tasks to spread the messages over; Spark's default parallelism if None.
        schema: Columns to read; all if None.
        records: Whether each record is a row.
        transaction: One of the space that the queue is in: it is committed at the end of the block, and the messages go
            together with all else that it does, or not at all. On Conflict they go back to the queue.
    """
    for name, value in (("limit", limit), ("max_bytes", max_bytes), ("partitions", partitions)):
        if value is not None and (type(value) is not int or value < 1):
            raise SettingsError(f"{name} must be a whole number of at least 1, not {value!r:.60}")
    check_seconds("timeout", timeout, above=True)
    queue = local(path)
    native = open_native(queue)
    release_abandoned(native.directory, native.settings)
    consumer = Consumer(native, f"claim-{new_token()}", "claim")
    consumer.register(timeout, keep=keep)
    mine = consumer.pins
    pieces = partitions or _parallelism(spark)
    try:
        count = mine.pin(1, living(native), Limit(limit, max_bytes))
        reader = spark.read.format("dirqueue").option("numPartitions", pieces).option("records", records)
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.option(PINNED, f"{mine.consumer}/1").load(queue)
        yield frame if count else frame.limit(0)
        consumer.stop()
        if transaction is not None:
            _commit(transaction, native, mine, count)
    except BaseException:
        consumer.stop()
        mine.release(1)
        mine.forget()
        raise
    if count and transaction is None:
        mine.ack(1, keep=keep)
    elif count:
        mine.finish("1.ack", keep=keep)
    mine.forget()


def _commit(transaction: Transaction, native: Native, mine: Pins, count: int) -> None:
    """Commit what was put, and the end of the lot with it."""
    if count:
        rename(transaction, native, f"{mine.base}/1", f"{mine.base}/1.ack")
    transaction.commit()


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context and raises errors of its own
        return os.cpu_count() or 1
