"""Queues as Prometheus metrics: the text format, written without any package.

Layer: tools.  Touches: nothing, except `write`, which replaces one file.
The figures of queues are gauges, read from the directory at that moment: nothing is remembered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.errors import access_error
from dirqueue.queue import Queue
from dirqueue.stats import Stats
from dirqueue.tools import discover

#: The media type of the text format.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = (*states.VISIBLE, states.NEW)


#: Labels and a number; of a histogram also how the name of the metric goes on.
Sample = tuple[dict[str, str], float] | tuple[dict[str, str], float, str]


class Family(NamedTuple):
    """One metric and its samples."""

    name: str
    help: str
    samples: list[Sample]
    kind: str = "gauge"


def measure(paths: Iterable[str]) -> list[Family]:
    """Count each queue. One that cannot be read, for whatever reason, is down; the others are counted."""
    counts: list[tuple[str, Stats | None, float]] = []
    for path in paths:
        began = time.monotonic()
        try:
            with Queue(path, create=False) as queue:
                stats: Stats | None = queue.stats()
        except Exception:  # noqa: BLE001 - a scraper gets the others
            stats = None
        counts.append((label(path), stats, time.monotonic() - began))
    return [*_families(counts)]


def label(path: str) -> str:
    r"""Return a path as a label: valid UTF-8 without control characters, those and other bytes written \xHH."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _families(counts: list[tuple[str, Stats | None, float]]) -> Iterator[Family]:
    known = [(path, stats) for path, stats, _ in counts if stats is not None]
    yield Family(
        "dirqueue_up",
        "Whether the queue could be read.",
        [({"queue": path}, float(stats is not None)) for path, stats, _ in counts],
    )
    yield Family(
        "dirqueue_messages",
        "Messages by state.",
        [
            ({"queue": path, "state": state}, float(getattr(stats, state)))
            for path, stats in known
            for state in STATES
        ],
    )
    yield Family(
        "dirqueue_expired_leases",
        "Leases whose time is over and that nobody has claimed again.",
        [({"queue": path}, float(stats.expired)) for path, stats in known],
    )
    yield Family(
        "dirqueue_paused",
        "Whether the queue gives nothing until it is resumed.",
        [({"queue": path}, float(stats.paused)) for path, stats in known],
    )
    yield Family(
        "dirqueue_foreign_files",
        "Entries in the directory that are not dirqueue's.",
        [({"queue": path}, float(stats.foreign)) for path, stats in known],
    )
    now = datetime.now(UTC)
    yield Family(
        "dirqueue_oldest_ready_age_seconds",
        "Seconds since the oldest ready message was put; 0 if there is none.",
        [({"queue": path}, _age(stats.oldest_ready, now)) for path, stats in known],
    )
    yield Family(
        "dirqueue_oldest_lease_overdue_seconds",
        "Seconds since the first lease ran out; 0 if none did.",
        [({"queue": path}, _age(stats.oldest_lease, now)) for path, stats in known],
    )
    yield Family(
        "dirqueue_scan_duration_seconds",
        "How long the counting took.",
        [({"queue": path}, seconds) for path, _, seconds in counts],
    )


def _age(when: datetime | None, now: datetime) -> float:
    return max(0.0, (now - when).total_seconds()) if when else 0.0


def text(families: Iterable[Family]) -> str:
    """Return the text format."""
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
        for labels, value, *suffix in family.samples:
            pairs = ",".join(f'{name}="{_escaped(each, quote=True)}"' for name, each in labels.items())
            lines.append(f"{family.name}{''.join(suffix)}{f'{{{pairs}}}' if pairs else ''} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(value: str, *, quote: bool = False) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return value.replace('"', '\\"') if quote else value


def write(path: str, families: Iterable[Family]) -> None:
    """Write a file for the textfile collector: readers see the old one or the new one, whole."""
    folder, name = os.path.split(path)
    data = text(families).encode()
    try:
        fd = fs.open(folder or ".", fs.DIRECTORY)
        try:
            fs.replace_file(name, data, fd, sync=False)
        finally:
            fs.close(fd)
    except OSError as error:
        raise access_error(path, "write", error) from error


class Collector:
    """For a program that already exports with prometheus_client: `REGISTRY.register(Collector(root))`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def collect(self) -> Iterator[Any]:
        """Yield what prometheus_client wants, counted now."""
        from prometheus_client.core import GaugeMetricFamily

        for family in measure(discover.find(self._root)):
            labels = [*family.samples[0][0]] if family.samples else ["queue"]
            metric = GaugeMetricFamily(family.name, family.help, labels=labels)
            for values, number, *_ in family.samples:
                metric.add_metric([*values.values()], number)
            yield metric
