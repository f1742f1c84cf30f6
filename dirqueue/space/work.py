"""What one transaction is to do, by exact names, and how a try of it can end.

Layer: objects.  Pure values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dirqueue.layouts.native.layout import Native
from dirqueue.message import Details, Extras


class Sidefile(NamedTuple):
    """A side file that is to be written, by its path in the space."""

    path: str
    details: Details


class Consumed(NamedTuple):
    """A message that goes, or moves: its exact name, as a path in the space."""

    path: str
    id: str
    #: Where it goes; nowhere if empty.
    target: str = ""


class Insert(NamedTuple):
    """A message that appears: the name that it will have, as a path in the space."""

    path: str
    id: str
    data: bytes
    #: Writes the body as a link where its queue has them: (body, path, descriptor); False if it has to be a file.
    link: Callable[[bytes, str, int], bool] | None = None
    #: An id of the user's own, as ids.py writes it.
    key: str = ""
    #: Whether a message that has the key already is as good as this one.
    skip: bool = False
    #: The side file that its name means, if any.
    side: Sidefile | None = None


class Carried(NamedTuple):
    """What a message carries beside its body, kept in its queue before it is there."""

    layout: Native
    id: str
    extras: Extras


class Work(NamedTuple):
    """What one transaction is to do."""

    consume: tuple[Consumed, ...] = ()
    insert: tuple[Insert, ...] = ()
    sync: bool = True
    #: Exact names that must be there, as paths in the space.
    need: tuple[str, ...] = ()
    #: Notes of failures, each with its path. As everywhere, a note may be lost, never a message.
    notes: tuple[tuple[str, bytes], ...] = ()
    #: Notes that go along (old path, new path), or go (old path, empty), when it is committed.
    carry: tuple[tuple[str, str], ...] = ()
    #: Side files of changed and of new messages: they are there before anything is renamed.
    sides: tuple[Sidefile, ...] = ()
    #: Side files that no name means once it is committed.
    drop: tuple[str, ...] = ()
    #: When it was made up, in microseconds: what all times in it were made of.
    now: int = 0
    carried: tuple[Carried, ...] = ()
    #: The queues and ids that messages leave.
    left: tuple[tuple[Native, str], ...] = ()


class Refused(Exception):
    """A name is not as it was seen, or a key is taken. Nothing was done."""


class Aborted(Exception):
    """Another client was in need of something that this try held. Nothing was done; try again."""
