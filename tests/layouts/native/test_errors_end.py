"""Errors of ending leases: every branch on an errno, each reached by the fault that it is for."""

import contextlib
import errno
import os
import time

import pytest
from support.checker import problems
from support.failing import FULL, HARD, before, failing, names, of
from support.kit import replaced
from support.native import held_names, is_directory, remote

from dirqueue import (
    Empty,
    LeaseLost,
    QueueAccess,
)
from dirqueue.disk import fs
from dirqueue.disk.ballast import NAME as BALLAST


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_end_that_fails_says_so_and_changes_nothing(queue, verb, code):
    """The lease is still held, and can be ended later."""
    lease = queue.get(timeout=0)
    call = "unlink" if verb == "ack" else "rename"
    with failing(call, code, when=of(lease.handle)), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == code
    lease.ack()
    assert held_names(queue) == []


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_end_of_a_lease_that_is_gone_is_refused(queue, verb, code):
    """Both errnos mean that somebody else has it, whatever room it should have gone to."""
    lease = queue.get(timeout=0)
    call = "unlink" if verb == "ack" else "rename"
    fault = failing(call, code, when=of(lease.handle))
    if code == errno.ENOENT:  # it can also mean that there is no bucket: whether the message is there tells
        os.unlink(os.path.join(queue.path, lease.handle))
        fault = contextlib.nullcontext()
    with fault, pytest.raises(LeaseLost):
        getattr(lease, verb)()


@pytest.mark.parametrize("code", names(FULL))
@pytest.mark.parametrize("verb", ["renew", "retry", "release", "reject"])
def test_end_on_a_full_disk_costs_the_ballast(queue, verb, code):
    """With a reserve it works; without one it is told."""
    lease = queue.get(timeout=0)
    with failing("rename", code, when=of(lease.handle), times=2), pytest.raises(QueueAccess):
        getattr(lease, verb)()
        getattr(lease, verb)()
    with open(os.path.join(queue.path, BALLAST), "wb"):
        pass
    with failing("rename", code, when=of(lease.handle)), failing("syncfs", errno.EIO):
        getattr(lease, verb)()
    assert not os.path.exists(os.path.join(queue.path, BALLAST))


