"""CPU of put and of get + ack, as a ratio to a bare os.* loop of the same system calls in the same run.

    python benchmarks/core.py         1k, 10k and 100k messages on tmpfs and, as root, on loop-mounted ext4 and xfs
    python benchmarks/core.py --counts 1000 --rounds 60 --on tmpfs

run.py measures the same against a C loop, beside other queues; this is the short way to see what a change costs.
Each cell is a fresh process on a fresh directory; floor and library alternate in shuffled order within a round; the
ratio is taken within the round, and the median of the rounds is printed with its quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import mounts

SIZE = 1024
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def floor(path: str, count: int) -> tuple[float, float]:
    """Measure the bare calls: open, write, close, rename; one listing; rename, open, read, close, unlink."""
    body = b"x" * SIZE
    os.mkdir(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    begin = time.process_time()
    for number in range(count):
        name = f"{1700000000000000 + number}123456789"
        new = name + ".new"
        file = os.open(new, CREATE, 0o666, dir_fd=fd)
        os.write(file, body)
        os.close(file)
        os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)
    published = time.process_time() - begin
    begin = time.process_time()
    names = os.listdir(fd)
    names.sort()
    for name in names:
        held = name + ".1700000000000000.1.host-12345-abcdef-1"
        os.rename(name, held, src_dir_fd=fd, dst_dir_fd=fd)
        file = os.open(held, READ, dir_fd=fd)
        os.read(file, 65536)
        os.close(file)
        os.unlink(held, dir_fd=fd)
    return published, time.process_time() - begin


def library(path: str, count: int) -> tuple[float, float]:
    """Measure the same through the queue object."""
    from dirqueue import Empty, Queue

    queue = Queue(path, sync=False)
    body = b"x" * SIZE
    queue.put(b"warm")
    queue.get(timeout=0).ack()
    begin = time.process_time()
    for _ in range(count):
        queue.put(body)
    published = time.process_time() - begin
    begin = time.process_time()
    for _ in range(count):
        lease = queue.get(timeout=0)
        lease.message.body  # noqa: B018
        lease.ack()
    drained = time.process_time() - begin
    with contextlib.suppress(Empty):
        queue.get(timeout=0)
        raise SystemExit("the queue was not empty after the drain")
    return published, drained


CONTENDERS = {"floor": floor, "library": library}


def cell(name: str, where: str, count: int) -> tuple[float, float]:
    """Run one cell in a process of its own."""
    path = tempfile.mkdtemp(dir=where)
    try:
        command = [sys.executable, __file__, "--cell", name, "--path", path + "/q", "--counts", str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        published, drained = json.loads(done.stdout)
        return published, drained
    finally:
        shutil.rmtree(path, ignore_errors=True)


def rounds(where: str, count: int, times: int) -> Iterator[dict[str, tuple[float, float]]]:
    """Yield the cells of each round, in shuffled order within it."""
    for _ in range(times):
        order = list(CONTENDERS)
        random.shuffle(order)
        yield {name: cell(name, where, count) for name in order}


def quartiles(values: list[float]) -> str:
    """Show median and quartiles."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    """Measure and print one row for each filesystem and depth."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        help="rounds per row (default: as many as give each row about the same work)",
    )
    parser.add_argument("--on", nargs="+", default=["tmpfs", "ext4", "xfs"])
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(CONTENDERS[options.cell](options.path, options.counts[0])))
        return
    print(f"{'on':6} {'messages':>8}  {'publish':18} {'drain':18}  floor us/message", flush=True)
    for name in options.on:
        try:
            with mounts.place(name) as place:
                measure(name, str(place.path), options.counts, options.rounds)
        except mounts.Refused as refusal:
            print(f"left out: {refusal}", file=sys.stderr)


def measure(name: str, where: str, counts: list[int], wanted: int) -> None:
    """Print a row for each depth."""
    for count in counts:
        table = list(rounds(where, count, wanted or max(5, min(40, 60_000 // count))))
        shown = [quartiles([row["library"][i] / row["floor"][i] for row in table]) for i in (0, 1)]
        base = [statistics.median(row["floor"][i] for row in table) / count * 1e6 for i in (0, 1)]
        print(f"{name:6} {count:8}  {shown[0]:18} {shown[1]:18}  {base[0]:.1f} {base[1]:.1f}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
