"""Executors as workers: each task claims messages, handles and acknowledges them, one by one.

Layer: edges.
At least once, as with every worker: retries and speculative copies of tasks are workers like the others and claim other
messages.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dirqueue.errors import Empty, LeaseLost, SettingsError
from dirqueue.message import Message
from dirqueue.queue import Queue
from dirqueue.spark.options import local
from dirqueue.tools.discover import need_queue
from dirqueue.worker.outcome import check_hook, check_result

Handler = Callable[[Message[Any]], Any]
SCHEMA = "worker string, done long, failed long, lost long, first_error string"


@dataclass(frozen=True)
class Worked:
    """What all workers did together."""

    workers: int
    #: Handled and acknowledged.
    done: int
    #: The handler raised: the message is tried again later, or is dead.
    failed: int
    #: The lease ran out while the handler ran; another consumer may have the message.
    lost: int
    #: The error of the first handler that failed.
    first_error: str | None


def work(
    over: DataFrame | Any | int,
    queue: str | os.PathLike[str],
    handler: Handler,
    *,
    spark: SparkSession | None = None,
    timeout: float = 0,
    limit: int | None = None,
    lease: float | None = None,
    codec: str = "bytes",
) -> Worked:
    """Run `handler(message)` on the executors until the queue is empty.

    Args:
        over: How many workers: a number, or a DataFrame or RDD with one partition for each (its rows are not used).
        queue: The path, the same on every host.
        handler: Called with each message. Returning acknowledges it; an exception gives it back to be tried again,
            and dirqueue.Retry, Reject and Release steer that.
        spark: The session, if `over` is a number; the active one if None.
        timeout: Seconds a worker waits for another message before it ends.
        limit: The most messages for each worker.
        lease: Seconds to hold a message; renewed while the handler runs.
        codec: bytes, text or json.
    """
    check_hook(handler, "handler")
    path = local(queue)
    Queue(path, create=False, codec=codec).close()
    need_queue(path)

    def run(_: Any) -> Iterator[tuple[Any, ...]]:
        yield _worker(path, handler, timeout, limit, lease, codec)

    if isinstance(over, int) and not isinstance(over, bool):
        if over < 1:
            raise SettingsError(f"the number of workers must be at least 1, not {over}")
        active = spark or SparkSession.getActiveSession()
        if active is None:
            raise SettingsError("no Spark session: make one with dirqueue.spark.session(), or give spark=")
        over = active.range(0, over, 1, over)
    if hasattr(over, "mapInArrow"):
        rows = [tuple(row) for row in over.mapInArrow(_arrow(run), SCHEMA).collect()]
    elif hasattr(over, "mapPartitions"):
        rows = over.mapPartitions(run).collect()
    else:
        raise SettingsError(f"work over a number, a DataFrame or an RDD, not {type(over).__name__}")
    errors = [row[4] for row in rows if row[4]]
    done, failed, lost = (sum(row[i] for row in rows) for i in (1, 2, 3))
    return Worked(len(rows), done, failed, lost, errors[0] if errors else None)


def _arrow(run: Callable[[Any], Iterator[tuple[Any, ...]]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def each(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        names = ["worker", "done", "failed", "lost", "first_error"]
        kinds = [pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.string()]
        for row in run(None):
            arrays = [pa.array([value], kind) for value, kind in zip(row, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    return each


def _worker(
    path: str, handler: Handler, timeout: float, limit: int | None, lease: float | None, codec: str
) -> tuple[Any, ...]:
    """Work in one task."""
    done = failed = lost = 0
    first: str | None = None
    queue: Queue[Any] = Queue(path, create=False, codec=codec)
    while limit is None or done + failed + lost < limit:
        try:
            held = queue.get(timeout=timeout, lease=lease)
        except Empty:
            break
        try:
            with held as message:
                check_result(handler(message))
        except LeaseLost:
            lost += 1
        except Exception as error:  # noqa: BLE001 - the handler's, kept beside the message by the lease
            failed += 1
            first = first or f"{type(error).__name__}: {error}"
        else:
            if held.ended == "acked":
                done += 1
            else:
                failed += 1
    queue.close()
    return f"{socket.gethostname()}-{os.getpid()}", done, failed, lost, first
