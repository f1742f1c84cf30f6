"""What a transaction is made of: messages that it ends, moves or needs, and messages that it puts.

Layer: objects.  Pure values, but for the count of a bounded queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dirqueue.disk.identity import new_token
from dirqueue.errors import Full, SettingsError
from dirqueue.layouts.base import Claim, Layout
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import DEAD, DONE, LEASED_ROOM
from dirqueue.lease import Lease
from dirqueue.message import Entry, Extras
from dirqueue.queue import Queue
from dirqueue.room import too_large
from dirqueue.settings import Settings, check_priority, check_seconds


class Step(NamedTuple):
    """One message that the transaction ends, moves, changes or needs."""

    verb: str
    layout: Layout
    #: The directory of its queue.
    queue: str
    lease: Lease[Any] | None
    #: What is known of a message that is not leased.
    entry: Entry | None
    #: How the lease ends.
    how: str = ""
    #: Where the message goes, from its claim and the time: a path in the space, nowhere if empty.
    target: Callable[[Claim, int], str] = lambda _claim, _now: ""
    #: What does the same to a lease if nothing else is to happen, in one call.
    alone: Callable[[Claim], None] | None = None
    #: Why it failed, to be kept beside it.
    reason: str | None = None
    #: Where it moves to, if to another queue.
    into: Layout | None = None

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.claim().id

    def claim(self) -> Claim:
        """Return the exact name as it is now known."""
        if self.lease is not None:
            return self.lease.claim
        entry = self.entry
        assert entry is not None  # noqa: S101 - one of the two
        return Claim(entry.id, entry.place, 0, entry.until, entry.attempts)

    def extras(self) -> Extras | None:
        """Return what the message carries."""
        if self.entry is not None:
            return self.layout.extras(self.entry)
        return self.claim().extras


#: Where a message goes, from its claim and the time.
Place = Callable[[Step, Claim, int], str]


class Inserted(NamedTuple):
    """One message that the transaction puts."""

    layout: Layout
    #: The directory of its queue.
    queue: str
    id: str
    data: bytes
    delay: float
    priority: int | None
    own_id: str | None
    skip: bool
    extras: Extras | None = None


def done(step: Step, claim: Claim, now: int) -> str:
    """Nowhere, or to the history where its queue keeps one."""
    if not step.layout.settings.keep_done:
        return ""
    return f"{step.queue}/{names.ended(DONE, claim.id, now, claim.attempts)}"


def dead(step: Step, claim: Claim, now: int) -> str:
    """To the dead letters."""
    return f"{step.queue}/{names.ended(DEAD, claim.id, now, claim.attempts)}"


def later(step: Step, claim: Claim, until: int) -> str:
    """To where it waits for its time."""
    return f"{step.queue}/{names.later(claim.id, until, claim.attempts)}"


def released(step: Step, claim: Claim, now: int) -> str:
    """Back, this delivery not counted."""
    counted = claim.attempts - 1
    return f"{step.queue}/{names.later(claim.id, now, counted) if counted else claim.id}"


def renewed(step: Step, claim: Claim, until: int) -> str:
    """To a lease that ends later."""
    return (
        f"{step.queue}/{LEASED_ROOM}/{claim.id}.{max(until, claim.ends + 1)}.{claim.attempts}.{new_token()}"
    )


def moved(id: str, settings: Settings, directory: str, until: int) -> str:
    """To another queue, with the priority that is usual there and no attempts."""
    id = names.with_priority(id, settings.default_priority if settings.priorities else None)
    return f"{directory}/{names.later(id, until, 0) if until else id}"


def layout_of(verb: str, lease: object) -> Layout:
    """Return the layout of a lease; SettingsError if it is none."""
    if not isinstance(lease, Lease):
        raise SettingsError(f"{verb} takes a lease, not {lease!r:.60}")
    return lease.layout


def check_put(queue: Queue[Any], size: int, delay: float, priority: int | None) -> int | None:
    """Check what is to be put, as the queue does, without waiting: Full if there is no room. Return the priority."""
    settings = queue.settings
    check_seconds("delay", delay)
    if 0 < settings.max_size < size:
        raise too_large(size, settings.max_size)
    if priority is not None and not settings.priorities:
        raise SettingsError(
            f"priority={priority!r} needs a queue with priorities: Queue.create({queue.path!r}, priorities=True)"
        )
    if settings.max_messages and queue.layout.count() >= settings.max_messages:
        raise Full(f"{queue.path!r} holds max_messages={settings.max_messages}", path=queue.path)
    if not settings.priorities:
        return None
    return settings.default_priority if priority is None else check_priority(priority)
