"""The progress of a job, reported while it runs.

Layer: edges.  Touches: nothing but the name of the job's group, which Spark keeps for each thread.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

#: Called with the number of tasks that are done and of all tasks.
Progress = Callable[[int, int], None]

EVERY_SECONDS = 0.5
#: Spark's own count may come a little after the result.
LATE_SECONDS = 10.0
_GROUP = "spark.jobGroup.id"


@contextmanager
def followed(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Report the progress of the tasks started in this block: when it changes, and once at the end."""
    context = None if progress is None else _context(spark)
    if progress is None or context is None:
        yield
        return
    group, before = f"dirqueue-{uuid.uuid4()}", context.getLocalProperty(_GROUP)
    over = threading.Event()

    def follow() -> None:
        shown = (0, 0)
        while not over.wait(EVERY_SECONDS):
            done, all, _ = _tasks(context, group)
            if (done, all) != shown and all:
                shown = (done, all)
                progress(done, all)

    thread = threading.Thread(target=follow, name="dirqueue-progress", daemon=True)
    context.setLocalProperty(_GROUP, group)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        context.setLocalProperty(_GROUP, before)
    deadline = time.monotonic() + LATE_SECONDS
    while not (found := _tasks(context, group)).over and time.monotonic() < deadline:
        time.sleep(0.05)
    # Stages that Spark found it could skip are in the sum of all, and never done.
    progress(found.done, found.done)


def _context(spark: SparkSession) -> Any:
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - Spark Connect has no context and raises errors of its own
        return None


class Tasks(NamedTuple):
    """The tasks of a group of jobs."""

    done: int
    all: int
    #: Whether there are jobs, and Spark knows that they ended.
    over: bool


def _tasks(context: Any, group: str) -> Tasks:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    known = [job for job in jobs if job is not None]
    ids = {stage for job in known for stage in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
    return Tasks(
        sum(stage.numCompletedTasks for stage in stages),
        sum(stage.numTasks for stage in stages),
        bool(known) and all(job.status != "RUNNING" for job in known),
    )
