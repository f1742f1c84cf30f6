"""The snapshot policy of the cursors: how long, and how far to jump."""

import pytest

from dirqueue.layouts import snapshot
from dirqueue.layouts.snapshot import Snapshot


@pytest.fixture
def clock(monkeypatch):
    """Give a monotonic clock that stands still until it is set."""
    times = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: times[0])
    return times


def test_snapshot_is_fresh_for_its_seconds(clock):
    """From the end of the listing on; not before the first one, and not after it was dropped."""
    policy = Snapshot(1.0, 20)
    assert not policy.fresh
    policy.begin()
    policy.end()
    clock[0] += 0.9
    assert policy.fresh
    policy.drop()
    assert not policy.fresh
    policy.begin()
    policy.end()
    clock[0] += 1.0
    assert not policy.fresh


def test_snapshot_that_took_long_is_fresh_for_longer(clock):
    """A deep queue is not listed all the time."""
    policy = Snapshot(1.0, 20)
    policy.begin()
    clock[0] += 2
    policy.end()
    clock[0] += 39
    assert policy.fresh
    clock[0] += 1
    assert not policy.fresh


def test_misses_are_chance_at_first(monkeypatch):
    """Then a part of the names is passed over, never all of them; a new listing begins to count anew."""
    monkeypatch.setattr("random.random", lambda: 0.5)
    policy = Snapshot(1.0, 20, patience=2)
    assert [policy.missed(1000) for _ in range(3)] == [0, 0, snapshot.JUMP // 2]
    assert policy.missed(5) == 4
    assert policy.missed(1) == 0
    assert policy.missed(0) == 0
    policy.begin()
    assert policy.missed(1000) == 0
