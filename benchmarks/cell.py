"""One measurement, and what all workloads share: numbered bodies, timing, counting."""

from __future__ import annotations

import dataclasses
import functools
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer import Peer

HEAD = 33  # "NNNNNNNNNNNN TTTTTTTTTTTTTTTTTTT "
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


def body_of(number: int, size: int) -> bytes:
    """Return the body of a message: its number and when it was made."""
    head = b"%012d %019d " % (number, time.monotonic_ns())
    return head + _rest(size) if size >= HEAD else head[:size]


@functools.cache
def _rest(size: int) -> bytes:
    """Return the filling of a body; made once, so that the harness does little between two puts."""
    return b"x" * (size - HEAD)


def percentiles(seconds: list[float]) -> list[float]:
    """Return p50, p90, p99 and max, in microseconds."""
    if not seconds:
        return []
    ordered = sorted(seconds)
    points = [ordered[len(ordered) * part // 100] for part in (50, 90, 99)]
    return [round(point * 1e6, 3) for point in (*points, ordered[-1])]


def timed(step: Callable[[int], bool], count: int, cap: float = 0) -> Result:
    """Do something many times; return the wall time of each and the CPU time of all together."""
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
    """Return how many messages never came, and how many came again."""
    seen = Counter(numbers)
    lost = sum(1 for number in range(expected) if number not in seen)
    return {"lost": lost, "twice": sum(seen.values()) - len(seen)}


def resident() -> int:
    """Return the peak memory of this process in bytes (getrusage would include its parent's before exec)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def warm_up(peer: Peer, size: int) -> None:
    """Use once everything that is imported or opened on first use."""
    peer.put(body_of(0, min(size, 1024)))
    found = peer.get()
    if found is not None:
        peer.ack(found[0])
