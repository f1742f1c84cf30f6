"""Slices: a deep queue is cut into directories of one second each."""

import os

import pytest
from support.kit import drain, wait_until

from dirqueue.disk import identity
from dirqueue.layouts.native import cursor, publish, purge


@pytest.fixture
def deep(native, monkeypatch):
    """Give a queue that is deep from the first message on, with small slices."""
    monkeypatch.setattr(publish, "DEEP", 0)
    monkeypatch.setattr(publish, "SLICE_SIZE", 10)
    return native


def slices(queue):
    return [name for name in os.listdir(queue.path) if name.endswith(".slice")]


def test_deep_queue_is_sliced_and_in_order(deep):
    """One producer's messages stay in order across slices."""
    queue = deep()
    queue.put(b"first")
    bodies = [f"{n}".encode() for n in range(95)]
    for body in bodies:
        queue.put(body)
    assert len(slices(queue)) >= 9
    assert len(queue) == 96
    assert drain(queue) == [b"first", *bodies]


def test_priorities_have_slices_of_their_own(deep):
    """An urgent message in a later slice comes first."""
    queue = deep(priorities=True)
    for n in range(30):
        queue.put(f"{n}", priority=3 - n % 3)
    priorities = [3 - int(body) % 3 for body in drain(queue)]
    assert priorities == sorted(priorities)


def test_emptied_slices_go_when_nobody_appends(deep, monkeypatch):
    """A consumer removes them after their time; producers make the next."""
    monkeypatch.setattr(cursor, "SLICE_SECONDS", 0)
    queue = deep()
    for _ in range(30):
        queue.put(b"x")
    drain(queue)
    wait_until(lambda: drain(queue) == [] and not slices(queue), "the last slice going")
    queue.put(b"y")
    assert drain(queue) == [b"y"]


def test_purge_removes_emptied_slices(deep, monkeypatch):
    """What no consumer removed."""
    queue = deep()
    for _ in range(5):
        queue.put(b"x")
    for lease in queue.get_many(5, timeout=0):
        lease.ack()
    assert slices(queue)
    monkeypatch.setattr(purge, "SLICE_SECONDS", 0)
    assert queue.purge().directories == 1
    assert not slices(queue)


def test_queue_that_is_shallow_again_is_flat_again(native, monkeypatch):
    """Depth is looked at now and then."""
    monkeypatch.setattr(publish, "DEEP", 0)
    monkeypatch.setattr(publish, "SLICE_SIZE", 3)
    queue = native()
    for _ in range(4):
        queue.put(b"x")
    assert slices(queue)
    monkeypatch.setattr(publish, "DEEP", 1 << 40)
    for _ in range(9):
        queue.put(b"y")
    assert len(drain(queue)) == 13
    assert any(name.isdigit() for name in os.listdir(queue.path)) is False


@pytest.mark.parametrize("order", ["lifo", "random"])
def test_other_orders_lose_nothing_in_slices(deep, order):
    """Every message comes, in any order."""
    queue = deep(order=order)
    bodies = {f"{n}".encode() for n in range(45)}
    for body in sorted(bodies):
        queue.put(body)
    assert set(drain(queue)) == bodies


def test_lease_in_a_slice_ends_like_others(deep):
    """retry, release, reject and expiry keep the message in its slice or in dead."""
    queue = deep()
    for n in range(4):
        queue.put(f"{n}")
    leases = queue.get_many(4, timeout=0)
    leases[0].retry(0, error="why")
    leases[1].release()
    leases[2].reject("no")
    leases[3].ack()
    assert sorted(drain(queue)) == [b"0", b"1"]
    assert queue.stats().dead == 1


def test_an_emptied_slice_stays_while_producers_may_append(deep, monkeypatch):
    """To the second of its name belongs a second in which slow producers finish."""
    monkeypatch.setattr(cursor, "SLICE_SECONDS", 3600)
    monkeypatch.setattr(purge, "SLICE_SECONDS", 3600)
    queue = deep()
    for _ in range(5):
        queue.put(b"x")
    before = slices(queue)
    assert len(drain(queue)) == 5
    assert drain(queue) == []
    queue.purge()
    assert slices(queue) == before != []


@pytest.mark.parametrize("priority", [None, 3])
def test_a_producer_turns_to_a_new_slice_when_the_second_is_over(deep, monkeypatch, priority):
    """Else consumers would remove the old one under it, again and again."""
    queue = deep(priorities=priority is not None)
    lead = "" if priority is None else str(priority)
    first = identity.new_id()
    for later in (0, 1, 5):
        second = int(first[:10]) + later
        monkeypatch.setattr(publish, "new_id", lambda second=second: f"{second}{first[10:]}")
        queue.put(b"x", priority=priority)
        assert f"{lead}{second}{'0' * 15}.slice" in slices(queue)
        assert os.path.exists(f"{queue.path}/{lead}{second}{'0' * 15}.slice/{lead}{second}{first[10:]}")
