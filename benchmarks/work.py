"""The workloads. Each takes a cell (what to do, with which peer, where) and returns what it measured, as plain values.

A cell runs in a process of its own (`python benchmarks/work.py CELL-AS-JSON`), so that one peer's memory, imports and
threads are no other's. Bodies are numbered and stamped: what is lost or comes twice is counted in every cell.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import floor
from peers import PEERS, DirQueue, Peer

HEAD = 33  # "NNNNNNNNNNNN TTTTTTTTTTTTTTTTTTT "
POLL = 0.001
#: Consumers stop when the producers have ended and nothing came for this long.
QUIET = 0.2
Result = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement: all that a fresh process needs to know."""

    work: str
    peer: str
    path: str = ""
    count: int = 1000
    size: int = 1024
    #: How many to take of those that were put (0: all); fewer, where the depth is the point and time is short.
    take: int = 0
    #: Seconds after which putting, or taking, stops.
    cap: float = 0
    producers: int = 0
    consumers: int = 0
    rate: float = 0
    binary: str = ""


# --- what all share -------------------------------------------------------------------------------------------


def body_of(number: int, size: int) -> bytes:
    """A message that says which it is and when it was made."""
    head = b"%012d %019d " % (number, time.monotonic_ns())
    return head + b"x" * (size - HEAD) if size >= HEAD else head[:size]


