"""Fixtures for the tests of programs that use dirqueue: a queue on tmpfs, and a clock that can be moved.

Layer: edges.  Touches: a temporary directory of its own.
pytest finds this by its entry point; `-p no:dirqueue` leaves it out.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dirqueue.queue import Queue

#: Where Linux has a filesystem in memory.
MEMORY = "/dev/shm"  # noqa: S108 - a directory of our own is made in it


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark."""
    config.addinivalue_line(
        "markers", "dirqueue(codec=..., **settings): how the queue of the fixture dirqueue_queue is opened"
    )


@pytest.fixture
def dirqueue_path() -> Iterator[Path]:
    """Give a path where no queue is yet: in memory if there is such a filesystem. It is removed at the end."""
    folder = MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="dirqueue-test-", dir=folder, ignore_cleanup_errors=True
    ) as scratch:
        yield Path(scratch, "queue")


@pytest.fixture
def dirqueue_queue(request: pytest.FixtureRequest, dirqueue_path: Path) -> Iterator[Queue[Any]]:
    """Give an empty queue that does not wait for the disk; the mark `dirqueue` has its codec and settings."""
    from dirqueue.queue import Queue

    mark = request.node.get_closest_marker("dirqueue")
    given: dict[str, Any] = {"sync": False, "margin": 0.0} | dict(mark.kwargs if mark else {})
    with Queue(dirqueue_path, **given) as queue:
        yield queue


class MovableClock:
    """The clock that leases, delays and backoffs are judged by, in this process."""

    def __init__(self) -> None:
        #: Seconds that it is ahead of the real time.
        self.ahead = 0.0

    def move(self, seconds: float) -> None:
        """Move the clock: leases and delays that end meanwhile are over."""
        self.ahead += seconds

    @property
    def now(self) -> datetime:
        """What it shows, in UTC."""
        return datetime.now(UTC) + timedelta(seconds=self.ahead)


@pytest.fixture
def dirqueue_clock() -> Iterator[MovableClock]:
    """Give a clock that can be moved, for all native queues of this process."""
    from dirqueue.disk import clock as clocks

    moved, compare = MovableClock(), clocks.Clock._compare  # noqa: SLF001 - where our time and the server's meet

    def difference(clock: clocks.Clock) -> int:
        clock.offset = 0  # of an earlier look, which was moved too
        return compare(clock) + int(moved.ahead * 1_000_000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks.Clock, "_compare", difference)
        patch.setattr(clocks.Clock, "plausible", True)
        patch.setattr(clocks, "TRUST_NS", 0)  # looked at each time
        _distrust()
        yield moved
    _distrust()


def _distrust() -> None:
    """Have every clock looked at again: those of open queues are trusted for a while."""
    from dirqueue.disk.clock import Clock

    for each in gc.get_objects():
        if type(each) is Clock:
            each.offset = each.till = 0
