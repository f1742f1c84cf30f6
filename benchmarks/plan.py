"""Which cells are run, how often: quick (a minute) and whole (about ten minutes).

A group is the cells that are compared with each other: they run one after the other, in shuffled order, in each round,
and ratios are taken within the round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import floor
import peers
from work import Cell

KIB, MIB = 1 << 10, 1 << 20
#: Those that every table needs.
MAIN = ("c", "floor", "dirqueue")
#: The nearest relatives, measured more often than the rest.
NEAR = ("dirq-simple", "maildir")
#: Of those that look at every message, enough to show the curve.
LINEAR = ("vsqs", "huey-file", "kombu", "litequeue")


@dataclasses.dataclass(frozen=True)
class Group:
    """Cells to compare: the same work, on the same filesystem, by several peers."""

    name: str
    place: str
    cells: tuple[Cell, ...]
    rounds: int = 1
    #: Whether nothing is timed, so that all cells may run at once.
    at_once: bool = False


def everybody() -> list[str]:
    """Return all peers that are installed, the floors first."""
    found = ["c"] if floor.binary() else []
    found += [name for name in peers.PEERS if peers.available(name)]
    if floor.perl():
        found += ["perl-simple", "perl-normal"]
    return found


class Planner:
    """Makes groups of the wanted peers that are installed."""

    def __init__(self, wanted: list[str]) -> None:
        self.here = wanted
        self.binary = floor.binary() or ""

    def group(
        self,
        name: str,
        place: str,
        among: Iterable[str],
        rounds: int = 1,
        **cell: object,
    ) -> Group:
        """Return a group with the same cell for several peers."""
        some = tuple(
            Cell(peer=peer, binary=self.binary, **cell)  # type: ignore[arg-type]
            for peer in among
            if peer in self.here
        )
        return Group(name, place, some, rounds)

    def those(self, *, shared: bool = False, but: tuple[str, ...] = ("dirqueue-sync",)) -> list[str]:
        """Return all peers, or those that several processes may use."""
        return [
            name
            for name in self.here
            if name not in but
            and not (shared and name in peers.PEERS and not peers.PEERS[name].shared)
            and not (shared and name.startswith("perl"))
        ]


def quick(wanted: list[str], places: list[str]) -> list[Group]:
    """Return the plan of about a minute: every kind of work once, few peers, small numbers."""
    plan = Planner(wanted)
    groups: list[Group] = []
    for place in places:
        groups += [
            plan.group("store", place, plan.those(), 1, work="store", count=500, cap=1.0),
            plan.group("store", place, (*MAIN, *NEAR), 5, work="store", count=1000),
        ]
    first, last = places[0], places[-1]
    groups += [
        plan.group("store", first, MAIN, 2, work="store", count=10_000),
        plan.group(
            "size", first, (*MAIN, "dirq-simple", "litequeue"), 1, work="store", count=100, size=64 * KIB
        ),
        _mix(plan, "mix", first, 1, 600),
        plan.group("scan", first, ("dirqueue",), 1, work="scan", count=20_000),
        plan.group("wake", first, ("floor", "dirqueue", "vsqs"), 1, work="wake", count=12),
        plan.group("batch", first, ("dirqueue",), 1, work="batch", count=1000, take=1000),
        plan.group("backlog", last, ("floor", "dirqueue"), 1, work="backlog", count=10_000),
        plan.group("startup", first, ("dirqueue",), 1, work="startup"),
        _death(plan, first, ("dirqueue", "dirq-simple", "maildir")),
    ]
    groups += [
        plan.group("crowd", first, ("floor", "dirqueue"), 1, work="crowd", count=3000, consumers=many)
        for many in (1, 8)
    ]
    return groups + _durable(plan, 100, 1)


def whole(wanted: list[str], places: list[str]) -> list[Group]:
    """Return the plan of about ten minutes: all of it."""
    plan = Planner(wanted)
    groups: list[Group] = []
    first, last = places[0], places[min(1, len(places) - 1)]
    for place in places:
        if place == "xfs":  # the third place: mostly how close to the floor
            groups += [plan.group("store", place, plan.those(), 1, work="store", count=1000, cap=2.0)]
            groups += [plan.group("store", place, (*MAIN, *NEAR), 15, work="store", count=1000)]
            groups += [plan.group("store", place, (*MAIN, *NEAR), 5, work="store", count=10_000)]
            groups += [plan.group("store", place, MAIN, 1, work="store", count=100_000)]
            continue
        groups += [
            plan.group("store", place, plan.those(), 2, work="store", count=1000, cap=4.0),
            plan.group("store", place, (*MAIN, *NEAR), 15, work="store", count=1000),
            plan.group("store", place, (*MAIN, *NEAR), 7, work="store", count=10_000),
            plan.group("store", place, MAIN, 3 if place == first else 2, work="store", count=100_000),
            plan.group(
                "million",
                place,
                ("c", "dirqueue"),
                4 if place == first else 1,
                work="store",
                count=1_000_000,
                take=100_000,
            ),
            _mix(plan, "mix", place, 2, 3000),
        ]
        groups += [
            plan.group("size", place, _sized(size), 3, work="store", count=count, size=size, cap=3.0)
            for size, count in ((100, 1000), (64 * KIB, 200), (16 * MIB, 4))
        ]
    groups += [
        plan.group("store", first, plan.those(), 1, work="store", count=10_000, cap=2.5),
        plan.group("store", first, (*MAIN, "dirq-simple"), 1, work="store", count=100_000),
        plan.group("store", first, LINEAR, 1, work="store", count=100_000, cap=5.0),
        _mix(plan, "paced", last, 1, 100, rate=200.0),
        plan.group("scan", first, ("dirq-simple",), 2, work="scan", count=100_000),
        plan.group(
            "wake",
            first,
            ("floor", "dirqueue", "vsqs", "localqueue", "kombu", "dirq-simple"),
            2,
            work="wake",
            count=40,
        ),
        plan.group("batch", first, ("dirqueue",), 3, work="batch", count=10_000, take=1000),
        plan.group("batch", last, ("dirqueue",), 3, work="batch", count=10_000, take=1000),
        plan.group(
            "backlog", last, ("floor", "dirqueue", "dirq-simple", "maildir"), 1, work="backlog", count=20_000
        ),
        plan.group("startup", first, ("dirqueue",), 1, work="startup"),
        _death(plan, first, [name for name in plan.those(shared=True) if name != "c"]),
    ]
    groups += [
        plan.group(
            "crowd", first, ("floor", "dirqueue", "dirq-simple"), 2, work="crowd", count=8000, consumers=many
        )
        for many in (1, 2, 4, 8)
    ]
    return groups + _durable(plan, 400, 5)


def _mix(plan: Planner, name: str, place: str, rounds: int, count: int, rate: float = 0.0) -> Group:
    """Return a group of two producers and two consumers, of all peers that several processes may use."""
    among = plan.those(shared=True)
    return plan.group(
        name, place, among, rounds, work="mix", count=count, producers=2, consumers=2, rate=rate
    )


def _death(plan: Planner, place: str, among: Sequence[str]) -> Group:
    """Return a group in which a consumer that holds three of ten messages is killed."""
    group = plan.group("death", place, among, 1, work="death", count=10, take=3)
    return dataclasses.replace(group, at_once=True)


def _sized(size: int) -> list[str]:
    """Return the peers for bodies of a size; fewer for 16 MiB, which are slow through text or pickles."""
    if size > MIB:
        return [*MAIN, *NEAR, "litequeue", "diskcache"]
    return [*MAIN, *NEAR, "persist-file", "queuelib", "litequeue", "localqueue", "diskcache", "huey-sqlite"]


def _durable(plan: Planner, count: int, rounds: int) -> list[Group]:
    """Return groups on an image on the real disk, where an fsync has its real cost."""
    among = ("floor", "dirqueue-sync", "vsqs", "maildir", "persist-sqlite", "persist-ack", "huey-sqlite")
    return [
        plan.group("durable", "disk", among, rounds, work="durable", count=count, cap=3.0),
        plan.group(
            "durable-batch", "disk", ("dirqueue-sync",), rounds, work="batch", count=10 * count, take=1000
        ),
        plan.group(
            "durable-batch", "disk", ("dirqueue-sync",), rounds, work="batch", count=2 * count, take=64
        ),
    ]
