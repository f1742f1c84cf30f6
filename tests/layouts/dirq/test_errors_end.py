"""The end of a lease of a dirq layout: every errno branch, reached by its fault."""

import errno
import os
import shutil

import pytest
from support.dirq_queues import again, age, simply, tree
from support.failing import HARD, before, failing, names, of
from support.kit import LONG

from dirqueue import (
    Empty,
    LeaseLost,
    Queue,
    QueueAccess,
)
from dirqueue.layouts.dirq import store as dirq_store


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_end_of_a_lease_that_fails_raises(queue, verb, code):
    """The lease is still held, and can be ended later."""
    lease = again(queue).get(timeout=0)
    call = {
        "ack": "unlink" if simply(queue) else "rename",
        "renew": "utime",
        "retry": "unlink" if simply(queue) else "rmdir",
    }.get(verb, "unlink" if simply(queue) else "rmdir")
    with failing(call, code, times=2), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == code
    lease.ack()
    assert len(queue) == 0


@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_end_of_a_lease_that_is_gone_is_refused(queue, verb):
    """Before our look, and between our look and our hand."""
    lease = again(queue).get(timeout=0)
    simple = simply(queue)
    call = {"ack": "unlink" if simple else "rename", "renew": "utime"}.get(
        verb, "unlink" if simple else "rmdir"
    )
    with failing(call, errno.ENOENT), pytest.raises(LeaseLost):
        getattr(lease, verb)()
    shutil.rmtree(os.path.join(queue.path, lease.message.id[:8]))
    late = queue.layout
    for act in (late.ack, late.release, lambda held: late.renew(held, 1.0)):
        with pytest.raises(LeaseLost):
            act(lease._claim)


@pytest.mark.parametrize("verb", ["ack", "renew", "release"])
def test_late_end_is_refused(queue, verb):
    """The lock went stale and somebody else has it now: the message is theirs."""
    lease = again(queue).get(timeout=0)
    name = lease.message.id
    age(queue, f"{name}.lck" if simply(queue) else name)
    other = Queue(queue.path, layout=queue.layout.name, sync=False, margin=0, lease=60.0)
    theirs = other.get(timeout=0)
    assert theirs.token != lease.token
    with pytest.raises(LeaseLost):
        getattr(lease, verb)()
    theirs.ack()
    assert len(queue) == 0


def test_lock_that_is_taken_away_while_it_is_renewed_is_lost(queue):
    """The touch was of a lock that is nobody's."""
    lease = again(queue).get(timeout=0)
    path = os.path.join(queue.path, lease.message.id)
    remove = (lambda: os.unlink(path + ".lck")) if simply(queue) else (lambda: os.rmdir(path + "/locked"))
    with before("utime", remove), pytest.raises(LeaseLost):
        lease.renew()


@pytest.mark.parametrize("kind", ["ack", "cancel"])
def test_end_of_a_lease_whose_flush_fails_raises(make, kind):
    """A directory that went with its last name is no error."""
    queue = make(sync=True)
    for code in (errno.EIO, errno.ENOENT):
        queue.put(b"one")
        act = again(queue).get(timeout=0).ack if kind == "ack" else next(queue.peek()).cancel
        where = queue.layout.store.directories()[-1]
        if code == errno.EIO:
            with failing("fsync", code), pytest.raises(QueueAccess):
                act()
        else:
            with failing("open", code, when=of(where)):
                act()
    assert len(queue) == 0


def test_lock_that_cannot_be_removed_after_its_element_is_left_to_purge(simple):
    """The ack is done."""
    lease = again(simple).get(timeout=0)
    with failing("unlink", errno.EIO, when=of(".lck")):
        lease.ack()
    assert lease.ended == "acked"
    assert len(simple) == 0


def test_lease_ends_through_a_closed_queue_object(queue):
    """The layout itself opens the directory again."""
    lease = again(queue).get(timeout=0)
    queue.close()
    queue.layout.ack(lease._claim)
    assert len(queue) == 0


def test_retry_is_left_alone_for_its_delay(queue):
    """By us; others may take it at once."""
    again(queue).get(timeout=0).retry(LONG)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert 0 < queue.layout.wakes_in() <= LONG
    assert Queue(queue.path, layout=queue.layout.name, sync=False).get(timeout=0).message.body == b"one"


def test_element_whose_place_for_removal_is_missing(normal):
    """obsolete/ is made again; a name there that is taken is passed over, so often and no more."""
    store = normal.layout.store
    os.rmdir(os.path.join(normal.path, "obsolete"))
    again(normal).get(timeout=0).ack()
    normal.put(b"two")
    lease = again(normal).get(timeout=0)
    with failing("rename", errno.ENOTEMPTY, times=100_000) as fault, pytest.raises(QueueAccess):
        lease.ack()
    assert fault.hits == dirq_store.TRIES
    with failing("rename", errno.ENOTEMPTY):
        lease.ack()
    with failing("rename", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.removed("00000000/5f00000000000a")
    assert store.removed("00000000/5f00000000000a") is None


def test_what_is_left_of_a_removed_element_is_left_to_purge(normal):
    """A file of somebody else in it, an error of the disk, or another remover."""
    store = normal.layout.store
    name = again(normal).get(timeout=0).message.id
    with open(os.path.join(normal.path, name, "not-a-key"), "wb"):
        pass
    left = store.removed(name)
    assert left.startswith("obsolete/")
    assert tree(normal)[-4:] != []
    with failing("rmdir", errno.EIO, times=2):
        assert not store.discard(left)
    with failing("rmdir", errno.ENOENT, times=2), failing("rmdir", errno.ENOTEMPTY, times=3):
        assert not store.discard(left)
    shutil.rmtree(os.path.join(normal.path, left))
    assert store.discard(left)
    os.mkdir(os.path.join(normal.path, left))
    gone = before("listdir", lambda: os.rmdir(os.path.join(normal.path, left)))
    with failing("rmdir", errno.ENOTEMPTY, times=4), gone:
        assert store.discard(left)
    with failing("open", errno.ENOENT), failing("rmdir", errno.ENOTEMPTY, times=4):
        os.mkdir(os.path.join(normal.path, left))
        assert store.discard(left)


def test_cancel_whose_lock_stays_removes_the_element(simple):
    """A lock without an element is left to purge."""
    (message,) = simple.peek()
    with failing("unlink", errno.EIO, when=of(".lck")):
        message.cancel()
    assert tree(simple)[1:] == [f"{message.id}.lck"]
    assert len(simple) == 0
