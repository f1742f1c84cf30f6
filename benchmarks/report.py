"""The page: what was measured, as Markdown tables and SVG plots, with where we lose and why.

Everything on it is computed from results.json; the sentences that judge are written so that they stay true whatever
the figures say, or are chosen by the figures.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import floor
import plot
from figures import Figures, Row, cpu, key, rate, wall
from goals import goals
from peers import PEERS, of_our_kind

MIB = 1 << 20


def title(peer: str) -> str:
    """What a peer is called on the page."""
    return floor.TITLES.get(peer) or PEERS[peer].title


def number(value: float | None, digits: int = 3) -> str:
    """A figure with as many digits as mean something."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits - 1 if value < 10 else 1}f}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table; the first column is text, the others are figures."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(line) + " |" for line in [head, marks, *rows]] + [""]


def spread(values: list[float]) -> str:
    """Median and, from five rounds on, quartiles."""
    if not values:
        return "–"
    middle = number(statistics.median(values))
    if len(values) < 5:
        return middle
    low, _, high = statistics.quantiles(values, n=4)
    return f"{middle} ({number(low)}–{number(high)})"


def write(results: Path, page: Path) -> None:
    """Write the page and its plots from the results."""
    known = json.loads((results / "results.json").read_text(encoding="utf-8"))
    figures = Figures(known["rows"])
    plots = plots_of(figures, results)
    where = os.path.relpath(results, page.parent)
    text = [
        "# Benchmarks",
        "",
        "<!-- Written by benchmarks/run.py from results.json; change it there. -->",
        "",
        *method(known["facts"], figures, where),
        *goal_table(figures),
        *kind_table(figures),
        *store_tables(figures),
        *plots_text(plots, where),
        *size_table(figures),
        *mix_table(figures),
        *crowd_table(figures),
        *durable_table(figures),
        *small_tables(figures),
        *spark_table(results),
        *losses(figures),
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")


def method(facts: dict[str, Any], figures: Figures, where: str) -> list[str]:
    """How it was measured, and how far to believe it."""
    loads = [row["load"] for row in figures.rows]
    versions = ", ".join(
        f"{title(name)} {version}" for name, version in facts["versions"].items() if name not in ("floor", "dirqueue-sync")
    )
    out = [
        "One machine, one day. What can be compared elsewhere are the **CPU ratios**: CPU of a peer divided by the CPU",
        f"of the {'C floor' if figures.base == 'c' else 'bare os calls'} (the system calls that one file per message needs, and nothing else) in the same round.",
        "Microseconds and messages per second belong to this machine. Every cell is a fresh process on a fresh directory, peers",
        "in shuffled order; the figure is the median over the rounds, with quartiles where there are five or more.",
        "",
        *table(
            ["", "measured with"],
            [
                ["when, commit", f"{facts['when']}, {facts['commit']}, {facts['seconds']} s{', quick' if facts.get('quick') else ''}"],
                ["machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}"],
                ["load average", f"median {statistics.median(loads):.1f}, from {min(loads):.1f} to {max(loads):.1f} (its own work included)"],
                ["Python, SQLite", f"{facts['python']}, {facts['sqlite']}"],
                *[[f"`{name}`", about] for name, about in facts["places"].items()],
                ["versions", versions],
                ["not here", ", ".join(facts["missing"] + ([] if facts["perl_directory_queue"] else ["Perl Directory::Queue"])) or "none"],
            ],
        ),
        "dirqueue runs with `sync=False` except where *sync* is said, since most peers do not sync either. An ext4 without a journal is",
        "refused: there every creation checks recently deleted inodes, and all peers would measure that. Run it yourself:",
        "`make bench` (ten minutes) or `make bench-quick` (one); raw figures are in",
        f"[results.json]({where}/results.json).",
        "",
    ]
    if figures.failed:
        out += ["Failed cells: " + "; ".join(f"{r['group']} {title(r['peer'])}: {r['failed']}" for r in figures.failed), ""]
    return out


def goal_table(figures: Figures) -> list[str]:
    """What was to be reached, and whether it was."""
    rows = [
        [goal.what, goal.limit, goal.measured, {True: "yes", False: "**no**", None: "–"}[goal.met]] for goal in goals(figures)
    ]
    return ["## Goals", "", *table(["goal", "limit", "measured", "met"], rows)]


def kind_table(figures: Figures) -> list[str]:
    """Against peers of the same kind: the nearest one in each cell."""
    out = []
    for on in ("tmpfs", "ext4", "xfs"):
        for count in (500, 1000, 10_000, 100_000):
            ours = figures.median(cpu("get"), on=on, count=count, size=1024, work="store", peer="dirqueue")
            theirs = [
                (value, peer)
                for peer in figures.peers(on=on, count=count, size=1024, work="store")
                if peer in PEERS and of_our_kind(peer) and not peer.startswith(("dirqueue", "floor"))
                and (value := figures.median(cpu("get"), on=on, count=count, size=1024, work="store", peer=peer))
            ]
            if ours and theirs:
                best, peer = min(theirs)
                out.append([f"drain {count:,}, {on}, CPU", title(peer), f"×{number(best / ours)}"])
        ours = figures.median(rate, on=on, group="mix", peer="dirqueue")
        theirs = [
            (value, peer)
            for peer in figures.peers(on=on, group="mix")
            if peer in PEERS and of_our_kind(peer) and not peer.startswith(("dirqueue", "floor"))
            and (value := figures.median(rate, on=on, group="mix", peer=peer))
        ]
        if ours and theirs:
            best, peer = max(theirs)
            out.append([f"2 producers + 2 consumers, {on}, messages/s", title(peer), f"×{number(ours / best)}"])
    return [
        "## Against the nearest peer of its kind",
        "",
        "Its kind: several processes may share the queue, and a message that was taken and not acknowledged is not lost.",
        "The factor is how much faster dirqueue is; below 1 it loses.",
        "",
        *table(["cell", "nearest peer", "dirqueue is"], out),
    ]


def store_tables(figures: Figures) -> list[str]:
    """Publish and drain, for each filesystem and depth."""
    out = ["## Publish and drain, 1 KiB", ""]
    out += [
        "CPU relative to the floor, then what one operation took on the wall in microseconds. *lost* and *twice* count messages.",
        "",
    ]
    cells = sorted({(row["on"], row["count"]) for row in figures.find(work="store", size=1024)})
    for on, count in cells:
        wanted: Row = {"on": on, "count": count, "size": 1024, "work": "store"}
        rows = [store_row(figures, peer, wanted) for peer in figures.peers(**wanted)]
        base = [figures.median(cpu(half), **wanted, peer=figures.base) for half in ("put", "get")]
        rows.sort(key=lambda row: row[0])
        out += [
            f"### {count:,} messages on {on}",
            "",
            f"Floor: {number(base[0])} µs of CPU to publish, {number(base[1])} µs to drain one.",
            "",
            *table(
                ["", "publish CPU", "drain CPU", "publish p50 / p90 / p99 / max", "drain p50 / p90 / p99 / max", "lost", "twice"],
                [row[1:] for row in rows],
            ),
        ]
    return [
        *out,
        "Where a cell has no figure the peer was stopped: it would have taken minutes. A drain of a million is the first 100,000 of it.",
        "",
    ]


def store_row(figures: Figures, peer: str, wanted: Row) -> list[Any]:
    """One line of a publish and drain table, with what it is sorted by in front."""
    rows = figures.find(**wanted, peer=peer)
    drained = figures.ratio(cpu("get"), **wanted, peer=peer)
    latencies = [
        " / ".join(number(value) for value in figures.latency(half, **wanted, peer=peer)) or "–" for half in ("put", "get")
    ]
    counted = [str(max(found)) if (found := [row[name] for row in rows if name in row]) else "–" for name in ("lost", "twice")]
    first = 0 if peer in ("c", "floor") else 1
    return [
        (first, drained if drained is not None else 1e9),
        title(peer),
        spread(figures.ratios(cpu("put"), **wanted, peer=peer)),
        spread(figures.ratios(cpu("get"), **wanted, peer=peer)),
        *latencies,
        *counted,
    ]


def plots_of(figures: Figures, results: Path) -> list[tuple[str, str]]:
    """Draw what a table shows badly; (file, words) of each."""
    results.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, str]] = []
    for on in ("tmpfs", "ext4"):
        series = {
            title(peer): [
                (float(count), value)
                for count in (1000, 10_000, 100_000, 1_000_000)
                if (value := figures.median(cpu("get"), on=on, count=count, size=1024, work="store", peer=peer))
            ]
            for peer in ("dirqueue", figures.base, "dirq-simple", "dirq-normal", "vsqs", "kombu", "huey-file", "litequeue", "maildir")
        }
        if any(len(points) > 1 for points in series.values()):
            name = f"drain-{on}.svg"
            plot.lines(results / name, f"Drain on {on}: CPU for one message", "messages in the queue", "µs of CPU", series)
            drawn.append((name, f"CPU of one drained message as the queue grows, {on}"))
        speeds = [
            (title(peer), value) for peer in figures.peers(on=on, group="mix") if (value := figures.median(rate, on=on, group="mix", peer=peer))
        ]
        if speeds:
            name = f"mix-{on}.svg"
            speeds.sort(key=lambda pair: -pair[1])
            plot.bars(results / name, f"2 producers + 2 consumers on {on}", "messages a second", speeds)
            drawn.append((name, f"messages a second through two producers and two consumers, {on}"))
    return drawn


