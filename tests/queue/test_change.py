"""Cancelling and changing messages that nobody holds."""

import pytest
from support.kit import PATIENCE, drain, files

from dirqueue import MessageNotFound, SettingsError


def test_cancelled_message_is_gone(queue, tmp_path):
    """Nothing of it is left."""
    queue.put(b"keep")
    id = queue.put(b"x")
    queue.message(id).cancel()
    assert not [name for name in files(tmp_path / "queue") if id in name]
    assert drain(queue) == [b"keep"]


def test_delayed_message_can_be_cancelled(queue, needs):
    """Unclaimed is ready or delayed."""
    needs("delay")
    id = queue.put(b"x", delay=600)
    queue.message(id).cancel()
    assert len(queue) == 0


def test_cancel_refuses_a_leased_message(queue):
    """Only an unclaimed message can be; the error says what it is."""
    id = queue.put(b"x")
    lease = queue.get(timeout=0)
    with pytest.raises(MessageNotFound, match="leased"):
        queue.message(id).cancel()
    lease.ack()


def test_cancel_that_lost_the_race_is_message_not_found(queue, needs):
    """Somebody claimed it between the look and the cancel."""
    needs("fencing")
    id = queue.put(b"x")
    message = queue.message(id)
    lease = queue.get(timeout=0)
    with pytest.raises(MessageNotFound, match="any more"):
        message.cancel()
    lease.ack()


def test_two_cancels_are_one(queue):
    """The second one gets MessageNotFound."""
    id = queue.put(b"x")
    message = queue.message(id)
    message.cancel()
    with pytest.raises(MessageNotFound):
        message.cancel()


def test_delay_can_be_changed(queue, needs):
    """Later, and now."""
    needs("change", "delay")
    id = queue.put(b"x")
    later = queue.message(id).change(delay=600)
    assert (later.id, later.state) == (id, "delayed")
    assert drain(queue) == []
    now = queue.message(id).change(delay=0)
    assert now.state == "ready"
    assert drain(queue) == [b"x"]


def test_delay_change_keeps_the_attempts(queue, needs):
    """What was counted stays counted."""
    needs("change", "delay", "attempts")
    id = queue.put(b"x")
    queue.get(timeout=0).retry(600, error="why")
    changed = queue.message(id).change(delay=0)
    assert changed.attempts == 1
    lease = queue.get(timeout=PATIENCE)
    assert (lease.message.attempts, lease.message.error) == (2, "why")


def test_priority_can_be_changed(make_queue, needs):
    """The changed message comes in its new place; its time and unique digits stay."""
    needs("change", "priority")
    queue = make_queue(priorities=True)
    for body in (b"a", b"b", b"c"):
        queue.put(body, priority=5)
    last = list(queue.peek())[-1]
    changed = last.change(priority=1)
    assert changed.priority == 1
    assert changed.enqueued_at == last.enqueued_at
    assert queue.message(changed.id).body == b"c"
    assert drain(queue) == [b"c", b"a", b"b"]


def test_priority_change_keeps_the_error(make_queue, needs):
    """The note beside the message goes with it."""
    needs("change", "priority", "attempts")
    queue = make_queue(priorities=True)
    id = queue.put(b"x", priority=5)
    queue.get(timeout=0).retry(0, error="why")
    changed = queue.message(id).change(priority=2)
    assert changed.error == "why"
    assert queue.get(timeout=PATIENCE).message.error == "why"


def test_change_of_a_claimed_message_is_message_not_found(queue, needs):
    """A lost race is not silence, and changes nothing."""
    needs("change", "delay")
    id = queue.put(b"x")
    message = queue.message(id)
    lease = queue.get(timeout=0)
    with pytest.raises(MessageNotFound):
        message.change(delay=600)
    with pytest.raises(MessageNotFound, match="leased"):
        queue.message(id).change(delay=5)
    lease.ack()
    assert len(queue) == 0


def test_no_change_changes_nothing(queue, needs, tmp_path):
    """change() without arguments is the message as it is."""
    needs("change")
    id = queue.put(b"x")
    before = files(tmp_path / "queue")
    assert queue.message(id).change().id == id
    assert files(tmp_path / "queue") == before


@pytest.mark.parametrize("priority", [0, -1, 10**9, 1.5, "1", "../x", "1/2", True])
def test_priority_that_is_invalid_is_refused(make_queue, needs, tmp_path, priority):
    """Checked before a path is built."""
    needs("change", "priority")
    queue = make_queue(priorities=True)
    id = queue.put(b"x", priority=3)
    before = files(tmp_path)
    with pytest.raises(SettingsError, match="priority"):
        queue.message(id).change(priority=priority)
    assert files(tmp_path) == before


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", True, 1e300])
def test_delay_that_is_invalid_is_refused(queue, needs, tmp_path, delay):
    """Checked before a path is built."""
    needs("change", "delay")
    id = queue.put(b"x")
    before = files(tmp_path)
    with pytest.raises(SettingsError, match="delay"):
        queue.message(id).change(delay=delay)
    assert files(tmp_path) == before


def test_priority_needs_a_queue_with_priorities(queue, needs):
    """The error names the way out."""
    needs("change", "priority")
    id = queue.put(b"x")
    with pytest.raises(SettingsError, match="priorities=True"):
        queue.message(id).change(priority=1)
