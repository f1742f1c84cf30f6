"""Errors of what lies beside messages (attributes, the pause): every branch on an errno, each reached by its fault."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from support.failing import HARD, before, failing, names, of
from support.kit import LONG

from dirqueue import Empty, QueueAccess
from dirqueue.layouts import signs
from dirqueue.layouts.native import inspect, parts

GIVEN = {"colour": "blue"}


def file_of(queue, id):
    """Return the file with the attributes of a message."""
    (found,) = Path(queue.path, "attributes").glob(f"*/{id}")
    return found


def inside(path, *_, **__):
    """Select calls for attributes."""
    return "attributes/" in str(path)


def test_bucket_that_is_removed_as_fast_as_it_is_made_is_reported(make):
    """Once is no reason: it is made again."""
    queue = make(sync=True)
    with failing("open", errno.ENOENT, when=inside):
        id = queue.put(b"a", attributes=GIVEN)
    assert queue.message(id).attributes == GIVEN
    with failing("open", errno.ENOENT, when=inside, times=999), pytest.raises(QueueAccess, match="EBUSY"):
        queue.put(b"b", attributes=GIVEN)
    assert len(queue) == 1


def test_attributes_whose_reply_was_lost_are_written_again(make):
    """Ids are never used twice, so a file of that name is our own."""
    queue = make()
    queue.put(b"a", attributes=GIVEN)
    with failing("open", errno.EEXIST, when=inside, done=True):
        id = queue.put(b"b", attributes=GIVEN)
    assert queue.message(id).attributes == GIVEN


@pytest.mark.parametrize("code", names(HARD))
def test_attributes_that_cannot_be_read_are_reported(make, code):
    queue = make()
    message = queue.message(queue.put(b"a", attributes=GIVEN))
    with failing("open", code, when=inside), pytest.raises(QueueAccess):
        _ = message.attributes


def test_attributes_that_are_damaged_are_none(make):
    """The message is delivered all the same."""
    queue = make()
    file_of(queue, queue.put(b"a", attributes=GIVEN)).write_text("{")
    message = queue.get(timeout=0).message
    assert (message.body, message.attributes) == (b"a", {})


def test_message_whose_time_is_over_and_that_another_consumer_takes(make):
    """It is not ours to bury."""
    queue, other = make(), make()
    path = file_of(queue, queue.put(b"a", ttl=LONG))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires": 10**15}))

    def dead(_, target, *__, **___):
        return "dead/" in str(target)

    def take():
        for place in Path(queue.path, "leased").rglob("*"):
            if place.is_file():
                place.unlink()

    with before("rename", take, when=dead), pytest.raises(Empty):
        queue.get(timeout=0)
    assert list(other.peek("dead")) == []


@pytest.mark.parametrize("code", names(HARD))
def test_pause_that_cannot_be_seen_begun_or_ended_is_reported(queue, code):
    with failing("stat", code, when=of("paused")), pytest.raises(QueueAccess):
        _ = queue.paused
    with failing("open", code, when=of("paused")), pytest.raises(QueueAccess):
        queue.pause()
    queue.pause()
    with failing("unlink", code, when=of("paused")), pytest.raises(QueueAccess):
        queue.resume()
    assert queue.paused


@pytest.mark.parametrize("code", names((errno.EIO,)))
def test_room_that_cannot_be_listed_is_reported(queue, code):
    queue.get(timeout=0)
    with failing("scandir", code), pytest.raises(QueueAccess):
        inspect.buckets(queue.layout.directory, "leased")


@pytest.mark.parametrize("code", names(HARD))
def test_queue_whose_room_cannot_be_made_is_reported(make, code):
    with failing("mkdir", code, when=of("leased")), pytest.raises(QueueAccess, match="make the queue"):
        make().put(b"a")


def test_lot_that_ends_while_it_is_listed(queue):
    assert list(parts.read(queue.layout.directory, "gone/", 0, "c")) == []


def test_directory_of_attributes_that_cannot_be_listed_counts_as_one(queue):
    """So that nobody takes it for a queue."""
    queue.put(b"a", attributes=GIVEN)
    with failing("scandir", errno.EACCES, when=of("attributes")):
        assert signs._holds_buckets(os.path.join(queue.path, "attributes"))
    shutil.rmtree(os.path.join(queue.path, "attributes"))
