"""Orders: fifo, lifo, random; priorities with each of them."""

import pytest
from support.kit import drain

from dirqueue import SettingsError


def test_lifo_is_a_stack(make_queue, needs):
    """The last put comes first, also among gets."""
    needs("lifo")
    queue = make_queue(order="lifo")
    for body in (b"a", b"b", b"c"):
        queue.put(body)
    assert drain(queue, 1) == [b"c"]
    queue.put(b"d")
    queue.put(b"e")
    assert drain(queue) == [b"e", b"d", b"b", b"a"]


def test_random_gives_each_once(make_queue, needs):
    """In no order, but all of them; and not always the same order."""
    needs("random")
    bodies = [f"{n}".encode() for n in range(50)]
    seen = set()
    for n in range(3):
        queue = make_queue(f"q{n}", order="random")
        for body in bodies:
            queue.put(body)
        drained = drain(queue)
        assert sorted(drained) == sorted(bodies)
        seen.add(tuple(drained))
    assert len(seen | {tuple(bodies)}) == 4


@pytest.mark.parametrize("order", ["fifo", "lifo", "random"])
def test_priorities_come_first_in_any_order(make_queue, needs, order):
    """1 before 2 before 10, whatever the order inside each."""
    needs("priority", order)
    queue = make_queue(priorities=True, order=order)
    for n, priority in enumerate([10, 2, 1, 2, 10, 1]):
        queue.put(f"{priority}-{n}", priority=priority)
    drained = [body.decode() for body in drain(queue)]
    assert [int(each.split("-")[0]) for each in drained] == [1, 1, 2, 2, 10, 10]
    if order != "random":
        expected = ["1-2", "1-5", "2-1", "2-3", "10-0", "10-4"]
        if order == "lifo":
            expected = ["1-5", "1-2", "2-3", "2-1", "10-4", "10-0"]
        assert drained == expected


def test_urgent_message_overtakes(make_queue, needs):
    """A put of ours that is more urgent comes next, though the snapshot is older."""
    needs("priority")
    queue = make_queue(priorities=True)
    for _ in range(5):
        queue.put(b"slow", priority=5)
    drain(queue, 1)
    queue.put(b"urgent", priority=1)
    assert drain(queue, 1) == [b"urgent"]


def test_priority_of_a_message(make_queue, needs):
    """It is in the message; a put that names none has the queue's default."""
    needs("priority")
    queue = make_queue(priorities=True, default_priority=7)
    named, unnamed = queue.put(b"x", priority=3), queue.put(b"y")
    batch = queue.put_many([b"a", b"b"], priority=2)
    assert queue.message(named).priority == 3
    assert queue.message(unnamed).priority == 7
    assert queue.message(batch[0]).priority == 2
    assert drain(queue) == [b"a", b"b", b"x", b"y"]


@pytest.mark.parametrize("priority", [0, -1, 10**9, 1.0, "1", True, float("nan")])
def test_priority_that_is_invalid_is_refused(make_queue, needs, priority):
    """A whole number from 1."""
    needs("priority")
    queue = make_queue(priorities=True)
    with pytest.raises(SettingsError, match="priority must be"):
        queue.put(b"x", priority=priority)
    with pytest.raises(SettingsError, match="priority must be"):
        queue.put_many([b"x", b"y"], priority=priority)
    assert len(queue) == 0


def test_priority_needs_a_queue_with_priorities(queue, needs):
    """The error names the way out."""
    needs("priority")
    with pytest.raises(SettingsError, match="priorities=True"):
        queue.put(b"x", priority=1)


def test_message_given_back_keeps_its_place(queue):
    """Release and retry(0) put it where it was: by its id."""
    for body in (b"a", b"b", b"c"):
        queue.put(body)
    queue.get(timeout=0).release()
    assert drain(queue, 1) == [b"a"]
