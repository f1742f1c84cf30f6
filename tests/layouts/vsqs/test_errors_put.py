"""A put to the vsqs layout: every errno branch, reached by its fault."""

import errno
import os
import shutil
import time

import pytest
from support.failing import FULL, HARD, failing, names, of
from support.kit import drain
from support.vsqs_queues import listed

from dirqueue import (
    Empty,
    MessageTooLarge,
    Queue,
    QueueAccess,
    QueueError,
    SettingsError,
)
from dirqueue.disk import fs, mount
from dirqueue.layouts.vsqs import layout


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename_noreplace"])
def test_put_that_fails_raises_and_shows_nothing(make, call, code):
    """Whichever call fails: one error with its errno, and no message."""
    queue = make(sync=True)
    queue.put(b"first")
    with failing(call, code), pytest.raises(QueueAccess) as caught:
        queue.put(b"x")
    assert caught.value.errno == code
    assert drain(queue) == [b"first"]


def test_put_whose_flush_fails_is_taken_back(make):
    """The flush of the directory fails."""
    queue = make(sync=True)
    queue.put(b"first")
    directory = queue.layout.directory
    with failing("fsync", errno.EIO, when=lambda fd: fd == directory.fd), pytest.raises(QueueAccess):
        queue.put(b"x")
    assert drain(queue) == [b"first"]


def test_id_that_is_taken_is_passed_over(queue, monkeypatch):
    """As a file being written, as a message in flight, or by whoever was faster; so often and no more."""
    with failing("open", errno.EEXIST, when=of(".new")) as fault:
        queue.put(b"two")
    assert fault.hits == 1
    for code in (errno.EEXIST, errno.ENOENT):
        with failing("rename_noreplace", code):
            queue.put(b"three")
    used = iter([False])
    real = queue.layout._unused
    monkeypatch.setattr(queue.layout, "_unused", lambda each: next(used, None) is None and real(each))
    queue.put(b"four")
    assert drain(queue) == [b"one", b"two", b"three", b"three", b"four"]
    assert [name for name in listed(queue) if name.endswith(".new")] == []
    monkeypatch.setattr(layout, "TRIES", 3)
    monkeypatch.setattr(queue.layout, "_unused", lambda each: False)
    with pytest.raises(QueueError, match="every id"):
        queue.put(b"x")
    assert listed(queue) == []


def test_id_in_flight_is_found_where_time_cannot_tell(queue):
    """A slow server: another message of the same time may be in flight."""
    lease = queue.get(timeout=0)
    (name,) = listed(queue)
    queue.layout.directory.mount = mount.Mount("nfs4")
    assert not queue.layout._unused(name.partition(".")[0])
    assert queue.layout._unused("1700000000000")
    lease.ack()


@pytest.fixture
def listings(monkeypatch):
    """Give a list that grows by one with each listing of a directory."""
    seen = []
    monkeypatch.setattr(fs, "listdir", lambda fd: seen.append(fd) or os.listdir(fd))
    return seen


@pytest.mark.parametrize("milliseconds", [False, True])
def test_no_id_is_seen_before_its_time(make, monkeypatch, milliseconds):
    """So the name of an unfinished file that is made before is proof that nobody else has the id."""
    queue = make(milliseconds=milliseconds)
    monkeypatch.setattr(layout, "LEAST", 3000)  # a put is done long before
    unit = 1000 if milliseconds else 1
    made = []
    reserve = queue.layout._reserve

    def reserved(new):
        file = reserve(new)
        made.append((time.time_ns() // 1000, int(new.partition(".")[0]) * unit))
        return file

    monkeypatch.setattr(queue.layout, "_reserve", reserved)
    for _ in range(5):
        id = queue.put(b"x")
        assert time.time_ns() // 1000 >= int(id) * unit
        assert made[-1] <= (int(id) * unit, int(id) * unit)


def test_put_whose_calls_are_slow_draws_ids_further_ahead_and_lists_nothing(queue, monkeypatch, listings):
    """An id whose time came before the file was made is given up; the next one has twice the time."""
    reserve = queue.layout._reserve
    tried = []
    monkeypatch.setattr(
        queue.layout, "_reserve", lambda new: (tried.append(new), reserve(new), time.sleep(0.001))[1]
    )
    for number in range(20):
        queue.put(b"%d" % number)
    assert queue.layout._ahead > 1000
    assert len(tried) < 60
    assert listings == []
    assert drain(queue) == [b"one", *(b"%d" % number for number in range(20))]
    assert listed(queue) == []


def test_clock_that_was_set_back_makes_no_id_twice(queue):
    """A step of seconds is counted on from; one of a moment is waited for."""
    layout = queue.layout
    layout._last = time.time_ns() // 1000 + 60_000_000
    assert int(layout._id()) == layout._last
    assert int(layout._id()) == layout._last
    assert int(queue.put(b"two")) == layout._last  # and its time is not waited for
    layout._last = time.time_ns() // 1000 + 500
    last = layout._last
    assert int(layout._id()) > last


def test_queue_that_was_removed_is_made_again(queue):
    """Under a put, and under a consumer."""
    shutil.rmtree(queue.path)
    queue.put(b"again")
    assert drain(queue) == [b"again"]
    other = Queue(queue.path, layout="vsqs", sync=False)
    shutil.rmtree(queue.path)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    other.put(b"new")
    assert queue.get(timeout=0).message.body == b"new"


@pytest.mark.parametrize("order", ["lifo", "random"])
def test_put_shows_at_once_in_any_order(make, order):
    """A stack gives the newest first."""
    queue = make(order=order)
    queue.put(b"one")
    queue.put(b"two")
    first = queue.get(timeout=0).message.body
    assert order == "random" or first == b"two"
    queue.put(b"three")
    assert order == "random" or queue.get(timeout=0).message.body == b"three"


def test_put_path_that_fails_leaves_the_file(make, tmp_path, monkeypatch):
    """It stays where it is; ids that are taken are passed over, so often and no more."""
    queue = make(sync=True, max_size=10)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for code in (errno.EXDEV, errno.EIO):
        with failing("rename_noreplace", code), pytest.raises(QueueAccess):
            queue.put_path(path)
    with failing("fsync", errno.EIO), pytest.raises(QueueAccess):
        queue.put_path(path)
    assert path.read_bytes() == b"x"
    assert listed(queue) == []
    with failing("open", errno.EEXIST, when=of(".new")) as fault:
        queue.put_path(path)
    assert fault.hits == 1
    path.write_bytes(b"x")
    used = iter([False])
    with failing("rename_noreplace", errno.EEXIST):
        monkeypatch.setattr(queue.layout, "_unused", lambda each: next(used, True))
        queue.put_path(path)
    path.write_bytes(b"too large for it")
    with pytest.raises(MessageTooLarge):
        queue.put_path(path)
    path.write_bytes(b"x")
    monkeypatch.setattr(layout, "TRIES", 3)
    monkeypatch.setattr(queue.layout, "_unused", lambda each: False)
    with pytest.raises(QueueError, match="every id"):
        queue.put_path(path)
    assert path.read_bytes() == b"x"
    os.link(path, tmp_path / "second")
    for wrong, error in ((path, SettingsError), (tmp_path, SettingsError), (tmp_path / "none", QueueAccess)):
        with pytest.raises(error):
            queue.put_path(wrong)


def test_server_that_is_slow_is_not_trusted_by_time(make):
    """On a network filesystem an id is looked for among those in flight."""
    queue = make()
    queue.put(b"one")
    queue.layout.directory.mount = mount.Mount("nfs4")
    queue.put(b"two")
    assert drain(queue) == [b"one", b"two"]
