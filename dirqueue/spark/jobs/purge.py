"""Purging many queues, spread over executors.

Layer: edges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from dirqueue.errors import DirQueueError
from dirqueue.layouts.base import Purged
from dirqueue.queue import Queue
from dirqueue.spark.jobs.progress import Progress
from dirqueue.spark.jobs.queues import find_queues, spread


@dataclass(frozen=True)
class Cleaned:
    """What was removed from all queues together."""

    queues: int
    purged: Purged
    #: The path of each queue that could not be purged, and the error.
    failed: dict[str, str] = field(default_factory=dict)


def purge(
    spark: SparkSession,
    queues: str | os.PathLike[str] | Iterable[str],
    *,
    tasks: int | None = None,
    progress: Progress | None = None,
) -> Cleaned:
    """Purge queues: paths, patterns, or directories with queues somewhere under them.

    Args:
        tasks: The number of tasks; one for each queue, up to 64, if None.
        progress: Called while it runs with the number of tasks that are done and of all tasks.
    """
    paths = find_queues(queues)
    names = [*Purged._fields, "path", "error"]
    schema = ", ".join(f"{name} long" for name in Purged._fields) + ", path string, error string"
    rows = spread(spark, paths, _purge, schema, names, tasks, progress)
    total = Purged()
    failed = {}
    for row in rows:
        total += Purged(*row[: len(Purged._fields)])
        if row[-1]:
            failed[row[-2]] = row[-1]
    return Cleaned(len(paths), total, failed)


def _purge(path: str) -> Iterator[tuple[Any, ...]]:
    try:
        with Queue(path, create=False) as queue:
            yield (*queue.purge(), path, None)
    except DirQueueError as error:
        yield (*Purged(), path, str(error))