def percentiles(seconds: list[float]) -> list[float]:
    """p50, p90, p99 and max, in microseconds."""
    if not seconds:
        return []
    ordered = sorted(seconds)
    points = [ordered[len(ordered) * part // 100] for part in (50, 90, 99)]
    return [round(point * 1e6, 3) for point in (*points, ordered[-1])]


def timed(step: Callable[[int], bool], count: int, cap: float = 0) -> Result:
    """Do something many times; what each cost on the wall and all together in CPU."""
    each: list[float] = []
    add, clock = each.append, time.perf_counter
    spent = time.process_time()
    began = last = clock()
    for number in range(count):
        if not step(number):
            break
        now = clock()
        add(now - last)
        last = now
        if cap and now - began > cap:
            break
    spent = time.process_time() - spent
    return {"count": len(each), "cpu": spent, "wall": last - began, "us": percentiles(each)}


def tally(numbers: list[int], expected: int) -> Result:
    """How many never came, and how many came again."""
    seen = Counter(numbers)
    lost = sum(1 for number in range(expected) if number not in seen)
    return {"lost": lost, "twice": sum(seen.values()) - len(seen)}


def resident() -> int:
    """The most memory this process ever held, in bytes (not what its parent held before exec, as getrusage says)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- publish and drain ----------------------------------------------------------------------------------------


def store(cell: Cell) -> Result:
    """Put `count`, then take `take` of them; the growth curve, the payload sizes and the million."""
    take = cell.take or cell.count
    if cell.peer in floor.TITLES:
        return floor.run(cell.peer, cell.binary, "store", cell.path, cell.count, cell.size, take)
    peer = PEERS[cell.peer](cell.path)
    warm_up(peer, cell.size)
    bodies = [body_of(n, cell.size) for n in range(cell.count)] if cell.size > 4096 else []
    size, put = cell.size, peer.put

    def one(number: int) -> bool:
        put(bodies[number] if bodies else body_of(number, size))
        return True

    answer: Result = {}
    preloaded = PEERS[cell.peer].linear and cell.count > 1000
    if not (preloaded and peer.preload([body_of(n, cell.size) for n in range(cell.count)])):
        answer["put"] = timed(one, cell.count, cell.cap)
        if answer["put"]["count"] < cell.count:
            return answer | {"capped": "put"}
    return answer | drain(peer, cell, take)


def warm_up(peer: Peer, size: int) -> None:
    """Once through everything that is imported or opened on first use."""
    peer.put(body_of(0, min(size, 1024)))
    found = peer.get()
    if found is not None:
        peer.ack(found[0])


def drain(peer: Peer, cell: Cell, take: int) -> Result:
    heads: list[bytes] = []
    get, ack, note = peer.get, peer.ack, heads.append

    def one(_: int) -> bool:
        found = get()
        if found is None:
            return False
        ack(found[0])
        note(found[1][:12])
        return True

    if isinstance(peer, PEERS["floor"]) and take < cell.count:
        # Of the one listing, the part of those that are taken.
        spent = time.process_time()
        peer._names = sorted(os.listdir(peer.fd), reverse=True)
        listed = (time.process_time() - spent) * take / cell.count
    else:
        listed = 0.0
    taken = timed(one, take, cell.cap)
    taken["cpu"] += listed
    answer: Result = {"get": taken}
    if taken["count"] == cell.count:
        answer |= tally([int(head) for head in heads], cell.count)
        answer["lost"] += sum(1 for _ in iter(peer.get, None))  # what is left was not numbered by us
    elif taken["count"] < take:
        if not cell.cap or taken["wall"] < cell.cap:
            answer |= tally([int(head) for head in heads], cell.count)
        answer["capped"] = "get"
    peer.close()
    return answer


# --- several processes ----------------------------------------------------------------------------------------


def mix(cell: Cell) -> Result:
    """Producers and consumers at once; with a rate, what one message's way through takes."""
    done = f"{cell.path}.done"
    if cell.peer not in floor.TITLES:
        PEERS[cell.peer](cell.path).close()  # some make their files when opened, and not safely at once
    share = cell.count // max(1, cell.producers)
    makers = [_role(cell, "produce", n * share, share) for n in range(cell.producers)]
    takers = [_role(cell, "consume", 0, 0) for _ in range(cell.consumers)]
    return _together(makers, takers, done, share * cell.producers)


def crowd(cell: Cell) -> Result:
    """Consumers, from one to many, on one queue that was filled before."""
    peer = PEERS["floor" if cell.peer in floor.TITLES else cell.peer](cell.path)
    for number in range(cell.count):
        peer.put(body_of(number, cell.size))
    peer.close()
    done = f"{cell.path}.done"
    Path(done).touch()
    takers = [_role(cell, "consume", 0, 0) for _ in range(cell.consumers)]
    return _together([], takers, done, cell.count)


def _role(cell: Cell, role: str, first: int, count: int) -> subprocess.Popen[str]:
    done = f"{cell.path}.done"
    if cell.peer in floor.TITLES:
        pause = int(1e9 * cell.producers / cell.rate) if cell.rate else 0
        words = [cell.path, first, count, cell.size, pause] if role == "produce" else [cell.path, done]
        command = floor.command(cell.peer, cell.binary, role, *words)
    else:
        mine = dataclasses.replace(cell, work=role, count=count, take=first)
        command = [sys.executable, __file__, json.dumps(dataclasses.asdict(mine))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _together(
    makers: list[subprocess.Popen[str]], takers: list[subprocess.Popen[str]], done: str, expected: int
) -> Result:
    everybody = makers + takers
    try:
        for each in everybody:
            if each.stdout is None or each.stdout.readline() != "ready\n":
                raise RuntimeError("a worker did not start")
        began = time.monotonic_ns()
        for each in everybody:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        made = [_answer(each) for each in makers]
        Path(done).touch()
        took = [_answer(each) for each in takers]
    finally:
        for each in everybody:
            each.kill()
            each.communicate()
    pairs = [pair for each in took for pair in each["got"]]
    last = max(each["last"] for each in took)
    errors = sum(each.get("errors", 0) for each in made + took)
    return {
        "count": expected,
        "wall": (last - began) / 1e9,
        "cpu": sum(each["cpu"] for each in made + took),
        "wasted": sum(each["wasted"] for each in took),
        "us": percentiles([late / 1e9 for _, late in pairs]),
        "shares": [len(each["got"]) for each in took],
        "errors": errors,
        **tally([number for number, _ in pairs], expected),
    }


def _answer(worker: subprocess.Popen[str]) -> Result:
    assert worker.stdout is not None
    answer: Result = json.loads(worker.stdout.readline())
    worker.wait()
    return answer


def _ready() -> None:
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit(1)


def produce(cell: Cell) -> Result:
    """One producer of a mix: `take` is its first number."""
    peer = PEERS[cell.peer](cell.path)
    _ready()
    spent, began, errors = time.process_time(), time.monotonic(), 0
    pause = cell.producers / cell.rate if cell.rate else 0.0
    for number in range(cell.count):
        if pause:
            time.sleep(max(0.0, began + number * pause - time.monotonic()))
        for _ in range(100):
            try:
                peer.put(body_of(cell.take + number, cell.size))
                break
            except Exception:  # noqa: BLE001 - whatever a peer raises when it is in the way of another
                errors += 1
    return {"cpu": time.process_time() - spent, "errors": errors}


def consume(cell: Cell) -> Result:
    """One consumer of a mix or a crowd: until the producers ended and nothing came for a while."""
    peer = PEERS[cell.peer](cell.path)
    done = f"{cell.path}.done"
    got: list[tuple[int, int]] = []
    last = errors = 0
    _ready()
    WASTED.clear()
    spent, idle = time.process_time(), 0.0
    while True:
        try:
            found = peer.get()
            if found is not None:
                last = time.monotonic_ns()
                got.append((int(found[1][:12]), last - int(found[1][13:32])))
                idle = 0.0
                peer.ack(found[0])
                continue
        except Exception:  # noqa: BLE001 - counted, and shown beside the speed
            errors += 1
        idle = idle or time.monotonic()
        if time.monotonic() - idle > QUIET and os.path.exists(done):
            break
        time.sleep(POLL)
    cpu = time.process_time() - spent
    return {"cpu": cpu, "wasted": sum(WASTED.values()), "last": last, "got": got, "errors": errors}


#: Failed renames and links of this process: what consumers lose to each other.
WASTED: Counter[str] = Counter()


def watch_renames() -> None:
    """Count renames and links that found their source gone or their target taken. Before anything is imported."""
    for name in ("rename", "link"):
        setattr(os, name, _counted(name, getattr(os, name)))


def _counted(name: str, call: Callable[..., None]) -> Callable[..., None]:
    def counted(*arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except (FileNotFoundError, FileExistsError):
            WASTED[name] += 1
            raise

    return counted


# --- durable ---------------------------------------------------------------------------------------------------


def durable(cell: Cell) -> Result:
    """One message at a time, on the disk when put returns (as far as the peer promises that)."""
    peer = PEERS[cell.peer](cell.path)
    warm_up(peer, cell.size)
    if isinstance(peer, PEERS["floor"]):
        return {"put": timed(lambda n: _floor_durable(peer, body_of(n, cell.size)), cell.count, cell.cap)}
    return {"put": timed(lambda n: (peer.put(body_of(n, cell.size)), True)[1], cell.count, cell.cap)}


def _floor_durable(peer: Any, body: bytes) -> bool:
    name = f"{time.time_ns() // 1000}123456789"
    file = os.open(name + ".new", peer.CREATE, 0o666, dir_fd=peer.fd)
    os.write(file, body)
    os.fsync(file)
    os.close(file)
    os.rename(name + ".new", name, src_dir_fd=peer.fd, dst_dir_fd=peer.fd)
    os.fsync(peer.fd)
    return True


def batch(cell: Cell) -> Result:
    """put_many of `take` messages, until `count` are there."""
    peer = PEERS[cell.peer](cell.path)
    assert isinstance(peer, DirQueue)
    warm_up(peer, cell.size)
    many = peer.queue.put_many

    def one(number: int) -> bool:
        first = number * cell.take
        many([body_of(first + n, cell.size) for n in range(cell.take)])
        return True

    put = timed(one, max(1, cell.count // cell.take), cell.cap)
    put["count"] *= cell.take
    return {"put": put} | drain(peer, dataclasses.replace(cell, count=put["count"], cap=0), put["count"])


# --- looking at everything ------------------------------------------------------------------------------------


def scan(cell: Cell) -> Result:
    """Find the one in a hundred whose lease has expired: what a consumer does, and what a purge does."""
    from dirqueue import Queue

    peer = PEERS["floor"](cell.path)
    long_ago = time.time_ns() // 1000 - 3_600_000_000
    for number in range(cell.count):
        name = f"{long_ago + number}123456789"
        late = f"{name}.{long_ago + 60_000_000}.1.host-1-abcdef-{number}"
        os.close(os.open(late if number % 100 == 0 else name, Floor.CREATE, 0o666, dir_fd=peer.fd))
    answer: Result = {}
    if cell.binary:
        answer["c"] = floor.run("c", cell.binary, "list", cell.path)["cpu"]
    answer["listdir"] = _best(lambda: os.listdir(peer.fd))
    queue = Queue(cell.path, sync=False, margin=0.0)
    cursor = queue._layout._cursor
    now = queue._layout.home.clock.now

    def look() -> None:
        cursor.stale()
        if not cursor.fill(now()):
            raise RuntimeError("nothing was found")

    answer["look"] = _best(look)
    answer["purge"] = _best(queue.purge)
    answer["stats"] = _best(queue.stats)
    if PEERS["dirq-simple"].module and cell.peer == "dirq-simple":
        answer["dirq"] = _dirq_purge(cell)
    return answer


def _best(action: Callable[[], Any]) -> float:
    """CPU seconds, the best of three: the first one warms the caches."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        action()
        spent.append(time.process_time() - began)
    return min(spent)


def _dirq_purge(cell: Cell) -> float:
    from dirq.QueueSimple import QueueSimple

    queue = QueueSimple(cell.path + ".dirq")
    for number in range(cell.count):
        queue.add(b"")
        if number % 100 == 0:
            queue.lock(queue.first() if number == 0 else queue.next())
    return _best(lambda: queue.purge(maxlock=0))


def backlog(cell: Cell) -> Result:
    """What an empty look costs after `count` messages have come and gone, against a queue that never held any."""
    peer = PEERS[cell.peer](cell.path)
    fresh = _empty_look(PEERS[cell.peer](cell.path + ".fresh"))
    for number in range(cell.count):
        peer.put(body_of(number, 64))
    while found := peer.get():
        peer.ack(found[0])
    again = PEERS[cell.peer](cell.path)
    time.sleep(0.1)
    return {"fresh": fresh, "after": _empty_look(again)}


def _empty_look(peer: Peer) -> float:
    peer.get()
    time.sleep(0.05)
    began = time.process_time()
    for _ in range(200):
        peer.get()
    return (time.process_time() - began) / 200


# --- waiting, memory, start-up --------------------------------------------------------------------------------


def wake(cell: Cell) -> Result:
    """A consumer that waits on an empty queue: how long after a put it has the message, and what the waiting costs."""
    PEERS[cell.peer](cell.path).close()
    waiter = _role(dataclasses.replace(cell), "sleeper", 0, cell.count)
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    waiter.stdout.readline()
    waiter.stdin.write("go\n")
    waiter.stdin.flush()
    peer = PEERS[cell.peer](cell.path)
    time.sleep(0.3)
    for number in range(cell.count):
        time.sleep(random.uniform(0.03, 0.07))
        peer.put(body_of(number, cell.size))
    answer = _answer(waiter)
    peer.close()
    return answer


def sleeper(cell: Cell) -> Result:
    """The waiting half of `wake`."""
    peer = PEERS[cell.peer](cell.path)
    late: list[float] = []
    _ready()
    spent, began = time.process_time(), time.monotonic()
    while len(late) < cell.count:
        found = peer.wait(3.0)
        if found is None:
            break
        late.append((time.monotonic_ns() - int(found[1][13:32])) / 1e9)
        peer.ack(found[0])
    busy = (time.process_time() - spent) / (time.monotonic() - began)
    return {"us": percentiles(late), "count": len(late), "busy": busy, "lost": cell.count - len(late)}


def memory(cell: Cell) -> Result:
    """Peak memory of a consumer that takes one message, above what it held before; the queue must be filled."""
    peer = PEERS[cell.peer](cell.path)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(cell.path)) as other:
        small = PEERS[cell.peer](other + "/q")
        warm_up(small, cell.size)
    before = resident()
    began = time.perf_counter()
    found = peer.get()
    first = time.perf_counter() - began
    if found is None:
        raise RuntimeError("the queue was empty")
    return {"memory": resident() - before, "first": first}


def startup(cell: Cell) -> Result:
    """CPU of a bare interpreter, of importing the library, and of one put and one get from the shell."""
    env = os.environ | {"DIRQUEUE_DIR": cell.path}
    command = [sys.executable, "-m", "dirqueue"]
    runs = {
        "python": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import dirqueue; dirqueue.Queue"],
        "version": [*command, "--version"],
        "put": [*command, "put", cell.path, "hello"],
        "get": [*command, "get", cell.path],
    }
    answer: Result = {}
    for name, words in runs.items():
        spent = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, check=True, env=env, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        answer[name] = sorted(spent)[2]
    return answer


Floor = PEERS["floor"]
WORK: dict[str, Callable[[Cell], Result]] = {
    each.__name__: each
    for each in (
        store, mix, crowd, produce, consume, durable, batch, scan, backlog, wake, sleeper, memory, startup,
    )
}  # fmt: skip


def run(cell: Cell) -> Result:
    """Do one cell in this process."""
    return WORK[cell.work](cell)


if __name__ == "__main__":
    _cell = Cell(**json.loads(sys.argv[1]))
    if _cell.work == "consume":
        watch_renames()
    print(json.dumps(run(_cell)), flush=True)
    os._exit(0)  # some peers leave threads behind
