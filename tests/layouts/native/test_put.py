"""Putting: what happens to a producer that is slow, or stopped, or overtaken by consumers."""

import os
import time

import pytest
from support.failing import before
from support.kit import drain, replaced, wait_until
from support.stopping import stopped_before

from dirqueue import Queue, QueueError
from dirqueue.disk import fs, identity, mount
from dirqueue.layouts.native import publish
from dirqueue.layouts.native.staging import Start

STALE = 0.2


def remote(path, **settings):
    """Return a queue that is treated as one on a network filesystem."""
    queue = Queue(path, **settings)
    queue.layout.create()
    queue.layout.directory.mount = mount.Mount("nfs4")
    return queue


def unfinished(path):
    return [name for name in os.listdir(path) if name.endswith(".new")]


@pytest.mark.parametrize("remover", ["purge", "get"])
def test_a_put_stopped_for_longer_than_stale_is_written_again(queue_dir, remover):
    """On a network filesystem: its ID.new was removed meanwhile, which is no lost reply."""
    queue = remote(queue_dir, stale=STALE)
    act = Queue.purge if remover == "purge" else drain
    publishes = lambda src, dst, **_: src.endswith(".new")  # noqa: E731
    with stopped_before("rename", lambda: queue.put(b"x"), when=publishes) as go_on:
        wait_until(
            lambda: (act(Queue(queue_dir, stale=STALE)), not unfinished(queue_dir))[1],
            "the unfinished message going",
        )
        id = go_on()
    (message,) = queue.peek()
    assert (message.id, message.body) == (id, b"x")


def test_put_with_a_lost_reply_is_recent_by_both_clocks_or_not_at_all(queue_dir):
    """A process that was stopped, a machine that was asleep, a clock that was set: each counts."""
    queue = Queue(queue_dir, stale=60.0)
    queue.layout.create()
    directory, settings = queue.layout.directory, queue.settings
    start = Start.now(directory)
    assert start.is_recent(directory, settings)
    assert not start._replace(monotonic=start.monotonic - 30).is_recent(directory, settings)
    assert not start._replace(here=start.here - 30_000_000).is_recent(directory, settings)
    assert not start._replace(here=start.here + 30_000_000).is_recent(directory, settings)
    assert start.offset is None, "the server was not asked yet, and is not asked for a put"
    start = Start.now(directory)
    assert start.is_recent(directory, settings)
    assert not start._replace(offset=start.offset - 30_000_000).is_recent(directory, settings)


@pytest.mark.parametrize("count", [3, 20])
def test_batch_stopped_for_longer_than_stale_is_written_again(queue_dir, count):
    """What it holds is still known: it becomes visible once, whole."""
    queue = Queue(queue_dir, stale=0.0)
    bodies = [b"%d" % number for number in range(count)]
    shows = lambda src, dst, **_: dst.endswith(".batch")  # noqa: E731
    with stopped_before("rename", lambda: queue.put_many(iter(bodies)), when=shows) as go_on:
        wait_until(lambda: queue.purge() and not unfinished(queue_dir), "the staging directory going")
        assert len(go_on()) == count
    assert drain(queue) == bodies


def test_long_batch_stopped_for_longer_than_stale_fails(queue_dir, monkeypatch):
    """What it held is not kept in memory: nothing is visible, and the error says what to do."""
    monkeypatch.setattr(publish, "AHEAD_BYTES", 2)
    queue = Queue(queue_dir, stale=0.0)
    shows = lambda src, dst, **_: dst.endswith(".batch")  # noqa: E731
    with stopped_before("rename", lambda: queue.put_many([b"x"] * 10), when=shows) as go_on:
        wait_until(lambda: queue.purge() and not unfinished(queue_dir), "the staging directory going")
        result = go_on()
    assert isinstance(result, QueueError)
    assert "put it again" in str(result)
    assert len(queue) == 0


def test_a_batch_whose_bodies_come_late_is_kept_alive(queue_dir, monkeypatch):
    """A generator that sleeps for longer than stale, beside a purger: all of it becomes visible."""
    monkeypatch.setattr(publish, "AHEAD_BYTES", 2)
    queue, other = Queue(queue_dir, stale=1.0), Queue(queue_dir, stale=1.0)

    def bodies():
        yield from (b"1", b"2", b"3", b"4")
        (staging,) = unfinished(queue_dir)
        until = time.monotonic() + 1.5
        seen = set()

        def waited():
            other.purge()
            seen.add(os.stat(queue_dir / staging).st_mtime_ns)
            return len(seen) > 3 and time.monotonic() > until

        wait_until(waited, "signs of life in the staging directory")
        yield b"5"

    queue.put_many(bodies())
    assert drain(queue) == [b"1", b"2", b"3", b"4", b"5"]


def test_short_batch_whose_bodies_come_late_is_written_when_all_are_there(queue_dir):
    """Nothing lies in the queue while the caller is waited for, so that there is nothing to remove."""
    queue = Queue(queue_dir)
    queue.layout.create()

    def bodies():
        yield from (b"%d" % number for number in range(20))
        assert unfinished(queue_dir) == []
        yield b"20"

    queue.put_many(bodies())
    assert drain(queue) == [b"%d" % number for number in range(21)]


def test_batch_of_large_bodies_is_put_whole(queue_dir):
    """The first one alone is more than is read ahead."""
    queue = Queue(queue_dir, sync=False)
    large = [bytes([number]) * (publish.AHEAD_BYTES + 1) for number in range(3)]
    assert len(queue.put_many(iter(large))) == 3
    assert drain(queue) == large
    queue.put_many(iter(large[:1]))
    assert drain(queue) == large[:1]


def test_error_of_the_callers_iterator_passes_through(queue_dir, monkeypatch):
    """Even one that looks like a missing staging directory."""
    monkeypatch.setattr(publish, "AHEAD_BYTES", 2)
    queue = Queue(queue_dir)

    def bodies():
        yield from (b"1", b"2", b"3")
        yield (queue_dir / "missing").read_bytes()

    with pytest.raises(FileNotFoundError, match="missing"):
        queue.put_many(bodies())
    assert len(queue) == 0
    assert unfinished(queue_dir) == []


def test_a_put_whose_slice_was_consumed_and_removed_before_the_flush_succeeds(queue_dir):
    """The message was put and delivered: to call that an error would be to put it twice."""
    queue, other = Queue(queue_dir), Queue(queue_dir)
    got = []

    def consume():
        got.extend(drain(other))
        for name in os.listdir(queue_dir):
            if name.endswith(".slice"):
                os.rmdir(queue_dir / name)

    with replaced(publish, DEEP=-1):
        queue.put(b"first")
        drain(other)
        flushes = lambda path, flags, *_, **__: path.endswith(".slice") and flags == fs.DIRECTORY  # noqa: E731
        with before("open", consume, when=flushes):
            assert queue.put(b"x")
    assert got == [b"x"]


def test_place_for_a_message_of_a_queue_that_does_not_exist_yet(tmp_path):
    """A transaction asks for it before anything is there: the queue is made."""
    queue = Queue(tmp_path / "new", sync=False)
    id = identity.new_id()
    assert queue.layout.place_for(id, None) == id
    assert (tmp_path / "new").is_dir()
