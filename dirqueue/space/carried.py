"""What messages carry beside their bodies, in a transaction: written before the commit, removed after it.

Layer: objects.  Touches: attributes/BUCKET/ID of the queues of a space.
Invariant: it is there before the message that carries it; a message that is moved has it in both queues for a moment.
Crash: what is left of it without a message is removed by the purge of its queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from dirqueue.space.work import Work


def keep_carried(work: Work) -> None:
    """Write what messages will carry, durably where their queue syncs. Raises plain OSError."""
    for each in work.carried:
        each.layout.keep_extras(each.id, each.extras)


def drop_carried(work: Work, ids: AbstractSet[str] | None = None) -> None:
    """Remove what new messages were to carry that did not come: all of them, or these.

    RACE: of a message that was to move it is left to a purge: whoever was faster may have moved it to the same queue.
    """
    new: AbstractSet[str] = {each.id for each in work.insert} if ids is None else ids
    for each in work.carried:
        if each.id in new:
            each.layout.drop_extras(each.id)


def leave_carried(work: Work) -> None:
    """Remove what messages carried that went away; that of a message which stays under its id is its own still.

    RACE: a message that went may be back, by a transaction that was quicker than we are: then it was written since.
    """
    kept = {(each.layout.directory.path, each.id) for each in work.carried}
    for layout, id in work.left:
        if (layout.directory.path, id) not in kept:
            layout.drop_extras(id, written_by=work.now)


def skipped(inserts: Iterable[Any], ids: AbstractSet[str], work: Work) -> list[str]:
    """Return which ids of the user's own were there already; what was to come with them is removed."""
    drop_carried(work, ids)
    return [each.own_id for each in inserts if each.own_id and each.id in ids]
