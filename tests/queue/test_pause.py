"""A paused queue gives nothing and takes puts; what is held can be ended."""

import json
import threading
import time
from pathlib import Path

import pytest
from support.kit import LONG, PATIENCE

from dirqueue import Empty, Queue, QueueError, QueueNotFound, QueueSet, Unsupported, waiting
from dirqueue.disk import fs
from dirqueue.layouts import pausing
from dirqueue.layouts.native import cursor
from dirqueue.tools import delete


@pytest.fixture(name="queue")
def _queue(make_queue, needs):
    needs("pause")
    queue = make_queue()
    queue.put_many([b"a", b"b", b"c"])
    return queue


@pytest.fixture
def native(queue):
    """Return a native queue: what its cursor knows is looked at."""
    if queue.layout.name != "native":
        pytest.skip("another layout")
    return queue


def sign(queue):
    """Return the file that pauses a queue."""
    inside = queue.layout.name in ("native", "vsqs")
    return Path(queue.path, "paused") if inside else Path(f"{queue.path}.paused")


def test_layout_without_pause_says_why(make_queue):
    """And is never paused."""
    queue = make_queue()
    queue.put(b"a")
    if "pause" in queue.layout.lacks:
        with pytest.raises(Unsupported, match="cannot be paused"):
            queue.pause()
        with pytest.raises(Unsupported, match="cannot be paused"):
            queue.resume()
        assert not queue.paused


def test_paused_queue_gives_nothing_and_takes_puts(queue, make_queue):
    """To this client and to others, until it is resumed."""
    assert queue.pause()
    assert not queue.pause(), "it was paused"
    assert queue.paused
    queue.put(b"d")
    for client in (queue, make_queue()):
        with pytest.raises(Empty, match="it is paused"):
            client.get(timeout=0)
        assert client.stats().paused
        assert client.stats().ready == 4
    assert queue.resume()
    assert not queue.resume(), "it was not"
    assert not queue.paused
    assert sorted(lease.message.body for lease in queue.consume(timeout=0)) == [b"a", b"b", b"c", b"d"]


def test_held_message_can_be_ended_while_paused(queue):
    """Ack, renew, retry and release go on; what is given back stays."""
    first, second, third = queue.get(timeout=0), queue.get(timeout=0), queue.get(timeout=0)
    queue.pause()
    first.renew(LONG)
    first.ack()
    second.release()
    third.retry(0, "again")
    with pytest.raises(Empty):
        queue.get(timeout=0)
    queue.resume()
    assert {queue.get(timeout=0).message.id for _ in range(2)} == {second.message.id, third.message.id}


def test_fresh_snapshot_is_given_up_by_the_next_glance(native, make_queue, monkeypatch):
    """However long a snapshot is good, a pause is seen when the second is over."""
    monkeypatch.setattr(cursor, "FRESH_SECONDS", 600.0)
    consumer = make_queue()
    consumer.get(timeout=0)
    snapshot, listings = consumer.layout._cursor.snapshot, consumer.layout._cursor.looks
    assert snapshot.expires <= time.monotonic() + cursor.GLANCE_SECONDS, "at most a second without a look"
    snapshot.expires = 1e-9  # the second is over
    consumer.get(timeout=0)
    assert consumer.layout._cursor.looks == listings, "a glance is not a listing"
    native.pause()
    snapshot.expires = 1e-9
    with pytest.raises(Empty):
        consumer.get(timeout=0)


def test_released_messages_do_not_put_off_the_glance(native, make_queue, monkeypatch):
    """Who claims and releases again and again stops too."""
    monkeypatch.setattr(cursor, "FRESH_SECONDS", 600.0)
    consumer = make_queue()
    snapshot = consumer.layout._cursor.snapshot
    for _ in range(3):
        held = consumer.get(timeout=0)
        snapshot.expires = 1e-9
        snapshot._looked -= cursor.GLANCE_SECONDS  # the second is over
        held.release()
        assert snapshot.expires <= time.monotonic()
    native.pause()
    with pytest.raises(Empty):
        consumer.get(timeout=0)


