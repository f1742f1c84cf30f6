"""What a transaction did, as the names say it.

Layer: objects.  Pure values.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from dirqueue.layouts.native import names
from dirqueue.message import instant
from dirqueue.space.steps import Inserted
from dirqueue.space.work import Work


class Written(NamedTuple):
    """A message as a transaction has put or changed it."""

    id: str
    version: int
    #: The name of its queue.
    queue: str
    #: When it can be claimed, or when its lease ends; None if it can be claimed at once.
    until: datetime | None
    attempts: int
    #: Where it lies in its queue: its exact name.
    place: str = ""


class Committed(NamedTuple):
    """What a transaction did."""

    #: The ids of the messages that were put, in the order given; those of existing ones where `skip_existing` said so.
    ids: list[str]
    #: Those of your own ids that existed already, and were skipped.
    skipped: list[str]
    #: What was put, in the order given; None where an existing message was as good.
    puts: list[Written | None] = []  # noqa: RUF012 - never changed
    #: What was changed, moved, renewed or given back, in the order given; None for what is gone.
    changes: list[Written | None] = []  # noqa: RUF012
    #: When, by the clock of the file server: the reading that all the times above were made of.
    at: datetime | None = None


def committed(
    inserts: list[Inserted], skipped: list[str], work: Work, name_of: Callable[[str], str]
) -> Committed:
    """Return what was done.

    Args:
        inserts: What it was to put.
        skipped: Which of the ids of the user's own existed already.
        work: What it has done.
        name_of: Gives the name of the queue in a directory of the space.
    """
    puts = [
        None if each.own_id in skipped else written(insert.path, name_of)
        for each, insert in zip(inserts, work.insert, strict=True)
    ]
    changes = [written(each.target, name_of) for each in work.consume]
    own = [each.own_id or each.id for each in inserts]
    return Committed(own, skipped, puts, changes, instant(work.now))


def written(path: str, name_of: Callable[[str], str]) -> Written | None:
    """Return what the new name of a message says; None if it is gone, or went with a lot that was acknowledged."""
    queue, _, place = path.partition("/")
    name = names.parse(place.rpartition("/")[2])
    if name is None:
        return None
    version = name.card.version if name.card is not None else name.attempts
    until = instant(name.until) if name.until else None
    return Written(name.id, version, name_of(queue), until, name.attempts, place)
