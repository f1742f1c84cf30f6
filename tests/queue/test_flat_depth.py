"""A flat directory with more names than a consumer keeps: all of them come, in order, and nothing else does."""

import os
import random

import pytest

from dirqueue import Empty, Queue
from dirqueue.layouts.native import cursor

FIRST = 1_700_000_000_000_000


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(cursor, "KEEP", 5)
    monkeypatch.setattr(cursor, "CHUNK", 7)


def _fill(path, count):
    """Lay messages, and what only looks like some, into a flat directory in no order."""
    os.makedirs(path)
    names = [f"{FIRST + number}123456789" for number in range(count)]
    late = f"{FIRST + count}123456789.{FIRST}.1.host-1-abcdef0123-1"
    strange = ["0" + names[0][1:], "x" * 25, "٣" * 25, "notes.txt", f"{FIRST}.new"]
    everything = [*names, late, *strange]
    random.shuffle(everything)
    for name in everything:
        (path / name).write_text(name)
    os.mkdir(path / f"{FIRST + count + 1}123456789")  # named like a message, and none
    os.mkfifo(path / f"{FIRST + count + 2}123456789")
    return [*names, late]


def _drain(queue):
    got = []
    while True:
        try:
            lease = queue.get(timeout=0)
        except Empty:
            return got
        got.append(lease.message.body.decode())
        lease.ack()


def test_oldest_come_first(tmp_path):
    """Whatever the listing's order, and however little of it is kept."""
    expected = _fill(tmp_path / "q", 60)
    with Queue(tmp_path / "q", sync=False, layout="native", margin=0.0) as queue:
        assert _drain(queue) == expected


@pytest.mark.parametrize("order", ["lifo", "random"])
def test_in_any_order_each_comes_once(tmp_path, order):
    """A stack, or no order at all."""
    expected = _fill(tmp_path / "q", 60)
    with Queue(tmp_path / "q", sync=False, layout="native", margin=0.0, order=order) as queue:
        assert sorted(_drain(queue)) == sorted(expected)