@pytest.mark.parametrize("code", names(FULL))
@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_place_for_ended_messages_on_a_full_disk_costs_the_ballast(make, verb, code):
    """done/ and dead/ are made when they are first needed."""
    queue = make(keep_done=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    with failing("mkdir", code, times=4), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == code
    with open(os.path.join(queue.path, BALLAST), "wb"):
        pass
    with failing("mkdir", code):
        getattr(lease, verb)()
    assert held_names(queue) == []


@pytest.mark.parametrize("verb", ["ack", "reject", "cancel", "redrive"])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_end_that_cannot_be_made_durable_is_told(make, verb, kept, first):
    """Whether dead/ and done/ are new or not: that the names will stay changed is not promised."""
    queue = make(sync=True, keep_done=kept)
    if not first:
        queue.put_many([b"a", b"b"])
        queue.get(timeout=0).ack()
        queue.get(timeout=0).reject("no")
    queue.put(b"one")
    lease = queue.get(timeout=0)
    act = lease.ack if verb == "ack" else lease.reject
    if verb == "cancel":
        lease.release()
        act = next(queue.peek()).cancel
    elif verb == "redrive":
        lease.reject("no")
        act = queue.redrive
    with failing("fsync", errno.EIO, when=is_directory, times=9), pytest.raises(QueueAccess) as caught:
        act()
    assert caught.value.errno == errno.EIO
    assert problems(queue.path) == []


@pytest.mark.parametrize("verb", ["ack", "reject"])
@pytest.mark.parametrize("folder", ["leased", "1700000000000000000000001.batch"])
def test_end_whose_directory_is_removed_before_it_is_flushed_is_no_error(make, verb, folder):
    """By hand, or (of the earlier format) as an emptied batch: it is gone with its names."""
    queue = make(sync=True)
    queue.layout.create()
    directory = os.path.join(queue.path, folder)
    os.makedirs(directory, exist_ok=True)
    name = f"1700000000000000000000002.{time.time_ns() // 1000 + 10**8}.1.other"
    with open(os.path.join(directory, name), "wb"):
        pass
    lease = queue.lease(f"{folder}/{name}")
    with before("open", lambda: os.rmdir(directory), when=of(folder)):
        getattr(lease, verb)()
    assert lease.ended == ("acked" if verb == "ack" else "dead")


def test_ack_on_a_network_filesystem_survives_a_lost_reply(queue):
    """Renamed to a name of ours first: its presence is the proof. A lost lease is still told."""
    remote(queue)
    queue.put(b"two")
    lease, late = queue.get(timeout=0), queue.get(timeout=0)
    with failing("rename", errno.ENOENT, when=of(lease.handle), done=True):
        lease.ack()
    os.unlink(os.path.join(queue.path, late.handle))
    with pytest.raises(LeaseLost):
        late.ack()
    assert held_names(queue) == []


@pytest.mark.parametrize("verb", ["retry", "release", "reject"])
def test_end_whose_reply_was_lost_and_whose_message_was_claimed_at_once_is_good(queue, verb):
    """On a network filesystem: nobody else can have taken a lease that is live."""
    remote(queue)
    lease = queue.get(timeout=0)

    def vanish(src, dst, **named):
        if src != lease.handle:
            return real["rename"](src, dst, **named)
        os.unlink(os.path.join(queue.path, src))
        raise FileNotFoundError(errno.ENOENT, "no reply", src)

    with replaced(fs, rename=vanish) as real:
        getattr(lease, verb)()
    assert held_names(queue) == []


def test_renewal_whose_message_is_gone_is_refused_on_a_network_filesystem_too(queue):
    """Who renews goes on working, so there the doubt counts against it."""
    remote(queue)
    lease = queue.get(timeout=0)
    os.unlink(os.path.join(queue.path, lease.handle))
    with pytest.raises(LeaseLost):
        lease.renew()


def test_release_on_a_network_filesystem_has_a_name_of_its_own(queue):
    """The plain id is one that others can make, so its presence would prove nothing."""
    remote(queue)
    with failing("rename", errno.ENOENT, when=lambda src, dst, **_: src.count(".") == 3, done=True):
        queue.get(timeout=0).release()
    lease = queue.get(timeout=0)
    assert (lease.message.body, lease.message.attempts) == (b"one", 1)


def test_failure_whose_reason_cannot_be_kept_is_a_failure_all_the_same(queue):
    """A full disk must not keep a message from being given back."""
    lease = queue.get(timeout=0)
    with failing("write", errno.ENOSPC):
        lease.retry(0, error="why")
    (found,) = queue.peek()
    assert (found.attempts, found.error) == (1, None)
    lease = queue.get(timeout=0)
    with failing("stat", errno.EIO, when=of(lease.handle)):
        lease.retry(0, error="why")
    (found,) = queue.peek()
    assert (found.attempts, found.error) == (2, None)


@pytest.mark.parametrize("code", names([errno.ENOENT, *HARD]))
def test_message_out_of_attempts_that_cannot_be_buried(make, code):
    """Taken by somebody else, or in a directory of another user's: passed over. Any other error is reported."""
    queue = make(max_attempts=1)
    queue.put(b"one")
    lease = queue.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    told = Empty if code in (errno.ENOENT, errno.EACCES) else QueueAccess
    with failing("rename", code, when=of(lease.handle)), pytest.raises(told):
        queue.get(timeout=0)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert "never acknowledged" in next(queue.peek("dead")).error


def test_failed_message_out_of_attempts_takes_its_reason_along(make):
    """It waits for its next delivery when the limit is lowered: buried with why it failed last."""
    queue = make()
    queue.put(b"one")
    queue.get(timeout=0).retry(0, error="why")
    strict = make(max_attempts=1)
    with failing("rename", errno.EIO, when=of(".error")), pytest.raises(Empty):
        strict.get(timeout=0)
    queue.put(b"two")
    queue.get(timeout=0).retry(0, error="why")
    with pytest.raises(Empty):
        strict.get(timeout=0)
    assert [each.error for each in queue.peek("dead")] == [None, "why"]
