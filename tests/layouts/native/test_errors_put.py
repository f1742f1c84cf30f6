"""Errors of putting: every branch on an errno, each reached by the fault that it is for."""

import errno
import os

import pytest
from support.checker import leftovers, messages
from support.failing import FULL, HARD, failing, names, of
from support.kit import drain, replaced
from support.native import held_names, is_directory, is_plain, remote

from dirqueue import (
    QueueAccess,
    QueueError,
)
from dirqueue.disk import fs
from dirqueue.layouts.native import publish, staging


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename_noreplace"])
def test_put_that_fails_says_so_and_leaves_nothing(make, call, code):
    """Whichever call fails: one error with its errno, and no trace."""
    queue = make(sync=True)
    queue.put(b"first")
    when = of(".new") if call in ("open", "rename_noreplace") else None
    with failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        queue.put(b"x")
    assert caught.value.errno == code
    assert list(messages(queue.path)[0].values()) == [b"first"]
    assert leftovers(queue.path) == []


def test_put_whose_names_cannot_be_made_durable_is_taken_back(make):
    """The flush of the directory fails: put raises, and the message is gone."""
    queue = make(sync=True)
    queue.put(b"first")
    with failing("fsync", errno.EIO, when=is_directory), pytest.raises(QueueAccess):
        queue.put(b"x")
    assert list(messages(queue.path)[0].values()) == [b"first"]


def test_put_flushes_the_file_before_it_is_shown_and_the_name_after(make):
    """In that order, flat and in a slice."""
    queue = make(sync=True)
    queue.put(b"first")
    told = []
    real = {name: getattr(fs, name) for name in ("fsync", "rename_noreplace")}

    def fsync(fd):
        told.append("names" if is_directory(fd) else "file")
        real["fsync"](fd)

    def show(*arguments):
        told.append("show")
        real["rename_noreplace"](*arguments)

    with replaced(fs, fsync=fsync, rename_noreplace=show):
        queue.put(b"flat")
    assert told == ["file", "show", "names"]
    told.clear()
    with replaced(publish, DEEP=-1), replaced(fs, fsync=fsync, rename_noreplace=show):
        queue.layout._publisher._look_in = 0
        queue.put(b"in a slice")
    assert told == ["names", "file", "show", "names"]


def test_new_file_that_is_there_already_is_left_to_purge(queue, monkeypatch):
    """Made, reply lost, asked again: the message gets another id."""
    with failing("open", errno.EEXIST, when=of(".new"), done=True) as fault:
        queue.put(b"two")
    assert fault.hits == 1
    assert drain(queue) == [b"one", b"two"]
    assert len(leftovers(queue.path)) == 1


