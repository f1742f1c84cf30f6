"""Errors of cursors: every branch on an errno, each reached by the fault that it is for."""

import errno
from pathlib import Path

import pytest
from support.failing import failing, names, of
from support.kit import LONG, drain, replaced
from support.native import remote

from dirqueue import (
    Empty,
)
from dirqueue.disk import fs
from dirqueue.layouts.native import due


def test_what_is_known_of_directories_is_bounded(make, monkeypatch):
    """A thousand directories that hold nothing for us are remembered, not more."""
    monkeypatch.setattr(due, "TICK_NS", -(1 << 62))
    queue = make()
    queue.put_many([b"one", b"two"], delay=LONG)
    to_top(queue)
    still = queue.layout._cursor._still
    still.update((str(number), (0, 0)) for number in range(1025))
    queue.layout._cursor.snapshot.expires = 0
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert len(still) == 1


def test_times_of_a_network_filesystem_are_not_trusted(make):
    """Its attributes are cached: each look lists again."""
    queue = remote(make())
    other = make()
    for number in range(3):
        with pytest.raises(Empty):
            queue.get(timeout=0)
        other.put(b"%d" % number)
        assert drain(queue) == [b"%d" % number]


def test_directory_in_which_nothing_changed_is_not_listed_again(make, monkeypatch):
    """All of a batch is delayed: its time tells that nothing is new; a time that cannot be read tells nothing."""
    monkeypatch.setattr(due, "TICK_NS", -(1 << 62))
    queue = make()
    queue.put_many([b"one", b"two"], delay=LONG)
    to_top(queue)
    for _ in range(2):
        queue.layout._cursor.snapshot.expires = 0
        with pytest.raises(Empty):
            queue.get(timeout=0)
    (batch,) = queue.layout._cursor._still
    with replaced(fs, open=refuse(fs.open, batch)):
        queue.layout._cursor.snapshot.expires = 0
        with pytest.raises(Empty):
            queue.get(timeout=0)
    with failing("stat", errno.EIO):
        assert queue.layout._cursor._times.of(batch) == -1


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.ESTALE]))
def test_batch_that_goes_before_its_turn_is_passed_over(make, code):
    """Emptied and removed by another consumer since the queue was listed."""
    queue = make()
    queue.put_many([b"one", b"two"])
    queue.put(b"three")
    with failing("open", code, when=of(".batch/")):
        assert queue.get(timeout=0).message.body == b"three"
    assert drain(make()) == [b"one", b"two"]


def to_top(queue):
    """Move a batch that was put with a delay to where batches of delayed messages of an earlier format are."""
    (batch,) = Path(queue.path).glob("later/*/*.batch")
    batch.rename(Path(queue.path) / batch.name)


def refuse(call, name):
    """Let no call touch that name."""

    def checked(path, *arguments, **named):
        assert path != name
        return call(path, *arguments, **named)

    return checked


def test_less_urgent_message_of_our_own_waits_for_its_turn(make):
    """Put while others are at hand: the more urgent ones come first."""
    queue = make(priorities=True)
    for body in (b"a", b"b", b"c"):
        queue.put(body, priority=2)
    assert queue.get(timeout=0).message.body == b"a"
    queue.put(b"late", priority=3)
    queue.put(b"urgent", priority=1)
    assert drain(queue) == [b"urgent", b"b", b"c", b"late"]
