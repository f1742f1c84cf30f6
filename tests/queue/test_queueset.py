"""Several queues as one."""

import math
import threading

import pytest
from support.kit import PATIENCE

from dirqueue import Empty, Queue, QueueSet, SettingsError, waiting

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
            bodies.append(b"%s%d" % (queue.layout.name.encode(), number))
            queue.put(bodies[-1])
    return bodies


def test_set_by_time_is_one_stream(queues):
    """Whatever the layouts, the oldest message of all comes first."""
    bodies = interleaved(queues)
    assert take(QueueSet(queues, order="time")) == bodies


def test_fair_set_goes_round(queues):
    """A queue with much in it does not keep the others waiting."""
    for _ in range(5):
        queues[0].put(b"much")
    queues[1].put(b"little")
    assert take(QueueSet(queues))[:2] == [b"much", b"little"]


def test_set_in_the_given_order_empties_the_first_queue_first(queues):
    """The others get what the first leaves."""
    queues[1].put(b"second")
    queues[0].put(b"first")
    queues[0].put(b"first")
    assert take(QueueSet(queues, order="given")) == [b"first", b"first", b"second"]


def test_peek_shows_all_queues_by_time_and_takes_nothing(queues):
    """All messages in the order of their times, each with its queue."""
    bodies = interleaved(queues)
    together = QueueSet(queues)
    seen = []
    for queue, message in together.peek():
        assert queue.message(message.id).body == message.body
        seen.append(message.body)
    assert seen == bodies
    assert len(together) == len(bodies)
    assert sum(stats.ready for stats in together.stats().values()) == len(bodies)


def test_lease_knows_its_queue(queues):
    """Owner tells where a message came from, and the set can change meanwhile."""
    queues[2].put(b"x")
    together = QueueSet(queues)
    lease = together.get(timeout=PATIENCE)
    assert together.owner(lease) is queues[2]
    together.remove(queues[2])
    with pytest.raises(SettingsError):
        together.owner(lease)
    lease.ack()


def test_invalid_arguments_are_refused(queues, tmp_path):
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


@pytest.mark.parametrize("which", [0, 1, 2])
def test_waiting_get_is_woken_by_any_local_queue(tmp_path, monkeypatch, which):
    """No poll comes to its help: the kernel tells of a put to whichever queue of the set."""
    pytest.importorskip("inotify_simple", reason="needs inotify-simple")
    monkeypatch.setattr(waiting, "LONGEST_WATCHED", 10 * PATIENCE)
    armed = threading.Event()
    arm = waiting._arm

    def telling(*arguments):
        good = arm(*arguments)
        if arguments[1].endswith("q2"):  # the last of the set
            armed.set()
        return good

    monkeypatch.setattr(waiting, "_arm", telling)
    layouts = ("native", "vsqs", "native")
    queues = [Queue.create(tmp_path / f"q{n}", layout=layout) for n, layout in enumerate(layouts)]
    got = []
    thread = threading.Thread(target=lambda: got.append(QueueSet(queues).get(timeout=PATIENCE).message.body))
    thread.start()
    assert armed.wait(PATIENCE)
    with Queue(tmp_path / f"q{which}", sync=False) as producer:
        producer.put(b"%d" % which)
    thread.join(2 * PATIENCE)
    assert got == [b"%d" % which]
    for queue in queues:
        queue.close()


def test_waiting_get_polls_what_cannot_be_watched(tmp_path):
    """A dirq queue in the set, and one whose directory is not there yet."""
    queues = [Queue(tmp_path / layout, layout=layout, sync=False) for layout in ("dirq-simple", "native")]
    queues[0].layout.create()
    together = QueueSet(queues)
    for queue in queues:
        got = []
        thread = threading.Thread(target=lambda: got.append(together.get(timeout=PATIENCE)))  # noqa: B023
        thread.start()
        with Queue(queue.path, layout=queue.layout.name, sync=False) as producer:
            producer.put(b"x")
        thread.join(2 * PATIENCE)
        assert together.owner(got[0]) is queue
        got[0].ack()
    together.close()


def test_lease_that_runs_out_wakes_a_waiting_get(tmp_path):
    """Nobody puts anything: the wait ends when a lease of one of the queues does."""
    queues = [Queue(tmp_path / name, sync=False, margin=0) for name in "ab"]
    queues[1].put(b"x")
    queues[1].get(timeout=0, lease=0.2)
    assert QueueSet(queues).get(timeout=PATIENCE).message.body == b"x"
    for queue in queues:
        queue.close()


def test_many_are_taken_from_all_queues_and_a_bad_limit_is_refused(tmp_path):
    """What follows from get is the same as for one queue."""
    queues = QueueSet([tmp_path / "a", tmp_path / "b"])
    for queue in queues.queues:
        queue.put_many([b"1", b"2"])
    leases = queues.get_many(3, timeout=0)
    assert len({lease.message.id for lease in leases}) == 3
    assert len(queues.get_many(3, timeout=0)) == 1
    with pytest.raises(SettingsError, match="limit"):
        next(queues.consume(limit=-1))
    queues.close()


@pytest.mark.parametrize("order", ["fair", "given", "time"])
def test_add_refuses_a_queue_that_is_in_by_another_path(tmp_path, order):
    """By a symbolic link, or a path with dots: else it would be asked twice, and counted twice."""
    (tmp_path / "q").mkdir()
    (tmp_path / "link").symlink_to("q")
    together = QueueSet([tmp_path / "q"], order=order)
    for path in (tmp_path / "link", tmp_path / "link" / ".." / "q", tmp_path / "q"):
        for queue in (path, str(path), Queue(path), together.queues[0]):
            with pytest.raises(SettingsError, match="already"):
                together.add(queue)
    with pytest.raises(SettingsError, match="already"):
        QueueSet([tmp_path / "link", tmp_path / "q"])
    together.remove(tmp_path / "link")
    assert together.queues == ()


@pytest.mark.parametrize("order", ["fair", "given", "time"])
def test_get_survives_the_removal_of_its_queue_meanwhile(queues, order):
    """Another thread takes the queue out between the claim and the return: the lease must not be lost."""
    together = QueueSet(queues, order=order)
    queues[1].put(b"x")
    real = queues[1].get

    def get(**options):
        claimed = real(**options)
        together.remove(queues[1])
        return claimed

    queues[1].get = get
    lease = together.get(timeout=0)
    assert lease.message.body == b"x"
    lease.ack()


def test_get_by_time_goes_on_when_another_thread_took_the_last_known_message(tmp_path):
    """The order becomes empty between the check and the pop: get asks the queues themselves."""
    queues = [Queue(tmp_path / name, sync=False) for name in "ab"]
    queues[1].put(b"x")
    together = QueueSet(queues, order="time")

    class Emptied(list):
        def pop(self):
            self.clear()  # the other thread was faster
            return super().pop()

    together._oldest, together._fresh_until = Emptied([(0, "1", queues[0])]), math.inf
    assert together.get(timeout=0).message.body == b"x"
    assert together._oldest == []
