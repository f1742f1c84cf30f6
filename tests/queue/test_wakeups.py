"""A consumer that waits is woken by what is put, wherever the producers put it."""

import os
import threading
from pathlib import Path

import pytest
from support.kit import in_child
from support.patience import until

from dirqueue import Empty, Queue, QueueSet, waiting
from dirqueue.disk import fs
from dirqueue.layouts.native import publish

inotify_simple = pytest.importorskip("inotify_simple", reason="needs inotify-simple")
PATIENCE = 30


@pytest.fixture(name="armed")
def _armed(monkeypatch):
    """Tells when a waiting consumer watches; and no poll comes to its help within the time of the test."""
    monkeypatch.setattr(waiting, "LONGEST_WATCHED", 10.0 * PATIENCE)
    event = threading.Event()
    event.paths = []
    arm = waiting._arm

    def telling(inotify, path, inner, *events):
        done = arm(inotify, path, inner, *events)
        assert done
        event.paths.append(path)
        event.set()
        return done

    monkeypatch.setattr(waiting, "_arm", telling)
    return event


def _woken(path, armed, bodies):
    """Put each body only when the consumer watches; return what it got."""
    got, failed = [], []

    def consume():
        queue = Queue(path, sync=False)
        try:
            for _ in bodies:
                lease = queue.get(timeout=PATIENCE)
                got.append(lease.message.body)
                armed.clear()
                lease.ack()
        except Empty as error:
            failed.append(error)
        finally:
            queue.close()

    thread = threading.Thread(target=consume)
    producer = Queue(path, sync=False)
    producer.put(b"first")
    producer.get(timeout=0).ack()
    thread.start()
    for body in bodies:
        assert armed.wait(PATIENCE)
        producer.put(body)
        while len(got) <= bodies.index(body) and thread.is_alive():
            thread.join(0.01)
    thread.join(2 * PATIENCE)
    producer.close()
    assert not failed
    return got


def test_a_put_wakes_a_waiting_consumer(tmp_path, armed):
    """Without a poll the notification alone brings every message."""
    bodies = [b"a", b"b", b"c"]
    assert _woken(tmp_path / "q", armed, bodies) == bodies


def test_a_put_into_a_slice_wakes_a_waiting_consumer(tmp_path, armed, monkeypatch):
    """A deep queue's producers put to directories in it: those are watched too."""
    monkeypatch.setattr(publish, "DEEP", -1)
    bodies = [b"%d" % number for number in range(8)]
    assert _woken(tmp_path / "q", armed, bodies) == bodies


@pytest.fixture(name="hinted")
def _hinted(tmp_path):
    """An empty queue that was looked at, two messages put since, and the means to tell what came."""
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"x")
        queue.get(timeout=0).ack()
        assert queue.layout.claim(60.0) is None
        ids = [queue.put(b"first"), queue.put(b"second")]

        def arrived(name):
            queue.layout.arrived(name)
            return queue.get(timeout=0).message.body

        yield ids, arrived


@pytest.mark.parametrize("ending", ["", ".new"])
def test_what_ended_the_wait_is_claimed_without_a_listing(hinted, monkeypatch, ending):
    """The kernel says who came, and nothing was there before: to list would only take time."""
    ids, arrived = hinted
    monkeypatch.setattr(fs, "scandir", lambda _: pytest.fail("listed"))
    assert arrived(ids[0] + ending) == b"first"


@pytest.mark.parametrize(
    "name", ["", "1" * 25, ".clock-x", "1700000000000000.batch", "9" * 24 + "x", "/" * 25]
)
def test_a_name_that_is_no_message_costs_a_look(hinted, name):
    """Somebody else was faster, or it is no message of ours: the listing decides, as ever."""
    _, arrived = hinted
    assert arrived(name) == b"first"


def test_a_stack_takes_the_latest_whatever_came_first(tmp_path):
    """A hint is for queues whose next message is the first that came."""
    with Queue(tmp_path / "q", sync=False, order="lifo") as queue:
        first, _ = queue.put(b"first"), queue.put(b"second")
        queue.layout.arrived(first)
        assert queue.get(timeout=0).message.body == b"second"


def test_only_an_event_of_the_queues_own_watch_is_a_hint(tmp_path):
    """In a slice the same digits would be another path."""
    inotify = inotify_simple.INotify()
    inner = tmp_path / "inner"
    inner.mkdir()
    watch = waiting._arm(inotify, str(tmp_path), ["inner"])
    (inner / "1").touch()
    other, name = waiting._parse(waiting._event(inotify, 1.0))
    assert (other != watch, name) == (True, "1")
    (tmp_path / "2.new").touch()
    assert waiting._parse(waiting._event(inotify, 1.0)) == (watch, "2.new")
    assert waiting._event(inotify, 0.001) == b""
    inotify.close()


