"""Real producers and consumers, some of them killed: every message is accounted for."""

import os
import signal
import time

import pytest
from support.checker import messages, problems
from support.kit import FORK, PATIENCE, wait_until

from dirqueue import Empty, LeaseLost, Queue
from dirqueue.layouts.native import publish

CASES = {
    "flat": ({"sync": False}, 1),
    "flat-sync": ({"sync": True}, 1),
    "batches": ({"sync": False}, 25),
    "batches-sync": ({"sync": True}, 25),
    "slices": ({"sync": False, "deep": True}, 1),
    "slices-sync": ({"sync": True, "deep": True}, 1),
    "random": ({"sync": False, "order": "random"}, 1),
    "lifo": ({"sync": False, "order": "lifo"}, 5),
    "done": ({"sync": False, "keep_done": True}, 5),
}


def produce(path, settings, name, count, batch):
    """Put `count` messages; log each body after its put has returned."""
    queue = Queue(path, **settings)
    with open(f"{path}.put-{name}", "ab", buffering=0) as log:
        for n in range(0, count, batch):
            bodies = [f"{name}-{n + each}".encode() for each in range(batch)]
            if batch == 1:
                queue.put(bodies[0])
            else:
                queue.put_many(bodies)
            log.write(b"".join(body + b"\n" for body in bodies))


def consume(path, settings, name, stop):
    """Get and ack until `stop` is set; log each message before its ack and after it."""
    queue = Queue(path, **settings)
    with open(f"{path}.got-{name}", "ab", buffering=0) as log:
        while True:
            try:
                lease = queue.get(timeout=0.05)
            except Empty:
                if stop.is_set():
                    return
                continue
            body = lease.message.body
            log.write(b"try " + body + b"\n")
            try:
                lease.ack()
            except (
                LeaseLost
            ):  # the process was paused for longer than the lease: another consumer has the message
                log.write(b"late " + body + b"\n")
            else:
                log.write(b"ack " + body + b"\n")


@pytest.mark.parametrize("case", CASES)
def test_every_message_is_accounted_for(tmp_path, monkeypatch, case):
    """Three producers and four consumers, two of each kind killed: no message is lost, acked twice or unknown."""
    settings, batch = CASES[case]
    settings = {"margin": 0, "lease": 1.0, "max_attempts": 0, **settings}
    if settings.pop("deep", False):
        monkeypatch.setattr(publish, "DEEP", 0)
        monkeypatch.setattr(publish, "SLICE_SIZE", 40)
    path = str(tmp_path / "queue")
    stop = FORK.Event()
    counts = (10_000_000, 200, 200)  # the first producer is killed before it gets that far
    producers = [
        FORK.Process(target=produce, args=(path, settings, f"p{n}", count, batch))
        for n, count in enumerate(counts)
    ]
    consumers = [FORK.Process(target=consume, args=(path, settings, f"c{n}", stop)) for n in range(4)]
    for process in producers + consumers:
        process.start()
    try:
        wait_until(lambda: lines(path, "got"), "the first message")
        for victim in (consumers[0], producers[0], consumers[1]):
            victim.kill()
            time.sleep(0.01)
        for process in producers:
            process.join(PATIENCE)
            assert not process.is_alive()
        assert [process.exitcode for process in producers[1:]] == [0, 0]
        wait_until(lambda: not len(Queue(path, **settings)), "the end of the queue")
        stop.set()
        for process in consumers:
            process.join(PATIENCE)
        assert [process.exitcode for process in consumers[2:]] == [0, 0]
    finally:
        for process in producers + consumers:
            if process.is_alive():
                process.kill()
                process.join()
    account(path, settings)


def account(path, settings):
    put = lines(path, "put")
    tried = [line[4:] for line in lines(path, "got") if line.startswith(b"try ")]
    acked = [line[4:] for line in lines(path, "got") if line.startswith(b"ack ")]
    assert set(put) <= set(tried), "lost"
    assert len(acked) == len(set(acked)), "acked twice"
    # Only the last batch of the killed producer p0 may be put but not logged.
    assert all(body.startswith(b"p0-") for body in set(tried) - set(put)), "unknown"
    # Only the two killed consumers may have acked a message without logging it.
    assert len(set(tried) - set(acked)) <= 2, "tried, never acked"
    assert problems(path) == []
    bodies, where = messages(path)
    assert set(where.values()) <= {"done"}
    if settings.get("keep_done"):
        assert sorted(bodies.values()) == sorted(set(tried))


def lines(path, kind):
    """Return the lines of all logs of one kind."""
    found = []
    directory, name = os.path.split(path)
    for each in os.listdir(directory):
        if each.startswith(f"{name}.{kind}-"):
            with open(os.path.join(directory, each), "rb") as log:
                found += log.read().splitlines()
    return found


def test_stopped_consumer_gets_lease_lost(tmp_path):
    """A consumer is stopped for longer than its lease: another one gets the message, the late ack is refused."""
    path = str(tmp_path / "queue")
    queue = Queue(path, sync=False, margin=0)
    queue.put(b"x")
    here, there = FORK.Pipe()

    def child():
        lease = Queue(path, sync=False, margin=0, lease=0.2).get(timeout=PATIENCE)
        there.send("held")
        there.recv()
        try:
            lease.ack()
        except Exception as error:  # noqa: BLE001 - the parent checks its type
            there.send(type(error).__name__)
        else:
            there.send("acked")

    process = FORK.Process(target=child)
    process.start()
    try:
        assert here.poll(PATIENCE)
        here.recv()
        os.kill(process.pid, signal.SIGSTOP)
        lease = queue.get(timeout=PATIENCE)
        here.send("go")
        os.kill(process.pid, signal.SIGCONT)
        assert here.poll(PATIENCE)
        assert here.recv() == "LeaseLost"
        lease.ack()
    finally:
        process.kill()
        process.join()
    assert len(queue) == 0
