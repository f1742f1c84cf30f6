"""A consumer that waits is woken by what is put, wherever the producers put it."""

import threading

import pytest

from dirqueue import Empty, Queue, waiting
from dirqueue.disk import fs
from dirqueue.layouts.native import publish

inotify_simple = pytest.importorskip("inotify_simple", reason="needs inotify-simple")
PATIENCE = 30


@pytest.fixture(name="armed")
def _armed(monkeypatch):
    """Tells when a waiting consumer watches; and no poll comes to its help within the time of the test."""
    monkeypatch.setattr(waiting, "LONGEST_WATCHED", 10.0 * PATIENCE)
    event = threading.Event()
    arm = waiting._arm

    def telling(*arguments):
        done = arm(*arguments)
        assert done
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
            queue.layout.directory.arrived = name
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
        queue.layout.directory.arrived = first
        assert queue.get(timeout=0).message.body == b"second"


def test_only_an_event_of_the_queues_own_watch_is_a_hint(tmp_path):
    """In a slice the same digits would be another path."""
    inotify = inotify_simple.INotify()
    inner = tmp_path / "inner"
    inner.mkdir()
    watch = waiting._arm(inotify, str(tmp_path), ["inner"])
    (inner / "1").touch()
    assert waiting._name(waiting._event(inotify, 1.0), watch) == ""
    (tmp_path / "2.new").touch()
    assert waiting._name(waiting._event(inotify, 1.0), watch) == "2.new"
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


def test_a_forked_child_closes_its_parents_descriptors(monkeypatch):
    """Events read by a child would be missed by the parent."""
    kept = [inotify_simple.INotify()]
    monkeypatch.setattr(waiting, "_idle", kept)
    waiting._close_idle()
    assert kept == []
