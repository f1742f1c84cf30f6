"""Leases and purges that meet an error: each branch is reached by the fault that it is for."""

import errno
import os

import pytest
from filelock import FileLock
from support.failing import HARD, before, failing, names, of
from support.kit import LONG, wait_until

from dirqueue import LeaseLost, MessageNotFound, Purged, Queue, QueueAccess, QueueNotFound, lease
from dirqueue.disk import fs
from dirqueue.disk.identity import PROCESS


@pytest.fixture
def queue(tmp_path):
    """Give a queue that waits for no disk."""
    return Queue(tmp_path / "queue", sync=False, margin=0, lease=LONG, backoff=0)


# --- leases -------------------------------------------------------------------------------------------------


def test_lease_shows_its_end(queue):
    """While it is held, until when; then, how it ended."""
    queue.put(b"x")
    held = queue.get(timeout=0)
    assert held.until.isoformat() in repr(held)
    assert held.path == queue.path
    assert held.message.token == held.token
    assert held.codec.decode(b"x") == b"x"
    held.ack()
    assert repr(held) == f"<Lease {held.message.id} acked>"


@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_lease_of_the_parent_is_refused_after_a_fork(queue, monkeypatch, verb):
    """Whatever the child tries; and the parent's lease stays good."""
    queue.put(b"x")
    held = queue.get(timeout=0)
    monkeypatch.setattr(PROCESS, "generation", PROCESS.generation + 1)
    with pytest.raises(LeaseLost, match="get your own") as caught:
        getattr(held, verb)()
    assert caught.value.reason == "forked"
    monkeypatch.undo()
    held.ack()


@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_lease_ends_after_its_queue_object_was_closed(queue, verb):
    """The directory is opened again."""
    queue.put(b"x")
    held = queue.get(timeout=0)
    queue.close()
    getattr(held, verb)()


def test_lease_of_a_queue_that_was_removed_is_not_ended_elsewhere(queue):
    """Its object was closed meanwhile, so that there is no descriptor left to find the message by."""
    queue.put(b"x" * 2 * fs.CHUNK)
    held = queue.get(timeout=0)
    queue.close()
    os.rename(queue.path, queue.path + ".old")
    for use in (held.release, held.message.open):
        with pytest.raises(QueueNotFound):
            use()
    os.rename(queue.path + ".old", queue.path)
    held.ack()


def test_block_that_failed_and_cannot_retry_reports_both(queue):
    """The first exception is raised, the second one is noted in it."""
    queue.put(b"x")
    held = queue.get(timeout=0)
    with (
        failing("rename", errno.EIO, when=of(held.handle)),
        pytest.raises(RuntimeError, match="work") as caught,
        held,
    ):
        raise RuntimeError("work")
    assert "and then: cannot retry" in caught.value.__notes__[0]


def test_body_is_found_through_one_renewal(queue):
    """Renewed between the look at the name and the opening of the file: the new name is used."""
    queue.put(b"x" * (2 * fs.CHUNK))
    held = queue.get(timeout=0)
    with before("open", held.renew, when=of(held.handle)):
        assert len(held.message.body) == 2 * fs.CHUNK


def test_body_that_is_renewed_again_and_again_is_looked_for_a_bounded_number_of_times(queue):
    """Each look finds the name gone and another in its place: the last look's error is raised."""
    queue.put(b"x" * (2 * fs.CHUNK))
    held = queue.get(timeout=0)
    looks = []

    def look(place):
        looks.append(place)
        held.renew()
        raise MessageNotFound("gone", message_id=held.message.id)

    with pytest.raises(MessageNotFound):
        held.message._at(look)
    assert len(set(looks)) == lease.RENAMED + 1


def test_ack_beside_the_first_renewal_uses_the_new_name(queue):
    """Renewed by another thread between the look at the lease and the unlink: acknowledged under its new name."""
    queue.put(b"x")
    held = queue.get(timeout=0)
    with before("unlink", held.renew, when=of(held.handle)):
        held.ack()
    assert held.ended == "acked"
    assert len(queue) == 0


def test_renewal_that_failed_is_tried_again_soon(queue):
    """A full disk or a dead server ends neither the lease nor the renewal of the others."""
    queue.put(b"x")
    held = queue.get(timeout=0)
    held.seconds = 0.06
    with held, failing("rename", errno.ENOSPC, times=3) as fault:
        first = held.token
        wait_until(lambda: held.token != first, "a renewal after three failures")
    assert fault.hits == 3
    assert held.ended == "acked"


# --- purge --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
def test_purge_that_fails_is_queue_access(queue, code):
    """The listing fails: one clear error with its errno."""
    queue.put(b"x")
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        queue.purge()
    assert caught.value.errno == code
    assert queue.purge().busy == 0


def test_purge_beside_another_one_is_busy_and_does_nothing(queue):
    queue.put(b"x")
    with FileLock(queue.layout.purge_lock()):
        assert queue.purge() == Purged(busy=1)
    assert queue.purge() == Purged()


def test_purge_of_a_missing_queue_does_nothing(queue):
    """Nor is one made."""
    assert queue.purge() == type(queue.purge())()
    assert not os.path.exists(queue.path)
