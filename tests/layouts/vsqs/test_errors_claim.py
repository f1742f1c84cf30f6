"""Claims from the vsqs layout and their ends: every errno branch, reached by its fault."""

import errno
import os
import time

import pytest
from support.failing import HARD, failing, names, nothing_left_open
from support.kit import LONG, drain, replaced
from support.vsqs_queues import listed

from dirqueue import (
    Empty,
    LeaseLost,
    Queue,
    QueueAccess,
    SettingsError,
)
from dirqueue.disk import fs
from dirqueue.layouts.vsqs import layout


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_claim_that_comes_too_late_tries_the_next(queue, code):
    """Somebody was faster: at the rename, or at the opening."""
    queue.put(b"two")
    with failing("rename", code):
        assert queue.get(timeout=0).message.body == b"two"
    queue.put(b"three")
    with failing("open", errno.ENOENT, when=lambda path, *_, **__: path.count(".") == 1 and path != "."):
        assert queue.get(timeout=0).message.body == b"three"


def test_claim_that_always_comes_too_late_gives_up(queue, monkeypatch):
    """Bounded, as every loop on an errno."""
    monkeypatch.setattr(layout, "LOOKS", 20)
    with failing("rename", errno.ENOENT, times=1000) as fault, pytest.raises(Empty):
        queue.get(timeout=0)
    assert fault.hits == 20


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("call", ["rename", "scandir"])
def test_claim_that_fails_raises(queue, call, code):
    """With its errno; the message is where it was."""
    with failing(call, code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names((*HARD, errno.EMFILE)))
@pytest.mark.parametrize("call", ["open", "read"])
def test_body_that_cannot_be_read_is_left_alone_for_a_lease(make, call, code):
    """There is no place to count failures: it is told, others come through, and it comes again; nothing stays open."""
    queue = make()
    queue.put(b"bad")
    queue.put(b"good")
    queue.get(timeout=0).release()
    when = (lambda path, *_, **__: path.count(".") == 1 and path != ".") if call == "open" else None
    with nothing_left_open(), failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert queue.get(timeout=0).message.body == b"good"
    assert queue.stats().leased == 2


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_queue_that_goes_while_it_is_listed_is_empty(queue, code):
    """And is looked at anew the next time."""
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(Empty):
        queue.get(timeout=0)
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names((errno.ENOENT, *HARD)))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_end_of_a_lease_that_fails_raises(queue, verb, code):
    """Gone is a lost lease; anything else is an error, and the lease is still held."""
    lease = queue.get(timeout=0)
    call = {"ack": "unlink", "release": "rename_noreplace", "retry": "rename", "renew": "rename"}[verb]
    arguments = (5.0,) if verb == "retry" else ()
    with failing(call, code), pytest.raises(LeaseLost if code == errno.ENOENT else QueueAccess):
        getattr(lease, verb)(*arguments)
    if code != errno.ENOENT:
        lease.ack()
        assert listed(queue) == []


@pytest.mark.parametrize("verb", ["ack", "renew", "release"])
def test_late_end_is_refused(queue, verb):
    """The lease ran out and somebody else has the message now."""
    lease = queue.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    other = Queue(queue.path, layout="vsqs", sync=False, margin=0)
    theirs = other.get(timeout=0, lease=LONG)
    with pytest.raises(LeaseLost):
        getattr(lease, verb)()
    theirs.ack()
    assert listed(queue) == []


def test_retry_waits_and_a_retry_at_once_does_not(queue):
    """A delay is a time in flight; without one it is ready."""
    queue.get(timeout=0).retry(LONG)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert 0 < queue.layout.wakes_in() <= LONG
    queue.put(b"two")
    queue.get(timeout=0).retry(0)
    assert queue.get(timeout=0).message.body == b"two"


def test_release_onto_an_id_that_another_has_overwrites_nothing(queue):
    """Another program made a message of the same id: ours waits as one that is over, and both come."""
    lease = queue.get(timeout=0)
    with open(os.path.join(queue.path, lease.message.id), "wb") as file:
        file.write(b"another")
    lease.release()
    other = Queue(queue.path, layout="vsqs", sync=False, margin=0)
    assert sorted(drain(other)) == [b"another", b"one"]


def test_renewal_within_one_millisecond_keeps_its_name(make):
    """In milliseconds the next end may be the same: then there is nothing to rename."""
    queue = make(milliseconds=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    handle = lease.handle
    with replaced(fs, move=lambda *_: pytest.fail("renamed onto itself")):
        queue.layout._put_off(lease._claim, lease._claim.ends, "renew")
    assert lease.handle == handle
    lease.ack()


def test_handle_of_another_process_is_taken_over(queue):
    """By its exact name; gone is lost, anything else is refused."""
    lease = queue.get(timeout=0)
    with pytest.raises(SettingsError):
        queue.lease(lease.message.id)
    queue.lease(lease.handle).ack()
    with pytest.raises(LeaseLost):
        queue.lease(lease.handle)


def test_ends_of_leases_are_flushed(make):
    """Ack flushes the directory; if that fails it is told."""
    queue = make(sync=True)
    queue.put(b"one")
    queue.put(b"two")
    queue.get(timeout=0).ack()
    lease = queue.get(timeout=0)
    with failing("fsync", errno.EIO), pytest.raises(QueueAccess):
        lease.ack()
