"""What merely lies in a queue must cost nothing: the same work beside few and many messages of each state.

    python benchmarks/growth.py                          10, 10,000 and 200,000 beside, on tmpfs and, as root, ext4
    python benchmarks/growth.py --beside 10 1000 --on tmpfs --rounds 2
    python benchmarks/growth.py --write                  keep the figures in results/growth.json

Each row is one work beside one state; each column is a number of messages of that state. A cell is a fresh process on a
queue that was filled by hand, the CPU of one operation, the least of the rounds, in which the columns take turns; the
last column is the worst ratio to the smallest. The second table is of works on many messages: there the cost of one
message is compared. Shapes are also asserted, by counting, in tests/project/test_growth.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mounts

BESIDE = (10, 10_000, 200_000)
MANY = (3_000, 30_000, 300_000)
STATES = ("delayed", "leased", "backing off", "dead", "done")
SETTINGS: dict[str, Any] = {"sync": False, "lease": 3600.0}
HOUR = 3_600_000_000
RESULTS = Path(__file__).parent / "results/growth.json"


# --- filling a queue by hand, as docs/protocol.md says ------------------------------------------------------


def ids(count: int) -> Iterator[str]:
    """Yield ids of an hour ago."""
    start = time.time_ns() // 1000 - HOUR
    return (f"{start + number}{123456789}" for number in range(count))


def fill(path: str, state: str, count: int) -> None:
    """Write so many messages of a state."""
    now = time.time_ns() // 1000
    if state in ("dead", "done"):
        where = f"{path}/{state}/{now - now % HOUR}"
        names = [f"{id}.{now - 1000}.1" for id in ids(count)]
    elif state == "leased":
        where = f"{path}/leased"
        names = [f"{id}.{now + HOUR + n}.1.host-1-abcdef0123-{n}" for n, id in enumerate(ids(count))]
    else:
        until = now + HOUR
        where = f"{path}/later/{until - until % 60_000_000}"
        names = [f"{id}.{until}.{int(state == 'backing off')}" for id in ids(count)]
    os.makedirs(where)
    for name in names:
        _touch(f"{where}/{name}")
        if state == "backing off":
            note = {"error": "ValueError: no", "at": now, "leased_at": now}
            Path(f"{where}/{name.partition('.')[0]}.error").write_text(json.dumps(note), encoding="utf-8")


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


# --- works ---------------------------------------------------------------------------------------------------


def _per(count: int, step: Callable[[], object]) -> float:
    """Return the CPU of one step, in microseconds."""
    step()
    begin = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - begin) / count * 1e6


def round_trip(path: str) -> float:
    """Put + get + ack by a consumer that keeps up."""
    from dirqueue import Queue

    queue = Queue(path, **SETTINGS)

    def step() -> None:
        queue.put(b"x" * 100)
        lease = queue.get(timeout=0)
        assert lease.message.body
        lease.ack()

    return _per(2000, step)


def empty_look(path: str) -> float:
    """A get that finds nothing."""
    from dirqueue import Empty, Queue

    queue = Queue(path, **SETTINGS)

    def step() -> None:
        try:
            queue.get(timeout=0)
        except Empty:
            return
        raise SystemExit("the queue was not empty")

    step()
    time.sleep(0.1)
    return _per(500, step)


def wake_up(path: str) -> float:
    """A waiting get that another thread's put ends: CPU of both."""
    import threading

    from dirqueue import Queue

    queue, producer = Queue(path, **SETTINGS), Queue(path, **SETTINGS)

    def step() -> None:
        thread = threading.Timer(0.02, producer.put, (b"x",))
        thread.start()
        queue.get(timeout=10).ack()
        thread.join()

    return _per(20, step)


def find_ready(path: str) -> float:
    """message(id) of a ready one."""
    from dirqueue import Queue

    queue = Queue(path, **SETTINGS)
    id = queue.put(b"x")
    try:
        return _per(500, lambda: queue.message(id))
    finally:
        queue.get(timeout=0).ack()


def peek_ready(path: str) -> float:
    """The ready messages, of which there is one."""
    from dirqueue import Queue

    queue = Queue(path, **SETTINGS)
    queue.put(b"x")
    try:
        return _per(200, lambda: list(queue.peek()))
    finally:
        queue.get(timeout=0).ack()


