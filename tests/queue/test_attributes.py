"""What a message carries beside its body: attributes, and the end of its life."""

import contextlib
import errno
import json
import os
import time
from pathlib import Path

import pytest
from support.kit import LONG, PATIENCE

from dirqueue import Empty, Queue, QueueAccess, SettingsError, Unsupported, Worker
from dirqueue.disk import fs
from dirqueue.layouts.native.staging import Start
from dirqueue.tools import delete, discover, spool, transfer

GIVEN = {"colour": "blau ü", "trace": "4bf92f"}


@pytest.fixture(name="queue")
def _queue(make_queue, needs):
    needs("attributes")
    return make_queue()


def kept(queue):
    """Return the files in attributes/, by id."""
    return {path.name: path for path in Path(queue.path, "attributes").glob("*/*")}


def test_layout_without_attributes_says_why(make_queue):
    """And puts nothing."""
    queue = make_queue()
    if "attributes" in queue.layout.lacks:
        for how in ({"attributes": GIVEN}, {"ttl": 5}):
            with pytest.raises(Unsupported, match="cannot carry attributes"):
                queue.put(b"a", **how)
            with pytest.raises(Unsupported, match="cannot carry attributes"):
                queue.put_many([b"a"], **how)
        assert len(queue) == 0


def test_attributes_come_with_the_message(queue, make_queue):
    """In every state, to every client; the body is as it was."""
    id = queue.put(b"body", attributes=GIVEN)
    plain = queue.put(b"plain")
    assert queue.message(id).attributes == GIVEN
    assert queue.message(id).to_dict()["attributes"] == GIVEN
    assert queue.message(plain).attributes == {}
    lease = make_queue().get(timeout=0)
    assert (lease.message.body, lease.message.attributes) == (b"body", GIVEN)
    lease.retry(0, "again")
    lease = queue.get(timeout=0)
    assert (lease.message.id, lease.message.attributes) == (id, GIVEN)
    other = Queue(queue.path, sync=False).lease(lease.handle)
    assert other.message.attributes == GIVEN
    other.reject("bad")
    assert next(queue.peek("dead")).attributes == GIVEN
    queue.redrive(id)
    assert queue.message(id).attributes == GIVEN


@pytest.mark.parametrize("count", [1, 2, 9])
def test_batch_carries_attributes(queue, count):
    """Each of its messages, in one bucket of files."""
    ids = queue.put_many((b"%d" % number for number in range(count)), attributes=GIVEN, ttl=LONG)
    assert set(kept(queue)) == set(ids)
    leases = queue.get_many(count, timeout=0)
    assert [lease.message.body for lease in leases] == [b"%d" % number for number in range(count)]
    for lease in leases:
        assert lease.message.attributes == GIVEN
        assert lease.message.expires_at is not None
        lease.ack()
    assert kept(queue) == {}


