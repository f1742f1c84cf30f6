"""What a stream or a claim may take: what can be claimed now, without messages whose life is over.

Layer: edges.  Touches: messages whose life is over, by their exact names: they end as if a consumer had met them.
COST: a look at attributes/ for each directory of messages; and one call for each message that was put in a minute in
which others got attributes or an end of life.
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
    return Supply(native.directory, _sifted(native, supply))


def _sifted(native: Native, supply: Supply) -> Iterator[tuple[str, str] | Folder]:
    """Yield what is not over."""
    lives = _Lives(native)
    while True:
        if (folder := supply.folder()) is not None:
            left = lives.among(*folder)
            if len(left) == len(folder.names):
                yield folder
            else:
                yield from ((folder.prefix, name) for name in left)
        elif (found := supply.take()) is None:
            return
        elif lives.among(found[0], [found[1]]):
            yield found


class _Lives:
    """Tells which messages are over, for names of one directory after the other."""

    def __init__(self, native: Native) -> None:
        self._native = native
        #: The minutes in which messages were put that carry something.
        self._minutes: frozenset[int] = frozenset()
        self._looked: set[str] = set()

    def among(self, prefix: str, found: list[str]) -> list[str]:
        """Return the names whose messages are not over."""
        if prefix not in self._looked:
            # What a message carries was there before its name was: what this listing showed cannot be missed now.
            self._looked.add(prefix)
            self._minutes = frozenset(buckets(self._native.directory, ATTRIBUTES))
        if not self._minutes:
            return found
        return [name for name in found if not (self._may_end(name) and _ended(self._native, prefix + name))]

    def _may_end(self, name: str) -> bool:
        put = names.micros_of(name.partition(".")[0])
        return put - put % MINUTE in self._minutes


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