def test_paused_queue_is_not_listed_again_and_again(native, monkeypatch):
    """A look at a paused queue is one call, however deep it is."""
    native.pause()
    with pytest.raises(Empty):
        native.get(timeout=0)

    def refuse(*_):
        raise AssertionError("listed")

    monkeypatch.setattr(fs, "scandir", refuse)
    with pytest.raises(Empty):
        native.get(timeout=0)


def test_end_of_a_pause_wakes_a_waiting_consumer(native, monkeypatch):
    """The notification alone, without a poll."""
    pytest.importorskip("inotify_simple")
    monkeypatch.setattr(waiting, "LONGEST_WATCHED", 10.0 * PATIENCE)
    armed = threading.Event()
    real = waiting._event

    def event(inotify, seconds):
        armed.set()
        return real(inotify, seconds)

    monkeypatch.setattr(waiting, "_event", event)
    native.pause()
    got = []
    with Queue(native.path, sync=False) as consumer:
        thread = threading.Thread(target=lambda: got.append(consumer.get(timeout=PATIENCE).message.body))
        thread.start()
        assert armed.wait(PATIENCE)
        native.resume()
        thread.join(2 * PATIENCE)
    assert got == [b"a"]


def test_set_gives_what_is_in_its_other_queues(queue, make_queue):
    """A paused queue is passed over."""
    other = make_queue("other")
    other.put(b"mine")
    queue.pause()
    queues = QueueSet([queue, other])
    assert queues.get(timeout=0).message.body == b"mine"
    with pytest.raises(Empty):
        queues.get(timeout=0)


def test_pause_outlives_its_maker_and_a_person_can_make_one(queue):
    """The name counts; what is in it tells a person since when, and by whom."""
    queue.pause()
    queue.close()
    record = json.loads(sign(queue).read_text())
    assert record["since"] > 10**15
    assert record["by"]
    queue.purge()
    assert Queue(queue.path).paused
    queue.resume()
    sign(queue).touch()
    assert Queue(queue.path).paused
    assert Queue(queue.path).stats().foreign == 0


def test_running_consumer_notices_within_a_second(queue, make_queue, monkeypatch):
    """One that gets message after message, without a wait."""
    monkeypatch.setattr(pausing, "GLANCE_SECONDS", 0.02)
    monkeypatch.setattr(cursor, "GLANCE_SECONDS", 0.02)
    consumer = make_queue()
    consumer.get(timeout=0)
    queue.pause()
    time.sleep(0.03)
    with pytest.raises(Empty, match="it is paused"):
        consumer.get(timeout=0)


def test_waiting_consumer_goes_on_when_the_pause_ends(queue, make_queue):
    """Whatever it waits with."""
    queue.pause()
    got = []
    consumer = make_queue()
    thread = threading.Thread(target=lambda: got.append(consumer.get(timeout=PATIENCE).message.body))
    thread.start()
    time.sleep(0.2)
    assert not got
    queue.resume()
    thread.join(2 * PATIENCE)
    assert got == [b"a"]


def test_deleted_queue_takes_its_pause_along(queue):
    """Another one of the same name gives what it has."""
    queue.pause()
    delete.delete(queue.layout)
    assert not sign(queue).exists()


def test_queue_that_goes_on_is_asked_once_a_second(queue, make_queue, monkeypatch):
    """Not for every message."""
    looks = []
    real = fs.is_file
    monkeypatch.setattr(fs, "is_file", lambda name, dir_fd: looks.append(name) or real(name, dir_fd))
    consumer = make_queue()
    for _ in range(3):
        consumer.get(timeout=0).ack()
    assert len([name for name in looks if name.endswith("paused")]) <= 1


def test_pause_of_what_is_no_queue_is_refused(tmp_path, native):
    """Neither a directory that is missing nor one of something else gets a file."""
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "none").pause()
    (tmp_path / "root" / "inner").mkdir(parents=True)
    with pytest.raises(QueueError, match="nothing was paused"):
        Queue(tmp_path / "root").pause()
    assert not (tmp_path / "root" / "paused").exists()