def test_batch_that_fails_leaves_no_attributes(queue, monkeypatch):
    """Neither of the messages that were staged nor of the one that failed."""
    with pytest.raises(SettingsError):
        queue.put_many([b"a", b"b"], attributes={"a": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(queue.layout._publisher, "_show", full)
    with pytest.raises(OSError, match="no space"):
        queue.put_many([b"a", b"b"], attributes=GIVEN)
    assert kept(queue) == {}
    assert len(queue) == 0


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("delay", [0, LONG])
def test_file_that_is_moved_in_carries_attributes(queue, tmp_path, link, delay):
    """And so does one that is linked, or delayed."""
    (tmp_path / "file").write_bytes(b"long")
    id = queue.put_path(tmp_path / "file", attributes=GIVEN, link=link, delay=delay)
    assert queue.message(id).attributes == GIVEN
    assert queue.message(id).data == b"long"


def test_file_that_cannot_be_moved_in_leaves_no_attributes(queue, monkeypatch, tmp_path):
    """As when it is on another filesystem."""
    (tmp_path / "file").write_bytes(b"long")

    def elsewhere(*_):
        raise OSError(errno.EXDEV, "elsewhere")

    queue.put(b"a")
    monkeypatch.setattr(type(queue.layout.directory.mount), "publish", elsewhere)
    with pytest.raises(QueueAccess):
        queue.put_path(tmp_path / "file", attributes=GIVEN)
    assert kept(queue) == {}


def test_producer_that_was_stopped_for_long_puts_the_attributes_back(queue, monkeypatch, tmp_path):
    """A purge took them for a leftover between their writing and the move of the file."""
    (tmp_path / "file").write_bytes(b"long")
    queue.put(b"a", attributes=GIVEN)
    real, mount = queue.layout.directory.mount.publish, type(queue.layout.directory.mount)

    def publish(_self, *arguments):
        for path in kept(queue).values():
            path.unlink()
        real(*arguments)

    monkeypatch.setattr(mount, "publish", publish)
    monkeypatch.setattr(Start, "is_recent", lambda *_: False)
    id = queue.put_path(tmp_path / "file", attributes=GIVEN)
    assert queue.message(id).attributes == GIVEN


def test_put_without_room_for_attributes_leaves_nothing(queue, monkeypatch):
    """Neither a message without them, nor an unfinished one."""
    queue.put(b"a")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(queue.layout._extras, "_create", full)
    with pytest.raises(QueueAccess, match="disk is full"):
        queue.put(b"b", attributes=GIVEN)
    with pytest.raises(QueueAccess, match="disk is full"):
        queue.put_many([b"b", b"c"], attributes=GIVEN)
    assert len(queue) == 1
    assert [entry.state for entry in queue.layout.entries()] == ["ready"]


def test_put_that_was_stopped_until_a_purge_took_its_attributes_begins_again(make_queue, needs, monkeypatch):
    """They are written after the body, so that its own file is gone as well."""
    needs("attributes")
    queue, other = make_queue(), make_queue(stale=0.0)
    queue.put(b"a")
    mount = type(queue.layout.directory.mount)
    real, seen = mount.publish, []

    def publish(self, new, visible, dir_fd):
        if not seen:
            seen.append(set(kept(queue)))
            time.sleep(0.01)
            other.purge()
            assert not kept(queue)
        return real(self, new, visible, dir_fd)

    monkeypatch.setattr(mount, "publish", publish)
    id = queue.put(b"b", attributes=GIVEN)
    assert len(seen[0]) == 1, "they are there before it"
    assert seen != [{id}], "it has another id now"
    assert queue.message(id).attributes == GIVEN
    assert [message.data for message in queue.peek()] == [b"a", b"b"]


def test_ack_cancel_and_flush_remove_the_file(queue):
    """And only that of their message."""
    first, second, third = (queue.put(b"a", attributes=GIVEN) for _ in range(3))
    assert set(kept(queue)) == {first, second, third}
    lease = queue.get(timeout=0)
    lease.ack()
    assert lease.message.attributes == GIVEN, "still known to who held it"
    assert set(kept(queue)) == {second, third}
    queue.message(second).cancel()
    assert set(kept(queue)) == {third}
    queue.flush()
    assert kept(queue) == {}


def test_history_keeps_attributes(make_queue, needs):
    """A done message is still a message."""
    needs("attributes", "done")
    queue = make_queue(keep_done=True)
    queue.put(b"a", attributes=GIVEN)
    queue.get(timeout=0).ack()
    assert next(queue.peek("done")).attributes == GIVEN


def test_change_of_priority_takes_attributes_along(make_queue, needs):
    """The id changes, and the file's name with it."""
    needs("attributes", "priority")
    queue = make_queue(priorities=True)
    id = queue.put(b"a", attributes=GIVEN)
    changed = queue.message(id).change(priority=1)
    assert changed.id != id
    assert changed.attributes == GIVEN
    assert set(kept(queue)) == {changed.id}


def test_move_takes_attributes_along(queue, make_queue):
    """To another queue, and nothing stays behind."""
    other = make_queue("other")
    queue.put(b"a", attributes=GIVEN)
    (id,) = transfer.move(queue, other).ids
    assert other.message(id).attributes == GIVEN
    assert kept(queue) == {}


def test_long_body_moves_with_its_attributes(queue, make_queue, tmp_path, monkeypatch):
    """Claimed, put and acknowledged, as between two filesystems."""
    monkeypatch.setattr(spool, "AT_ONCE", 10)
    other, body = make_queue("other"), b"long" * 100
    for attributes in (GIVEN, None):
        queue.put(body, attributes=attributes)
    assert transfer._relay(queue, other, 2, lambda: None)
    found = list(other.peek())
    assert [(message.data, message.attributes) for message in found] == [(body, GIVEN), (body, {})]
    assert kept(queue) == {}


def test_queue_without_attributes_pays_no_call_for_a_message(queue, monkeypatch):
    """One for a listing, whatever it found; none for put, get and ack of each."""
    queue.put_many([b"a", b"b", b"c"])
    asked = []
    for name in ("open", "unlink", "stat"):
        real = getattr(fs, name)

        def spy(path, *arguments, _real=real, **named):
            if "attributes" in str(path):
                asked.append(path)
            return _real(path, *arguments, **named)

        monkeypatch.setattr(fs, name, spy)
    queue.get(timeout=0).ack()
    assert asked == ["attributes"]
    asked.clear()
    queue.put(b"c")
    queue.get(timeout=0).ack()
    assert asked == []


def test_first_message_with_attributes_is_delivered_with_them(make_queue, needs):
    """To a consumer that knew the queue without any: one that was put by itself, and what follows a listing."""
    needs("attributes")
    for number, order in enumerate(("fifo", "lifo", "random")):
        queue = make_queue(f"queue{number}", order=order)
        queue.put_many([b"a", b"b"])
        assert queue.get(timeout=0).message.attributes == {}
        queue.put(b"c", attributes=GIVEN)
        found = {lease.message.body: lease.message.attributes for lease in queue.get_many(9, timeout=0)}
        assert found[b"c"] == GIVEN


def test_attributes_that_a_listing_did_not_show_are_found(make_queue, needs, monkeypatch):
    """A listing may have passed by where attributes/ is, and show the message that came after it."""
    needs("attributes")
    queue, producer = make_queue(), make_queue()
    queue.put(b"a")
    queue.get(timeout=0).ack()
    real, hidden = fs.entries, []

    @contextlib.contextmanager
    def entries(path, dir_fd):
        if not hidden:
            producer.put(b"b", attributes=GIVEN)
        with real(path, dir_fd) as found:
            hidden.append(True)
            yield (entry for entry in list(found) if entry.name != "attributes")

    monkeypatch.setattr(fs, "entries", entries)
    assert queue.get(timeout=0).message.attributes == GIVEN
    assert hidden


def test_plain_message_beside_others_is_asked_for_once(queue, monkeypatch):
    """In a queue that has attributes: one call at the claim, none at the ack."""
    queue.put(b"a", attributes=GIVEN)
    queue.get(timeout=0).ack()
    queue.put(b"plain")
    asked = []
    for name in ("open", "unlink"):
        real = getattr(fs, name)

        def spy(path, *arguments, _real=real, **named):
            if "attributes" in str(path):
                asked.append(path)
            return _real(path, *arguments, **named)

        monkeypatch.setattr(fs, name, spy)
    queue.get(timeout=0).ack()
    assert len(asked) == 1


def test_purge_removes_files_of_messages_that_are_gone(make_queue, needs):
    """When they are stale; not those of messages that wait."""
    needs("attributes")
    queue = make_queue(stale=0.0)
    gone, stays = queue.put(b"a", attributes=GIVEN), queue.put(b"b", attributes=GIVEN)
    os.unlink(Path(queue.path, gone))  # as a program does that does not know of attributes
    time.sleep(0.01)
    assert queue.purge().other == 1
    assert set(kept(queue)) == {stays}
    assert Queue(queue.path).purge().other == 0


def test_directory_of_attributes_is_no_queue_and_goes_with_the_queue(queue, tmp_path):
    """It is not found as one, nor foreign; delete removes it."""
    queue.put(b"a", attributes=GIVEN)
    assert list(discover.find(str(tmp_path))) == [queue.path]
    assert queue.stats().foreign == 0
    assert delete.delete(queue.layout) == 1
    assert not Path(queue.path).exists()


@pytest.mark.parametrize("bad", [["a"], {"a": 1}, {1: "a"}, {"": "a"}, {"a": "x" * 20_000}], ids=str)
def test_attributes_that_are_no_small_map_of_text_are_refused(queue, bad):
    """And nothing is put."""
    with pytest.raises(SettingsError, match="attribute"):
        queue.put(b"a", attributes=bad)
    assert len(queue) == 0


def _handler(message):
    Path(message.body.decode()).write_text(json.dumps(message.attributes))


@pytest.mark.parametrize("processes", [0, 1], ids=["threads", "processes"])
def test_handler_sees_attributes(queue, tmp_path, processes):
    """In a thread and in a child."""
    queue.put(str(tmp_path / "seen").encode(), attributes=GIVEN)
    Worker(queue, _handler, processes=processes).run_until_empty()
    assert json.loads((tmp_path / "seen").read_text()) == GIVEN


# --- the end of life -----------------------------------------------------------------------------------------


def expire(queue, id):
    """Let the time of a message be over."""
    path = kept(queue)[id]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires": 10**15}))


def test_message_is_delivered_before_its_time_is_over(queue):
    """With the instant of that."""
    queue.put(b"a", ttl=LONG)
    message = queue.get(timeout=0).message
    assert 0 < (message.expires_at - message.enqueued_at).total_seconds() < LONG + PATIENCE


@pytest.mark.parametrize("by", ["get", "purge"])
@pytest.mark.parametrize("keep", [True, False])
def test_message_whose_time_is_over_is_not_delivered(make_queue, needs, by, keep):
    """It is dead with that reason, or gone, as the queue says."""
    needs("attributes")
    queue = make_queue(keep_expired=keep)
    id = queue.put(b"a", ttl=LONG, attributes=GIVEN)
    expire(queue, id)
    if by == "purge":
        assert queue.purge().expired == 1
    with pytest.raises(Empty):
        queue.get(timeout=0)
    dead = list(queue.peek("dead"))
    assert [(message.id, message.error, message.attributes) for message in dead] == (
        [(id, "expired", GIVEN)] if keep else []
    )
    assert set(kept(queue)) == ({id} if keep else set())


def test_redriven_message_lives_on(queue):
    """Somebody wants it, so it does not expire again."""
    id = queue.put(b"a", ttl=LONG, attributes=GIVEN)
    expire(queue, id)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert queue.redrive() == [id]
    message = queue.get(timeout=0).message
    assert (message.id, message.expires_at, message.attributes) == (id, None, GIVEN)


@pytest.mark.parametrize("bad", [0, -1, "soon", float("nan")])
def test_ttl_that_is_no_time_is_refused(queue, bad):
    """And nothing is put."""
    with pytest.raises(SettingsError, match="ttl"):
        queue.put(b"a", ttl=bad)
    assert len(queue) == 0
