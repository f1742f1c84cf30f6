"""Order in lifo and priority queues: what was put last, or is most urgent, comes next, however deep the queue is."""

import random
import time

import pytest
from support.kit import drain, replaced

from dirqueue import Queue
from dirqueue.layouts.native import cursor, publish


@pytest.fixture(params=["flat", "deep"])
def depth(request, monkeypatch):
    """Every test here is about queues of files, and about queues that are cut into slices."""
    if request.param == "deep":
        monkeypatch.setattr(publish, "DEEP", -1)
    return request.param


def queue_of(path, **settings):
    queue = Queue(path, sync=False, **settings)
    queue.put(b"old", priority=5 if settings.get("priorities") else None)
    return queue


@pytest.mark.usefixtures("depth")
def test_a_process_gets_what_it_just_put_to_a_lifo_queue(queue_dir):
    """Each time, beside a backlog that is being worked through."""
    queue = queue_of(queue_dir, order="lifo")
    for number in range(50):
        queue.put(b"backlog %d" % number)
    assert queue.get(timeout=0).message.body == b"backlog 49"
    for number in range(50):
        queue.put(b"new %d" % number)
        assert queue.get(timeout=0).message.body == b"new %d" % number


@pytest.mark.usefixtures("depth")
def test_process_gets_what_it_just_put_to_a_deep_lifo_queue_that_another_filled_in_the_same_second(queue_dir):
    """Its slice is named after the start of the second, and so sorts before those of the other."""
    mine, other = (Queue.create(queue_dir, order="lifo", sync=False) for _ in range(2))
    for number in range(6000):
        other.put(b"%d" % number)
    mine.get(timeout=0).ack()
    got = []
    for number in range(50):
        mine.put(b"mine %d" % number)
        lease = mine.get(timeout=0)
        got.append(lease.message.body)
        lease.ack()
    assert got == [b"mine %d" % number for number in range(50)]


def test_process_gets_the_urgent_message_it_just_put(queue_dir):
    """Each time, beside a backlog of less urgent ones."""
    queue = queue_of(queue_dir, priorities=True)
    for number in range(50):
        queue.put(b"backlog %d" % number, priority=5)
    assert queue.get(timeout=0).message.body == b"old"
    for number in range(50):
        queue.put(b"urgent %d" % number, priority=2)
        assert queue.get(timeout=0).message.body == b"urgent %d" % number
    assert drain(queue) == [b"backlog %d" % number for number in range(50)]


@pytest.mark.parametrize("settings", [{"order": "lifo"}, {"priorities": True}], ids=str)
def test_file_that_was_moved_in_comes_in_its_turn(queue_dir, tmp_path, settings):
    """As if it had been put."""
    queue = queue_of(queue_dir, **settings)
    queue.put(b"backlog", priority=5 if "priorities" in settings else None)
    lease = queue.get(timeout=0)
    (tmp_path / "file").write_bytes(b"file")
    queue.put_path(tmp_path / "file", priority=1 if "priorities" in settings else None)
    assert queue.get(timeout=0).message.body == b"file"
    lease.ack()


@pytest.mark.usefixtures("depth")
def test_a_process_that_only_puts_remembers_nothing(queue_dir, monkeypatch):
    """After one get of a lifo queue: what is kept for the next get has a bound, and that get is right."""
    monkeypatch.setattr(cursor, "INSERTED", 10)
    queue = queue_of(queue_dir, order="lifo")
    queue.put(b"older")
    queue.get(timeout=0).release()
    queue.put(b"old")
    queue.get(timeout=0).ack()
    inner = queue.layout._cursor
    for number in range(100):
        queue.put(b"%d" % number)
        assert len(inner._segments) + len(inner.row[1]) <= 25
    assert drain(queue, 3) == [b"99", b"98", b"97"]


def test_urgent_message_does_not_wait_behind_a_snapshot_that_was_slow_to_make(queue_dir, monkeypatch):
    """A snapshot of a queue with priorities is used for ten times as long as it took, not for fifty."""
    queue, other = queue_of(queue_dir, priorities=True), Queue(queue_dir, priorities=True)
    for number in range(10):
        queue.put(b"%d" % number, priority=5)
    clock = Clock()
    clock.install(monkeypatch)
    real = queue.layout._cursor._list
    monkeypatch.setattr(queue.layout._cursor, "_list", lambda *each: (clock.go_on(1.0), real(*each))[1])
    assert queue.get(timeout=0).message.body == b"old"
    other.put(b"urgent", priority=1)
    clock.go_on(9.0)
    assert queue.get(timeout=0).message.body == b"0"
    clock.go_on(2.0)
    assert queue.get(timeout=0).message.body == b"urgent"


class Clock:
    """A monotonic clock that goes on when it is told to."""

    def __init__(self):
        self._now = time.monotonic()

    def go_on(self, seconds):
        self._now += seconds

    def install(self, monkeypatch):
        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        monkeypatch.setattr(time, "monotonic_ns", lambda: int(self._now * 1e9))


def test_a_clock_set_back_does_not_keep_a_snapshot_fresh(queue_dir, monkeypatch):
    """That of the machine and of its disk, by an hour: priorities would have been ignored for that hour."""
    queue, other = queue_of(queue_dir, priorities=True), Queue(queue_dir, priorities=True)
    for number in range(20):
        queue.put(b"%d" % number, priority=5)
    real = time.time_ns
    assert queue.get(timeout=0).message.body == b"old"
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
    monkeypatch.setattr(queue.layout.directory.clock, "_touch", lambda: time.time_ns() / 1e9)
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9)
    other.put(b"urgent", priority=1)
    time.sleep(2 * cursor.FRESH_SECONDS)
    assert queue.get(timeout=0).message.body == b"urgent"


@pytest.mark.parametrize("first", ["files", "batch"])
def test_names_jumped_over_after_a_miss_come_before_the_next_directory(queue_dir, first):
    """Another consumer takes a few from under us: we go on further ahead, and come back for the rest."""
    with replaced(cursor, FRESH_SECONDS=600.0):
        queue, other = Queue(queue_dir, sync=False), Queue(queue_dir, sync=False)
    early, late = [b"a%03d" % number for number in range(200)], [b"b%03d" % number for number in range(10)]
    if first == "files":
        for body in early:
            queue.put(body)
    else:
        queue.put_many(early)
    queue.put_many(late)
    with replaced(random, random=lambda: 0.5):
        assert queue.get(timeout=0).message.body == early[0]
        assert drain(other, 3) == early[1:4]
        got = drain(queue)
    assert got[:-10] != early[4:], "none was jumped over"
    assert sorted(got[:-10]) == early[4:]
    assert got[-10:] == late
