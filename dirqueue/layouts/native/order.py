"""In which order names are tried: by priority, then by the time of their ids, or at random.

Layer: layouts, pure values.
A run of names is kept in reverse, so that the first to try is popped from its end.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import names

NO_LINKS: AbstractSet[str] = frozenset()
#: A directory, names in it to try, and which of them are symbolic links.
Row = tuple[str, list[str], AbstractSet[str]]


class Segment(NamedTuple):
    """Names to try, in one directory; not listed yet if `names` is None. In reverse: the first is the last."""

    prefix: str
    names: list[str] | None
    #: Which of the names, and maybe others, are symbolic links.
    links: AbstractSet[str] = NO_LINKS


class Order:
    """fifo, lifo or random; priorities come first in each."""

    def __init__(self, order: str) -> None:
        self._order = order

    def turn(self, name: str) -> tuple[int, str | int]:
        """Return when it is a name's turn, as something that sorts."""
        priority, time = order_key(name)
        return (priority, -int(time)) if self._order == "lifo" else (priority, time)

    def _turn_of(self, prefix: str) -> tuple[int, str | int]:
        priority, time = _directory_key(prefix)
        return (priority, -int(time)) if self._order == "lifo" else (priority, time)

    def sort(self, run: list[str]) -> list[str]:
        """Sort in place so that the first to try is at the end."""
        if self._order == "random":
            import random

            random.shuffle(run)
        elif len({ID_DIGITS if len(name) == ID_DIGITS else len(id_of(name)) for name in run}) > 1:
            run.sort(key=order_key, reverse=self._order == "fifo")
        else:  # ids of one length: the order of names is the order of ids
            run.sort(reverse=self._order == "fifo")
        if self._order != "fifo" and any(len(id_of(name)) > ID_DIGITS for name in run):
            run.sort(key=priority_of, reverse=True)
        return run

    def segments(
        self, flat: list[str], due: list[str], containers: list[str], links: AbstractSet[str]
    ) -> list[Segment]:
        """Return the segments in reverse order: runs of names between directories.

        Args:
            flat: Names of the queue's own directory.
            due: Paths of names in the rooms.
            containers: Paths of directories.
            links: Which of the names are symbolic links.
        """
        row = [Segment(name + "/", None) for name in containers]
        if self._order == "random":
            import random

            row.append(Segment("", self.sort(flat + due), links))
            random.shuffle(row)
            return row
        row.sort(key=lambda each: self._turn_of(each.prefix))
        flat = self.sort(flat)
        flat.reverse()
        if len(due) * 16 < len(flat):
            for name in due:
                bisect.insort(flat, name, key=self.turn)
        elif due:
            flat = sorted(flat + due, key=self.turn)
        begin, mixed = 0, []
        # COST: a binary search for each directory takes 40 ms instead of 69 (32,768 names, 100 directories). With
        # about as many of each, computing all keys first takes 6 ms instead of 13 (1,000 and 1,000).
        few = len(row) * 16 < len(flat)
        turns: list[Any] = flat if few else [self.turn(name) for name in flat]
        key: Any = self.turn if few else None
        for container in row:
            end = bisect.bisect_left(turns, self._turn_of(container.prefix), lo=begin, key=key)
            mixed += [Segment("", flat[begin:end][::-1], links), container]
            begin = end
        mixed.append(Segment("", flat[begin:][::-1], links))
        mixed.reverse()
        return mixed


def id_of(name: str) -> str:
    """Return the id in a name, in the path of one in a room, or in that of a directory."""
    if "/" in name:
        name = name.rstrip("/").rpartition("/")[2]
    return name.partition(".")[0]


def order_key(name: str) -> tuple[int, str]:
    """Return the sort key of the id in a name."""
    return names.order_key(id_of(name))


#: COST: as parse_directory.
_directory_key = functools.lru_cache(maxsize=1 << 16)(order_key)


def priority_of(name: str) -> int:
    """Return the priority in a name; 0 if it has none."""
    return names.priority_of(id_of(name)) or 0
