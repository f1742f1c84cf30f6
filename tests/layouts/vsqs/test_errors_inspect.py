"""Listing, changing and purging the vsqs layout: every errno branch, reached by its fault."""

import errno
import os
import time

import pytest
from support.failing import HARD, before, failing, names, of
from support.kit import replaced
from support.vsqs_queues import listed

from dirqueue import (
    InvalidId,
    LeaseLost,
    MessageNotFound,
    Purged,
    QueueAccess,
    QueueError,
    QueueNotFound,
)
from dirqueue.disk import fs


@pytest.mark.parametrize("code", names(HARD))
def test_inspection_that_fails_raises(queue, code):
    """Reading, opening, measuring, removing; gone is gone."""
    (message,) = queue.peek()
    acts = {
        "open": [lambda: message.body, message.open],
        "stat": [lambda: message.size],
        "unlink": [lambda: queue.layout.remove(message.entry)],
    }
    for call, each in acts.items():
        for act in each:
            with failing(call, code), pytest.raises(QueueAccess) as caught:
                act()
            assert caught.value.errno == code
    for gone in (errno.ENOENT, errno.ESTALE):
        with failing("open", gone), pytest.raises(MessageNotFound):
            _ = message.body
    with open(os.path.join(queue.path, "queue.json"), "wb") as file:
        file.write(b"{}")
    assert [each.state for each in queue.layout.entries()] == ["ready"]
    with message.open() as stream:
        assert stream.read() == b"one"
    assert message.size == 3
    assert queue.layout.remove(message.entry)
    assert not queue.layout.remove(message.entry)
    with pytest.raises(MessageNotFound):
        message.cancel()


@pytest.mark.parametrize("code", names((errno.ENOENT, *HARD)))
def test_listing_that_fails_raises(queue, code):
    """With its errno and its path; one that is gone is gone."""
    told = QueueNotFound if code == errno.ENOENT else QueueAccess
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(told) as caught:
        list(queue.layout.entries())
    assert code in (errno.ENOENT, caught.value.errno)


def test_missing_queue_is_empty(make):
    """Neither found nor counted nor purged; a closed queue opens again."""
    queue = make()
    layout = queue.layout
    assert list(layout.entries()) == []
    assert layout.find("1700000000000000") is None
    assert layout.count() == 0
    assert layout.claim(1.0) is None
    assert layout.wakes_in() is None
    assert layout.purge() == Purged()
    with pytest.raises(LeaseLost):
        queue.lease("1700000000000000.1700000000000001")
    layout.create()
    queue.put_many([b"one", b"two"])
    messages = list(queue.peek())
    queue.close()
    assert [message.body for message in messages] == [b"one", b"two"]


def test_purge_takes_unfinished_messages_by_age_alone(make):
    """Those that go meanwhile are no error; who watches is told of each."""
    queue = make(stale=60.0)
    queue.put(b"one")
    old, young, gone = "1700000000000000.new", f"{time.time_ns() // 1000}.new", "1700000000000001.new"
    for name in (old, young, gone):
        with open(os.path.join(queue.path, name), "wb"):
            pass
    os.utime(os.path.join(queue.path, old), (0, 0))
    told = []
    with before("stat", lambda: os.unlink(os.path.join(queue.path, gone)), when=of(gone)):
        assert queue.layout.purge(lambda: told.append(1)) == Purged(new=1)
    assert len(told) == 2
    assert young in listed(queue)
    assert queue.layout.purge() == Purged()


def test_unsupported_call_is_refused(queue, make):
    """Each with the reason."""
    lease = queue.get(timeout=0)
    (entry,) = queue.layout.entries(("leased",))
    for act in (
        lambda: lease.reject("no"),
        lambda: queue.layout.change(entry, priority=None, delay=1.0),
        lambda: queue.layout.redrive(entry),
        lambda: make(priorities=True),
        lambda: make(keep_done=True),
    ):
        with pytest.raises(QueueError, match="the vsqs layout cannot"):
            act()
    with pytest.raises(MessageNotFound, match="only an unclaimed"):
        queue.layout.cancel(entry)
    assert queue.layout.leased_at(entry) is None
    assert queue.layout.failure(entry) is None


def test_find_needs_no_listing_for_a_message_that_is_ready(queue):
    """To find many of them one by one is not quadratic; one in flight is looked for, and an error is an error."""
    (id,) = listed(queue)
    with replaced(fs, scandir=lambda *_: pytest.fail("listed")):
        assert queue.layout.find(id).state == "ready"
    lease = queue.get(timeout=0)
    assert queue.layout.find(id).state == "leased"
    with failing("stat", errno.EIO), pytest.raises(QueueAccess):
        queue.layout.find(id)
    lease.ack()
    assert queue.layout.find(id) is None
    with pytest.raises(InvalidId, match="16 or 13 digits"):
        queue.message("x")
