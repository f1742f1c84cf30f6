"""How old the messages of a queue are: a histogram whose bounds double, after Postfix's qshape.

Layer: tools.  Touches: nothing. One pass over the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dirqueue import states
from dirqueue.disk.clock import micros
from dirqueue.errors import SettingsError, access_error
from dirqueue.queue import Queue
from dirqueue.settings import check_seconds

TOTAL = "TOTAL"
#: What a row can be, and where it is read.
BY = ("state", "attempts", "priority", "queue")


@dataclass
class Shape:
    """Counts of messages by a key and by age."""

    by: str
    #: Upper bounds of the ages in seconds; one more count is for what is older than the last.
    bounds: list[float]
    counts: dict[Any, list[int]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return the total, then a row for each key, as plain values for JSON."""
        total = [sum(column) for column in zip(*self.counts.values(), strict=True)] or [0] * (
            len(self.bounds) + 1
        )
        keyed = [(TOTAL, total), *sorted(self.counts.items(), key=lambda item: _order(item[0]))]
        return [
            {self.by: key, "total": sum(counts), "bounds": self.bounds, "counts": counts}
            for key, counts in keyed
        ]


def measure(
    queues: Iterable[tuple[str, Queue[Any]]], *, by: str = "state", first: float = 60.0, buckets: int = 9
) -> Shape:
    """Count the messages of named queues by state, attempts, priority or queue, and by age."""
    check_seconds("first", first, above=True)
    if by not in BY:
        raise SettingsError(f"by must be one of {', '.join(BY)}, not {by!r:.60}")
    if not 1 <= buckets <= 40:
        raise SettingsError(f"buckets must be from 1 to 40, not {buckets}")
    shape = Shape(by, [first * 2.0**i for i in range(buckets)])
    limits = [micros(bound) for bound in shape.bounds]
    for name, queue in queues:
        layout = queue.layout
        layout.directory.need()
        now = layout.directory.clock.now()
        try:
            for entry in layout.entries((*states.LIVE, states.DEAD)):
                if entry.state in (*states.LIVE, states.DEAD):
                    key = name if by == "queue" else getattr(entry, by)
                    counts = shape.counts.setdefault(key, [0] * (buckets + 1))
                    counts[sum(limit <= now - entry.put for limit in limits)] += 1
        except OSError as error:
            raise access_error(queue.path, "count", error) from error
    return shape


def _order(key: Any) -> tuple[int, Any]:
    if key in states.ALL:
        return 0, states.ALL.index(key)
    return (1, key) if isinstance(key, int) else (2, str(key))
