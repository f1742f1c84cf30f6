"""Locks of dirq whose holder never came back: every branch and every race."""

import errno
import os
import time

import pytest
from support.dirq_queues import again, age, locked, relock, simply, tree
from support.failing import before, failing, of

from dirqueue import (
    Empty,
    Queue,
)


def test_stale_lock_is_taken_over(queue):
    """Its holder never came back."""
    locked(queue)
    other = Queue(queue.path, layout=queue.layout.name, sync=False, margin=0, lease=60.0)
    lease = other.get(timeout=0)
    assert lease.message.body == b"one"
    lease.ack()
    assert len(queue) == 0


def test_stale_lock_that_is_not_stale_any_more_is_put_back(queue):
    """Between the look and the hand its holder unlocked and another locked anew."""
    name = locked(queue)
    store = queue.layout.store
    limit = (time.time_ns() // 10**9 - 60) * 10**9

    with before("rename", lambda: relock(queue, name)):
        assert not store.break_lock(name, limit)
    assert queue.layout.find(name).state == "leased"


def test_stale_lock_that_vanishes_is_not_taken_over(queue):
    """Renamed away by another, or its new name is taken."""
    name = locked(queue)
    store = queue.layout.store
    limit = time.time_ns() - 60 * 10**9
    with failing("rename", errno.ENOENT):
        assert not store.break_lock(name, limit)
    if not simply(queue):
        with failing("rename", errno.ENOTEMPTY):
            assert not store.break_lock(name, limit)
        assert not store.break_lock(f"{name[:9]}{'0' * 14}", limit)
        assert not store.older(f"{name[:9]}{'0' * 14}", limit)
    with failing("rename", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.break_lock(name, limit)
    assert store.break_lock(name, limit)


@pytest.mark.parametrize("code", [errno.EEXIST, None])
def test_live_lock_that_cannot_be_put_back_is_given_up(normal, code):
    """There is another lock already, or no such call: the renamed one goes."""
    name = locked(normal)
    with before("rename", lambda: relock(normal, name)), failing("rename_noreplace", code):
        assert not normal.layout.store.break_lock(name, time.time_ns() - 60 * 10**9)
    assert os.listdir(os.path.join(normal.path, "temporary")) == []


def test_takeover_that_comes_too_late_leaves_nothing(simple):
    """The element is gone, another locked it between the two names, or the disk fails: nothing of ours is left."""
    store = simple.layout.store
    limit = time.time_ns() - 60 * 10**9
    name = locked(simple)
    with before("open", lambda: os.unlink(os.path.join(simple.path, name)), when=of(name)):
        assert store.steal(name, limit) is None
    simple.put(b"two")
    name = locked(simple)
    assert store.steal(name, 0) is None
    age(simple, f"{name}.lck")
    with failing("link", errno.EEXIST):
        assert store.steal(name, limit) is None
    again(simple).get(timeout=0)
    age(simple, f"{name}.lck")
    with failing("utime", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.steal(name, limit)
    assert [each for each in tree(simple) if each.endswith(".tmp")] == []


def test_lock_that_ended_between_two_looks_is_tried_again(normal):
    """It was there when we tried, and gone when we asked since when."""
    other = Queue(normal.path, layout="dirq-normal", sync=False)
    lease = other.get(timeout=0)
    with before("stat", lease.release, when=of("/locked")):
        again(normal).get(timeout=0).ack()
    store = normal.layout.store
    normal.put(b"two")
    name = again(normal).get(timeout=0).message.id
    with failing("stat", errno.ENOENT, when=lambda path, **_: path == name):
        assert store.locked_at(name) is None


def test_lock_that_goes_the_moment_it_is_made_is_not_ours(normal):
    """Broken by somebody whose clock is wrong."""
    with failing("stat", errno.ENOENT, when=of("/locked"), times=3), pytest.raises(Empty):
        again(normal).get(timeout=0)


def test_live_lock_of_an_element_that_is_removed_meanwhile_is_not_put_back(simple):
    """Its holder removed the element while we looked at the lock."""
    name = again(simple).get(timeout=0).message.id
    with failing("link", errno.ENOENT):
        assert simple.layout.store.break_lock(name, 0) is None
    assert [each for each in tree(simple) if "." in each] == []
