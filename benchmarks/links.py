"""Short messages as links: CPU against the same calls in C with files and with links, and durable puts against SQLite.

    python benchmarks/links.py                        1k to 1M messages on tmpfs and, as root, on ext4 and xfs
    python benchmarks/links.py --counts 1000 10000 --rounds 5 --on tmpfs

First table: the CPU of a message that is published, and of one that is claimed, read and acknowledged, as ratios to the
file floor and to the link floor in C; all take turns of 200 messages, and the sums are compared. Beside them the bare calls
for links made from Python, which no queue in Python can be below. Second table: the wall time
of one durable put, by one and by four processes at once, median and least: on images that lie on the real disk, where
the disk decides, and on images in memory, where the filesystem and the program do. The last rows are bare calls: what
the filesystem takes for a name in a directory, and for a page at the end of a file. Third table: what one durable put
asks of that disk, counted by the kernel: the same however busy the machine is.

    python benchmarks/links.py --write                keep the figures in results/links.json
    python benchmarks/links.py --counts               only durable puts; --puts 0: only CPU
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import floor
import mounts

SIZES = (100, 1000)
COUNTS = (1000, 10_000, 100_000, 1_000_000)
#: At a million this many are taken: the depth is the point, and time is short.
TAKE = 100_000
#: As many are measured in pairs, each program with files in C: an image has no room for all programs at once.
IN_PAIRS = 1_000_000
#: Messages in one turn: a few milliseconds.
TURN = 200
#: A page and its head in the log of SQLite.
PAGE = 4096 + 24
#: (publish, drain) at most, of the file floor and of the link floor, with links; and of the file floor, with files.
GOALS = {
    "tmpfs": ((0.45, 0.85), (1.6, None), (1.3, 1.3)),
    "ext4": ((0.8, 1.05), (1.25, None), (1.2, 1.2)),
    "xfs": ((0.7, 1.0), (1.25, None), (1.2, 1.2)),
}
Pair = tuple[float, float]
RESULTS = Path(__file__).parent / "results/links.json"


# --- CPU -------------------------------------------------------------------------------------------------------


class Library:
    """The queue: one put, one get with its ack, without a flush."""

    def __init__(self, path: str, size: int, *, links: bool) -> None:
        from dirqueue import Queue

        self._queue, self._body = Queue(path, sync=False, links=links), b"x" * size

    def put(self, count: int) -> float:
        """Return the CPU seconds of so many."""
        put, body = self._queue.put, self._body
        begin = time.process_time()
        for _ in range(count):
            put(body)
        return time.process_time() - begin

    def get(self, count: int) -> float:
        """Return the CPU seconds of so many."""
        get = self._queue.get
        begin = time.process_time()
        for _ in range(count):
            lease = get(timeout=0)
            lease.message.body  # noqa: B018
            lease.ack()
        return time.process_time() - begin


class Bare:
    """Nothing but the calls for links, the listing and the names, made from Python: no lease, no clock."""

    def __init__(self, path: str, size: int) -> None:
        os.makedirs(f"{path}/leased")
        self._path, self._body = path, b":" + b"x" * size
        self._fd, self._numbers = os.open(path, os.O_RDONLY), itertools.count(10**24)
        self._names: list[str] = []
        self._listed = 0.0

    def put(self, count: int) -> float:
        """Return the CPU seconds of so many."""
        fd, body = self._fd, self._body
        begin = time.process_time()
        for number in itertools.islice(self._numbers, count):
            os.symlink(body, f"{number}", dir_fd=fd)
        return time.process_time() - begin

    def get(self, count: int) -> float:
        """Return the CPU seconds of so many; of the listing, their part."""
        if not self._listed:
            begin = time.process_time()
            with os.scandir(self._path) as found:
                self._names = sorted((entry.name for entry in found if entry.is_symlink()), reverse=True)
            self._listed = (time.process_time() - begin) / len(self._names)
        fd, names = self._fd, self._names
        begin = time.process_time()
        for _ in range(count):
            name = names.pop()
            os.readlink(name.encode(), dir_fd=fd)
            held = f"leased/{name}.{10**15}.1.host-{10**4}-abcdefabcd-1"
            os.rename(name, held, src_dir_fd=fd, dst_dir_fd=fd)
            os.unlink(held, dir_fd=fd)
        return time.process_time() - begin + self._listed * count


CELLS: dict[str, Callable[[str, int], Any]] = {
    "files": functools.partial(Library, links=False),
    "links": functools.partial(Library, links=True),
    "bare links": Bare,
}


def cell(name: str, path: str, size: int) -> None:
    """Be one of those that take turns: as the C program does, see floor.c."""
    work = CELLS[name](path, size)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, count = line.split()
        print(getattr(work, verb)(int(count)), flush=True)


class Turns:
    """All in processes of their own, on directories of their own, at work one after the other for a few messages.

    COST: this kind of machine changes its speed by half every few seconds. Ratios of whole runs, or of the least of many,
    compare one's quick moments with another's slow ones; turns of some milliseconds meet the same speed.
    """

    NAMES = ("c files", "c links", "bare links", "files", "links")

    def __init__(self, where: str, size: int, names: Sequence[str] = NAMES) -> None:
        binary = floor.binary()
        if binary is None:
            raise SystemExit("there is no C compiler")
        self._path = tempfile.mkdtemp(dir=where)
        self._names = names
        self._running: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            path = f"{self._path}/{name.replace(' ', '-')}"
            own = [sys.executable, __file__, "--cell", name, path, str(size)]
            command = [binary, name[2:], path, str(size)] if name.startswith("c ") else own
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        for each in self._running.values():
            self._answer(each)

    def run(self, verb: str, count: int) -> dict[str, float]:
        """Return the CPU seconds of one message, for each of them."""
        spent = dict.fromkeys(self._names, 0.0)
        order = list(self._names)
        for done in range(0, count, TURN):
            random.shuffle(order)
            for name in order:
                each = self._running[name]
                each.stdin.write(f"{verb} {min(TURN, count - done)}\n")  # type: ignore[union-attr]
                spent[name] += float(self._answer(each))
        return {name: seconds / count for name, seconds in spent.items()}

    def _answer(self, each: subprocess.Popen[str]) -> str:
        line = each.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"{each.args} ended with {each.wait()}")
        return line

    def close(self) -> None:
        """End them, and remove what they made."""
        for each in self._running.values():
            each.communicate()
        shutil.rmtree(self._path, ignore_errors=True)


def compare(name: str, where: str, options: argparse.Namespace) -> dict[str, Any]:
    """Print the first table of one filesystem."""
    of_files, of_links, files = GOALS[name]
    print(f"\n{name}: CPU, publish / drain; goals: links {_pair(of_files)} of the file floor and", end=" ")
    print(f"{of_links[0]} to publish of the link floor, files {_pair(files)}")
    print(
        f"{'size':>5} {'messages':>9}  {'links, of files in C':>22}  {'links, of links in C':>22}  "
        f"{'bare links in Python':>22}  {'files, of files in C':>22}   C files, C links (us)"
    )
    return {
        f"{size} bytes, {count:,} messages": _row(
            where, count, size, options.rounds or max(1, min(20, 60_000 // count))
        )
        for size in options.sizes
        for count in options.counts
    }


def _row(where: str, count: int, size: int, rounds: int) -> dict[str, list[float]]:
    if count < IN_PAIRS:
        sums = _sums(where, count, size, rounds, Turns.NAMES)
    else:
        first, *others = Turns.NAMES
        pairs = [_sums(where, count, size, rounds, (first, other)) for other in others]
        sums = {first: pairs[0][first]}
        for other, pair in zip(others, pairs, strict=True):
            sums[other] = [pair[other][i] / pair[first][i] * sums[first][i] for i in (0, 1)]

    def ratio(ours: str, theirs: str) -> str:
        return _pair(tuple(sums[ours][i] / sums[theirs][i] for i in (0, 1)))

    base = [sums[name][i] * 1e6 for name in ("c files", "c links") for i in (0, 1)]
    print(
        f"{size:5} {count:9}  {ratio('links', 'c files'):>22}  {ratio('links', 'c links'):>22}  "
        f"{ratio('bare links', 'c files'):>22}  {ratio('files', 'c files'):>22}   {base[0]:.1f} {base[1]:.1f}, {base[2]:.1f} {base[3]:.1f}  (n={rounds})",
        flush=True,
    )
    return {name: [round(cost * 1e6, 2) for cost in costs] for name, costs in sums.items()}


def _sums(where: str, count: int, size: int, rounds: int, names: Sequence[str]) -> dict[str, list[float]]:
    """Return the CPU seconds of one message, published and drained, of programs that take turns."""
    sums = {name: [0.0, 0.0] for name in names}
    for _ in range(rounds):
        turns = Turns(where, size, names)
        try:
            for i, (verb, number) in enumerate((("put", count), ("get", min(count, TAKE)))):
                for name, seconds in turns.run(verb, number).items():
                    sums[name][i] += seconds / rounds
        finally:
            turns.close()
    return sums


def keep(name: str, about: str, table: str, rows: dict[str, Any]) -> None:
    """Add the rows to the kept ones."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept.setdefault(name, {}).setdefault(table, {"about": about}).update(rows)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _pair(values: tuple[float | None, ...]) -> str:
    return " / ".join("-" if value is None else f"{value:.2f}" for value in values)


