"""Writers, readers, murders and editors in processes of their own: every message is accounted for."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from support.kit import FORK, PATIENCE

from dirqueue import Empty, LeaseLost, Queue
from dirqueue.layouts.text import grammar

SETTINGS = {"sync": False, "margin": 0, "layout": "text", "backoff": 0, "max_attempts": 0}


def write(path, name, count, size):
    with Queue(path, **SETTINGS) as queue:
        for n in range(count):
            queue.put(f"{name}-{n} ".encode() + b"x" * random.Random(f"{name}{n}").randrange(size))


def read(path, log, lease, stop):
    """Get and acknowledge; write down what was acknowledged, whole lines only."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Queue(path, **SETTINGS, lease=lease) as queue:
        while True:
            try:
                held = queue.get(timeout=0.2)
            except Empty:
                if stop.is_set():
                    return
                continue
            body = held.message.body
            try:
                held.ack()
            except LeaseLost:
                os.write(fd, b"lost " + body.split(b" ")[0] + b"\n")
            else:
                os.write(fd, b"done " + body.split(b" ")[0] + b"\n")


def logged(logs):
    """Return what was acknowledged and how often; a line that a murder cut is not counted."""
    found = Counter()
    for log in logs:
        if log.exists():
            for line in log.read_bytes().split(b"\n")[:-1]:
                if line.startswith(b"done "):
                    found[line[5:].decode()] += 1
    return found


def states(path):
    """Return the state of each message in the file; no message may be there in part."""
    found = Counter()
    for item in grammar.items(path.read_bytes()):
        assert not item.foreign
        if item.control != "#":
            name, _, filling = item.text.partition(b" ")
            assert not filling.strip(b"x"), item
            found[item.control, name.decode()] += 1
    return found


def start(target, *arguments):
    process = FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def wait_for_the_end(path, expected):
    """Wait until every message is processed."""
    deadline = time.monotonic() + PATIENCE
    while sum(n for (control, _), n in states(path).items() if control == "=") < expected:
        assert time.monotonic() < deadline, states(path).most_common(3)
        time.sleep(0.05)


@pytest.mark.parametrize("size", [60, 3000])
def test_four_writers_and_four_readers(tmp_path, size):
    """Each message once."""
    path, count = tmp_path / "q.tq", 100
    stop = FORK.Event()
    logs = [tmp_path / f"log{n}" for n in range(4)]
    readers = [start(read, path, log, 600.0, stop) for log in logs]
    writers = [start(write, path, f"w{n}", count, size) for n in range(4)]
    for each in writers:
        each.join(PATIENCE)
        assert each.exitcode == 0
    stop.set()
    for each in readers:
        each.join(PATIENCE)
        assert each.exitcode == 0
    done = logged(logs)
    assert set(done.values()) == {1}
    assert len(done) == 4 * count
    assert states(path) == {("=", name): 1 for name in done}


def test_murdered_writers_and_readers(tmp_path):
    """SIGKILL in the middle of anything: what a put returned is there once, and whatever is there is whole."""
    path = tmp_path / "q.tq"
    stop = FORK.Event()
    logs = [tmp_path / f"log{n}" for n in range(40)]
    dice = random.Random(1)
    for round_ in range(20):
        size = dice.choice([60, 3000, 20_000])
        victims = [
            start(write, path, f"k{round_}-{n}", 10_000, size) for n in range(2)
        ] + [start(read, path, logs[2 * round_ + n], 0.3, stop) for n in range(2)]  # fmt: skip
        time.sleep(dice.uniform(0.01, 0.1))
        for each in victims:
            os.kill(each.pid, signal.SIGKILL)
            each.join(PATIENCE)
    last = [tmp_path / "last0", tmp_path / "last1"]
    write(path, "end", 5, 60)
    readers = [start(read, path, log, 5.0, stop) for log in last]
    deadline = time.monotonic() + PATIENCE
    while any(control == "-" for control, _ in states(path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stop.set()
    for each in readers:
        each.join(PATIENCE)
    found = states(path)
    assert set(found.values()) == {1}, found.most_common(3)
    done = logged(logs + last)
    assert set(done.values()) == {1}, done.most_common(3)
    assert {name for _, name in found} >= set(done)
    for n in range(20):  # of each writer all up to the last: nothing is missing in between
        for writer in (f"k{n}-0-", f"k{n}-1-"):
            numbers = sorted(int(name.rpartition("-")[2]) for _, name in found if name.startswith(writer))
            assert numbers == list(range(len(numbers)))


def edit(path, how, stop):
    """Save old copies, again and again, with a line of the person's own."""
    n = 0
    while not stop.is_set():
        copy = path.read_bytes()
        time.sleep(0.15)
        n += 1
        data = copy + f"-person-{n} \n".encode() if copy.endswith(b"\n") else copy
        if how == "rename":
            new = path.with_name("new~")
            new.write_bytes(data)
            os.rename(new, path)
        else:
            with open(path, "r+b") as file:
                file.truncate(0)
                half = len(data) // 2
                file.write(data[:half])
                file.flush()
                time.sleep(0.01)
                file.write(data[half:])
        time.sleep(0.45)


@pytest.mark.parametrize("how", ["rename", "in place"])
def test_old_copies_are_saved_while_writers_and_readers_work(tmp_path, how):
    """Nothing lost, nothing processed twice."""
    path, count = tmp_path / "q.tq", 120
    write(path, "first", 5, 60)
    stop = FORK.Event()
    logs = [tmp_path / f"log{n}" for n in range(2)]
    editing = FORK.Event()
    editor = start(edit, path, how, editing)
    readers = [start(read, path, log, 600.0, stop) for log in logs]
    writers = [start(slowly, path, f"w{n}", count) for n in range(2)]
    for each in writers:
        each.join(PATIENCE)
        assert each.exitcode == 0
    editing.set()
    editor.join(PATIENCE)
    expected = {f"w{n}-{m}" for n in range(2) for m in range(count)} | {f"first-{m}" for m in range(5)}
    deadline = time.monotonic() + PATIENCE
    while not expected <= set(logged(logs)):
        assert time.monotonic() < deadline, expected - set(logged(logs))
        time.sleep(0.05)
    stop.set()
    for each in readers:
        each.join(PATIENCE)
    done = logged(logs)
    assert {name: n for name, n in done.items() if n > 1} == {}


def slowly(path, name, count):
    with Queue(path, **SETTINGS) as queue:
        for n in range(count):
            queue.put(f"{name}-{n} ".encode())
            time.sleep(0.02)
