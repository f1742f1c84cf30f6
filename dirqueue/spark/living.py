"""What a stream or a claim may take: what can be claimed now, without messages whose life is over.

Layer: edges.  Touches: messages whose life is over, by their exact names: they end as if a consumer had met them.
COST: nothing in a queue without attributes/; else one call for each message that was put in a minute in which others
got attributes or an end of life.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dirqueue.errors import LeaseLost
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import Native, names
from dirqueue.layouts.native.inspect import buckets
from dirqueue.layouts.native.names import ATTRIBUTES, MINUTE
from dirqueue.layouts.native.settle import EXPIRED
from dirqueue.layouts.native.supply import Folder, Supply, claimable
from dirqueue.message import Entry


def living(native: Native) -> Supply:
    """Return what can be claimed now, in the queue's order."""
    supply = claimable(native.directory, native.settings)
    if not native.directory.find():
        return supply
    now = native.directory.clock.now()
    minutes = frozenset(buckets(native.directory, ATTRIBUTES))
    return Supply(native.directory, _sifted(native, supply, minutes, now - now % MINUTE))


def _sifted(
    native: Native, supply: Supply, minutes: frozenset[int], recent: int
) -> Iterator[tuple[str, str] | Folder]:
    """Yield what is not over. Of what is put while this runs, from `recent` on, each is looked at."""

    def over(prefix: str, name: str) -> bool:
        put = names.micros_of(name.partition(".")[0])
        minute = put - put % MINUTE
        return (minute in minutes or minute >= recent) and _ended(native, prefix + name)

    while True:
        if (folder := supply.folder()) is not None:
            left = [name for name in folder.names if not over(folder.prefix, name)]
            if len(left) == len(folder.names):
                yield folder
            else:
                yield from ((folder.prefix, name) for name in left)
        elif (found := supply.take()) is None:
            return
        elif not over(*found):
            yield found


def _ended(native: Native, place: str) -> bool:
    """End a message if its life is over; return whether it is."""
    name = names.parse(place.rpartition("/")[2])
    if name is None:
        return False
    extras = native.extras(Entry(name.id, "", place, 0))
    if extras is None or not 0 < extras.expires <= native.directory.clock.now():
        return False
    held = Claim(name.id, place, 0, name.until, name.attempts)
    held.extras = extras
    with contextlib.suppress(LeaseLost):  # RACE: a consumer was faster
        if native.settings.keep_expired:
            native.bury(held, EXPIRED)
        else:
            native.ack(held)
    return True
