"""What belongs to another user, or was closed meanwhile: stepped over, and the rest of the queue goes on."""

import errno
import os
import shutil
import time

import pytest
from support.failing import failing, names, of
from support.kit import drain
from support.native import held_names

from dirqueue import Empty, QueueNotFound
from dirqueue.layouts.native import cursor

NAME = "1700000000000000000000001"
REFUSED = names([errno.EACCES, errno.EPERM])


def in_a_batch(path, *_, **__):
    """Select the calls for messages of a batch."""
    return ".batch/" in path


@pytest.fixture
def mixed(make):
    """Give a queue with a batch, and a message after it."""
    queue = make()
    queue.put_many([b"one", b"two"])
    queue.put(b"three")
    return queue


def look(queue):
    """Let the next claim list the queue again."""
    queue.layout._cursor.stale()
    return queue


@pytest.mark.parametrize("code", REFUSED)
@pytest.mark.parametrize(("call", "when"), [("open", of(".batch/")), ("rename", in_a_batch)])
def test_batch_that_we_may_not_use_is_left_alone_for_a_while(mixed, monkeypatch, call, when, code):
    """What is behind it is delivered; the batch is tried once, and again after its time."""
    with failing(call, code, when=when, times=100) as fault:
        assert drain(mixed) == [b"three"]
        for _ in range(3):
            with pytest.raises(Empty):
                look(mixed).get(timeout=0)
        assert fault.hits == 1
    assert drain(look(mixed)) == []
    assert len(mixed) == 2
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + cursor.CLOSED_SECONDS)
    assert drain(look(mixed)) == [b"one", b"two"]


@pytest.mark.parametrize("code", REFUSED)
def test_emptied_batch_that_we_may_not_remove_is_left_to_its_owner(mixed, code):
    """Consumers and purgers go on without it; whoever may remove it does."""
    os.mkdir(os.path.join(mixed.path, f"{NAME}.batch"))
    with failing("rmdir", code, when=of(NAME + ".batch"), times=100):
        assert drain(mixed) == [b"one", b"two", b"three"]
        assert mixed.purge().directories == 0
    assert f"{NAME}.batch" in held_names(mixed)
    assert mixed.purge().directories >= 1
    assert held_names(mixed) == []


@pytest.mark.parametrize("code", REFUSED)
def test_batch_that_we_may_not_list_is_reported_as_foreign(mixed, code):
    """What is in it cannot be known; what is beside it is counted."""
    with failing("open", code, when=of(".batch/"), times=100):
        stats = mixed.stats()
        assert (stats.ready, stats.foreign) == (1, 1)
        assert [message.body for message in mixed.peek()] == [b"three"]
    stats = mixed.stats()
    assert (stats.ready, stats.foreign) == (3, 0)


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.EACCES]))
def test_unfinished_file_whose_age_cannot_be_known_is_not_purged(make, code):
    """Its producer finished it meanwhile, or it is another user's: its id alone is no reason to remove it."""
    queue = make(stale=1)
    queue.put(b"one")
    left = os.path.join(queue.path, f"{NAME}.new")
    with open(left, "wb"):
        pass
    os.utime(left, (0, 0))
    with failing("stat", code, when=of(f"{NAME}.new")):
        assert queue.purge().new == 0
    assert os.path.exists(left)
    assert queue.purge().new == 1
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("kept", [False, True], ids=["removed", "kept"])
def test_ack_after_the_queue_was_closed_opens_it_again(make, kept):
    """A lease outlives the descriptor."""
    queue = make(keep_done=kept)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    queue.close()
    lease.ack()
    assert (len(queue), queue.stats().done) == (0, int(kept))


def test_ack_after_the_queue_was_closed_and_removed_says_that_there_is_none(queue):
    """And makes none."""
    lease = queue.get(timeout=0)
    queue.close()
    shutil.rmtree(queue.path)
    with pytest.raises(QueueNotFound):
        lease.ack()
    assert not os.path.exists(queue.path)


@pytest.mark.parametrize("code", REFUSED)
def test_ack_of_another_users_file_does_without_its_time(make, code):
    """Only its owner may set it; the message is done nevertheless."""
    queue = make(keep_done=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    with failing("utime", code):
        lease.ack()
    assert [message.body for message in queue.peek("done")] == [b"one"]
    assert len(queue) == 0
