"""Counting a queue: how many messages in which state, how old.

Layer: mechanisms.  Touches: nothing. A snapshot of names that others are renaming.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.layouts.base import Layout
from dirqueue.message import instant


class Stats(NamedTuple):
    """One look at a queue."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    #: Of the leased, those whose time is over: anybody may claim them.
    expired: int = 0
    dead: int = 0
    done: int = 0
    #: Being written, or left behind by a producer that died.
    new: int = 0
    #: Entries that are not ours; never touched.
    foreign: int = 0
    #: When the oldest ready message was put.
    oldest_ready: datetime | None = None
    #: The lease that ends first: when, and who holds it.
    oldest_lease: datetime | None = None
    oldest_lease_token: str | None = None
    #: When the next delayed message is due.
    next_due: datetime | None = None

    @property
    def total(self) -> int:
        """Messages that are waiting or held."""
        return self.ready + self.delayed + self.leased

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        told = self._asdict()
        for name, value in told.items():
            if isinstance(value, datetime):
                told[name] = value.isoformat()
        return told | {"total": self.total}


def count(layout: Layout) -> Stats:
    """Look at every name once."""
    counts = dict.fromkeys(states.COUNTED, 0)
    if not layout.directory.find():
        return Stats()
    now = layout.directory.clock.now()
    expired, ready, due, lease = 0, None, None, None
    for entry in layout.entries():
        state = entry.state
        counts[state] += 1
        if state == "ready":
            ready = entry.put if ready is None else min(ready, entry.put)
        elif state == "delayed":
            due = entry.until if due is None else min(due, entry.until)
        elif state == "leased":
            expired += entry.until <= now
            lease = entry if lease is None or entry.until < lease.until else lease
    return Stats(
        **counts,
        expired=expired,
        oldest_ready=instant(ready) if ready else None,
        oldest_lease=instant(lease.until) if lease else None,
        oldest_lease_token=(lease.token or None) if lease else None,
        next_due=instant(due) if due else None,
    )
