"""The clock of the host is set back while a consumer works from a snapshot."""

import time

import pytest
from support.kit import LONG

from dirqueue import Queue

HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_snapshot_grows_old_although_the_clock_was_set_back(tmp_path, monkeypatch, layout):
    """What is newest is delivered first, as the order asks for: the age of a snapshot is not the clock's business."""
    queue, other = (
        Queue(tmp_path / "q", layout=layout, sync=False, order="lifo", lease=LONG) for _ in range(2)
    )
    for number in range(3):
        other.put(b"%d" % number)
    assert queue.get(timeout=0).message.body == b"2"
    other.put(b"newest")
    wall, monotonic = time.time_ns, time.monotonic
    monkeypatch.setattr("time.time_ns", lambda: wall() - HOUR_NS)
    monkeypatch.setattr("time.monotonic", lambda: monotonic() + 60)
    monkeypatch.setattr("dirqueue.layouts.dirq.layout.monotonic", lambda: monotonic() + 60)
    assert queue.get(timeout=0).message.body == b"newest"
    queue.close()
    other.close()
