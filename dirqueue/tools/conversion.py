"""A conversion that was interrupted: where its messages are, and what ends it.

    PATH                        the queue; in the old layout until the last step, in the new one after it
    PATH.converting/from        the name of the old layout
    PATH.converting/queue/      the new queue, being filled
    PATH.converting/moving/     the one message that is between the two
    PATH.converting/old/        the emptied old queue, for a moment
    PATH.converting/lock        locked while a conversion runs

Layer: tools.  Touches: nothing.  `convert` is what makes, continues and ends a conversion.
"""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.beside import side_of
from dirqueue.errors import QueueError, QueueNotFound
from dirqueue.queue import Queue

SUFFIX = ".converting"
FROM, TARGET, MOVING, OLD, LOCK = "from", "queue", "moving", "old", "lock"
#: Those of queues that are one file have a directory beside them.
_PARTS = frozenset(
    (
        FROM,
        FROM + ".new",
        TARGET,
        MOVING,
        OLD,
        LOCK,
        os.path.basename(side_of(TARGET)),
        os.path.basename(side_of(OLD)),
    )
)


class Interrupted(NamedTuple):
    """What an interrupted conversion left beside a queue."""

    path: str
    #: The layout that the queue was to have.
    layout: str
    #: Messages that are not in the queue's own directory.
    messages: int

    def __str__(self) -> str:
        return (
            f"a conversion of {self.path!r} to {self.layout} was interrupted: {self.messages} of its messages are in "
            f"{self.path + SUFFIX!r}; `dirqueue convert {shlex.quote(self.path)} --to {self.layout}` finishes it"
        )


def queue_of(work: str) -> str | None:
    """Return the path of the queue whose conversion works in this directory; None if it is another directory."""
    if not work.endswith(SUFFIX):
        return None
    try:
        names = fs.listdir(work)
    except OSError:
        return None
    return work.removesuffix(SUFFIX) if names and _PARTS.issuperset(names) else None


def interrupted(path: str) -> Interrupted | None:
    """Return what is known about an interrupted conversion of a queue; None if there was none."""
    path = os.path.abspath(path)
    work = path + SUFFIX
    target = os.path.join(work, TARGET)
    if not fs.exists(os.path.join(work, FROM), -1):
        return None  # written when the target is complete, and before the first message moves
    count = _count(os.path.join(work, OLD)) + _count(target)
    try:
        count += sum(not name.endswith(".new") for name in fs.listdir(os.path.join(work, MOVING)))
    except OSError:
        pass
    # The last step but one renames the target to the path; from then on the path has the new layout.
    return Interrupted(path, _layout(target) or _layout(path) or "LAYOUT", count)


def refuse(path: str, done: str) -> None:
    """Raise QueueError if a conversion of the queue was interrupted; `done` says what was not done to it."""
    found = interrupted(path)
    if found is not None:
        raise QueueError(f"{found}; nothing was {done}", path=path)


def explained(error: QueueNotFound) -> QueueNotFound:
    """Return the error for a queue that is missing: one that says so if a conversion has taken it away."""
    found = interrupted(error.path)
    return error if found is None else QueueNotFound(str(found), path=error.path)


def _count(path: str) -> int:
    try:
        with Queue(path, create=False) as queue:
            return len(queue)
    except (QueueError, OSError):
        return 0


def _layout(path: str) -> str:
    try:
        with Queue(path, create=False) as queue:
            return queue.layout.name
    except (QueueError, OSError):
        return ""
