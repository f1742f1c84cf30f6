"""Looking: at messages, counts and ages, without taking anything."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.kit import SHORT, files, wait_until

from dirqueue import InvalidId, MessageNotFound, SettingsError, Stats


def test_peek_takes_nothing(queue, tmp_path):
    """Looking changes no name."""
    for n in range(3):
        queue.put(f"{n}")
    before = files(tmp_path / "queue")
    assert [message.body for message in queue.peek()] == [b"0", b"1", b"2"]
    assert files(tmp_path / "queue") == before


def test_peek_shows_the_oldest_first_and_stops_at_its_limit(queue):
    """A limit shows the first ones."""
    ids = [queue.put(b"x") for _ in range(10)]
    assert [message.id for message in queue.peek(limit=3)] == ids[:3]
    assert list(queue.peek(limit=0)) == []


def test_peek_shows_each_state(queue, needs):
    """Every message is in one state, and is shown there."""
    needs("delay", "dead")
    held, dead = queue.put(b"held"), queue.put(b"dead")
    lease = queue.get(timeout=0)
    queue.get(timeout=0).reject("no")
    ready, later = queue.put(b"ready"), queue.put(b"later", delay=600)
    shown = {
        state: [m.id for m in queue.peek(state)] for state in ("ready", "delayed", "leased", "dead", "done")
    }
    assert shown == {"ready": [ready], "delayed": [later], "leased": [held], "dead": [dead], "done": []}
    (leased,) = queue.peek("leased")
    assert leased.token == lease.token
    assert leased.until == lease.until
    assert leased.body == b"held"


def test_message_shows_when_it_was_put(queue):
    """enqueued_at is an aware UTC time."""
    id = queue.put(b"x")
    at = queue.message(id).enqueued_at
    assert at.tzinfo is UTC
    assert abs(at - datetime.now(UTC)) < timedelta(minutes=5)


def test_to_dict_is_json(queue):
    """What is known of a message has a plain form."""
    id = queue.put(b"four")
    shown = json.loads(json.dumps(queue.message(id).to_dict()))
    assert shown["id"] == id
    assert shown["state"] == "ready"
    assert shown["size"] == 4
    assert shown["error"] is None


def test_stats_count_every_state(queue, needs):
    """The numbers are those of the names."""
    needs("delay", "dead")
    for _ in range(6):
        queue.put(b"x")
    queue.put(b"later", delay=600)
    lease = queue.get(timeout=0)
    queue.get(timeout=0).reject("no")
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead, stats.done) == (4, 1, 1, 1, 0)
    assert stats.total == len(queue) == 6
    assert stats.foreign == stats.new == stats.expired == 0
    assert stats.oldest_lease == lease.until
    assert stats.oldest_lease_token == lease.token
    assert stats.oldest_ready == min(message.enqueued_at for message in queue.peek())
    assert stats.next_due == next(queue.peek("delayed")).until
    assert json.loads(json.dumps(stats.to_dict()))["total"] == 6


def test_stats_count_expired_leases(queue):
    """A lease whose time is over is shown as such until somebody takes the message."""
    queue.put(b"x")
    queue.get(timeout=0, lease=SHORT)
    wait_until(lambda: queue.stats().expired == 1, "the lease's end")
    assert queue.stats().leased == 1


def test_missing_queue_is_empty(queue, tmp_path):
    """Looking at what is not there yet shows nothing and makes nothing."""
    assert queue.stats() == Stats()
    assert len(queue) == 0
    assert list(queue.peek()) == []
    assert queue
    assert queue.flush() == 0
    assert not (tmp_path / "queue").exists()


def test_unknown_id_is_not_found(queue):
    """A well-formed id that is nobody's."""
    queue.put(b"x")
    id = queue.put(b"y")
    queue.message(id).cancel()
    with pytest.raises(LookupError) as caught:
        queue.message(id)
    assert isinstance(caught.value, MessageNotFound)
    assert caught.value.message_id == id


@pytest.mark.parametrize("state", ["new", "Ready", "", None, 3, "../dead"])
def test_state_that_is_none_is_refused(queue, state):
    """The error lists the states there are."""
    with pytest.raises(SettingsError, match="ready, delayed, leased"):
        queue.peek(state)


@pytest.mark.parametrize("limit", [-1, 1.5, "2", True])
def test_limit_that_is_invalid_is_refused(queue, limit):
    """A limit is a whole number."""
    with pytest.raises(SettingsError, match="limit"):
        queue.peek(limit=limit)


def test_message_that_moved_on_is_not_found(queue, needs):
    """A peeked message that was taken meanwhile is not there any more."""
    needs("fencing", "removal")
    queue.put(b"x" * 100_000)
    (message,) = queue.peek()
    queue.get(timeout=0).ack()
    with pytest.raises(MessageNotFound):
        message.body  # noqa: B018
    with pytest.raises(MessageNotFound):
        message.size  # noqa: B018
    with pytest.raises(MessageNotFound):
        message.open()


@pytest.mark.parametrize("id", ["", "x", "../x", "1_000", "²" * 25, "0" * 25, "1\n", None, 5, 1.5, b"1"])
def test_id_that_is_invalid_is_refused(queue, id):
    """No string from outside reaches a path."""
    queue.put(b"x")
    with pytest.raises(ValueError, match=r"is not (a|the)") as caught:
        queue.message(id)
    assert isinstance(caught.value, InvalidId)
