"""Dead messages: looked at, driven again by id, by error, or all."""

import pytest
from support.kit import drain

from dirqueue import InvalidId, MessageNotFound, SettingsError


@pytest.fixture
def dead(make_queue, needs):
    """Give a queue with three dead messages and their ids."""
    needs("dead")
    queue = make_queue()
    ids = [queue.put(body) for body in (b"a", b"b", b"c")]
    errors = {b"a": "timeout after 5 s", b"b": "no such file", b"c": "timeout after 9 s"}
    for lease in queue.consume(timeout=0):
        lease.reject(errors[lease.message.body])
    return queue, ids


def test_all_dead_messages_come_again(dead):
    """redrive() drives all, as if they had never been delivered."""
    queue, ids = dead
    assert queue.redrive() == ids
    stats = queue.stats()
    assert (stats.ready, stats.dead) == (3, 0)
    leases = queue.get_many(3, timeout=0)
    assert {lease.message.id for lease in leases} == set(ids)
    assert {lease.message.attempts for lease in leases} <= {0, 1}
    assert all(lease.message.error is None for lease in leases)


def test_one_dead_message_comes_again(dead):
    """By id."""
    queue, ids = dead
    assert queue.redrive(ids[1]) == [ids[1]]
    assert drain(queue) == [b"b"]
    assert queue.stats().dead == 2


def test_several_dead_messages_come_again(dead):
    """Those of the ids that are dead; the vanished are no error."""
    queue, ids = dead
    gone = queue.put(b"alive")
    assert queue.redrive([ids[2], ids[0], gone]) == [ids[0], ids[2]]


def test_dead_messages_come_again_by_their_error(dead):
    """A regular expression over the kept error."""
    queue, ids = dead
    assert queue.redrive(match="^timeout") == [ids[0], ids[2]]
    assert queue.redrive(match="nothing like it") == []


def test_dry_run_changes_nothing(dead):
    """It says what would be driven."""
    queue, ids = dead
    assert queue.redrive(dry_run=True) == ids
    assert queue.stats().dead == 3


def test_limit_takes_the_oldest(dead):
    """So many, the oldest first, each reported to progress."""
    queue, ids = dead
    calls = []
    assert queue.redrive(limit=2, progress=lambda: calls.append(1)) == ids[:2]
    assert len(calls) == 2
    assert queue.redrive(limit=0) == []


def test_message_of_an_unknown_id_is_not_found(dead):
    """One id that is not dead is an error."""
    queue, ids = dead
    queue.redrive(ids[0])
    with pytest.raises(MessageNotFound, match="no dead message"):
        queue.redrive(ids[0])


def test_invalid_arguments_are_refused(dead):
    """Bad ids, patterns and limits."""
    queue, _ = dead
    with pytest.raises(InvalidId):
        queue.redrive("../x")
    with pytest.raises(SettingsError, match="regular expression"):
        queue.redrive(match="(")
    for limit in (-1, 1.5, "2"):
        with pytest.raises(SettingsError, match="limit"):
            queue.redrive(limit=limit)
    assert queue.stats().dead == 3


def test_dead_are_a_queue(dead, needs):
    """They can be counted, looked at, got and acknowledged like any other."""
    needs("apart")
    queue, _ = dead
    assert len(queue.dead) == 3
    lease = queue.dead.get(timeout=0)
    assert lease.message.error is not None
    assert queue.stats().dead == 3
    lease.ack()
    assert queue.stats().dead == 2
    assert queue.stats().foreign == 0


def test_dead_message_can_die_again(dead):
    """And has the new reason then."""
    queue, ids = dead
    queue.redrive(ids[0])
    queue.get(timeout=0).reject("again")
    assert queue.message(ids[0]).error == "again"
    assert queue.stats().dead == 3


def test_redriving_nothing_is_fine(make_queue, needs):
    """A queue without dead messages, or without a directory."""
    needs("dead")
    assert make_queue().redrive() == []