def plots_text(plots: list[tuple[str, str]], where: str) -> list[str]:
    return [line for name, words in plots for line in (f"![{words}]({where}/{name})", "")]


def size_table(figures: Figures) -> list[str]:
    """Payload sizes."""
    out = ["## Payload sizes", "", "CPU relative to the floor: publish / drain.", ""]
    for on in ("tmpfs", "ext4"):
        sizes = sorted({row["size"] for row in figures.find(group="size", on=on)})
        if not sizes:
            continue
        rows = []
        for peer in figures.peers(group="size", on=on):
            cells = []
            for size in sizes:
                wanted: Row = {"group": "size", "on": on, "size": size, "peer": peer}
                cells.append(" / ".join(number(figures.ratio(cpu(half), **wanted)) for half in ("put", "get")))
            rows.append([title(peer), *cells])
        names = [f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB" if size >= 1024 else f"{size} B" for size in sizes]
        out += table([on, *names], sorted(rows))
    return out


def mix_table(figures: Figures) -> list[str]:
    """Producers and consumers at once."""
    out = [
        "## Two producers and two consumers",
        "",
        "Everybody polls an empty queue each millisecond. *late* is from before put to after get at 200 messages a second. *errors* are",
        "exceptions that a put or a get raised.",
        "",
    ]
    for on in ("tmpfs", "ext4"):
        rows = []
        for peer in figures.peers(on=on, group="mix"):
            found = figures.find(on=on, group="mix", peer=peer)
            late = [row["us"] for row in figures.find(group="paced", peer=peer, on=on) if row.get("us")]
            shown = " / ".join(f"{value / 1000:.2f}" for value in late[0]) if late else "–"
            speed = figures.median(rate, on=on, group="mix", peer=peer) or 0
            counts = [str(sum(row[name] for row in found)) for name in ("lost", "twice", "errors")]
            spent = spread(figures.ratios(lambda row: row["cpu"], on=on, group="mix", peer=peer))
            kind = "" if peer not in PEERS or of_our_kind(peer) else " (no ack)"
            rows.append((-speed, [title(peer) + kind, number(speed), spent, shown, *counts]))
        if rows:
            head = [on, "messages/s", "CPU", "late p50 / p90 / p99 / max ms", "lost", "twice", "errors"]
            out += table(head, [row for _, row in sorted(rows)])
    return out


def crowd_table(figures: Figures) -> list[str]:
    """One to eight consumers."""
    rows = []
    for peer in figures.peers(group="crowd"):
        for many in sorted({row["consumers"] for row in figures.find(group="crowd", peer=peer)}):
            wanted: Row = {"group": "crowd", "peer": peer, "consumers": many}
            wasted = figures.median(lambda row: row["wasted"] / row["count"], **wanted)
            spent = figures.median(lambda row: row["cpu"] / row["count"] * 1e6, **wanted)
            lost, twice = (sum(row[name] for row in figures.find(**wanted)) for name in ("lost", "twice"))
            rows.append([f"{title(peer)}, {many}", number(wasted), number(spent), str(lost), str(twice)])
    head = ["consumers on one queue", "wasted renames per message", "CPU µs per message", "lost", "twice"]
    return ["## Many consumers", "", *table(head, rows)] if rows else []


def durable_table(figures: Figures) -> list[str]:
    """What reaches the disk."""
    rows = []
    for peer in figures.peers(group="durable"):
        wanted: Row = {"group": "durable", "peer": peer}
        what = {"floor": "file and directory"}.get(peer) or PEERS[peer].syncs
        shown = " / ".join(number(value / 1000) for value in figures.latency("put", **wanted))
        rows.append([title(peer), what, number(1e6 / (figures.median(wall("put"), **wanted) or 1)), shown])
    for take in sorted({row["take"] for row in figures.find(group="durable-batch")}):
        wanted = {"group": "durable-batch", "take": take}
        each = figures.median(wall("put"), **wanted)
        rows.append([f"dirqueue, sync, put_many of {take}", "all", number(1e6 / each if each else None), "–"])
    text = (
        "On an image on the machine's own disk. *syncs* says what is on the disk when put returns: the file alone does not promise"
    )
    head = ["1 KiB", "syncs", "messages/s", "p50 / p90 / p99 / max ms"]
    return ["## Durable puts", "", text, "that its name is there after a power cut.", "", *table(head, rows)] if rows else []


def small_tables(figures: Figures) -> list[str]:
    """put_many, the scan, waiting, memory, the directory after a backlog, start-up."""
    out: list[str] = []

    def add(name: str, head: list[str], rows: list[list[str]], text: str = "") -> None:
        if rows:
            out.extend([f"## {name}", "", *([text, ""] if text else []), *table(head, rows)])

    add("put_many, 1 KiB", ["", "CPU µs per message", "of a single put"], _batches(figures))
    scans = [
        (title_, figures.median(key(name), group="scan"))
        for title_, name in (
            ("C readdir", "c"), ("os.listdir", "listdir"), ("os.scandir with types", "scandir"),
            ("dirqueue: a consumer's look, sorted", "look"), ("dirqueue: purge", "purge"),
            ("dirqueue: stats", "stats"), ("dirq QueueSimple: purge", "dirq"),
        )
    ]  # fmt: skip
    base = figures.median(key("listdir"), group="scan")
    found = figures.find(group="scan")
    add(
        f"Scan of {found[0]['count']:,} names, one in a hundred an expired lease" if found else "Scan",
        ["", "CPU ms", "of a bare os.listdir"],
        [[name, number(value * 1e3), f"×{number(value / base)}"] for name, value in scans if value and base],
    )
    wakes = [
        [title(row["peer"]), " / ".join(f"{value / 1000:.2f}" for value in row["us"]), f"{row['busy'] * 100:.1f} %"]
        for row in figures.find(group="wake")
        if row["us"]
    ]
    add("Idle wake-up", ["waiting on an empty queue", "p50 / p90 / p99 / max ms", "CPU while waiting"], sorted(wakes))
    memories = [
        [f"{title(row['peer'])}, {row['on']}", number(row["memory"] / MIB), number(row["first"] * 1e3)]
        for row in figures.find(work="memory")
    ]
    add(
        "Memory at a million",
        ["a consumer that takes one message", "MiB above start", "first get, ms"],
        sorted(memories),
    )
    rows = [
        [f"{title(row['peer'])}, {row['on']}", number(row["fresh"] * 1e6), number(row["after"] * 1e6)]
        for row in figures.find(group="backlog")
    ]
    count = max((row["count"] for row in figures.find(group="backlog")), default=0)
    add(
        "An empty look after a backlog",
        ["", "fresh queue, CPU µs", f"after {count:,} came and went"],
        sorted(rows),
        "An ext4 directory never shrinks, so that a flat one is slow to list for ever.",
    )
    starts = figures.find(group="startup")
    names = {
        "python": "python -c pass", "import": "import dirqueue, Queue", "version": "dirqueue --version",
        "put": "dirqueue put", "get": "dirqueue get",
    }  # fmt: skip
    add("Start-up", ["", "CPU ms"], [[text, number(starts[0][name] * 1e3)] for name, text in names.items() if starts])
    return out


def _batches(figures: Figures) -> list[list[str]]:
    rows = []
    for on in ("tmpfs", "ext4"):
        many = figures.median(cpu("put"), group="batch", on=on)
        single = figures.median(cpu("put"), on=on, work="store", peer="dirqueue", count=1000, size=1024)
        if many and single:
            rows.append([f"put_many, {on}", number(many), f"×{number(many / single)}"])
    return rows


def spark_table(results: Path) -> list[str]:
    """Rows of the Spark benchmark, if it was run: a list of tables, each a head and rows of text."""
    found = results / "spark.json"
    if not found.exists():
        return []
    tables = json.loads(found.read_text(encoding="utf-8"))
    return ["## Spark", "", *[line for each in tables for line in table(each["head"], each["rows"])]]


#: Why somebody is faster: said where they are.
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
    "maildir": "claims by a rename into another directory, without leases: nobody takes back what a dead reader took",
}