# --- durable puts ----------------------------------------------------------------------------------------------


def _dirqueue(path: str, *, links: bool) -> Callable[[bytes], object]:
    from dirqueue import Queue

    return Queue(path, links=links).put


def _sqlite(path: str) -> Callable[[bytes], object]:
    import sqlite3

    base = sqlite3.connect(path, isolation_level=None, timeout=60)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table if not exists messages (id integer primary key, body blob)")
    return lambda body: base.execute("insert into messages (body) values (?)", (body,))


def _litequeue(path: str) -> Callable[[bytes], object]:
    import litequeue

    queue = litequeue.LiteQueue(path, timeout=60)
    queue.conn.execute("pragma synchronous=full")
    return lambda body: queue.put(body.decode())


def _persistqueue(path: str) -> Callable[[bytes], object]:
    import persistqueue

    queue = persistqueue.SQLiteAckQueue(path, auto_commit=True, multithreading=True, timeout=60)
    queue._conn.execute("pragma synchronous=full")
    return queue.put  # type: ignore[no-any-return]


def _bare_link(path: str) -> Callable[[bytes], object]:
    """Return the two calls that a durable link cannot do without."""
    os.makedirs(path, exist_ok=True)
    fd, names = os.open(path, os.O_RDONLY), itertools.count(time.time_ns() * 10**6)

    def put(body: bytes) -> None:
        os.symlink(b":" + body, f"{next(names)}", dir_fd=fd)
        os.fsync(fd)

    return put


