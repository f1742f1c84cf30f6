"""Measure dirqueue, the floor and the peers; write results and the page.

    python benchmarks/run.py              a quarter of an hour   (make bench)
    python benchmarks/run.py --quick      about one               (make bench-quick)
    python benchmarks/run.py --report     no measuring: tables and plots again, from the results that are there

Every cell is a fresh process on a fresh directory; the cells of a group run in shuffled order, the groups too; ratios
are taken within a round. As root, ext4 and xfs are loop-mounted images; otherwise name directories with --on.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import facts
import mounts
import plan
import report
import work

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
#: A cell that takes longer is a cell that failed.
CELL_SECONDS = 300.0
#: Rows and rounds of spark.py.
SPARK_RUNS = ((100_000, 3), (1_000_000, 2))
Row = dict[str, Any]


class Bench:
    """Runs a plan and keeps the rows."""

    def __init__(self, places: dict[str, mounts.Place], *, minutes: float = 0, inside: bool = False) -> None:
        self.places = places
        self.rows: list[Row] = []
        self._deadline = time.monotonic() + 60 * minutes if minutes else None
        #: In this process instead of a fresh one each: for the tests of the harness itself.
        self._inside = inside

    def run(self, groups: list[plan.Group]) -> None:
        """Run all groups, the rounds of each spread over the whole time; when it is over, only the first rounds."""
        groups = [group for group in groups if group.cells and group.place in self.places]
        rounds = [(group, number) for group in groups for number in range(group.rounds)]
        rounds.sort(key=lambda each: (each[1] + random.random()) / each[0].rounds)
        for group, number in rounds:
            if number and self._deadline is not None and time.monotonic() > self._deadline:
                say(f"no time for round {number + 1} of {group.name} on {group.place}")
            else:
                self._group(group, number)

    def _group(self, group: plan.Group, number: int) -> None:
        cells = list(group.cells)
        random.shuffle(cells)
        began = time.monotonic()
        if group.at_once and not self._inside:
            with concurrent.futures.ThreadPoolExecutor(len(cells)) as pool:
                list(pool.map(lambda cell: self._cell(group, number, cell), cells))
        else:
            for cell in cells:
                self._cell(group, number, cell)
        took = time.monotonic() - began
        first = cells[0]
        say(
            f"round {number + 1}: {group.name} on {group.place}, {len(cells)} cells of {first.count} in {took:.1f} s"
        )

    def _cell(self, group: plan.Group, number: int, cell: work.Cell) -> None:
        with self._directory(group) as path:
            mine = dataclasses.replace(cell, path=f"{path}/q")
            self._keep(group, number, mine, self._measure(mine))
            if group.name == "million":
                # The C floor's directory is read by the Python one: C has no memory to speak of.
                peer = "floor" if cell.peer == "c" else cell.peer
                looked = dataclasses.replace(mine, work="memory", peer=peer)
                self._keep(group, number, looked, self._measure(looked))

    @contextlib.contextmanager
    def _directory(self, group: plan.Group) -> Iterator[str]:
        if group.name == "million" and not self._inside:
            with mounts.place(group.place, own=True) as place:
                yield str(place.path)
            return
        path = tempfile.mkdtemp(dir=self.places[group.place].path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _measure(self, cell: work.Cell) -> Row:
        if self._inside:
            return work.run(cell)
        command = [sys.executable, str(HERE / "work.py"), json.dumps(dataclasses.asdict(cell))]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=CELL_SECONDS)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done in {CELL_SECONDS:g} s"}
        if done.returncode:
            say(f"{cell.work} with {cell.peer} failed:\n{done.stderr[-2000:]}")
            return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1][:200]}
        answer: Row = json.loads(done.stdout.splitlines()[-1])
        return answer

    def _keep(self, group: plan.Group, number: int, cell: work.Cell, measured: Row) -> None:
        settings = {k: v for k, v in dataclasses.asdict(cell).items() if k not in ("path", "binary") and v}
        load = round(os.getloadavg()[0], 2)
        self.rows.append(
            {"group": group.name, "on": group.place, "round": number, "load": load, **settings, **measured}
        )


def say(text: str) -> None:
    """Write progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def places(wanted: list[str], stack: contextlib.ExitStack) -> dict[str, mounts.Place]:
    """Open the places that can be had, and say which cannot."""
    found: dict[str, mounts.Place] = {}
    for name in wanted:
        try:
            place = stack.enter_context(mounts.place(name))
        except mounts.Refused as refusal:
            say(f"left out: {refusal}")
            continue
        found[place.name] = place
    if "ext4" in found or "xfs" in found:
        kind = "ext4" if "ext4" in found else "xfs"
        where = found[kind].path
        with contextlib.suppress(mounts.Refused):
            found["disk"] = stack.enter_context(mounts.place(kind, disk=HERE.parent))
        found.setdefault("disk", mounts.Place(kind, where, found[kind].about))
    return found


