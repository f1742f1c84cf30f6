"""A report on many queues: depth, age, throughput and failures, counted from names by the executors.

Layer: edges.  Touches: nothing; reads names, and the reasons kept beside dead messages.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dirqueue import states
from dirqueue.errors import DirQueueError, MessageNotFound
from dirqueue.layouts.base import Layout
from dirqueue.message import Entry
from dirqueue.queue import Queue
from dirqueue.records import HEAD, count_of
from dirqueue.spark.jobs.progress import Progress
from dirqueue.spark.jobs.queues import find_queues, spread

#: Failures are grouped by this many characters of the first line of their reason, and counted for so many reasons.
REASON = 80
REASONS = 1000
OTHER = "other reasons"
SCHEMA = (
    "queue string, ready long, delayed long, leased long, dead long, done long, oldest_s double, put_last_hour long, "
    "done_last_hour long, records long, failures string, error string"
)
NAMES = [each.split()[0] for each in SCHEMA.split(", ")]


@dataclass(frozen=True)
class Line:
    """One queue."""

    queue: str
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    #: Age of the oldest ready message in seconds; None if there is none.
    oldest_s: float | None = None
    #: Messages still known that were put, and acknowledged (where the queue keeps them), within the last hour.
    put_last_hour: int = 0
    done_last_hour: int = 0
    #: Records in the messages that are ready, delayed or leased; a message without records counts as one. None unless
    #: they were to be counted.
    records: int | None = None
    #: How many dead messages for each reason.
    failures: dict[str, int] = field(default_factory=dict)
    #: Why the queue could not be counted.
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """All queues, the fullest first."""

    lines: list[Line]

    @property
    def total(self) -> Line:
        """All queues as one."""
        failures: Counter[str] = Counter()
        for line in self.lines:
            failures.update(line.failures)
        counts = {
            name: sum(getattr(line, name) for line in self.lines)
            for name in (*states.VISIBLE, "put_last_hour", "done_last_hour")
        }
        records = [line.records for line in self.lines if line.records is not None]
        oldest = [line.oldest_s for line in self.lines if line.oldest_s is not None]
        return Line(
            f"{len(self.lines)} queues",
            **counts,
            oldest_s=max(oldest, default=None),
            records=sum(records) if records else None,
            failures=dict(failures),
        )

    def to_json(self) -> str:
        """Return one JSON object with the queues and the total."""
        return json.dumps({"queues": [asdict(line) for line in self.lines], "total": asdict(self.total)})

    def to_frame(self, spark: SparkSession) -> DataFrame:
        """Return the lines as a DataFrame."""
        rows = [
            (*(getattr(line, name) for name in NAMES[:-2]), json.dumps(line.failures), line.error)
            for line in self.lines
        ]
        return spark.createDataFrame(rows, SCHEMA)

    def to_svg(self, limit: int = 30) -> str:
        """Return a chart of the fullest queues as an SVG image."""
        from dirqueue.spark.jobs.chart import bars

        return bars(self._bars(limit), states.VISIBLE)

    def to_png(self, limit: int = 30) -> bytes:
        """Return the same chart as a PNG image; SettingsError unless matplotlib is installed."""
        from dirqueue.spark.jobs.chart import png

        return png(self._bars(limit), states.VISIBLE)

    def _bars(self, limit: int) -> list[tuple[str, list[int]]]:
        return [
            (line.queue, [getattr(line, state) for state in states.VISIBLE]) for line in self.lines[:limit]
        ]


def report(
    spark: SparkSession,
    queues: str | os.PathLike[str] | Iterable[str],
    *,
    tasks: int | None = None,
    records: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Count queues: paths, patterns, or directories with queues somewhere under them.

    Args:
        tasks: The number of tasks; one for each queue, up to 64, if None.
        records: Count records too: a look into every message that is ready, delayed or leased.
        progress: Called while it runs with the number of tasks that are done and of all tasks.
    """
    rows = spread(
        spark, find_queues(queues), functools.partial(_count, records=records), SCHEMA, NAMES, tasks, progress
    )
    found = (dict(zip(NAMES, row, strict=True)) for row in rows)
    lines = [Line(**each | {"failures": json.loads(each["failures"])}) for each in found]
    return Report(sorted(lines, key=lambda line: (-line.ready - line.delayed - line.leased, line.queue)))


def _count(path: str, *, records: bool) -> Iterator[tuple[Any, ...]]:
    """Count one queue; what is kept does not grow with it."""
    counts = dict.fromkeys(states.VISIBLE, 0)
    failures: Counter[str] = Counter()
    put = done = packed = 0
    oldest: int | None = None
    now = time.time_ns() // 1000
    hour = now - 3_600_000_000
    error = None
    try:
        # Closed at the end, as a task may count more queues than it may have files open.
        with Queue(path, create=False) as queue:
            for entry in queue.layout.entries():
                if entry.state not in counts:
                    continue
                counts[entry.state] += 1
                put += entry.put >= hour
                if records and entry.state in states.LIVE:
                    packed += _records(queue.layout, entry)
                if entry.state == "ready":
                    oldest = entry.put if oldest is None else min(oldest, entry.put)
                elif entry.state == "done":
                    done += entry.until >= hour
                elif entry.state == "dead":
                    reason = _reason(queue.layout, entry)
                    failures[reason if reason in failures or len(failures) < REASONS else OTHER] += 1
    except (DirQueueError, OSError) as problem:
        error = str(problem)
    age = None if oldest is None else max(0.0, (now - oldest) / 1_000_000)
    yield (
        path,
        *counts.values(),
        age,
        put,
        done,
        packed if records else None,
        json.dumps(failures),
        error,
    )


def _reason(layout: Layout, entry: Entry) -> str:
    why = layout.failure(entry)
    return (why.error.splitlines() or [""])[0][:REASON] if why else "unknown"


def _records(layout: Layout, entry: Entry) -> int:
    try:
        with layout.stream(entry.place) as body:
            return count_of(body.read(HEAD))
    except MessageNotFound:
        return 0  # it moved on
