"""The cells in which a peer was faster, and why."""

from __future__ import annotations

from collections.abc import Callable

from figures import Figures, Row, cpu, wall
from peers import PEERS
from tables import number, title

#: Why a peer is faster.
REASONS: dict[str, str] = {
    "queuelib": "appends to one file; one process, nothing is kept after get, no recovery of a message that was taken",
    "textqueue": "appends to one file; one process, and its acknowledgement is one byte written in place",
    "persist-file": "appends to one file; one process",
    "litequeue": "one SQLite write without sync for a put; its get looks at every message",
    "localqueue": "one SQLite write without sync for a put, in Rust; its get looks at more the more there are",
    "diskcache": "SQLite without sync; no acknowledgement, a consumer that dies loses what it took",
    "huey-sqlite": "one SQLite transaction; no acknowledgement, a consumer that dies loses what it took",
    "huey-file": "no claim: one lock around everything; a consumer that dies loses what it took",
    "persist-sqlite": "SQLite; delivers twice when two processes consume",
    "persist-ack": "SQLite; delivers twice when two processes consume",
    "maildir": "claims by a rename into a directory that is nearly empty, cheaper on XFS and for large files, and never takes "
    "back what a dead reader took",
}


def losses(figures: Figures) -> list[str]:
    """Return the section about cells in which a peer was faster than dirqueue."""
    lost: dict[str, list[str]] = {}

    def compare(
        what: str, ours: float | None, theirs: Callable[[str], float | None], among: list[str]
    ) -> None:
        for peer in among:
            value = theirs(peer)
            if (
                ours
                and value
                and value < ours
                and peer not in ("c", "floor")
                and not peer.startswith("dirqueue")
            ):
                lost.setdefault(peer, []).append(f"{what} (×{number(value / ours)})")

    for on, count, size in sorted({(r["on"], r["count"], r["size"]) for r in figures.find(work="store")}):
        wanted: Row = {"on": on, "count": count, "size": size, "work": "store"}
        for half, word in (("put", "publish"), ("get", "drain")):
            shown = "" if size == 1024 else f" of {size:,} B"
            compare(
                f"{word} {count:,}{shown}, {on}",
                figures.median(cpu(half), **wanted, peer="dirqueue"),
                lambda peer, half=half, wanted=wanted: figures.median(cpu(half), **wanted, peer=peer),  # type: ignore[misc]
                figures.peers(**wanted),
            )
    for on in ("tmpfs", "ext4"):
        compare(
            f"2 + 2 processes, {on}",
            figures.median(lambda row: row["wall"] / row["count"], group="mix", on=on, peer="dirqueue"),
            lambda peer, on=on: figures.median(
                lambda row: row["wall"] / row["count"], group="mix", on=on, peer=peer
            ),  # type: ignore[misc]
            figures.peers(group="mix", on=on),
        )
    compare(
        "durable single put",
        figures.median(wall("put"), group="durable", peer="dirqueue-sync"),
        lambda peer: figures.median(wall("put"), group="durable", peer=peer),
        figures.peers(group="durable"),
    )
    out = [
        "## Where it loses",
        "",
        "Every cell in which a peer was faster, with its cost relative to dirqueue's: CPU, or the wall clock",
        "where processes or disks are waited for.",
        "",
    ]
    for peer, cells in sorted(lost.items(), key=lambda pair: -len(pair[1])):
        why = REASONS.get(peer, "")
        if any("durable" in cell for cell in cells):
            why = "; ".join(
                filter(None, [why, f"syncs {PEERS[peer].syncs}, where a durable file needs two fsyncs"])
            )
        out.append(f"- **{title(peer)}**{': ' + why if why else ''}. {', '.join(cells)}.")
    return [*out, "" if lost else "None in this run.", ""]
