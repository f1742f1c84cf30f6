"""Acknowledging: once, for good, and never after the lease was lost."""

import pytest
from support.kit import PATIENCE, SHORT, drain, files

from dirqueue import LeaseLost, MessageNotFound


@pytest.mark.parametrize("sync", [False, True])
def test_acknowledged_message_is_gone(make_queue, tmp_path, sync, needs):
    """After ack nothing of the message is left, for anybody."""
    needs("removal")
    queue = make_queue(sync=sync)
    id = queue.put(b"x")
    queue.get(timeout=0).ack()
    assert drain(make_queue(sync=sync)) == []
    assert len(queue) == 0
    assert not [name for name in files(tmp_path / "queue") if id in name]
    with pytest.raises(MessageNotFound):
        queue.message(id)


def test_lease_ends_once(queue):
    """A second end is refused, whichever it is."""
    queue.put(b"x")
    lease = queue.get(timeout=0)
    lease.ack()
    assert lease.ended == "acked"
    for end in (lease.ack, lease.retry, lease.release, lease.reject, lease.renew):
        with pytest.raises(LeaseLost) as caught:
            end()
        assert caught.value.reason == "ended"
        assert caught.value.message_id == lease.message.id


def test_a_stale_ack_is_refused(make_queue, needs):
    """The lease ran out and another took the message: the first one's ack is LeaseLost, and touches nothing."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    slow = queue.get(timeout=0, lease=SHORT)
    quick = make_queue().get(timeout=PATIENCE)
    with pytest.raises(LeaseLost) as caught:
        slow.ack()
    assert caught.value.reason == "gone"
    assert caught.value.token == slow.token
    assert slow.ended == "lost"
    assert slow.lost
    quick.ack()
    assert len(queue) == 0


def test_late_ack_of_an_expired_but_unclaimed_message_counts(queue):
    """A lease that ran out is still ours until somebody takes the message."""
    queue.put(b"x")
    lease = queue.get(timeout=0, lease=0.001)
    lease.ack()
    assert len(queue) == 0


def test_ack_after_flush_is_refused(make_queue, needs):
    """Flush removes leased messages too; their holders get LeaseLost."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    lease = queue.get(timeout=0)
    assert make_queue().flush() == 1
    with pytest.raises(LeaseLost):
        lease.ack()


def test_body_stays_readable_after_ack(queue):
    """What was read with the claim is kept; the message object outlives its file."""
    queue.put(b"small")
    lease = queue.get(timeout=0)
    lease.ack()
    assert lease.message.body == b"small"


def test_long_body_not_read_before_ack_is_message_not_found(native):
    """A body too long to be read with the claim is read from the file, and the file is gone."""
    queue = native()
    queue.put(b"x" * 200_000)
    lease = queue.get(timeout=0)
    lease.ack()
    with pytest.raises(MessageNotFound):
        lease.message.body  # noqa: B018


def test_lease_outlives_the_queue_object_being_closed(queue):
    """Close lets go of a descriptor; the next use opens it again."""
    queue.put(b"x" * 200_000)
    lease = queue.get(timeout=0)
    queue.close()
    assert len(lease.message.body) == 200_000
    queue.close()
    lease.ack()
    assert len(queue) == 0
