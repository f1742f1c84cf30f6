"""From rows to figures: ratios within a round, medians over rounds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]


class Figures:
    """All rows of one run, and the questions that tables ask of them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = [row for row in rows if "failed" not in row]
        self.failed = [row for row in rows if "failed" in row]
        #: The C floor where it was built, else the bare calls in Python.
        self.base = "c" if any(row["peer"] == "c" for row in self.rows) else "floor"

    def find(self, **wanted: Any) -> list[Row]:
        """Return the rows that have these values."""
        return [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]

    def peers(self, **wanted: Any) -> list[str]:
        """Return the peers that were measured there, in the order of first appearance."""
        return list(dict.fromkeys(row["peer"] for row in self.find(**wanted)))

    def values(self, what: Callable[[Row], float | None], **wanted: Any) -> list[float]:
        """Return one figure from each row that has it."""
        return [value for row in self.find(**wanted) if (value := what(row)) is not None]

    def median(self, what: Callable[[Row], float | None], **wanted: Any) -> float | None:
        """Return the median of a figure over the rounds."""
        found = self.values(what, **wanted)
        return statistics.median(found) if found else None

    def ratios(
        self, what: Callable[[Row], float | None], base: str | None = None, **wanted: Any
    ) -> list[float]:
        """Return a figure relative to the floor's of the same round (to the median floor in a round without one)."""
        peer = wanted.pop("peer")
        floors: dict[int, list[float]] = defaultdict(list)
        for row in self.find(peer=base or self.base, **wanted):
            if (value := what(row)) is not None:
                floors[row["round"]].append(value)
        if not floors:
            return []
        everywhere = statistics.median(value for values in floors.values() for value in values)
        return [
            value / (statistics.median(floors[row["round"]]) if row["round"] in floors else everywhere)
            for row in self.find(peer=peer, **wanted)
            if (value := what(row)) is not None
        ]

    def ratio(self, what: Callable[[Row], float | None], **wanted: Any) -> float | None:
        """Return the median of the ratios."""
        found = self.ratios(what, **wanted)
        return statistics.median(found) if found else None

    def latency(self, half: str, **wanted: Any) -> list[float]:
        """Return p50, p90 and p99 as medians over the rounds, and the largest max."""
        found = [row[half]["us"] for row in self.find(**wanted) if row.get(half, {}).get("us")]
        if not found:
            return []
        columns = list(zip(*found, strict=True))
        return [*(statistics.median(column) for column in columns[:3]), max(columns[3])]


def cpu(half: str) -> Callable[[Row], float | None]:
    """Return a figure: CPU microseconds for each message put or got, without those of the harness itself."""

    def figure(row: Row) -> float | None:
        part = row.get(half)
        return (part["cpu"] / part["count"] - part.get("own", 0.0)) * 1e6 if part and part["count"] else None

    return figure


def wall(half: str) -> Callable[[Row], float | None]:
    """Return a figure: wall microseconds for each message put or got."""

    def figure(row: Row) -> float | None:
        part = row.get(half)
        return part["wall"] / part["count"] * 1e6 if part and part["count"] else None

    return figure


def rate(row: Row) -> float | None:
    """Return a figure: messages per second through several processes."""
    return row["count"] / row["wall"] if row.get("wall", 0) > 0 else None


def key(name: str) -> Callable[[Row], float | None]:
    """Return a figure by its name."""
    return lambda row: row.get(name)
