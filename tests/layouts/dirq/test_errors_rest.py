"""Queues of a dirq layout that were closed, removed, or made before."""

import os
import shutil

import pytest
from support.dirq_queues import again, tree
from support.kit import drain

from dirqueue import Empty, QueueNotFound


@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_a_lease_whose_queue_was_closed_opens_it_again(queue, verb):
    """A lease outlives the descriptor."""
    lease = again(queue).get(timeout=0)
    queue.close()
    getattr(lease, verb)()
    if verb in ("retry", "release"):
        assert drain(again(queue)) == [b"one"]
    else:
        with pytest.raises(Empty):
            again(queue).get(timeout=0)
        assert len(queue) == (verb == "renew")


@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_a_lease_whose_queue_was_closed_and_removed_says_that_there_is_none(queue, verb):
    """And makes none."""
    lease = again(queue).get(timeout=0)
    queue.close()
    shutil.rmtree(queue.path)
    with pytest.raises(QueueNotFound):
        getattr(lease, verb)()
    assert not os.path.exists(queue.path)


@pytest.mark.parametrize("what", ["body", "size"])
def test_a_message_whose_queue_was_closed_and_removed_says_that_there_is_none(queue, what):
    """Closed alone, it is read as before."""
    first, second = next(queue.peek()), next(queue.peek())
    queue.close()
    assert getattr(first, what) == {"body": b"one", "size": 3}[what]
    queue.close()
    shutil.rmtree(queue.path)
    with pytest.raises(QueueNotFound):
        getattr(second, what)
    assert not os.path.exists(queue.path)


def test_a_queue_that_is_made_again_keeps_its_messages(queue):
    """And gets no directory that it does not need."""
    before = tree(queue)
    queue.layout.create()
    assert tree(queue) == before
    assert drain(again(queue)) == [b"one"]
