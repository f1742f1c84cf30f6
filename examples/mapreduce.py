"""MapReduce on a space: words are counted by processes that are killed all the time, and the counts are exact.

    map           documents            a mapper takes one and puts its counts, a message for each shard: one transaction
    reduce/SHARD  counts of documents  a reducer merges up to 200 of them into one: one transaction
    out           the end result       of a shard, once no document and no other counts of it are left

Whoever dies in the middle has done nothing: what it held comes back when its lease is over. No queue is told that it is
complete; that `map` is empty says so, since a document leaves it in the same moment in which its counts appear.
By hand: `python examples/mapreduce.py README.md docs/*.md`, or without files for a text that is made up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from dirqueue import Conflict, Empty, Lease, LeaseLost, Put, Space

SHARDS = 3
#: Counts that a reducer merges at once.
MERGE = 200
#: Seconds after which what a killed process held comes back.
LEASE = 2.0
#: The example gives up after this long; it takes some seconds.
GIVE_UP = 50.0


def count_words(text: str) -> Counter[str]:
    """Count the words of a text."""
    return Counter(re.findall(r"\w+", text.lower()))


def shard_of(word: str) -> str:
    """Return the queue that the counts of a word go to; the same in every process."""
    return f"reduce/{zlib.crc32(word.encode()) % SHARDS}"


def run_mapper(space: Space[bytes]) -> None:
    """Count the words of one document after the other, until there is none."""
    while not space.empty("map"):
        try:
            lease = space.get("map", timeout=0.1)
            shards: dict[str, dict[str, int]] = {}
            for word, count in count_words(lease.message.body.decode()).items():
                shards.setdefault(shard_of(word), {})[word] = count
            lease.ack(then=[Put(shard, json.dumps(counts)) for shard, counts in shards.items()])
        except (Empty, Conflict, LeaseLost):
            continue  # others hold the rest; or this process was too slow, and nothing was done


def run_reducer(space: Space[bytes], shard: str) -> None:
    """Merge the counts of a shard into one message, then move it to `out`."""
    queue = space.queue(shard)
    while True:
        mapped = space.empty("map")  # looked at first: from then on nothing new arrives
        if mapped and space.empty(shard):
            return
        try:
            reduce(space, shard, queue.get_many(MERGE, timeout=0.1), mapped=mapped)
        except (Empty, Conflict, LeaseLost):
            continue


def reduce(space: Space[bytes], shard: str, parts: list[Lease[bytes]], *, mapped: bool) -> None:
    """Put the sum of some counts in their place: the end result, if these are all that there will ever be."""
    is_all = mapped and len(parts) == space.queue(shard).stats().total
    if len(parts) == 1 and not is_all:
        parts[0].release()
        time.sleep(0.02)
        return
    total: Counter[str] = Counter()
    for part in parts:
        total.update(json.loads(part.message.body))
    with space.transaction() as transaction:
        for part in parts:
            transaction.ack(part)
        transaction.put("out" if is_all else shard, json.dumps(dict(sorted(total.items()))))


def run_chaos(space: Space[bytes]) -> None:
    """Take a message of whatever there is, and die of it."""
    names = [name for name in space.names() if name != "out"]
    try:
        space.get(*random.sample(names, len(names)), timeout=0.2)
    except Empty:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def run(role: str, path: str) -> None:
    """Be one of the processes."""
    roles: dict[str, Callable[[Space[bytes]], None]] = {"map": run_mapper, "chaos": run_chaos}
    with Space(path) as space:
        work = roles.get(role)
        work(space) if work else run_reducer(space, role)


def start(role: str, path: str) -> subprocess.Popen[bytes]:
    """Start one process."""
    return subprocess.Popen([sys.executable, __file__, "--role", role, "--space", path])


def count_all(path: str, kills: int) -> int:
    """Run mappers and reducers until the work is done, killing some of them; return how many were killed."""
    roles = ["map", "map", *(f"reduce/{shard}" for shard in range(SHARDS))]
    running = {name: start(role, path) for name, role in enumerate(roles)}
    victims, killed = cycle(running), 0
    until = time.monotonic() + GIVE_UP
    try:
        while any(process.poll() != 0 for process in running.values()):
            if time.monotonic() > until:
                raise SystemExit(f"not done after {GIVE_UP:.0f} seconds")
            if killed < kills:
                killed += kill(running[next(victims)]) + (start("chaos", path).wait() < 0)
            for name, process in running.items():
                if process.poll() not in (None, 0):
                    running[name] = start(roles[name], path)
            time.sleep(0.05)
    finally:
        for process in running.values():
            kill(process)
    return killed


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a process wherever it is; return whether it was still running."""
    process.kill()
    return process.wait() == -signal.SIGKILL


def read(files: list[str]) -> list[str]:
    """Return the texts of files."""
    return [Path(file).read_text(encoding="utf-8") for file in files]


def made_up(documents: int) -> list[str]:
    """Return texts of some hundred different words, the same ones every time."""
    chance = random.Random(4)  # noqa: S311 - a text, no secret
    words = [f"word{number}" for number in range(400)]
    return [" ".join(chance.choices(words, k=60)) for _ in range(documents)]


def main() -> int:
    """Count the words of files, or of a text that is made up, and compare with a plain count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="texts to count the words of")
    parser.add_argument("--documents", type=int, default=300, help="texts to make up (default %(default)s)")
    parser.add_argument("--kills", type=int, default=12, help="processes to kill (default %(default)s)")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--space", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        run(options.role, options.space)
        return 0
    texts = read(options.files) or made_up(options.documents)
    with tempfile.TemporaryDirectory(prefix="dirqueue-mapreduce-") as path:
        # Short leases, and no limit to how often a message may be delivered: for every queue that there will be.
        with Space.create(path, lease=LEASE, margin=0.1, max_attempts=0) as space:
            for name in ("out", *(f"reduce/{shard}" for shard in range(SHARDS))):
                space.queue(
                    name
                )  # made now: of several processes that make one at once, some would have to try again
            space.queue("map").put_many(text.encode() for text in texts)
            killed = count_all(path, options.kills)
            results = [json.loads(message.body) for message in space.queue("out").peek()]
        print(f"{killed} processes killed")
        return verify(texts, results)


def verify(texts: list[str], results: list[dict[str, int]]) -> int:
    """Compare with a plain count; return the exit status."""
    counted: Counter[str] = Counter()
    for result in results:
        counted.update(result)
    wanted = count_words(" ".join(texts))
    print(f"{len(texts)} documents, {len(wanted)} words")
    for word, count in wanted.most_common(5):
        print(f"{count:8} {word}")
    print("the counts are exact" if counted == wanted else "SOMETHING IS WRONG")
    return 0 if counted == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
