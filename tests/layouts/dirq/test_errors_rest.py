"""Queues of a dirq layout that were closed, or made before: both are usual, and no error."""

import pytest
from support.dirq_queues import again, tree
from support.kit import drain

from dirqueue import Empty


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


def test_a_queue_that_is_made_again_keeps_its_messages(queue):
    """And gets no directory that it does not need."""
    before = tree(queue)
    queue.layout.create()
    assert tree(queue) == before
    assert drain(again(queue)) == [b"one"]
