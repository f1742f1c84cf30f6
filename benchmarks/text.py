"""A queue in one text file beside a native one and beside textqueue 1.1: the ratios that are promised, in one run.

    python benchmarks/text.py [--deep 1000000] [--rounds 3] [--json]

Runs alone; nothing else reads what it writes. CPU time of this process, the least of a few rounds, alternating (the ratios of the medians are shown too).
textqueue 1.1 has neither lock nor claim, so for one careful process it is quicker; what it costs is shown too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time

import textqueue

from dirqueue import Empty, Queue

SIZE = 100
FEW = 1000
FORK = multiprocessing.get_context("fork")
#: name -> (what it says, the goal, whether it is at least that)
GOALS = {
    "put": ("put, text ÷ native", 2.0, False),
    "get_ack": ("get + ack, text ÷ native", 3.5, False),
    "put_many": ("put_many, each message, text ÷ native", 0.5, False),
    "deep_put": ("put, deep ÷ 1,000", 1.2, False),
    "deep_get_ack": ("get + ack, deep ÷ 1,000", 1.2, False),
    "first_get": ("first get behind processed ones, textqueue ÷ text", 50.0, True),
}


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def body(number: int) -> bytes:
    return b"%010d " % number + b"x" * (SIZE - 11)


def opened(path: str, layout: str) -> Queue:
    return Queue(path, layout=layout, sync=False, lease=600)


def each(count: int, step) -> float:
    """Microseconds of CPU for one step."""
    began = cpu()
    for number in range(count):
        step(number)
    return (cpu() - began) / count * 1e6


def get_and_ack(queue: Queue) -> None:
    lease = queue.get(timeout=0)
    lease.message.body  # noqa: B018
    lease.ack()


def singles(folder: str, layout: str, count: int) -> dict[str, float]:
    """What one message costs, put one by one, and put many at once."""
    with opened(os.path.join(folder, layout), layout) as queue:
        for number in range(200):
            queue.put(body(number))
        found = {"put": each(count, lambda number: queue.put(body(number)))}
        for _ in range(100):
            get_and_ack(queue)
        found["get_ack"] = each(count, lambda _: get_and_ack(queue))
        many = [body(number) for number in range(10 * count)]
        began = cpu()
        queue.put_many(many)
        found["put_many"] = (cpu() - began) / len(many) * 1e6
    return found


def theirs(folder: str, count: int) -> dict[str, float]:
    """The same with textqueue, whose users append by themselves."""
    path = os.path.join(folder, "theirs")
    with open(path, "w", encoding="utf-8") as file:

        def put(number: int) -> None:
            file.write("-" + body(number).decode() + "\n")
            file.flush()

        found = {"put": each(count, put)}
    queue = textqueue.TextQueue()
    queue.add_input(path)
    found["get_ack"] = each(count - 1, lambda _: queue.get_next().mark_as_cleared())
    queue.close()
    return found


def file_of(path: str, count: int, control: bytes = b"-") -> None:
    with open(path, "wb") as file:
        file.writelines(control + body(number) + b"\n" for number in range(count))
    os.utime(path, (time.time() - 60,) * 2)
    time.sleep(0.3)


def depth(folder: str, count: int, steps: int) -> dict[str, float]:
    """What one message costs in a file of so many."""
    path = os.path.join(folder, f"deep{count}.tq")
    file_of(path, count)
    with opened(path, "text") as queue:
        get_and_ack(queue)
        queue.put(body(0))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = {
            "put": each(steps, lambda number: queue.put(body(number))),
            "get_ack": each(steps, lambda _: get_and_ack(queue)),
        }
        found["grown_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    os.unlink(path)
    return found


def first_get(folder: str, count: int) -> dict[str, float]:
    """Seconds of CPU to the first message behind processed ones: a process that was never there, and the second one."""
    path = os.path.join(folder, "processed.tq")
    file_of(path, count, b"=")
    with open(path, "ab") as file:
        file.write(b"-the one\n-another\n-a third\n")
    time.sleep(0.3)
    began = cpu()
    queue = textqueue.TextQueue()
    queue.add_input(path)
    assert queue.get_next().value == "the one"
    found = {"theirs": cpu() - began}
    queue.close()
    for name, expected in (("first", b"the one"), ("second", b"another")):
        began = cpu()
        with opened(path, "text") as mine:
            assert mine.get(timeout=0).message.body == expected
            found[name] = cpu() - began
    os.unlink(path)
    return found


def write(path: str, layout: str, count: int) -> None:
    with opened(path, layout) as queue:
        for number in range(count):
            queue.put(body(number))


def read(path: str, layout: str, left) -> None:
    with opened(path, layout) as queue:
        while left.value > 0:
            try:
                get_and_ack(queue)
            except Empty:
                time.sleep(0.001)
                continue
            with left.get_lock():
                left.value -= 1


def crowd(folder: str, layout: str, count: int) -> float:
    """Messages a second, through four writers and four readers."""
    path = os.path.join(folder, f"crowd-{layout}")
    left = FORK.Value("l", 4 * count)
    everybody = [FORK.Process(target=read, args=(path, layout, left)) for _ in range(4)]
    everybody += [FORK.Process(target=write, args=(path, layout, count)) for _ in range(4)]
    began = time.monotonic()
    for process in everybody:
        process.start()
    for process in everybody:
        process.join()
    return 4 * count / (time.monotonic() - began)


def least(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def measure(folder: str, deep: int, rounds: int, steps: int) -> dict:
    found: dict[str, list] = {name: [] for name in ("native", "text", "theirs")}
    shallow_rounds, deep_rounds = [], []
    for number in range(rounds):
        where = os.path.join(folder, str(number))
        os.mkdir(where)
        found["native"].append(singles(where, "native", steps))
        found["text"].append(singles(where, "text", steps))
        found["theirs"].append(theirs(where, steps))
        shallow_rounds.append(depth(where, FEW, FEW // 2))
        deep_rounds.append(depth(where, deep, FEW // 2))
        shutil.rmtree(where)
    native, text, other = (least(found[name]) for name in ("native", "text", "theirs"))
    shallow, deepest = least(shallow_rounds), least(deep_rounds)
    opening = first_get(folder, deep)
    crowds = {layout: crowd(folder, layout, steps // 4) for layout in ("native", "text")}
    ratios = {
        "put": text["put"] / native["put"],
        "get_ack": text["get_ack"] / native["get_ack"],
        "put_many": text["put_many"] / native["put_many"],
        "deep_put": deepest["put"] / shallow["put"],
        "deep_get_ack": deepest["get_ack"] / shallow["get_ack"],
        "first_get": opening["theirs"] / opening["first"],
    }
    return {
        "deep": deep, "micros": {"native": native, "text": text, "textqueue": other}, "shallow": shallow,
        "deepest": deepest, "first_get_seconds": opening, "crowd_per_second": crowds, "ratios": ratios,
        "medians": {name: medians(each) for name, each in found.items()},
    }  # fmt: skip


def show(result: dict) -> bool:
    good = True
    for name, (what, goal, at_least) in GOALS.items():
        value = result["ratios"][name]
        met = value >= goal if at_least else value <= goal
        good = good and met
        print(
            f"{what:55} {value:8.2f}   goal {'≥' if at_least else '≤'} {goal:g}   {'met' if met else 'MISSED'}"
        )
    for name, figures in result["micros"].items():
        print(f"{name:10}", "  ".join(f"{what} {value:.1f} µs" for what, value in figures.items()))
    middle = result["medians"]
    print(
        "medians:  ",
        "  ".join(f"{what} {middle['text'][what] / middle['native'][what]:.2f}" for what in middle["text"]),
    )
    print(
        "seconds to the first get:", "  ".join(f"{k} {v:.3f}" for k, v in result["first_get_seconds"].items())
    )
    print(
        "4 + 4, messages a second:", "  ".join(f"{k} {v:,.0f}" for k, v in result["crowd_per_second"].items())
    )
    print(
        f"memory that grew over {FEW // 2} puts and gets in the deep file: {result['deepest']['grown_kib']:.0f} KiB"
    )
    print("textqueue has neither lock nor claim: for one careful process it is quicker.")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deep", type=int, default=1_000_000, help="messages in the deep file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dirqueue-text-", dir=place) as folder:
        result = measure(folder, args.deep, args.rounds, args.steps)
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    return 0 if show(result) else 1


if __name__ == "__main__":
    sys.exit(main())
