"""Several queues as one."""

import pytest
from kit import PATIENCE

from dirqueue import Empty, Queue, QueueSet, SettingsError

LAYOUTS = ("native", "vsqs", "dirq-simple", "dirq-normal")


@pytest.fixture
def queues(tmp_path):
    """Give one queue of each layout."""
    made = [Queue(tmp_path / layout, layout=layout, sync=False) for layout in LAYOUTS]
    yield made
    for queue in made:
        queue.close()


def take(together):
    bodies = []
    for lease in together.consume(timeout=0):
        bodies.append(lease.message.body)
        lease.ack()
    return bodies


def interleaved(queues, times=3):
    bodies = []
    for number in range(times):
        for queue in queues:
            bodies.append(b"%s%d" % (queue.layout.encode(), number))
            queue.put(bodies[-1])
    return bodies


def test_a_set_by_time_is_one_stream(queues):
    """Whatever the layouts, the oldest message of all comes first."""
    bodies = interleaved(queues)
    assert take(QueueSet(queues, order="time")) == bodies


def test_a_fair_set_goes_round(queues):
    """A queue with much in it does not keep the others waiting."""
    for _ in range(5):
        queues[0].put(b"much")
    queues[1].put(b"little")
    assert take(QueueSet(queues))[:2] == [b"much", b"little"]


def test_a_set_in_the_given_order_empties_the_first_queue_first(queues):
    """The others get what the first leaves."""
    queues[1].put(b"second")
    queues[0].put(b"first")
    queues[0].put(b"first")
    assert take(QueueSet(queues, order="given")) == [b"first", b"first", b"second"]


def test_browsing_takes_nothing(queues):
    """First and next show all messages in the order of their times."""
    bodies = interleaved(queues)
    together = QueueSet(queues)
    seen = []
    queue, message = together.first()
    while queue is not None:
        assert queue.message(message.id).body == message.body
        seen.append(message.body)
        queue, message = together.next()
    assert seen == bodies
    assert len(together) == len(bodies)
    assert sum(stats.ready for stats in together.stats().values()) == len(bodies)


def test_a_lease_knows_its_queue(queues):
    """Owner tells where a message came from, and the set can change meanwhile."""
    queues[2].put(b"x")
    together = QueueSet(queues)
    lease = together.get(timeout=PATIENCE)
    assert together.owner(lease) is queues[2]
    together.remove(queues[2])
    with pytest.raises(SettingsError):
        together.owner(lease)
    lease.ack()


def test_what_cannot_be_is_refused(queues, tmp_path):
    """A directory is in a set once; an order must be known; nothing there is Empty."""
    together = QueueSet(queues)
    with pytest.raises(SettingsError, match="already"):
        together.add(tmp_path / "native")
    with pytest.raises(SettingsError, match="not in the set"):
        together.remove(tmp_path / "other")
    with pytest.raises(SettingsError, match="order"):
        QueueSet(queues, order="random")
    with pytest.raises(Empty):
        together.get(timeout=0)