def main() -> None:
    """Measure, then write everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, about a minute")
    parser.add_argument(
        "--on", nargs="+", metavar="FS", help="tmpfs, ext4, xfs or paths (default: all three filesystems)"
    )
    parser.add_argument(
        "--peers", nargs="+", metavar="NAME", help="only these (see peers.py), and the floors"
    )
    parser.add_argument(
        "--groups", nargs="+", metavar="NAME", help="only these groups of cells (see plan.py)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=0,
        help="start no new round after this many minutes (default: no limit)",
    )
    parser.add_argument("--results", type=Path, default=None, help="directory for the results")
    parser.add_argument("--report", action="store_true", help="only write the page, from the stored results")
    options = parser.parse_args()
    results = options.results or (RESULTS / "quick" if options.quick else RESULTS)
    if not options.report:
        measure(options, results)
    # A quick or partial run has its page beside its figures: the one in docs/ is of a whole run.
    partial = options.quick or options.peers or options.groups or options.results
    report.write(results, results / "README.md" if partial else PAGE)
    say(f"wrote {results}")


def measure(options: argparse.Namespace, results: Path) -> None:
    """Run the plan and write results.json."""
    wanted = plan.everybody()
    if options.peers:
        wanted = [name for name in wanted if name in (*plan.MAIN, *options.peers)]
    began = time.monotonic()
    known = facts.facts()
    if not known["compiler"]:
        say("no C compiler: the floor is the bare os calls in Python")
    with contextlib.ExitStack() as stack:
        where = places(options.on or ["tmpfs", "ext4", "xfs"], stack)
        if not where:
            raise SystemExit(
                "nowhere to measure: name a directory on tmpfs, xfs or a journaled ext4 with --on"
            )
        bench = Bench(where, minutes=options.minutes or (1.2 if options.quick else 5.5))
        names = [name for name in where if name != "disk"]
        groups = plan.quick(wanted, names[:2]) if options.quick else plan.whole(wanted, names)
        if options.groups:
            groups = [group for group in groups if group.name in options.groups]
        bench.run(groups)
        known["places"] = {name: place.about for name, place in where.items()}
    if not options.quick and not options.groups:
        spark(results)
    known["load_after"] = os.getloadavg()
    known["seconds"] = round(time.monotonic() - began)
    known["quick"] = options.quick
    results.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"facts": known, "rows": bench.rows}, separators=(",", ":")).replace(
        '{"group"', '\n{"group"'
    )
    (results / "results.json").write_text(text + "\n", encoding="utf-8")


def spark(results: Path) -> None:
    """Let spark.py measure."""
    if importlib.util.find_spec("pyspark") is None:
        say("left out: Spark (pyspark is not installed)")
        return
    measured = []
    for count, rounds in SPARK_RUNS:
        with mounts.place("tmpfs") as place:
            command = [sys.executable, str(HERE / "spark.py"), str(count), str(place.path), str(rounds)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            say(f"Spark failed:\n{done.stderr[-2000:]}")
            return
        measured.append(done.stdout.splitlines()[-1])
    results.mkdir(parents=True, exist_ok=True)
    (results / "spark.json").write_text("[" + ",\n".join(measured) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