def test_waits_share_a_descriptor(tmp_path, monkeypatch):
    """To close one takes milliseconds, so that the next wait finds the last one's."""
    monkeypatch.setattr(waiting, "_idle", [])
    made = []
    real = inotify_simple.INotify

    def counted():
        made.append(real())
        return made[-1]

    monkeypatch.setattr(inotify_simple, "INotify", counted)
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"x")
        queue.get(timeout=0).ack()
        for _ in range(3):
            with pytest.raises(Empty):
                queue.get(timeout=0.01)
    assert len(made) == 1
    made[0].close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_closes_its_parents_descriptors(tmp_path):
    """Events read by a child would be missed by the parent; the parent keeps its own."""
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"x")
        queue.get(timeout=0).ack()
        with pytest.raises(Empty):
            queue.get(timeout=0.01)
        fds = [each.fileno() for each in waiting._idle]

        def child():
            return [os.path.realpath(f"/proc/self/fd/{fd}").endswith("inotify") for fd in fds]

        assert fds
        assert in_child(child) == [False] * len(fds)
        assert child() == [True] * len(fds)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_child_forked_while_another_thread_waits_can_wait_and_get(tmp_path, armed):
    """The child has queue objects, locks and descriptors of its own to wait with."""
    path = tmp_path / "q"
    waits = Queue(path, sync=False)
    waits.put(b"first")
    waits.get(timeout=0).ack()
    got = []
    thread = threading.Thread(target=lambda: got.append(waits.get(timeout=2 * PATIENCE).message.body))
    thread.start()
    assert armed.wait(PATIENCE)

    def child():
        with Queue(path, sync=False) as mine:
            with pytest.raises(Empty):
                mine.get(timeout=0.05)
            mine.put(b"of the child")
            return True

    assert in_child(child)
    thread.join(2 * PATIENCE)
    assert got == [b"of the child"]
    waits.close()


def _source(kind, tmp_path, names="ab"):
    """Open one queue, or a set of two; with the path to put to, which has had a message already."""
    queues = [Queue(tmp_path / name, sync=False, margin=0) for name in names]
    for queue in queues:
        queue.put(b"first")
        queue.get(timeout=0).ack()
    return queues[1] if kind == "queue" else QueueSet(queues), queues[1]


BOTH = pytest.mark.parametrize("kind", ["queue", "set"])


@BOTH
@pytest.mark.parametrize("held", ["delay", "lease"])
def test_wait_ends_when_the_first_delay_or_lease_is_over(tmp_path, monkeypatch, kind, held):
    """No poll and no event comes to its help: the wait itself knows when to look."""
    monkeypatch.setattr(waiting, "LONGEST_WATCHED", 10.0 * PATIENCE)
    source, queue = _source(kind, tmp_path)
    with Queue(queue.path, sync=False) as other:
        other.put(b"late", delay=0.3 if held == "delay" else 0)
        if held == "lease":
            other.get(timeout=0, lease=0.3)
    got = []
    thread = threading.Thread(target=lambda: got.append(source.get(timeout=PATIENCE).message.body))
    thread.start()
    try:
        until(lambda: got == [b"late"], "the message, long before the end of the wait", PATIENCE / 3)
    finally:
        thread.join(2 * PATIENCE)
        source.close()


@BOTH
def test_wait_watches_again_after_an_event_that_brought_nothing(tmp_path, armed, kind):
    """Three names come that are no messages, each when the wait watches; then a message does."""
    source, queue = _source(kind, tmp_path)
    got = []
    thread = threading.Thread(target=lambda: got.append(source.get(timeout=PATIENCE).message.body))
    thread.start()
    for number in range(3):
        assert armed.wait(PATIENCE)
        if kind == "set":  # both queues are armed one after the other; the second is the one we put to
            until(lambda: armed.paths[-1] == queue.path, "the watch on the last queue")
        armed.clear()
        armed.paths.clear()
        (Path(queue.path) / f"note-{number}").touch()
    assert armed.wait(PATIENCE)
    until(lambda: armed.paths[-1] == queue.path, "the watch on the last queue")
    with Queue(queue.path, sync=False) as producer:
        producer.put(b"x")
    thread.join(2 * PATIENCE)
    assert got == [b"x"]
    source.close()


def test_event_in_a_set_is_a_hint_to_its_queue(tmp_path, armed, monkeypatch):
    """The queue whose watch ended the wait is told which name came."""
    source, queue = _source("set", tmp_path)
    heard = []
    for each in source.queues:
        monkeypatch.setattr(each.layout, "arrived", lambda name, path=each.path: heard.append((path, name)))
    for _ in range(5):  # RACE: a put before the waiter sleeps is found by its last look, and is no event
        armed.paths.clear()
        thread = threading.Thread(target=lambda: source.get(timeout=PATIENCE).ack())
        thread.start()
        until(lambda: armed.paths and armed.paths[-1] == queue.path, "the watch on the last queue")
        with Queue(queue.path, sync=False) as producer:
            id = producer.put(b"x")
        thread.join(2 * PATIENCE)
        if heard:
            break
    assert [(path, name.removesuffix(".new")) for path, name in heard[:1]] == [(queue.path, id)]
    source.close()
