"""What the service counts of itself, and the queues as EntroQ's gauges: for /metrics.

Layer: edges.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from dirqueue.entroq.tasks import QueueStat
from dirqueue.tools.metrics import Family, Sample, label

#: Upper ends of the buckets of latencies, in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Meter:
    """Counts requests. Used by one thread, that of the event loop."""

    def __init__(self) -> None:
        self.began = time.time()
        self.conflicts = 0
        self.given_back = 0
        self._codes: dict[tuple[str, str, str], int] = {}
        self._latencies: dict[tuple[str, str], list[float]] = {}

    def count(self, door: str, method: str, code: str, seconds: float) -> None:
        """Count one request; a claim that waited is counted, its latency is not."""
        key = (door, method, code)
        self._codes[key] = self._codes.get(key, 0) + 1
        if method == "Claim":
            return
        found = self._latencies.setdefault((door, method), [0.0] * (len(BUCKETS) + 2))
        for place, end in enumerate(BUCKETS):
            if seconds <= end:
                found[place] += 1
        found[-2] += 1
        found[-1] += seconds

    def families(self, waiting: int) -> list[Family]:
        """Return what was counted."""
        return [
            Family(
                "dirqueue_entroq_requests_total",
                "Requests by door, method and how they ended.",
                [
                    ({"door": door, "method": method, "code": code}, float(count))
                    for (door, method, code), count in sorted(self._codes.items())
                ],
                "counter",
            ),
            Family(
                "dirqueue_entroq_request_seconds",
                "How long requests took; claims that wait are left out.",
                [sample for key in sorted(self._latencies) for sample in self._histogram(*key)],
                "histogram",
            ),
            Family("dirqueue_entroq_waiting_claims", "Claims that wait now.", [({}, float(waiting))]),
            Family(
                "dirqueue_entroq_conflicts_total",
                "Modifications that were refused because something was not as they said.",
                [({}, float(self.conflicts))],
                "counter",
            ),
            Family(
                "dirqueue_entroq_given_back_total",
                "Claims that were undone because their client had gone.",
                [({}, float(self.given_back))],
                "counter",
            ),
        ]

    def _histogram(self, door: str, method: str) -> list[Sample]:
        found = self._latencies[door, method]
        labels = {"door": door, "method": method}
        ends = [*map(str, BUCKETS), "+Inf"]
        samples: list[Sample] = [
            ({**labels, "le": end}, count, "_bucket") for end, count in zip(ends, found, strict=False)
        ]
        samples += [(labels, found[-1], "_sum"), (labels, found[-2], "_count")]
        return samples


def queue_sizes(stats: Iterable[QueueStat]) -> Family:
    """Return EntroQ's own gauge."""
    samples: list[Sample] = []
    for stat in stats:
        name = label(stat.name)
        for kind, value in (
            ("total", stat.size),
            ("claimed", stat.claimed),
            ("available", stat.available),
            ("maxClaims", stat.max_claims),
        ):
            samples.append(({"name": name, "type": kind}, float(value)))
    return Family("entroq_queue_size", "Number of tasks in a queue, by type.", samples)
