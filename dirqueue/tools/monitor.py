"""Reading queues again and again: what is there, and what changed since the last reading.

Layer: tools.  Touches: nothing; keeps nothing but the last reading and a short series in memory.
Rates are what the kernel reported between two readings (`activity.py`). Where it cannot, they are differences between
them: what came and went in between is not seen, so on a fast queue they are lower bounds, and of a queue that is
too deep to be read whole only the depth is known, as an estimate.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.errors import SettingsError
from dirqueue.message import Entry
from dirqueue.queue import Queue
from dirqueue.stats import LIMIT, Sample, Stats, take_sample
from dirqueue.tools import discover
from dirqueue.tools.activity import Activity, watch

#: Readings in a series.
SERIES = 120
#: Names that all queues of one reading share, and the fewest for one queue.
SHARED_LIMIT = 60_000
FEWEST = 2_000
#: Most queues watched with inotify; the default limit is 128 instances per user.
WATCHED = 32
#: Most queues whose directories stay open between two readings; a process may often open no more than 1,024 files.
OPEN = 256
#: A queue is stuck when its oldest message waits for so many seconds and nobody holds any.
STUCK = 600


class Rates(NamedTuple):
    """Messages per second since the last reading; None where nothing is known."""

    put: float | None = None
    ack: float | None = None
    #: Failures: retried or dead.
    error: float | None = None


class Reading(NamedTuple):
    """One queue at one moment."""

    name: str
    path: str
    layout: str
    at: datetime
    stats: Stats
    #: Whether counts are an estimate or a lower bound.
    sampled: bool = False
    rates: Rates = Rates()
    #: Why it could not be read.
    error: str | None = None

    @property
    def complaints(self) -> list[str]:
        """What an operator should look at, the worst first; empty for a healthy queue."""
        return [text for _, text in self._complaints()]

    @property
    def severity(self) -> int:
        """How sick the queue is: 0 for a healthy one."""
        return sum(weight for weight, _ in self._complaints())

    def _complaints(self) -> Iterator[tuple[int, str]]:
        stats, rates = self.stats, self.rates
        if self.error is not None:
            yield 100, "cannot be read"
        if (rates.error or 0) > (rates.ack or 0):
            yield 20, "more failures than acks"
        if stats.expired:
            yield 10, f"{stats.expired:,} late"
        if stats.paused:
            yield 1, "paused"
        elif (
            stats.oldest_ready and not stats.leased and (self.at - stats.oldest_ready).total_seconds() > STUCK
        ):
            yield 5, "nobody takes anything"
        if stats.dead:
            yield 2, f"{stats.dead:,} dead"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "queue": self.path,
            "layout": self.layout,
            "at": self.at.isoformat(),
            **self.stats.to_dict(),
            "sampled": self.sampled,
            "put_rate": _rounded(self.rates.put),
            "ack_rate": _rounded(self.rates.ack),
            "error_rate": _rounded(self.rates.error),
            "error": self.error,
            "complaints": self.complaints,
        }


#: How readings can be sorted: what comes first by default is at the top.
SORTS: dict[str, Callable[[Reading], Any]] = {
    "sick": lambda reading: (-reading.severity, reading.name),
    "name": lambda reading: reading.name,
    "ready": lambda reading: (-reading.stats.ready, reading.name),
    "leased": lambda reading: (-reading.stats.leased, reading.name),
    "dead": lambda reading: (-reading.stats.dead, reading.name),
    "rate": lambda reading: (-(reading.rates.put or 0) - (reading.rates.ack or 0), reading.name),
    "oldest": lambda reading: (reading.stats.oldest_ready or datetime.max.replace(tzinfo=UTC), reading.name),
}


def arranged(
    readings: Iterable[Reading], sort: str = "sick", search: str = "", *, backwards: bool = False
) -> list[Reading]:
    """Return the readings whose name holds `search`, in whatever case, sorted; SettingsError for an unknown sort."""
    if sort not in SORTS:
        raise SettingsError(f"sort must be one of {', '.join(SORTS)}, not {sort!r:.60}")
    wanted = search.lower()
    found = [reading for reading in readings if wanted in reading.name.lower()]
    return sorted(found, key=SORTS[sort], reverse=backwards)


class Series:
    """The last readings of one queue, for a chart."""

    def __init__(self) -> None:
        self.at: deque[float] = deque(maxlen=SERIES)
        self.depth: deque[int] = deque(maxlen=SERIES)
        self.put: deque[float | None] = deque(maxlen=SERIES)
        self.ack: deque[float | None] = deque(maxlen=SERIES)
        self.error: deque[float | None] = deque(maxlen=SERIES)

    def add(self, reading: Reading) -> None:
        """Remember one reading."""
        self.at.append(reading.at.timestamp())
        self.depth.append(reading.stats.total)
        for name, value in reading.rates._asdict().items():
            getattr(self, name).append(value)


class _Seen(NamedTuple):
    """What is needed of the last reading to find what changed."""

    at: float
    live: frozenset[str]
    failed: frozenset[str]
    dead: frozenset[str]


class Monitor:
    """Reads one queue, or all queues under a root; new ones appear by themselves."""

    def __init__(self, root: str, *, limit: int = LIMIT) -> None:
        self.root = root
        self._limit = limit
        self._queues: dict[str, Queue[bytes]] = {}
        self._seen: dict[str, _Seen] = {}
        self._names: dict[str, str] = {}
        self._activities: dict[str, Activity | None] = {}
        self._counted_at: dict[str, float] = {}
        #: Which directory a queue was that is closed between readings.
        self._places: dict[str, tuple[int, int]] = {}
        self.series: dict[str, Series] = {}

    def read(self) -> list[Reading]:
        """Read every queue once, in order of their paths."""
        paths = list(discover.find(self.root))
        self._names = {path: self._name(path, alone=len(paths) == 1) for path in paths}
        for gone in {*self._queues, *self.series} - {*paths}:
            if gone in self._queues:
                self._queues.pop(gone).close()
            self._seen.pop(gone, None)
            self._places.pop(gone, None)
            self._unwatch(gone)
            self.series.pop(gone, None)
        limit = max(FEWEST, min(self._limit, SHARED_LIMIT // max(1, len(paths))))
        readings = []
        for number, path in enumerate(paths):
            readings.append(self._one(path, min(limit, self._limit)))
            if number >= OPEN:
                self._let_go(path)
        for reading in readings:
            self.series.setdefault(reading.path, Series()).add(reading)
        return readings

    def queue(self, name: str) -> Queue[bytes] | None:
        """Return the queue of that name as the last reading found it; no other path can be reached this way."""
        for path, queue in list(self._queues.items()):  # a reading may go on meanwhile, in another thread
            if self._names.get(path) == name:
                return queue
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all directories."""
        for path, queue in self._queues.items():
            queue.close()
            self._unwatch(path)
        self._queues.clear()

    def _unwatch(self, path: str) -> None:
        activity = self._activities.pop(path, None)
        if activity is not None:
            activity.close()

    def _reported(self, path: str, queue: Queue[bytes]) -> Rates | None:
        """Return the rates that the kernel reported; None if it did not."""
        now = time.monotonic()
        if path not in self._activities:
            few = sum(activity is not None for activity in self._activities.values()) < WATCHED
            self._activities[path] = watch(queue.layout) if few else None
            self._counted_at[path] = now
            return None
        activity = self._activities[path]
        counts = None if activity is None else activity.read()
        last, self._counted_at[path] = self._counted_at[path], now
        if counts is None or now <= last:
            return None
        return Rates(*(count / (now - last) for count in counts))

    def _name(self, path: str, *, alone: bool) -> str:
        """Return the path below the root. The root itself has its own name, or "." if there are others below it."""
        below = os.path.relpath(path, self.root)
        return os.path.basename(os.path.abspath(path)) if below == "." and alone else below

    def _one(self, path: str, limit: int) -> Reading:
        at = datetime.now(UTC)
        layout = ""
        try:
            queue = self._open(path)
            layout = queue.layout.name
            reported = self._reported(path, queue)
            before = time.monotonic()
            sample = take_sample(queue.layout, limit)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are read
            self._seen.pop(path, None)
            text = str(error) or type(error).__name__
            return Reading(self._names[path], path, layout, at, Stats(), error=text)
        compared = self._compare(path, sample, before)
        return Reading(
            self._names[path], path, layout, at, sample.stats, sample.sampled, reported or compared
        )

    def _let_go(self, path: str) -> None:
        """Close a queue until the next reading, and remember which directory it was."""
        queue = self._queues.get(path)
        if queue is not None and self._activities.get(path) is None and queue.layout.directory.find():
            facts = fs.fstat(queue.layout.directory.fd)
            self._places[path] = (facts.st_dev, facts.st_ino)
            queue.close()

    def _open(self, path: str) -> Queue[bytes]:
        """Return the queue that is at the path now: another one may have been put there since the last reading."""
        queue = self._queues.get(path)
        if queue is not None and not _is_at(queue, path, self._places.pop(path, None)):
            self._queues.pop(path).close()
            self._seen.pop(path, None)
            self._unwatch(path)
            queue = None
        if queue is None:
            queue = self._queues[path] = Queue(path, create=False)
        return queue

    def _compare(self, path: str, sample: Sample, at: float) -> Rates:
        last = self._seen.pop(path, None)
        if sample.sampled:
            return Rates()
        now = _Seen(
            at,
            frozenset(entry.id for entry in sample.entries if entry.state in states.LIVE),
            frozenset(entry.place for entry in sample.entries if _failed(entry)),
            frozenset(entry.id for entry in sample.entries if entry.state == "dead"),
        )
        self._seen[path] = now
        if last is None or at <= last.at:
            return Rates()
        seconds = at - last.at
        buried = now.dead - last.dead
        redriven = last.dead - now.dead
        return Rates(
            len(now.live - last.live - redriven) / seconds,
            len(last.live - now.live - buried) / seconds,
            (len(now.failed - last.failed) + len(buried)) / seconds,
        )


def _is_at(queue: Queue[bytes], path: str, place: tuple[int, int] | None) -> bool:
    """Return whether the directory that is open, or was at `place` before it was closed, is the one at the path."""
    found = fs.stat(path)
    if place is None:
        fd = queue.layout.directory.fd
        if fd < 0:
            return False
        opened = fs.fstat(fd)
        place = (opened.st_dev, opened.st_ino)
    return place == (found.st_dev, found.st_ino)


def _failed(entry: Entry) -> bool:
    """Return whether a message waits for another attempt."""
    return entry.attempts > 0 and entry.state in states.UNCLAIMED


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterator[float | None] | deque[float | None] | list[float | None], width: int) -> str:
    """Return the last values as bars from nothing to the highest of them; what is unknown is a space."""
    last = list(values)[-width:]
    top = max((value for value in last if value is not None), default=0.0)
    bars = (
        " " if value is None else BARS[0] if top <= 0 else BARS[min(7, int(value / top * 7.999))]
        for value in last
    )
    return "".join(bars).rjust(width)
