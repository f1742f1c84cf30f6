"""Failing: counted, backed off, then dead with the reason; given back, not counted."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.kit import PATIENCE, SHORT, drain, files

from dirqueue import Empty, LeaseLost, SettingsError


def test_a_failed_message_comes_again(queue, needs):
    """retry(0) makes it ready at once, with this delivery counted."""
    needs("attempts")
    id = queue.put(b"x")
    queue.get(timeout=0).retry(delay=0)
    lease = queue.get(timeout=PATIENCE)
    assert lease.message.id == id
    assert lease.message.attempts == 2
    assert lease.message.body == b"x"


def test_failed_message_backs_off(make_queue, needs):
    """Without a delay the queue's own backoff decides."""
    needs("delay", "attempts")
    queue = make_queue(backoff=600, max_backoff=600)
    id = queue.put(b"x")
    lease = queue.get(timeout=0)
    lease.retry()
    assert lease.ended == "retried"
    assert drain(queue) == []
    waits = queue.message(id)
    assert waits.state == "delayed"
    assert waits.attempts == 1
    assert timedelta(seconds=290) < waits.until - datetime.now(UTC) < timedelta(seconds=601)


def test_error_is_kept_beside_the_message(queue, needs):
    """The next consumer can see why it failed last and when."""
    needs("attempts", "dead")
    queue.put(b"x")
    queue.get(timeout=0).retry(0, error="boom ☠\nline two")
    lease = queue.get(timeout=PATIENCE)
    assert lease.message.error == "boom ☠\nline two"
    assert abs(lease.message.failure.at - datetime.now(UTC)) < timedelta(minutes=5)
    lease.retry(0, error=ValueError("worse"))
    assert queue.get(timeout=PATIENCE).message.error == "ValueError: worse"


def test_success_takes_the_error_away(queue, needs, tmp_path):
    """After ack nothing is left, the reason of the last failure included."""
    needs("attempts", "dead")
    id = queue.put(b"x")
    queue.get(timeout=0).retry(0, error="boom")
    queue.get(timeout=PATIENCE).ack()
    assert not [name for name in files(tmp_path / "queue") if id in name]


def test_after_max_attempts_a_message_is_dead(make_queue, needs):
    """The last failure moves it to dead with the last error."""
    needs("attempts", "dead")
    queue = make_queue(max_attempts=2)
    id = queue.put(b"x")
    queue.get(timeout=0).retry(0, error="first")
    lease = queue.get(timeout=PATIENCE)
    lease.retry(0, error="second")
    assert lease.ended == "dead"
    assert drain(queue) == []
    (dead,) = queue.peek("dead")
    assert (dead.id, dead.error, dead.attempts, dead.state) == (id, "second", 2, "dead")
    assert dead.body == b"x"
    assert dead.failure.leased_at <= dead.failure.at
    assert json.dumps(dead.to_dict())


def test_consumers_that_die_use_up_attempts(make_queue, needs):
    """A message that kills its consumers is dead after max_attempts, and the error names its last holder."""
    needs("attempts", "dead")
    queue = make_queue(max_attempts=2)
    id = queue.put(b"x")
    queue.get(timeout=0, lease=SHORT)
    last = queue.get(timeout=PATIENCE, lease=SHORT)
    assert last.message.attempts == 2
    with pytest.raises(Empty):
        queue.get(timeout=1)
    (dead,) = queue.peek("dead")
    assert dead.id == id
    assert last.token in dead.error
    assert "2 times" in dead.error


def test_no_limit_of_attempts(make_queue, needs):
    """max_attempts=0 tries without limit."""
    needs("attempts")
    queue = make_queue(max_attempts=0)
    queue.put(b"x")
    for n in range(1, 9):
        lease = queue.get(timeout=PATIENCE)
        assert lease.message.attempts == n
        lease.retry(0)
    assert queue.stats().dead == 0


def test_released_message_comes_again_uncounted(queue):
    """Release is no failure: at once, and the attempt is given back."""
    id = queue.put(b"x")
    for _ in range(10):
        lease = queue.get(timeout=PATIENCE)
        assert lease.message.id == id
        assert lease.message.attempts <= 1
        lease.release()
        assert lease.ended == "released"
    assert queue.stats().ready == 1


def test_release_after_a_failure_keeps_the_count(queue, needs):
    """Only the released delivery is uncounted."""
    needs("attempts")
    queue.put(b"x")
    queue.get(timeout=0).retry(0)
    queue.get(timeout=PATIENCE).release()
    assert queue.get(timeout=PATIENCE).message.attempts == 2


def test_rejected_message_is_dead(queue, needs):
    """Reject says never again, and why."""
    needs("dead")
    id = queue.put(b"x")
    lease = queue.get(timeout=0)
    lease.reject("not a job")
    assert lease.ended == "dead"
    assert drain(queue) == []
    (dead,) = queue.peek("dead")
    assert (dead.id, dead.error, dead.body) == (id, "not a job", b"x")
    assert queue.message(id).state == "dead"
    assert queue.stats().dead == 1
    assert len(queue) == 0


@pytest.mark.parametrize("verb", ["retry", "release", "reject", "renew"])
def test_stale_end_is_refused_and_touches_nothing(make_queue, needs, tmp_path, verb):
    """Whoever lost the lease can change nothing: not the message, not the note beside it."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    slow = queue.get(timeout=0, lease=SHORT)
    quick = make_queue().get(timeout=PATIENCE)
    before = files(tmp_path / "queue")
    arguments = {"retry": (0, "late"), "reject": ("late",)}.get(verb, ())
    with pytest.raises(LeaseLost):
        getattr(slow, verb)(*arguments)
    assert files(tmp_path / "queue") == before
    assert quick.message.error is None
    quick.ack()
    assert len(queue) == 0


@pytest.mark.parametrize("verb", ["retry", "release", "reject", "renew"])
def test_stale_end_of_a_finished_message_brings_nothing_back(make_queue, needs, tmp_path, verb):
    """An acknowledged message stays gone, whatever a late holder says."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    slow = queue.get(timeout=0, lease=SHORT)
    make_queue().get(timeout=PATIENCE).ack()
    before = files(tmp_path / "queue")
    with pytest.raises(LeaseLost):
        getattr(slow, verb)(*{"retry": (0, "late")}.get(verb, ()))
    assert files(tmp_path / "queue") == before
    assert drain(queue) == []


def test_stale_release_of_a_released_message_is_refused(make_queue, needs):
    """That the message is ready again does not make our release true."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    slow = queue.get(timeout=0, lease=SHORT)
    make_queue().get(timeout=PATIENCE).release()
    with pytest.raises(LeaseLost):
        slow.release()
    assert queue.stats().ready == 1


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", 1e300])
def test_delay_that_is_invalid_is_refused(queue, delay):
    """And the lease is still held."""
    queue.put(b"x")
    lease = queue.get(timeout=0)
    with pytest.raises(SettingsError, match="delay"):
        lease.retry(delay=delay)
    assert lease.ended == ""
    lease.ack()
