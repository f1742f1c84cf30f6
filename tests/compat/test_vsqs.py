"""The interface of VSQS, and what its document promises."""

import threading

import pytest
from kit import PATIENCE, files, in_child

from dirqueue.compat.vsqs import Queue, QueueFullException, QueueManager


@pytest.fixture
def queue(tmp_path):
    """Give one queue."""
    queue = Queue(tmp_path / "q")
    yield queue
    queue.close()


def test_messages_come_in_order_and_are_deleted(queue):
    """publish, receive, delete, size as documented."""
    ids = [queue.publish(b"%d" % number) for number in range(3)]
    assert queue.size() == 3
    for number, id in enumerate(ids):
        assert queue.receive(timeout=1) == (id, b"%d" % number)
    assert queue.size() == 3
    for id in ids:
        queue.delete(id)
    assert queue.size() == 0
    assert queue.receive(timeout=0) == (None, None)


def test_delete_works_from_any_process(queue, tmp_path):
    """In vsqs 0.3 this does nothing."""
    queue.publish(b"x")
    id, _ = queue.receive(timeout=1)
    in_child(lambda: Queue(tmp_path / "q").delete(id))
    assert files(tmp_path / "q") == []


def test_an_expired_message_wakes_a_blocked_receive(queue):
    """In vsqs 0.3 a receive that waits is woken by new messages only."""
    id = queue.publish(b"x")
    queue.receive(visibility_timeout=0.2)
    assert queue.receive(timeout=PATIENCE) == (id, b"x")


def test_capacity_holds_publishers_back(tmp_path):
    """A full queue raises in time, and lets go when there is room."""
    queue = QueueManager(tmp_path).get_queue("q", capacity=2)
    ids = [queue.publish(b"x") for _ in range(2)]
    with pytest.raises(QueueFullException) as caught:
        queue.publish(b"y", timeout=0)
    assert caught.value.args == (2,)
    done = []
    thread = threading.Thread(target=lambda: done.append(queue.publish(b"y")))
    thread.start()
    queue.delete(ids[0])
    thread.join(PATIENCE)
    assert done
    queue.close()


def test_a_name_cannot_leave_the_manager(tmp_path):
    """Queues lie in the manager's directory."""
    with pytest.raises(ValueError, match="name"):
        QueueManager(tmp_path).get_queue("../q")
