"""Looking at queues again and again: what is there, and what changed since the last look.

Layer: conveniences.  Touches: nothing; keeps nothing but the last look and a short series in memory.
Rates are what the kernel reported between two looks (`activity.py`). Where it cannot, they are differences between the
looks: what came and went in between is not seen, so on a fast queue they are lower bounds, and of a queue that is
too deep to be read whole only the depth is known, as an estimate.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from dirqueue import states
from dirqueue.errors import DirQueueError
from dirqueue.message import Entry
from dirqueue.queue import Queue
from dirqueue.stats import LIMIT, Sample, Stats, take_sample
from dirqueue.tools import discover
from dirqueue.tools.activity import Flow, listen

#: Looks that a series remembers.
SERIES = 120
#: Names that all queues of one look share, and the fewest for one queue.
SHARED_LIMIT = 60_000
FEWEST = 2_000
#: Queues that the kernel is listened to for: a user has 128 such ears.
LISTENERS = 32


class Rates(NamedTuple):
    """Messages per second since the last look; None where nothing is known."""

    put: float | None = None
    ack: float | None = None
    #: Failures: retried or dead.
    error: float | None = None


class Look(NamedTuple):
    """One queue at one moment."""

    name: str
    path: str
    layout: str
    at: datetime
    stats: Stats
    #: Whether counts are an estimate or a lower bound.
    sampled: bool = False
    rates: Rates = Rates()
    #: Why it could not be looked at.
    error: str | None = None

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
        }


class Series:
    """The last looks at one queue, for a chart."""

    def __init__(self) -> None:
        self.depth: deque[int] = deque(maxlen=SERIES)
        self.put: deque[float | None] = deque(maxlen=SERIES)
        self.ack: deque[float | None] = deque(maxlen=SERIES)
        self.error: deque[float | None] = deque(maxlen=SERIES)

    def add(self, look: Look) -> None:
        """Remember one look."""
        self.depth.append(look.stats.total)
        for name, value in look.rates._asdict().items():
            getattr(self, name).append(value)


class _Seen(NamedTuple):
    """What is needed of the last look to tell what changed."""

    at: float
    live: frozenset[str]
    failed: frozenset[str]
    dead: frozenset[str]


class Monitor:
    """Looks at one queue, or at all queues under a root; new ones appear by themselves."""

    def __init__(self, root: str, *, limit: int = LIMIT) -> None:
        self.root = root
        self._limit = limit
        self._queues: dict[str, Queue[bytes]] = {}
        self._seen: dict[str, _Seen] = {}
        self._flows: dict[str, Flow | None] = {}
        self._flowed: dict[str, float] = {}
        self.series: dict[str, Series] = {}

    def look(self) -> list[Look]:
        """Look at every queue once, in order of their paths."""
        paths = list(discover.find(self.root))
        for gone in set(self._queues) - set(paths):
            self._queues.pop(gone).close()
            self._seen.pop(gone, None)
            self._hang_up(gone)
            self.series.pop(gone, None)
        limit = max(FEWEST, min(self._limit, SHARED_LIMIT // max(1, len(paths))))
        looks = [self._one(path, min(limit, self._limit)) for path in paths]
        for look in looks:
            self.series.setdefault(look.path, Series()).add(look)
        return looks

    def queue(self, name: str) -> Queue[bytes] | None:
        """Return the queue of that name as the last look found it; no other path can be reached this way."""
        for path, queue in self._queues.items():
            if self._name(path) == name:
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
            self._hang_up(path)
        self._queues.clear()

    def _hang_up(self, path: str) -> None:
        flow = self._flows.pop(path, None)
        if flow is not None:
            flow.close()

    def _heard(self, path: str, queue: Queue[bytes]) -> Rates | None:
        """Return the rates as the kernel tells them; None if it does not."""
        now = time.monotonic()
        if path not in self._flows:
            few = sum(flow is not None for flow in self._flows.values()) < LISTENERS
            self._flows[path] = listen(queue.layout) if few else None
            self._flowed[path] = now
            return None
        flow = self._flows[path]
        counts = None if flow is None else flow.read()
        last, self._flowed[path] = self._flowed[path], now
        if counts is None or now <= last:
            return None
        return Rates(*(count / (now - last) for count in counts))

    def _name(self, path: str) -> str:
        return (
            os.path.basename(os.path.abspath(path)) if path == self.root else os.path.relpath(path, self.root)
        )

    def _one(self, path: str, limit: int) -> Look:
        at = datetime.now(UTC)
        layout = ""
        try:
            queue = self._queues.get(path)
            if queue is None:
                queue = self._queues[path] = Queue(path)
            layout = queue.layout.name
            heard = self._heard(path, queue)
            before = time.monotonic()
            sample = take_sample(queue.layout, limit)
        except (DirQueueError, OSError) as error:
            self._seen.pop(path, None)
            return Look(self._name(path), path, layout, at, Stats(), error=str(error))
        compared = self._compare(path, sample, before)
        return Look(self._name(path), path, layout, at, sample.stats, sample.sampled, heard or compared)

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


def _failed(entry: Entry) -> bool:
    """Whether a message waits for another attempt."""
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
