"""What the dirq layouts cost: against the bare system calls, and against dirq 1.8.

    python benchmarks/dirq_layouts.py [--messages 2000] [--rounds 15] [--big 100000]

CPU of the thread. Each round measures every contender once, in a new random order, on tmpfs and (as root) on an ext4
with a journal and an xfs in loop-mounted files; the table shows the median of the rounds' ratios, and `!` where a goal
is missed. The floor is a loop of bare os.* calls: what the format itself asks for, nothing else.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import statistics
import time

import dirq.queue
import dirq.QueueSimple
from mounts import filesystems

import dirqueue
from dirqueue.compat.dirq.queue import Queue as CompatNormal
from dirqueue.compat.dirq.QueueSimple import QueueSimple as CompatSimple

BODY = b"x" * 100
SCHEMA = {"body": "binary"}


def floor_publish(path, n):
    """Add as dirq-simple must: open, write, close, link, unlink."""
    os.makedirs(f"{path}/00000000")
    fd = os.open(path, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    for i in range(n):
        new, name = f"00000000/{i:014x}.tmp", f"00000000/{i:014x}"
        file = os.open(new, flags, 0o666, dir_fd=fd)
        os.write(file, BODY)
        os.close(file)
        os.link(new, name, src_dir_fd=fd, dst_dir_fd=fd)
        os.unlink(new, dir_fd=fd)
    os.close(fd)


def floor_drain(path, n):
    """Consume as dirq-simple must: list; link, utime, open, read, close, unlink, unlink."""
    fd = os.open(path, os.O_RDONLY)
    for name in sorted(os.listdir(f"{path}/00000000")):
        element = f"00000000/{name}"
        lock = f"{element}.lck"
        os.link(element, lock, src_dir_fd=fd, dst_dir_fd=fd)
        os.utime(element, dir_fd=fd)
        file = os.open(lock, os.O_RDONLY, dir_fd=fd)
        os.read(file, 65536)
        os.close(file)
        os.unlink(element, dir_fd=fd)
        os.unlink(lock, dir_fd=fd)
    os.close(fd)


def ours(layout):
    def publish(path, n):
        with dirqueue.Queue(path, layout=layout, sync=False) as queue:
            for _ in range(n):
                queue.put(BODY)

    def drain(path, n):
        with dirqueue.Queue(path, layout=layout, sync=False) as queue:
            for lease in queue.consume(timeout=0):
                lease.message.body  # noqa: B018
                lease.ack()

    return publish, drain


def simple(cls, **settings):
    def publish(path, n):
        queue = cls(path, **settings)
        for _ in range(n):
            queue.add(BODY)

    def drain(path, n):
        queue = cls(path, **settings)
        for name in queue:
            if queue.lock(name):
                queue.get(name)
                queue.remove(name)

    return publish, drain


def normal(cls, **settings):
    def publish(path, n):
        queue = cls(path, schema=SCHEMA, **settings)
        for _ in range(n):
            queue.add({"body": BODY})

    def drain(path, n):
        queue = cls(path, schema=SCHEMA, **settings)
        for name in queue:
            if queue.lock(name):
                queue.get(name)
                queue.remove(name)

    return publish, drain


CONTENDERS = {
    "floor": (floor_publish, floor_drain),
    "dirq-simple": ours("dirq-simple"),
    "compat simple": simple(CompatSimple, sync=False),
    "dirq 1.8 simple": simple(dirq.QueueSimple.QueueSimple),
    "dirq-normal": ours("dirq-normal"),
    "compat normal": normal(CompatNormal, sync=False),
    "dirq 1.8 normal": normal(dirq.queue.Queue),
}
BASE = {
    "dirq-simple": ("floor", "dirq 1.8 simple"),
    "compat simple": ("floor", "dirq 1.8 simple"),
    "dirq 1.8 simple": ("floor",),
    "dirq-normal": ("dirq 1.8 normal",),
    "compat normal": ("dirq 1.8 normal",),
}
#: The goals: at most so many times the other, by filesystem (journaled ones alike).
GOALS = {
    ("dirq-simple", "floor"): {"tmpfs": 1.4, "ext4": 1.2, "xfs": 1.2},
    ("dirq-simple", "dirq 1.8 simple"): 1.0,
    ("compat simple", "dirq 1.8 simple"): 1.0,
    ("dirq-normal", "dirq 1.8 normal"): 1 / 1.5,
    ("compat normal", "dirq 1.8 normal"): 1.0,
}


def goal(place, name, base):
    """Return the goal of a cell, or None."""
    limit = GOALS.get((name, base))
    return limit.get(place) if isinstance(limit, dict) else limit


def cpu(function, *arguments):
    gc.collect()
    gc.disable()
    before = time.thread_time()
    function(*arguments)
    took = time.thread_time() - before
    gc.enable()
    return took


def measure(where, messages, rounds):
    """Return name -> cell -> the CPU of each round."""
    seen = {name: {"publish": [], "drain": []} for name in CONTENDERS}
    for number in range(rounds + 1):
        order = list(CONTENDERS.items())
        random.shuffle(order)
        for name, (publish, drain) in order:
            path = os.path.join(where, f"q{number}-{name.replace(' ', '_')}")
            times = cpu(publish, path, messages), cpu(drain, path, messages)
            shutil.rmtree(path)
            if number:  # the first round only warms up
                seen[name]["publish"].append(times[0])
                seen[name]["drain"].append(times[1])
    return seen


def report(place, seen, messages):
    print(f"\n{place}: microseconds of CPU a message, and how many times the other")
    for name, cells in seen.items():
        for cell, times in cells.items():
            line = f"  {name:16} {cell:8} {statistics.median(times) / messages * 1e6:7.1f}"
            for base in BASE.get(name, ()):
                ratios = [mine / theirs for mine, theirs in zip(times, seen[base][cell], strict=True)]
                ratio, limit = statistics.median(ratios), goal(place, name, base)
                line += f"   {ratio:5.2f}{'!' if limit and ratio > limit else ' '}x {base}"
            print(line)


def walk(queue):
    return sum(1 for _ in queue)


#: What is done to many elements at once, and how often: the least of so many rounds counts.
VERBS = {
    "count": (lambda queue: queue.count(), 30),
    "purge": (lambda queue: queue.purge(), 5),
    "iterate": (walk, 5),
}


def big(where, count):
    """Count, purge and iterate many elements; and iterate a tenth of them, to see that the cost is linear."""
    for kind, mine, theirs in (
        ("simple", CompatSimple, dirq.QueueSimple.QueueSimple),
        ("normal", CompatNormal, dirq.queue.Queue),
    ):
        publish, _ = (simple if kind == "simple" else normal)(mine, sync=False)
        for depth in (count // 10, count):
            path = os.path.join(where, f"big-{kind}-{depth}")
            publish(path, depth)
            print(f"\n{depth} elements of {kind}: milliseconds of CPU, and microseconds an element")
            queues = {"dirqueue": mine(path), "dirq 1.8": theirs(path)}
            for verb, (call, rounds) in VERBS.items():
                least = {}
                for _ in range(rounds):
                    for label, queue in queues.items():
                        least[label] = min(least.get(label, 1e9), cpu(call, queue))
                missed = "!" if least["dirqueue"] > least["dirq 1.8"] else " "
                columns = "".join(
                    f"   {label} {took * 1e3:9.3f} {took / depth * 1e6:7.3f}" for label, took in least.items()
                )
                print(f"  {verb:8}{columns} {missed}")
            del queues
            shutil.rmtree(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--big", type=int, default=100_000)
    options = parser.parse_args()
    for place, where in filesystems(("tmpfs", "ext4", "xfs")):
        report(place, measure(str(where), options.messages, options.rounds), options.messages)
        if options.big and place == "tmpfs":
            big(str(where), options.big)


if __name__ == "__main__":
    main()
