"""Counting a queue: how many messages are in which state, and how old they are.

Layer: mechanisms.  Touches: nothing. A snapshot of names that others are renaming.
`count` looks at every name. A listing of a million takes seconds, so whoever looks every second takes a sample: at
most LIMIT names. A deep native queue lies in slices and batches of bounded size, so some of them, spread evenly,
stand for all; such counts are marked as estimates. In one flat directory, names beyond the limit are not seen at all:
then a count is a lower bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.layouts.base import Layout
from dirqueue.message import Entry, instant

#: Names that one sample reads.
LIMIT = 20_000


class Stats(NamedTuple):
    """The number of messages in each state, and the oldest of them."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    #: Of the leased, those whose lease is over: any consumer may claim them.
    expired: int = 0
    dead: int = 0
    done: int = 0
    #: Being written, or left behind by a producer that died.
    new: int = 0
    #: Entries that are not dirqueue's; never touched.
    foreign: int = 0
    #: When the oldest ready message was put.
    oldest_ready: datetime | None = None
    #: The lease that ends first: when, and its token.
    oldest_lease: datetime | None = None
    oldest_lease_token: str | None = None
    #: When the next delayed message is due.
    next_due: datetime | None = None
    #: Whether the queue gives nothing until it is resumed.
    paused: bool = False
    #: The most deliveries of a message that is waiting or leased.
    most_attempts: int = 0

    @property
    def total(self) -> int:
        """The number of messages that are waiting or leased."""
        return self.ready + self.delayed + self.leased

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        fields = self._asdict()
        for name, value in fields.items():
            if isinstance(value, datetime):
                fields[name] = value.isoformat()
        return fields | {"total": self.total}


class Sample(NamedTuple):
    """The result of a bounded look."""

    stats: Stats
    #: Whether the counts are an estimate or a lower bound.
    sampled: bool
    #: The entries that were looked at.
    entries: list[Entry]


class _Tally:
    """Adds up entries by state, and remembers the oldest of each kind."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._counts = dict.fromkeys(states.COUNTED, 0.0)
        self._expired = 0.0
        self._ready: int | None = None
        self._due: int | None = None
        self._lease: Entry | None = None
        self._most = 0

    def add(self, entries: Iterable[Entry], weight: float = 1) -> None:
        """Count entries, each of which stands for `weight` of its kind."""
        counts, now = self._counts, self._now
        expired, ready, due, lease = self._expired, self._ready, self._due, self._lease
        most = self._most
        for entry in entries:
            state = entry.state
            counts[state] += weight
            if entry.attempts > most and state in states.LIVE:
                most = entry.attempts
            if state == states.READY:
                ready = entry.put if ready is None else min(ready, entry.put)
            elif state == states.DELAYED:
                due = entry.until if due is None else min(due, entry.until)
            elif state == states.LEASED:
                expired += weight if entry.until <= now else 0
                lease = entry if lease is None or entry.until < lease.until else lease
        self._expired, self._ready, self._due, self._lease = expired, ready, due, lease
        self._most = most

    def stats(self) -> Stats:
        """Return the sums."""
        lease = self._lease
        counts: dict[str, Any] = {state: round(number) for state, number in self._counts.items()}
        return Stats(
            **counts,
            expired=round(self._expired),
            oldest_ready=instant(self._ready) if self._ready else None,
            oldest_lease=instant(lease.until) if lease else None,
            oldest_lease_token=(lease.token or None) if lease else None,
            next_due=instant(self._due) if self._due else None,
            most_attempts=self._most,
        )


def count(layout: Layout) -> Stats:
    """Look at every name once."""
    if not layout.directory.find():
        return Stats()
    tally = _Tally(layout.directory.clock.now())
    tally.add(layout.entries())
    return tally.stats()._replace(paused=layout.paused())


def take_sample(layout: Layout, limit: int = LIMIT) -> Sample:
    """Look at up to `limit` names, and at as many of the dead and of the done."""
    if not layout.directory.find():
        return Sample(Stats(), sampled=False, entries=[])
    tally = _Tally(layout.directory.clock.now())
    if layout.name == "native":
        flat, inside, weight, cut = _native(layout, limit)
    else:
        flat, cut = _first(layout.entries(states.LISTED), limit)
        inside, weight = [], 1.0
    tally.add(flat)
    tally.add(inside, weight)
    entries = flat + inside
    for state in states.ENDED:
        if state in layout.lacks:
            continue
        ended, more = _first((e for e in layout.entries((state,)) if e.state == state), limit)
        tally.add(ended)
        entries += ended
        cut = cut or more
    return Sample(tally.stats()._replace(paused=layout.paused()), cut or weight > 1, entries)


def _first(entries: Iterable[Entry], limit: int) -> tuple[list[Entry], bool]:
    """Return the first `limit` entries, and whether there are more."""
    found = list(itertools.islice(entries, limit + 1))
    return found[:limit], len(found) > limit


def _native(layout: Layout, limit: int) -> tuple[list[Entry], list[Entry], float, bool]:
    """Sample a native queue.

    Return the entries of the queue's own directory, those of some slices and batches, how many each of the latter
    stands for, and whether names were left out.
    """
    from dirqueue.layouts.native.inspect import contents, in_rooms
    from dirqueue.layouts.native.names import order_key

    directory = layout.directory
    now = directory.clock.now()
    inner: list[str] = []
    flat, cut = _first(contents(directory, "", now, inner), limit)
    inner.sort(key=lambda path: order_key(path.rstrip("/").rpartition("/")[2].partition(".")[0]))
    inside: list[Entry] = []
    looked = 0
    for path in _spread(inner):
        if looked and len(flat) + len(inside) >= limit:
            break
        deeper: list[str] = []
        some, more = _first(contents(directory, path, now, deeper), limit)
        for part in deeper:
            parts, more_parts = _first(contents(directory, part, now, []), max(1, limit - len(some)))
            some += parts
            more = more or more_parts
        inside += some
        cut = cut or more
        looked += 1
    elsewhere, more = _first(in_rooms(directory, now), limit)
    return flat + elsewhere, inside, (len(inner) / looked if looked else 1.0), cut or more


def _spread(paths: list[str]) -> Iterator[str]:
    """Yield all paths, the oldest and the newest first, then ever finer in between."""
    if not paths:
        return
    seen: set[int] = set()
    step = max(1, len(paths) - 1)
    while len(seen) < len(paths):
        for index in range(0, len(paths), step):
            if index not in seen:
                seen.add(index)
                yield paths[index]
        step = max(1, step // 2)
