"""What a message carries beside its body: attributes, and the end of its life."""

import json
import os
import time
from pathlib import Path

import pytest
from support.kit import LONG, PATIENCE

from dirqueue import Empty, Queue, SettingsError, Unsupported, Worker
from dirqueue.disk import fs
from dirqueue.tools import delete, discover, transfer

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


def test_queue_without_attributes_pays_no_call(queue, monkeypatch):
    """For put, get and ack nothing asks for them."""
    queue.put_many([b"a", b"b"])
    asked = []
    for name in ("open", "unlink", "stat"):
        real = getattr(fs, name)

        def spy(path, *arguments, _real=real, **named):
            if "attributes" in str(path):
                asked.append(path)
            return _real(path, *arguments, **named)

        monkeypatch.setattr(fs, name, spy)
    queue.put(b"c")
    queue.get(timeout=0).ack()
    assert asked == []


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
