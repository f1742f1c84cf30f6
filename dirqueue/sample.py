"""Counting a queue at a bounded cost: all of a small one, a part of a deep one.

Layer: mechanisms.  Touches: nothing.
A listing of a million names takes seconds; who looks every second reads at most LIMIT names. A deep native queue
lies in slices and batches of bounded size, so some of them, spread evenly, tell about all; what was estimated is
marked. Names that do not fit into the limit in one flat directory are not seen at all: then a count is a lower bound.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import inspect, names
from dirqueue.layouts.native.names import CONTAINERS
from dirqueue.message import Entry, instant
from dirqueue.stats import Stats

#: Names that one look reads.
LIMIT = 20_000
_DIRECTORIES = CONTAINERS | {names.STAGING}
LIVE = (*states.LIVE, states.NEW, states.FOREIGN)


class Sample(NamedTuple):
    """One bounded look."""

    stats: Stats
    #: Whether the counts are an estimate or a lower bound.
    sampled: bool
    #: What was looked at.
    entries: list[Entry]


def take(layout: Layout, limit: int = LIMIT) -> Sample:
    """Look at up to `limit` names, and as many of the dead and of the done."""
    if not layout.directory.find():
        return Sample(Stats(), False, [])
    if layout.name == "native":
        live, factor, cut = _native(layout, limit)
    else:
        live, cut = _first(layout.entries(LIVE), limit)
        factor = 1.0
    counts = dict.fromkeys(states.COUNTED, 0.0)
    for entry in live:
        counts[entry.state] = counts.get(entry.state, 0) + (factor if _inside(entry) else 1)
    ended: list[Entry] = []
    for state in states.ENDED:
        if state in layout.lacks:
            continue
        some, more = _first((e for e in layout.entries((state,)) if e.state == state), limit)
        counts[state] = len(some)
        ended += some
        cut = cut or more
    return Sample(_stats(layout, live, counts, factor), cut or factor > 1, live + ended)


def _inside(entry: Entry) -> bool:
    return "/" in entry.place


def _first(entries: Iterable[Entry], limit: int) -> tuple[list[Entry], bool]:
    """Return the first so many, and whether there are more."""
    found = list(itertools.islice(entries, limit + 1))
    return found[:limit], len(found) > limit


def _native(layout: Layout, limit: int) -> tuple[list[Entry], float, bool]:
    """Return entries, by how much those in slices and batches stand for more, and whether names were left out."""
    directory = layout.directory
    now = directory.clock.now()
    inner: list[str] = []
    live, cut = _first(_directory(layout, "", now, inner), limit)
    inner.sort(key=lambda path: names.order_key(path.rstrip("/").rpartition("/")[2].partition(".")[0]))
    looked = 0
    for path in _spread(inner):
        if looked and len(live) >= limit:
            break
        deeper: list[str] = []
        some, more = _first(_directory(layout, path, now, deeper), limit)
        for part in deeper:
            parts, more_parts = _first(_directory(layout, part, now, []), max(1, limit - len(some)))
            some += parts
            more = more or more_parts
        live += some
        cut = cut or more
        looked += 1
    return live, (len(inner) / looked if looked else 1.0), cut


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


def _directory(layout: Layout, prefix: str, now: int, inner: list[str]) -> Iterator[Entry]:
    """Yield the messages of one directory; containers in it go to `inner`."""
    try:
        for found in fs.listing(prefix or ".", layout.directory.fd):
            name = names.parse(found.name)
            if name is None:
                if prefix or not names.is_furniture(found.name):
                    yield Entry("", "foreign", prefix + found.name, 0)
            elif not _is_what_it_says(found, name.kind):
                yield Entry("", "foreign", prefix + found.name, 0)
            elif name.kind in CONTAINERS:
                inner.append(f"{prefix}{name.text}/")
            elif name.kind == names.STAGING:
                yield Entry(name.id, "new", prefix + name.text, names.micros_of(name.id))
            elif name.kind in LIVE:
                yield inspect.entry_of(name, prefix, now)
    except (FileNotFoundError, NotADirectoryError):
        return  # RACE: emptied and removed meanwhile


def _is_what_it_says(found: os.DirEntry[str], kind: str) -> bool:
    if kind in _DIRECTORIES:
        return found.is_dir(follow_symlinks=False)
    return found.is_file(follow_symlinks=False)


def _stats(layout: Layout, live: list[Entry], counts: dict[str, float], factor: float) -> Stats:
    now = layout.directory.clock.now()
    ready = min((entry.put for entry in live if entry.state == "ready"), default=None)
    due = min((entry.until for entry in live if entry.state == "delayed"), default=None)
    lease = min((entry for entry in live if entry.state == "leased"), key=lambda e: e.until, default=None)
    expired = sum(
        factor if _inside(entry) else 1 for entry in live if entry.state == "leased" and entry.until <= now
    )
    return Stats(
        **{state: round(number) for state, number in counts.items()},
        expired=round(expired),
        oldest_ready=instant(ready) if ready else None,
        oldest_lease=instant(lease.until) if lease else None,
        oldest_lease_token=(lease.token or None) if lease else None,
        next_due=instant(due) if due else None,
    )
