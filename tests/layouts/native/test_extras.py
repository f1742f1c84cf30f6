"""What messages carry: the files in attributes/, their errors, and what is not as we write it."""

import errno
import threading
from pathlib import Path

import pytest
from support.patience import until

from dirqueue import Queue, QueueAccess, Unsupported
from dirqueue.disk import fs
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native import attempt, extras, names, rooms, staged
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


def stage(queue, count=3, version=None):
    """Write messages that carry something; return what commits them."""
    directory, settings = queue.layout.directory, queue.settings
    staging = staged.begin(directory)
    writer = attempt.Writer(directory, settings, staging)
    writer.add([b"x"] * count, None, None, [Extras(GIVEN)] * (count - 1) + [None])
    identity = None if version is None else staged.Identity("app", version)

    def commit():
        return staged.commit(directory, settings, staging, writer.finish(), identity, carrying=True)

    return staging, writer, commit


@pytest.mark.parametrize("syncfs", [True, False])
def test_staged_batch_carries_what_each_message_was_given(queue, monkeypatch, syncfs):
    """Durable before it is shown, with and without a flush of the whole filesystem."""
    queue.layout.directory.make()
    monkeypatch.setattr(queue.layout.directory.mount, "syncfs", syncfs)
    _, _, commit = stage(queue)
    assert len(kept(queue)) == 2
    assert commit()
    assert sorted(lease.message.attributes.get("colour", "") for lease in queue.get_many(3)) == [
        "",
        "blue",
        "blue",
    ]


@pytest.mark.parametrize("end", ["abort", "discard", "repeated", "vanished"])
def test_staged_batch_that_is_given_up_leaves_no_attributes(queue, end):
    """Whoever gives it up: the job, the attempt, or the commit of a version that was written before."""
    directory = queue.layout.directory
    if end == "repeated":
        assert stage(queue, version=1)[2]()
    before = set(kept(queue))
    staging, writer, commit = stage(queue, version=1)
    if end == "abort":
        staged.abort(directory, staging, carrying=True)
    elif end == "discard":
        writer.discard()
    elif end == "repeated":
        assert not commit()
    else:
        writer.finish()
        with pytest.raises(Exception, match="is gone"):
            staged.commit(
                directory, queue.settings, staging, [*writer.parts, f"{new_id()}.part"], carrying=True
            )
        staged.abort(directory, staging, carrying=True)
    assert set(kept(queue)) == before


def test_attempt_that_is_overtaken_by_an_abort_leaves_no_attributes(queue, monkeypatch):
    """RACE: the abort removes the message after it was written and before what it carries was."""
    staging, writer, _ = stage(queue)
    real = writer._extras.write_each

    def late(carried, *, flush):
        staged.abort(queue.layout.directory, staging, carrying=True)
        real(carried, flush=flush)

    monkeypatch.setattr(writer._extras, "write_each", late)
    writer.add([b"late"], None, None, [Extras(GIVEN)])
    assert len(kept(queue)) == 1
    with pytest.raises(Exception, match="is gone"):
        writer.add([b"later"], None, None, [Extras(GIVEN)])
    assert not kept(queue)


def test_purge_keeps_what_staged_messages_carry(tmp_path):
    """A job may take longer than `stale`: its attempts are kept, and so is what they carry."""
    queue = Queue(tmp_path / "queue", stale=0.01, sync=False)
    staging, _, commit = stage(queue)
    staged.touch(queue.layout.directory, staging, ahead=3600)
    until(
        lambda: queue.layout.directory.clock.now() > 30_000 + max(map(names.micros_of, kept(queue))), "stale"
    )
    queue.purge()
    assert len(kept(queue)) == 2
    assert commit()
    queue.purge()
    assert len(kept(queue)) == 2