def losses(figures: Figures) -> list[str]:
    """Every cell where somebody was faster than us, and why."""
    lost: dict[str, list[str]] = {}

    def compare(what: str, ours: float | None, theirs: Callable[[str], float | None], who: list[str]) -> None:
        for peer in who:
            value = theirs(peer)
            if ours and value and value < ours and peer not in ("c", "floor") and not peer.startswith("dirqueue"):
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
            lambda peer, on=on: figures.median(lambda row: row["wall"] / row["count"], group="mix", on=on, peer=peer),  # type: ignore[misc]
            figures.peers(group="mix", on=on),
        )
    compare(
        "durable single put",
        figures.median(wall("put"), group="durable", peer="dirqueue-sync"),
        lambda peer: figures.median(wall("put"), group="durable", peer=peer),
        figures.peers(group="durable"),
    )
    out = ["## Where it loses", "", "Every cell in which a peer was faster (its cost relative to dirqueue's; CPU, wall where processes or disks are waited for).", ""]
    for peer, cells in sorted(lost.items(), key=lambda pair: -len(pair[1])):
        why = REASONS.get(peer, "")
        if any("durable" in cell for cell in cells):
            why = "; ".join(filter(None, [why, f"syncs {PEERS[peer].syncs}, where a durable file needs two fsyncs"]))
        out.append(f"- **{title(peer)}**{': ' + why if why else ''}. {', '.join(cells)}.")
    return [*out, "" if lost else "None in this run.", ""]