BESIDE_WORKS = {
    "put + get + ack": round_trip,
    "empty look": empty_look,
    "wake-up": wake_up,
    "message(id)": find_ready,
    "peek ready": peek_ready,
}


def expire_at_once(path: str, count: int) -> float:
    """So many leases have expired at once: claim and acknowledge them all."""
    from dirqueue import Queue

    now = time.time_ns() // 1000
    os.makedirs(f"{path}/leased")
    for number, id in enumerate(ids(count)):
        _touch(f"{path}/leased/{id}.{now - HOUR // 2}.1.host-1-abcdef0123-{number}")
    return _drain(Queue(path, **SETTINGS), count)


def _drain(queue: Any, count: int) -> float:
    from dirqueue import Empty

    begin = time.process_time()
    for _ in range(count):
        queue.get(timeout=0).ack()
    spent = time.process_time() - begin
    try:
        queue.get(timeout=0)
    except Empty:
        return spent / count * 1e6
    raise SystemExit("the queue was not empty")


def redrive(path: str, count: int) -> float:
    """Redrive so many dead messages."""
    from dirqueue import Queue

    fill(path, "dead", count)
    queue = Queue(path, **SETTINGS)
    begin = time.process_time()
    assert len(queue.redrive()) == count
    return (time.process_time() - begin) / count * 1e6


def drain_redriven(path: str, count: int) -> float:
    """Claim and acknowledge so many messages that were redriven."""
    from dirqueue import Queue

    fill(path, "dead", count)
    queue = Queue(path, **SETTINGS)
    queue.redrive()
    return _drain(queue, count)


def purge(path: str, count: int) -> float:
    """Purge so many done messages that are past their time."""
    from dirqueue import Queue

    fill(path, "done", count)
    queue = Queue(path, keep_done_for=0.0001, **SETTINGS)
    begin = time.process_time()
    assert queue.purge().done == count
    return (time.process_time() - begin) / count * 1e6


def keep_done(path: str, count: int) -> float:
    """Put + get + ack with keep_done."""
    from dirqueue import Queue

    queue = Queue(path, keep_done=True, **SETTINGS)
    begin = time.process_time()
    for _ in range(count):
        queue.put(b"x")
        queue.get(timeout=0).ack()
    return (time.process_time() - begin) / count * 1e6


