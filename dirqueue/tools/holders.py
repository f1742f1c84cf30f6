"""Who holds what, and for how long.

Layer: tools.  Touches: nothing.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.message import instant
from dirqueue.queue import Queue

#: Leases that one look reads.
LIMIT = 2_000


class Holder(NamedTuple):
    """One process that holds messages of one queue."""

    #: Its host and process id, as they are in its tokens.
    name: str
    #: The ids of the messages, the one that is held the longest first.
    ids: list[str]
    #: When it claimed the first of them, or last renewed it; None where the layout does not tell.
    since: datetime | None
    #: When the first of its leases ends.
    until: datetime
    #: How many of its leases are over: others may claim those messages.
    late: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "holder": self.name,
            "ids": self.ids,
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat(),
            "late": self.late,
        }


def holders(queue: Queue[Any], limit: int = LIMIT) -> list[Holder]:
    """Return who holds messages of a queue, whoever holds one for the longest time first; at most `limit` leases."""
    layout = queue.layout
    if not layout.directory.find():
        return []
    now = layout.directory.clock.now()
    leased = (entry for entry in layout.entries((states.LEASED,)) if entry.state == states.LEASED)
    held: dict[str, list[tuple[datetime, str, int]]] = {}
    known: dict[str, datetime] = {}
    for entry in itertools.islice(leased, limit):
        since = layout.leased_at(entry)
        holder = layout.holder(entry)
        name = holder if holder != entry.token else name_of(holder)
        held.setdefault(name, []).append((since or instant(entry.put), entry.id, entry.until))
        if since is not None:
            known[name] = min(since, known.get(name, since))
    found = []
    for name, each in held.items():
        each.sort()
        ends = [until for _, _, until in each]
        late = sum(until <= now for until in ends)
        found.append(Holder(name, [id for _, id, _ in each], known.get(name), instant(min(ends)), late))
    return sorted(found, key=lambda holder: holder.since or datetime.now(UTC))


def name_of(token: str) -> str:
    """Return the host and process of a token, which is HOST-PID-RANDOM-COUNT; another program's as it is."""
    host, _, rest = token.rpartition("-")
    host, _, _ = host.rpartition("-")
    return host if host and rest.isdigit() else token or "a peer"
