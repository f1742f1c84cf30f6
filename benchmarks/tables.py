"""The tables of the page, each from the figures of a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import floor
from figures import Figures, Row, cpu, key, rate, wall
from peers import PEERS, of_our_kind

MIB = 1 << 20


def title(peer: str) -> str:
    """Return the name of a peer on the page."""
    return floor.TITLES.get(peer) or PEERS[peer].title


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure with its significant digits."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits - 1 if value < 10 else 1}f}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table; the first column is text, the others are figures."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(line) + " |" for line in [head, marks, *rows]] + [""]


def spread(values: list[float]) -> str:
    """Return the median and, from five rounds on, the quartiles."""
    if not values:
        return "–"
    middle = number(statistics.median(values))
    if len(values) < 5:
        return middle
    low, _, high = statistics.quantiles(values, n=4)
    return f"{middle} ({number(low)}–{number(high)})"


def kind_table(figures: Figures) -> list[str]:
    """Return the table against peers of the same kind: the nearest one in each cell."""
    out = []
    for on in ("tmpfs", "ext4", "xfs"):
        for count in (500, 1000, 10_000, 100_000):
            ours = figures.median(cpu("get"), on=on, count=count, size=1024, work="store", peer="dirqueue")
            theirs = [
                (value, peer)
                for peer in figures.peers(on=on, count=count, size=1024, work="store")
                if peer in PEERS
                and of_our_kind(peer, figures)
                and not peer.startswith(("dirqueue", "floor"))
                and (
                    value := figures.median(
                        cpu("get"), on=on, count=count, size=1024, work="store", peer=peer
                    )
                )
            ]
            if ours and theirs:
                best, peer = min(theirs)
                out.append([f"drain {count:,}, {on}, CPU", title(peer), f"×{number(best / ours)}"])
        ours = figures.median(rate, on=on, group="mix", peer="dirqueue")
        theirs = [
            (value, peer)
            for peer in figures.peers(on=on, group="mix")
            if peer in PEERS
            and of_our_kind(peer, figures)
            and not peer.startswith(("dirqueue", "floor"))
            and (value := figures.median(rate, on=on, group="mix", peer=peer))
        ]
        if ours and theirs:
            best, peer = max(theirs)
            out.append(
                [f"2 producers + 2 consumers, {on}, messages/s", title(peer), f"×{number(ours / best)}"]
            )
    return [
        "## Against the nearest peer of its kind",
        "",
        "Its kind: several processes may share the queue, and what a killed consumer held comes again (measured, see",
        "below). The factor is how much faster dirqueue is; below 1 it loses.",
        "",
        *table(["cell", "nearest peer", "dirqueue is"], out),
    ]


def store_tables(figures: Figures) -> list[str]:
    """Return the tables of publish and drain, for each filesystem and depth."""
    out = ["## Publish and drain, 1 KiB", ""]
    out += [
        "CPU relative to the floor, then what one operation took on the wall in microseconds.",
        "*lost* and *twice* count messages.",
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
                [
                    "",
                    "publish CPU",
                    "drain CPU",
                    "publish p50 / p90 / p99 / max",
                    "drain p50 / p90 / p99 / max",
                    "lost",
                    "twice",
                ],
                [row[1:] for row in rows],
            ),
        ]
    return [
        *out,
        "Where a cell has no figure the peer was stopped: it would take minutes.",
        "A drain of a million is its first 100,000.",
        "",
    ]


def store_row(figures: Figures, peer: str, wanted: Row) -> list[Any]:
    """Return one line of a publish and drain table, after the value that it is sorted by."""
    rows = figures.find(**wanted, peer=peer)
    drained = figures.ratio(cpu("get"), **wanted, peer=peer)
    latencies = [
        " / ".join(number(value) for value in figures.latency(half, **wanted, peer=peer)) or "–"
        for half in ("put", "get")
    ]
    counted = [
        str(max(found)) if (found := [row[name] for row in rows if name in row]) else "–"
        for name in ("lost", "twice")
    ]
    first = 0 if peer in ("c", "floor") else 1
    return [
        (first, drained if drained is not None else 1e9),
        title(peer),
        spread(figures.ratios(cpu("put"), **wanted, peer=peer)),
        spread(figures.ratios(cpu("get"), **wanted, peer=peer)),
        *latencies,
        *counted,
    ]


def size_table(figures: Figures) -> list[str]:
    """Return the table of payload sizes."""
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
                cells.append(
                    " / ".join(number(figures.ratio(cpu(half), **wanted)) for half in ("put", "get"))
                )
            rows.append([title(peer), *cells])
        names = [
            f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB" if size >= 1024 else f"{size} B"
            for size in sizes
        ]
        out += table([on, *names], sorted(rows))
    return out


def mix_table(figures: Figures) -> list[str]:
    """Return the table of producers and consumers at once."""
    out = [
        "## Two producers and two consumers",
        "",
        "Everybody polls an empty queue each millisecond. *late* is from before put to after get at 200 a second.",
        "*errors* are exceptions that a put or a get raised. *gone*: a consumer that holds three messages is killed; how",
        "many of them never come again, after all that the peer's documentation says to do about it.",
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
            died = figures.find(group="death", peer=peer)
            counts.append(f"{died[0]['lost']} of {died[0]['take']}" if died else "–")
            rows.append((-speed, [title(peer), number(speed), spent, shown, *counts]))
        if rows:
            head = [
                on,
                "messages/s",
                "CPU",
                "late p50 / p90 / p99 / max ms",
                "lost",
                "twice",
                "errors",
                "gone",
            ]
            out += table(head, [row for _, row in sorted(rows)])
    return out


def crowd_table(figures: Figures) -> list[str]:
    """Return the table of one to eight consumers."""
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
    """Return the table of durable puts."""
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
    text = "On an image on the machine's disk. *syncs*: what is on the disk when put returns; the file alone does not"
    head = ["1 KiB", "syncs", "messages/s", "p50 / p90 / p99 / max ms"]
    return (
        [
            "## Durable puts",
            "",
            text,
            "promise that its name is there after a power cut.",
            "",
            *table(head, rows),
        ]
        if rows
        else []
    )


def small_tables(figures: Figures) -> list[str]:
    """Return the small tables: put_many, scan, waiting, memory, the directory after a backlog, start-up."""
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
        [
            title(row["peer"]),
            " / ".join(f"{value / 1000:.2f}" for value in row["us"]),
            f"{row['busy'] * 100:.1f} %",
        ]
        for row in figures.find(group="wake")
        if row["us"]
    ]
    add(
        "Idle wake-up",
        ["waiting on an empty queue", "p50 / p90 / p99 / max ms", "CPU while waiting"],
        sorted(wakes),
    )
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
        "An ext4 directory never shrinks, so that a flat one stays slow to list.",
    )
    starts = figures.find(group="startup")
    names = {
        "python": "python -c pass", "import": "import dirqueue, Queue", "version": "dirqueue --version",
        "put": "dirqueue put", "get": "dirqueue get",
    }  # fmt: skip
    add(
        "Start-up",
        ["", "CPU ms"],
        [[text, number(starts[0][name] * 1e3)] for name, text in names.items() if starts],
    )
    return out


def _batches(figures: Figures) -> list[list[str]]:
    rows = []
    for on in ("tmpfs", "ext4"):
        many = figures.median(cpu("put"), group="batch", on=on)
        single = figures.median(cpu("put"), on=on, work="store", peer="dirqueue", count=1000, size=1024)
        if many and single:
            rows.append([f"put_many, {on}", number(many), f"×{number(many / single)}"])
    return rows


SPARK_GOALS: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("batch read, rate of Spark's binaryFile", "read_over_binaryFile", "at least 5", lambda x: x >= 5),
    (
        "batch write, time of put_many in two processes",
        "write_over_put_many",
        "at most 1.5",
        lambda x: x <= 1.5,
    ),
    (
        "queue to queue, rate of source to noop",
        "queue_to_queue_over_noop",
        "at least 0.5",
        lambda x: x >= 0.5,
    ),
    (
        "queue to queue, time of put_many and consume in two processes each",
        "queue_to_queue_over_plain",
        "",
        lambda _: True,
    ),
    (
        "queue to queue, what the driver does before a batch can run, share of the CPU",
        "driver_share_of_queue_to_queue",
        "at most 0.15",
        lambda x: x <= 0.15,
    ),
    (
        "queue to queue, the same with the removal of what is acknowledged, which runs beside the next batch",
        "driver_share_with_acks",
        "",
        lambda _: True,
    ),
    (
        "queue to queue as records, CPU of plain Parquet streamed to Parquet",
        "records_over_parquet_cpu",
        "",
        lambda _: True,
    ),
    (
        "queue to queue as records, rate of plain Parquet streamed to Parquet",
        "records_over_parquet",
        "at least 0.5",
        lambda x: x >= 0.5,
    ),
    (
        "a source and a sink in Python with no queue at all, rate of plain Parquet streamed to Parquet",
        "floor_over_parquet",
        "",
        lambda _: True,
    ),
    ("queue to queue as records, rate of that source and sink", "records_over_floor", "", lambda _: True),
)


def spark_table(results: Path) -> list[str]:
    """Return the section with the results of spark.py, if there are any."""
    found = results / "spark.json"
    if not found.exists():
        return [
            "## Spark",
            "",
            "Not measured in this run.",
            "",
        ]
    measured = json.loads(found.read_text(encoding="utf-8"))
    lines = ["## Spark", ""]
    for run in measured if isinstance(measured, list) else [measured]:
        lines += [*_spark_rows(run), ""]
        goals = [
            [what, limit, number(run[name]), "yes" if met(run[name]) else "**no**"]
            for what, name, limit, met in SPARK_GOALS
            if name in run
        ]
        lines += [*table(["goal", "limit", "measured", "met"], goals), ""]
    return lines


def _spark_rows(run: dict[str, Any]) -> list[str]:
    """Return one size: medians of its rounds, by the clock and of CPU."""
    count = run["messages"]
    head = [f"{count:,} rows of 100 B, local[2], without sync", "seconds", "rows/s", "CPU, µs a row"]
    cpu = run.get("cpu", {})
    rows = [
        [
            name,
            number(seconds),
            number(count / seconds),
            number(cpu[name] / count * 1e6) if name in cpu else "",
        ]
        for name, seconds in run["seconds"].items()
        if not isinstance(seconds, dict)
    ]
    return table(head, rows)