def limited(path: str, count: int) -> float:
    """Put + get + ack in a queue with max_messages that is full but for a hundredth."""
    from dirqueue import Queue

    Queue(path, **SETTINGS).put_many(b"x" for _ in range(count))
    queue = Queue(path, max_messages=count + max(1, count // 100), **SETTINGS)
    steps = 1000
    begin = time.process_time()
    for _ in range(steps):
        queue.put(b"x")
        queue.get(timeout=0).ack()
    return (time.process_time() - begin) / steps * 1e6


def priorities(path: str, count: int) -> float:
    """Put with 1,000 priorities, then drain."""
    from dirqueue import Queue

    queue = Queue.create(path, priorities=True, **SETTINGS)
    begin = time.process_time()
    for number in range(count):
        queue.put(b"x", priority=1 + number * 7919 % 1000)
    put = (time.process_time() - begin) / count * 1e6
    return put + _drain(queue, count)


def renewals(path: str, count: int) -> float:
    """So many leases that were claimed one after the other and are kept alive: the CPU of one renewal."""
    from dirqueue import Queue
    from dirqueue.renewer import RENEWER

    queue, renewed = Queue(path, **SETTINGS), [0]

    class Held:
        def __init__(self, lease: Any) -> None:
            self.lease = lease

        def renew(self) -> None:
            renewed[0] += 1
            self.lease.renew()

    queue.put_many(b"x" for _ in range(count))
    held = [Held(queue.get(timeout=0)) for _ in range(count)]
    for each in held:
        RENEWER.watch(each, 5.0)
        time.sleep(2.0 / count)
    begin, before = time.process_time(), renewed[0]
    time.sleep(10.0)
    return (time.process_time() - begin) / (renewed[0] - before) * 1e6


def set_of(path: str, count: int) -> float:
    """A QueueSet of so many queues: put to each, get and ack from the set."""
    from dirqueue import Queue, QueueSet

    queues = [Queue(f"{path}/q{number}", **SETTINGS) for number in range(count)]
    for queue in queues:
        queue.put(b"x")
    begin = time.process_time()
    both = QueueSet(queues)
    for _ in range(count):
        both.get(timeout=0).ack()
    return (time.process_time() - begin) / count * 1e6


MANY_WORKS: dict[str, tuple[Callable[[str, int], float], tuple[int, ...]]] = {
    "leases that expire at once": (expire_at_once, (500, 5_000, 50_000)),
    "redrive": (redrive, MANY),
    "drain of what was redriven": (drain_redriven, MANY),
    "purge of done": (purge, MANY),
    "keep_done": (keep_done, MANY),
    "max_messages near its limit": (limited, MANY),
    "1,000 priorities": (priorities, (2_000, 20_000, 200_000)),
    "leases renewed by one process": (renewals, (100, 1_000, 10_000)),
    "a set of queues": (set_of, (10, 100, 1_000)),
}


# --- running --------------------------------------------------------------------------------------------------


def cell(path: str, *arguments: object) -> float:
    """Run one cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", path, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout)


def apart(where: str, work: str, count: int) -> float:
    """Run one cell on a directory of its own."""
    with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as path:
        return cell(f"{path}/q", work, count)


def run_cell(path: str, work: str, count: int) -> float:
    """One measurement, in this process."""
    return MANY_WORKS[work][0](path, count) if work in MANY_WORKS else BESIDE_WORKS[work](path)


def least(rounds: int, counts: list[int], measure: Callable[[int], float]) -> list[float]:
    """Return the least of the rounds for each count; the counts take turns."""
    rows = [[measure(count) for count in counts] for _ in range(rounds)]
    return [min(column) for column in zip(*rows, strict=True)]


def show(title: str, cells: list[float]) -> None:
    """Print one row: the costs, and the worst ratio to the smallest number."""
    print(f"{title:44}", *(f"{each:9.1f}" for each in cells), f"{max(cells) / cells[0]:7.2f}", flush=True)


def measure_beside(name: str, where: str, options: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    """Print the first table of one filesystem, and yield its rows."""
    print(f"\n{name}: CPU of one operation in microseconds, beside so many messages of the state")
    print(f"{'':44}", *(f"{each:9}" for each in options.beside), "  worst")
    for state in options.states:
        with tempfile.TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as path:
            for count in options.beside:
                fill(f"{path}/{count}", state, count)
            for work in BESIDE_WORKS:
                title = f"{work}, {state}"
                found = least(
                    options.rounds,
                    options.beside,
                    lambda count, work=work: cell(f"{path}/{count}", work, count),
                )
                show(title, found)
                yield title, found


def measure_many(name: str, where: str, options: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    """Print the second table of one filesystem, and yield its rows."""
    print(f"\n{name}: CPU of one message in microseconds, of few, of some and of many")
    for work in options.works:
        counts = [max(1, int(count * options.scale)) for count in MANY_WORKS[work][1]]
        title = f"{work}, {counts[-1]:,}"
        found = least(options.rounds, counts, lambda count, work=work: apart(where, work, count))
        show(title, found)
        yield title, found


def keep(name: str, about: str, table: str, title: str, costs: list[float]) -> None:
    """Add a row to the kept ones: a run may take hours, and be ended before its end."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    entry = kept.setdefault(name, {"about": about})
    entry.setdefault(table, {})[title] = [round(cost, 1) for cost in costs]
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure, or be one cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=int, nargs="+", default=list(BESIDE))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of the second table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--on", nargs="+", default=["tmpfs", "ext4"])
    parser.add_argument("--states", nargs="*", default=list(STATES), help="rows of the first table")
    parser.add_argument("--works", nargs="*", default=list(MANY_WORKS), help="rows of the second table")
    parser.add_argument("--write", action="store_true", help="keep the figures in results/")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        path, work, count = options.cell
        print(run_cell(path, work, int(count)))
        return
    for name in options.on:
        try:
            with mounts.place(name, own=True) as place:
                where = str(place.path)
                for table, measure in (("beside", measure_beside), ("many", measure_many)):
                    for title, costs in measure(name, where, options):
                        if options.write:
                            keep(name, place.about, table, title, costs)
        except mounts.Refused as refusal:
            print(f"left out: {refusal}", file=sys.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
