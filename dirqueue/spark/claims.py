"""Messages claimed for the length of a `with` block, as a DataFrame.

Layer: edges.  Touches: pins (see layouts/native/pins.py).
Crash: a driver that dies gives no more signs of life, and purge gives its messages back after `timeout` seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dirqueue.disk.identity import new_token
from dirqueue.errors import DirQueueError, LeaseLost, SettingsError
from dirqueue.layouts.native import pins
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import claimable
from dirqueue.settings import check_seconds
from dirqueue.spark.options import local, open_queue

#: Without a sign of life from the driver for so long, its messages go back.
TIMEOUT = 300.0


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
) -> Iterator[DataFrame]:
    """Take messages out of the queue while the block runs: acknowledged at its end, given back on an exception.

    The DataFrame may be used as often as needed; it is always the same messages. LeaseLost at the end of the block
    says that this driver was away for longer than `timeout` and others may have the messages by now.

    Args:
        limit: At most so many messages; all there are if None.
        max_bytes: At most so much (but at least one message).
        timeout: Seconds without a sign of life from the driver before a purge gives the messages back.
        keep: Keep what is acknowledged in done/.
        partitions: Tasks to spread the messages over; Spark's default parallelism if None.
        schema: Columns to read; all if None.
    """
    for name, value in (("limit", limit), ("max_bytes", max_bytes), ("partitions", partitions)):
        if value is not None and (type(value) is not int or value < 1):
            raise SettingsError(f"{name} must be a whole number of at least 1, not {value!r:.60}")
    check_seconds("timeout", timeout, above=True)
    queue = local(path)
    native = open_queue(queue).native
    pins.release_stale(native.directory, native.settings)
    mine = Pins(native.directory, native.settings, f"claim-{new_token()}")
    about = {"host": os.uname().nodename, "pid": os.getpid(), "kind": "claim"}
    mine.register(timeout, keep=keep, **about)
    pieces = partitions or _parallelism(spark)
    supply = claimable(native.directory, native.settings)
    with _renewed(mine, timeout):
        try:
            count = mine.pin(1, supply, Limit(limit, max_bytes), pieces=pieces)
            reader = spark.read.format("dirqueue").option("numPartitions", pieces)
            if schema is not None:
                reader = reader.schema(schema)
            frame = reader.option("pinned", f"{mine.consumer}/1").load(queue)
            yield frame if count else frame.limit(0)
        except BaseException:
            mine.release(1)
            mine.forget()
            raise
        if count:
            mine.ack(1, keep=keep)
        mine.forget()


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so with errors of its own
        return os.cpu_count() or 1


@contextmanager
def _renewed(mine: Pins, timeout: float) -> Iterator[None]:
    """Give signs of life from a thread."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(timeout / 4):
            try:
                mine.beat()
            except LeaseLost:
                return  # the end of the block will be told
            except DirQueueError:
                continue  # a dead server; there is time to try again

    thread = threading.Thread(target=beat, name="dirqueue-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
