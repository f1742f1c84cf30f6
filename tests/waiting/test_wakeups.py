"""A consumer that waits is woken by what is put, wherever the producers put it."""

import threading

import pytest

from dirqueue import Empty, Queue, waiting
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
