"""The goals, judged by the figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from figures import Figures, Row, cpu, rate, wall
from peers import PEERS, of_our_kind


class Goal(NamedTuple):
    """One line: what, how much at most (or at least), what it was, whether that is enough; None: not measured."""

    what: str
    limit: str
    measured: str
    met: bool | None


def goals(figures: Figures) -> list[Goal]:
    """Return all goals, in the order of the page."""
    return [*_floor(figures), *_single(figures), *_peers(figures)]


def _floor(figures: Figures) -> Iterator[Goal]:
    for on, limit in (("tmpfs", 1.3), ("ext4", 1.2), ("xfs", 1.2)):
        for half, word in (("put", "publish"), ("get", "drain")):
            parts = []
            for count in (1000, 10_000, 100_000, 1_000_000):
                wanted: Row = {"on": on, "count": count, "size": 1024, "work": "store", "peer": "dirqueue"}
                ratios = figures.ratios(cpu(half), **wanted)
                if ratios:
                    parts.append((count, statistics.median(ratios), len(ratios)))
            shown = ", ".join(f"{ratio:.2f} at {_short(count)} (n={times})" for count, ratio, times in parts)
            met = all(ratio <= limit for _, ratio, _ in parts) if parts else None
            yield Goal(f"{word}, CPU of the floor, {on}", f"at most {limit}", shown or "not measured", met)


def _short(count: int) -> str:
    return "1M" if count == 1_000_000 else f"{count // 1000}k"


def _single(figures: Figures) -> Iterator[Goal]:
    for word, name in (("expiry scan by a consumer", "look"), ("expiry scan by a purge", "purge")):
        ratio = figures.median(lambda row, name=name: row[name] / row["listdir"], group="scan")  # type: ignore[misc]
        yield _at_most(f"{word}, CPU of a bare os.listdir", 1.6, ratio, "{:.2f}")
    wasted = figures.median(
        lambda row: row["wasted"] / row["count"], group="crowd", peer="dirqueue", consumers=8
    )
    yield _at_most("wasted renames per message, 8 consumers", 0.5, wasted, "{:.2f}")
    woken = [row["us"][0] / 1000 for row in figures.find(group="wake", peer="dirqueue") if row["us"]]
    yield _at_most("idle wake-up, median ms", 0.5, statistics.median(woken) if woken else None, "{:.2f}")
    memory = [row["memory"] / (1 << 20) for row in figures.find(work="memory", peer="dirqueue")]
    yield _at_most("memory above start at a million, MiB", 10, max(memory) if memory else None, "{:.1f}")
    single = figures.median(wall("put"), group="durable", peer="dirqueue-sync")
    batch = [v for row in figures.find(group="durable-batch") if (v := wall("put")(row)) and row["take"] > 64]
    times = single / statistics.median(batch) if single and batch else None
    shown = f"{times:.0f}" if times else "not measured"
    yield Goal(
        "durable put_many, rate of single durable puts", "at least 20", shown, times >= 20 if times else None
    )


def _at_most(what: str, limit: float, value: float | None, form: str) -> Goal:
    if value is None:
        return Goal(what, f"at most {limit:g}", "not measured", None)
    return Goal(what, f"at most {limit:g}", form.format(value), value <= limit)


def _peers(figures: Figures) -> Iterator[Goal]:
    """Yield the goals of being ahead of every peer of the same kind in every cell."""
    behind: list[str] = []
    cells = 0
    for on, count in sorted({(row["on"], row["count"]) for row in figures.find(work="store", size=1024)}):
        wanted: Row = {"on": on, "count": count, "size": 1024, "work": "store"}
        ours = figures.median(cpu("get"), **wanted, peer="dirqueue")
        for peer in _kin(figures, wanted):
            theirs = figures.median(cpu("get"), **wanted, peer=peer)
            if ours and theirs:
                cells += 1
                if theirs <= ours:
                    behind.append(f"{PEERS[peer].title} at {count:,} on {on}")
    yield Goal(
        "ahead of its kind, drain", "every cell", _summary(cells, behind), not behind if cells else None
    )
    behind, cells = [], 0
    for on in ("tmpfs", "ext4"):
        wanted = {"on": on, "group": "mix"}
        ours = figures.median(rate, **wanted, peer="dirqueue")
        for peer in _kin(figures, wanted):
            theirs = figures.median(rate, **wanted, peer=peer)
            if ours and theirs:
                cells += 1
                if theirs >= ours:
                    behind.append(f"{PEERS[peer].title} on {on}")
    yield Goal(
        "ahead of its kind, 2 + 2 processes",
        "every cell",
        _summary(cells, behind),
        not behind if cells else None,
    )


def _kin(figures: Figures, wanted: Row) -> list[str]:
    return [
        peer
        for peer in figures.peers(**wanted)
        if peer in PEERS
        and of_our_kind(peer, figures)
        and peer != "floor"
        and not peer.startswith("dirqueue")
    ]


def _summary(cells: int, behind: list[str]) -> str:
    if not cells:
        return "not measured"
    return f"all {cells}" if not behind else f"behind in {len(behind)} of {cells}: " + ", ".join(behind)