def _bare_log(path: str) -> Callable[[bytes], object]:
    """Return what SQLite's log costs: one page more, each process in a file of its own."""
    fd = os.open(f"{path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def put(body: bytes) -> None:
        os.write(fd, body.ljust(PAGE, b"x"))
        os.fdatasync(fd)

    return put


DURABLE: dict[str, Callable[[str], Callable[[bytes], object]]] = {
    "dirqueue, links": lambda path: _dirqueue(path, links=True),
    "dirqueue, files": lambda path: _dirqueue(path, links=False),
    "SQLite, WAL, synchronous=full": _sqlite,
    "litequeue": _litequeue,
    "persist-queue": _persistqueue,
    "bare: symlink, fsync(directory)": _bare_link,
    "bare: append a page, fdatasync": _bare_log,
}


def producer(name: str, path: str, count: int) -> float:
    """Put after a line on standard input; return the seconds it took."""
    put, body = DURABLE[name](path), b"x" * 100
    put(body)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    for _ in range(count):
        put(body)
    return time.perf_counter() - begin


def durable(where: str, name: str, processes: int, count: int) -> float:
    """Return the milliseconds of one put, all processes together."""
    path = tempfile.mkdtemp(dir=where)
    command = [sys.executable, __file__, "--producer", name, f"{path}/q", str(count)]
    try:
        with_pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        running = []
        for _ in range(processes):  # one after the other: not all of them can make the tables
            running.append(subprocess.Popen(command, **with_pipes))  # type: ignore[call-overload]
            running[-1].stdout.readline()
        for each in running:
            each.stdin.write("go\n")
            each.stdin.flush()
        took = max(float(each.communicate()[0]) for each in running)
        return took / (count * processes) * 1e3
    finally:
        shutil.rmtree(path, ignore_errors=True)


def compare_durable(name: str, where: str, image: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Print the second table of one filesystem."""
    print(
        f"\n{name}, {image}: one durable put of 100 bytes, milliseconds of wall: "
        "median by 1 and by 4 processes, least by 1 and by 4"
    )
    names = list(DURABLE)
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds or 5):
        random.shuffle(names)
        for each in names:
            for processes in (1, 4):
                spent = durable(where, each, processes, options.puts)
                times.setdefault((each, processes), []).append(spent)
    rows = {}
    for each in DURABLE:
        of_all = [find(times[each, n]) for find in (statistics.median, min) for n in (1, 4)]
        rows[each] = [round(spent, 3) for spent in of_all]
        print(f"{each:32}", *(f"{spent:7.2f}" for spent in rows[each]), flush=True)
    return rows


def compare_requests(name: str, where: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Print the third table of one filesystem: writes, KiB and flushes of one durable put."""
    print(f"\n{name}, on the disk: what one durable put of 100 bytes asks of it: writes, KiB, flushes")
    device = mounts.filesystem_of(where)[1]
    rows = {}
    for each, make in DURABLE.items():
        put, body = make(f"{tempfile.mkdtemp(dir=where)}/q"), b"x" * 100
        for _ in range(10):
            put(body)
        before = _requests(device)
        for _ in range(options.puts):
            put(body)
        spent = [(now - then) / options.puts for now, then in zip(_requests(device), before, strict=True)]
        rows[each] = [round(count, 2) for count in spent]
        print(f"{each:32}", *(f"{count:7.2f}" for count in rows[each]), flush=True)
    return rows


def measure_durable(name: str, options: argparse.Namespace) -> None:
    """Print the second and the third table of one filesystem."""
    for image, disk in (("on the disk", Path(tempfile.gettempdir())), ("in memory", None)):
        try:
            with mounts.place(name, disk=disk) as place:
                tables = {f"durable put {image}, ms": compare_durable(name, str(place.path), image, options)}
                if disk is not None:
                    rows = compare_requests(name, str(place.path), options)
                    tables["durable put: writes, KiB, flushes"] = rows
                for title, rows in tables.items() if options.write else ():
                    keep(name, place.about, title, rows)
        except mounts.Refused as refusal:
            print(f"left out: {refusal}", file=sys.stderr)


def _requests(device: str) -> tuple[float, ...]:
    """Return the writes, the KiB and the flushes of a device until now; see Documentation/block/stat of Linux."""
    fields = Path("/sys/block", Path(device).name, "stat").read_text(encoding="ascii").split()
    return int(fields[4]), int(fields[6]) / 2, int(fields[15])


def main() -> None:
    """Measure, or be one cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="*", default=list(COUNTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds per row (default: by the number of messages)"
    )
    parser.add_argument("--puts", type=int, default=200, help="durable puts per process")
    parser.add_argument("--on", nargs="+", default=["tmpfs", "ext4", "xfs"])
    parser.add_argument("--write", action="store_true", help="keep the figures in results/")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--producer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, path, size = options.cell
        cell(name, path, int(size))
        return
    if options.producer:
        name, path, count = options.producer
        print(producer(name, path, int(count)))
        return
    for name in options.on if options.counts else ():
        try:
            with mounts.place(name, own=True) as place:
                rows = compare(name, str(place.path), options)
                if options.write:
                    keep(name, place.about, "cpu", rows)
        except mounts.Refused as refusal:
            print(f"left out: {refusal}", file=sys.stderr)
    for name in options.on:
        if name != "tmpfs" and options.puts:
            measure_durable(name, options)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).parent.parent))
    main()
