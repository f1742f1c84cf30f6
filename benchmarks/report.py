"""The page: what was measured, as Markdown tables and SVG plots, with where we lose and why.

Everything on it is computed from results.json; the sentences that judge are written so that they stay true whatever
the figures say, or are chosen by the figures.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import plot
from figures import Figures, cpu, rate
from goals import goals
from losses import losses
from tables import (
    crowd_table,
    durable_table,
    kind_table,
    mix_table,
    size_table,
    small_tables,
    spark_table,
    store_tables,
    table,
    title,
)


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
    """Return the section on how it was measured, and how far to trust it."""
    loads = [row["load"] for row in figures.rows]
    versions = ", ".join(
        f"{title(name)} {version}"
        for name, version in facts["versions"].items()
        if name not in ("floor", "dirqueue-sync")
    )
    out = [
        "One machine, one day. What can be compared elsewhere are the **CPU ratios**: CPU of a peer divided by the CPU",
        f"of the {title(figures.base)} (the system calls that one file per message needs, nothing else) in the same",
        "round. Microseconds and messages per second belong to this machine. Every cell is a fresh process on a fresh",
        "directory, peers in shuffled order; the figure is the median over the rounds, with quartiles from five on.",
        "",
        *table(
            ["", "measured with"],
            [
                [
                    "when, commit",
                    f"{facts['when']}, {facts['commit']}, {facts['seconds']} s{' (quick)' * facts.get('quick', False)}",
                ],
                [
                    "machine",
                    f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['kernel']}",
                ],
                [
                    "load average",
                    f"median {statistics.median(loads):.1f}, {min(loads):.1f} to {max(loads):.1f}, with its own work",
                ],
                ["Python, SQLite", f"{facts['python']}, {facts['sqlite']}"],
                *[[f"`{name}`", about] for name, about in facts["places"].items()],
                ["versions", versions],
                [
                    "not here",
                    ", ".join(
                        facts["missing"]
                        + ([] if facts["perl_directory_queue"] else ["Perl Directory::Queue"])
                    )
                    or "none",
                ],
            ],
        ),
        "dirqueue runs with `sync=False` except where a table says *sync*, since most peers do not sync either. An ext4",
        "without a journal is refused: there every creation checks recently deleted inodes, and all would measure",
        "that.",
        "Run it yourself:",
        "`make bench` (a quarter of an hour) or `make bench-quick` (one); raw figures are in",
        f"[results.json]({where}/results.json).",
        "",
    ]
    if facts.get("quick"):
        out += [
            "**This was a quick run: most cells were measured once. It shows that everything works and how far apart peers",
            "are; it cannot tell whether a goal within a few tenths is met, nor which peer leads by less than a half.**",
            "",
        ]
    if figures.failed:
        out += [
            "Failed cells: "
            + "; ".join(f"{r['group']} {title(r['peer'])}: {r['failed']}" for r in figures.failed),
            "",
        ]
    return out


def goal_table(figures: Figures) -> list[str]:
    """Return the table of goals, and whether each was met."""
    rows = [
        [goal.what, goal.limit, goal.measured, {True: "yes", False: "**no**", None: "–"}[goal.met]]
        for goal in goals(figures)
    ]
    own = [
        figures.median(lambda row, half=half: row[half].get("own") if half in row else None, work="store")
        or 0.0
        for half in ("put", "get")
    ]
    text = [
        "n is the number of rounds behind a figure. What the harness itself spends on each message (making a numbered",
        "body, reading the clock, keeping the number) is measured in the same process around a queue that does nothing,",
        f"and taken off: {own[0] * 1e6:.1f} µs to put, {own[1] * 1e6:.1f} µs to take.",
        "",
    ]
    return ["## Goals", "", *text, *table(["goal", "limit", "measured", "met"], rows)]


def plots_of(figures: Figures, results: Path) -> list[tuple[str, str]]:
    """Draw what a table shows badly; return the file and the caption of each."""
    results.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, str]] = []
    for on in ("tmpfs", "ext4"):
        series = {
            title(peer): [
                (float(count), value)
                for count in (1000, 10_000, 100_000, 1_000_000)
                if (
                    value := figures.median(
                        cpu("get"), on=on, count=count, size=1024, work="store", peer=peer
                    )
                )
            ]
            for peer in (
                "dirqueue",
                figures.base,
                "dirq-simple",
                "dirq-normal",
                "vsqs",
                "kombu",
                "huey-file",
                "litequeue",
                "maildir",
            )
        }
        if any(len(points) > 1 for points in series.values()):
            name = f"drain-{on}.svg"
            plot.lines(
                results / name,
                f"Drain on {on}: CPU for one message",
                "messages in the queue",
                "µs of CPU",
                series,
            )
            drawn.append((name, f"CPU of one drained message as the queue grows, {on}"))
        speeds = [
            (title(peer), value)
            for peer in figures.peers(on=on, group="mix")
            if (value := figures.median(rate, on=on, group="mix", peer=peer))
        ]
        if speeds:
            name = f"mix-{on}.svg"
            speeds.sort(key=lambda pair: -pair[1])
            plot.bars(results / name, f"2 producers + 2 consumers on {on}", "messages a second", speeds)
            drawn.append((name, f"messages a second through two producers and two consumers, {on}"))
    return drawn


def plots_text(plots: list[tuple[str, str]], where: str) -> list[str]:
    return [line for name, words in plots for line in (f"![{words}]({where}/{name})", "")]
