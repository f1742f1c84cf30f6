"""Several processes on one queue: a mix of producers and consumers, a crowd of consumers, one that waits.

A worker prints "ready", waits for the signal to begin, and prints its measurements as one line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import floor
from cell import Cell, Result, body_of, percentiles, tally, warm_up
from peers import PEERS

RUNNER = Path(__file__).with_name("work.py")
POLL = 0.001
#: Consumers stop when the producers have ended and nothing came for this long.
QUIET = 0.2


def mix(cell: Cell) -> Result:
    """Run producers and consumers at once; with a rate, measure how long a message takes from put to get."""
    done = f"{cell.path}.done"
    if cell.peer not in floor.TITLES:
        PEERS[cell.peer](cell.path).close()  # some make their files when opened, and not safely at once
    share = cell.count // max(1, cell.producers)
    makers = [_role(cell, "produce", n * share, share) for n in range(cell.producers)]
    takers = [_role(cell, "consume", 0, 0) for _ in range(cell.consumers)]
    return _together(makers, takers, done, share * cell.producers)


def crowd(cell: Cell) -> Result:
    """Run one or many consumers on one queue that was filled before."""
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
        command = [sys.executable, str(RUNNER), json.dumps(dataclasses.asdict(mine))]
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
    """Be one producer of a mix; `take` is its first number."""
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
    """Be one consumer of a mix or a crowd, until the producers have ended and nothing came for a while."""
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


def death(cell: Cell) -> Result:
    """Kill a consumer that holds some messages; count which of them come again and which never do."""
    kind = PEERS[cell.peer]
    kind.lease = DEATH_LEASE
    peer = kind(cell.path)
    for number in range(cell.count):
        peer.put(body_of(number, cell.size))
    peer.close()
    victim = _role(cell, "victim", 0, cell.take)
    assert victim.stdout is not None
    victim.stdout.readline()
    victim.kill()
    victim.communicate()
    time.sleep(
        2 * DEATH_LEASE + 0.5
    )  # leases are over, and what waits a little longer than a lease has waited
    heir = kind(cell.path)
    heir.recover()
    numbers: list[int] = []
    deadline = time.monotonic() + DEATH_LEASE
    while len(numbers) < cell.count and time.monotonic() < deadline:
        found = heir.get()
        if found is None:
            time.sleep(POLL)
            continue
        numbers.append(int(found[1][:12]))
        heir.ack(found[0])
    heir.close()
    return tally(numbers, cell.count)


#: Lease in seconds of the victim of `death`, for peers that have leases.
DEATH_LEASE = 1.0


def victim(cell: Cell) -> Result:
    """Take `count` messages, say so, and wait for the end."""
    kind = PEERS[cell.peer]
    kind.lease = DEATH_LEASE
    peer = kind(cell.path)
    held = [peer.get() for _ in range(cell.count)]
    print(f"ready: {len(held)}", flush=True)
    time.sleep(60)
    return {}


def wake(cell: Cell) -> Result:
    """Measure how long after a put a waiting consumer has the message, and what the waiting costs."""
    peer = PEERS[cell.peer](cell.path)
    warm_up(peer, cell.size)  # the directory is there
    waiter = _role(dataclasses.replace(cell), "sleeper", 0, cell.count)
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    waiter.stdout.readline()
    waiter.stdin.write("go\n")
    waiter.stdin.flush()
    time.sleep(0.3)
    for number in range(cell.count):
        time.sleep(random.uniform(0.03, 0.07))
        peer.put(body_of(number, cell.size))
    answer = _answer(waiter)
    peer.close()
    return answer


def sleeper(cell: Cell) -> Result:
    """Be the waiting consumer of `wake`."""
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