def test_names_that_stay_taken_are_an_error_not_a_loop(queue, tmp_path):
    """For put, for put_many and for put_path."""
    (tmp_path / "file").write_bytes(b"x")
    with failing("rename_noreplace", errno.EEXIST, times=1000), pytest.raises(QueueError, match="taken"):
        queue.put(b"x")
    with failing("mkdir", errno.ENOENT, times=1000), pytest.raises(QueueError, match="removed as fast"):
        queue.put_many([b"x", b"y"])
    inside = lambda path, *_, **__: "batch.new/" in str(path)  # noqa: E731
    with failing("open", errno.EEXIST, when=inside, times=1000), pytest.raises(QueueError, match="taken"):
        queue.put_many([b"x", b"y"])
    with failing("rename_noreplace", errno.EEXIST, times=1000), pytest.raises(QueueError, match="taken"):
        queue.put_path(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x"
    assert list(messages(queue.path)[0].values()) == [b"one"]
    assert leftovers(queue.path) == []


def test_file_of_a_batch_that_was_made_and_told_to_exist_is_written(queue):
    """The empty file of the lost reply must not become a message."""
    inside = lambda path, *_, **__: "batch.new/" in str(path)  # noqa: E731
    with failing("open", errno.EEXIST, when=inside, done=True):
        queue.put_many([b"two", b"three"])
    assert drain(queue) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("which", ["bodies", "names"])
def test_a_batch_that_cannot_be_made_durable_is_not_shown(make, count, which):
    """The flush of its files fails, or that of its name after it was shown: nothing of it is left."""
    queue = make(sync=True)
    queue.put(b"first")
    call = "syncfs" if which == "bodies" and count > publish.FLUSH_ALL else "fsync"
    directory = queue.layout.directory
    when = None if call == "syncfs" else (lambda fd: fd == directory.fd) if which == "names" else is_plain
    with failing(call, errno.EIO, when=when), pytest.raises(QueueAccess):
        queue.put_many([b"%d" % number for number in range(count)])
    assert list(messages(queue.path)[0].values()) == [b"first"]
    assert leftovers(queue.path) == []


def test_batch_of_bodies_that_cannot_be_leaves_nothing(queue):
    """An exception of the caller's own iterator passes through."""

    def bodies():
        yield from (b"%d" % number for number in range(20))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        queue.put_many(bodies())
    assert list(messages(queue.path)[0].values()) == [b"one"]
    assert leftovers(queue.path) == []


def test_file_on_a_slow_server_is_waited_for(make, monkeypatch):
    """Its length is not yet the full one; if it never becomes that, the put failed."""
    queue = remote(make())
    sizes = iter([0, 0])
    real = fs.served_size
    with replaced(fs, served_size=lambda *arguments: next(sizes, None) or real(*arguments)):
        queue.put(b"slow")
    monkeypatch.setattr(staging, "SETTLE_SECONDS", 0.0)
    with replaced(fs, served_size=lambda *_: 0), pytest.raises(QueueAccess) as caught:
        queue.put(b"never")
    assert caught.value.errno == errno.EIO
    assert drain(queue) == [b"slow"]


def test_a_put_whose_reply_was_lost_and_that_was_claimed_at_once_is_put_once(make):
    """On a network filesystem: the unfinished name is gone because it was published."""
    queue = remote(make())

    def publish_and_claim(src, dst, **named):
        if not src.endswith(".new"):
            return real["rename"](src, dst, **named)
        os.unlink(os.path.join(queue.path, src))
        raise FileNotFoundError(errno.ENOENT, "no reply", src)

    def link(*arguments, **named):
        pytest.fail("a link that is asked for again, after the claim, would publish again")

    with replaced(fs, rename=publish_and_claim, link=link) as real:
        queue.put(b"x")
    assert held_names(queue) == []


def test_file_is_put_as_a_second_name(make, tmp_path):
    """The first one stays; durable where that is asked for."""
    (tmp_path / "file").write_bytes(b"x")
    queue = make(sync=True)
    queue.put_path(tmp_path / "file", link=True)
    assert os.stat(tmp_path / "file").st_nlink == 2
    assert drain(queue) == [b"x"]
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize("link", [False, True])
def test_file_that_cannot_be_put_stays_where_it_is(make, tmp_path, link):
    """A name that is taken is passed over; any other error is told, and the file is the caller's."""
    (tmp_path / "file").write_bytes(b"x")
    queue = make(sync=True)
    queue.put(b"first")
    call = "link" if link else "rename_noreplace"
    for code in (errno.EXDEV, errno.EACCES):
        with failing(call, code), pytest.raises(QueueAccess) as caught:
            queue.put_path(tmp_path / "file", link=link)
        assert caught.value.errno == code
    for failed in ("fsync", "open"):
        when = is_plain if failed == "fsync" else of("/file")
        with failing(failed, errno.EIO, when=when), pytest.raises(QueueAccess):
            queue.put_path(tmp_path / "file", link=link)
    assert (tmp_path / "file").read_bytes() == b"x"
    with failing(call, errno.EEXIST):
        queue.put_path(tmp_path / "file", link=link)
    assert drain(queue) == [b"first", b"x"]


def test_file_whose_new_name_is_not_durable_is_told(make, tmp_path):
    """It is moved in nevertheless: it was the caller's only copy."""
    (tmp_path / "file").write_bytes(b"x")
    queue = make(sync=True)
    queue.put(b"first")
    with failing("fsync", errno.EIO, when=is_directory), pytest.raises(QueueAccess, match="durable"):
        queue.put_path(tmp_path / "file")
    assert drain(queue) == [b"first", b"x"]
