"""What messages carry: the files in attributes/, their errors, and what is not as we write it."""

import errno
import threading
from pathlib import Path

import pytest

from dirqueue import Queue, QueueAccess, Unsupported
from dirqueue.disk import fs
from dirqueue.layouts.native import extras, rooms
from dirqueue.message import Extras

GIVEN = {"colour": "blue"}


@pytest.fixture(name="queue")
def _queue(tmp_path):
    return Queue(tmp_path / "queue")


def kept(queue):
    return {path.name: path for path in Path(queue.path, "attributes").glob("*/*")}


@pytest.mark.parametrize("count", [2, 9])
def test_durable_batch_flushes_the_buckets_before_it_is_shown(queue, monkeypatch, count):
    """A few by themselves, many with the whole filesystem."""
    flushed = []
    real, everything = fs.sync_fd, fs.syncfs
    monkeypatch.setattr(fs, "sync_fd", lambda fd: flushed.append("directory") or real(fd))
    monkeypatch.setattr(fs, "syncfs", lambda fd: flushed.append("filesystem") or everything(fd))
    ids = queue.put_many([b"x"] * count, attributes=GIVEN)
    assert set(kept(queue)) == set(ids)
    assert "directory" in flushed
    assert ("filesystem" in flushed) == (count > 8 and queue.layout.directory.mount.syncfs)


def test_file_that_is_there_already_is_written_again(queue, monkeypatch):
    """NFS: it was made, the reply was lost, and it was asked for again."""
    real, seen = fs.create, []

    def create(name, *arguments, **named):
        if "attributes" in name and not seen:
            seen.append(name)
            raise FileExistsError(errno.EEXIST, "exists", name)
        return real(name, *arguments, **named)

    queue.put(b"first", attributes=GIVEN)
    monkeypatch.setattr(fs, "create", create)
    id = queue.put(b"x", attributes=GIVEN)
    assert seen
    assert queue.message(id).attributes == GIVEN


def test_bucket_that_is_removed_again_and_again_is_an_error(queue, monkeypatch):
    """After a bounded number of tries; nothing is put."""
    queue.put(b"first")
    monkeypatch.setattr(extras, "TRIES", 2)
    monkeypatch.setattr(rooms.Rooms, "make", lambda *_, **__: True)
    with pytest.raises(QueueAccess, match="EBUSY"):
        queue.put(b"x", attributes=GIVEN)
    assert len(queue) == 1


def test_attributes_that_cannot_be_read_are_an_error_that_names_the_message(queue, monkeypatch):
    """Not a message without any."""
    id = queue.put(b"x", attributes=GIVEN)
    real = fs.read_file

    def refuse(name, *arguments):
        if "attributes" in name:
            raise OSError(errno.EIO, "broken", name)
        return real(name, *arguments)

    monkeypatch.setattr(fs, "read_file", refuse)
    with pytest.raises(QueueAccess, match=f"read the attributes of message {id}"):
        queue.message(id).attributes  # noqa: B018


@pytest.mark.parametrize("text", ["", "[]", '{"attributes": 3}', '{"attributes": {}, "expires": "soon"}'])
def test_file_that_is_not_as_we_write_them_is_none(queue, text):
    """The body is delivered."""
    id = queue.put(b"x", attributes=GIVEN)
    kept(queue)[id].write_text(text)
    message = queue.get(timeout=0).message
    assert (message.body, message.attributes) == (b"x", {})


def test_restore_leaves_what_is_there_and_reports_what_it_cannot_write(queue, monkeypatch):
    """After a long stop of whoever published."""
    id = queue.put(b"x", attributes=GIVEN)
    store = queue.layout._extras
    store.restore(id, Extras({"other": "one"}))
    assert queue.message(id).attributes == GIVEN
    kept(queue)[id].unlink()
    monkeypatch.setattr(
        store, "_create", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))
    )
    with pytest.raises(QueueAccess, match=f"keep the attributes of message {id}"):
        store.restore(id, Extras(GIVEN))


def test_discard_where_there_are_none_costs_no_call(queue, monkeypatch):
    """As for a put that failed in a queue without attributes."""
    queue.put(b"x")
    monkeypatch.setattr(fs, "discard", lambda *_: pytest.fail("asked"))
    queue.layout._extras.discard("1" * 25)


def test_beat_that_fails_leaves_the_error_to_its_writer(queue, monkeypatch):
    """The staging directory is gone: the next write says so."""
    from dirqueue.layouts.native.staging import Beat

    queue.put(b"x")
    asked = threading.Event()

    def refuse(*_, **__):
        asked.set()
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fs, "utime", refuse)
    with Beat(queue.layout.directory, "none", 0.001):
        assert asked.wait(10)


def test_null_queue_cannot_be_paused(tmp_path):
    """It gives nothing anyway."""
    queue = Queue(tmp_path / "q", layout="null")
    with pytest.raises(Unsupported, match="cannot be paused"):
        queue.pause()
    assert not queue.paused


def test_transaction_keeps_and_drops_what_a_message_will_carry(queue):
    """By its id, before there is a message."""
    queue.put(b"x")
    id = queue.put(b"y")
    queue.layout.keep_extras(id, Extras(GIVEN))
    assert queue.message(id).attributes == GIVEN
    queue.layout.drop_extras(id)
    assert queue.message(id).attributes == {}
