"""Errors of reading and changing: every branch on an errno, each reached by the fault that it is for."""

import errno
import os
import shutil

import pytest
from support.failing import HARD, failing, names, of
from support.kit import LONG

from dirqueue import (
    LeaseLost,
    MessageNotFound,
    Purged,
    QueueAccess,
    SettingsError,
)
from dirqueue.layouts.native import supply


@pytest.mark.parametrize("code", names(HARD))
def test_body_that_a_looker_cannot_read_is_told(queue, code):
    """Read whole, opened, or measured: one clear error; gone is gone."""
    (message,) = queue.peek()
    looks = {"open": [lambda: message.body, message.open], "stat": [lambda: message.size]}
    for call, each in looks.items():
        for look in each:
            with failing(call, code), pytest.raises(QueueAccess) as caught:
                look()
            assert caught.value.errno == code
            for gone in (errno.ENOENT, errno.ESTALE):
                with failing(call, gone), pytest.raises(MessageNotFound):
                    look()


def test_when_a_done_message_was_claimed(make):
    """The time of its file; none for one that was cancelled, or that is gone."""
    queue = make(keep_done=True)
    queue.put(b"one")
    queue.put(b"two")
    queue.get(timeout=0).ack()
    next(queue.peek()).cancel()
    claimed, cancelled = sorted(queue.peek("done"), key=lambda message: message.body)
    assert claimed.leased_at is not None
    assert cancelled.leased_at is None
    shutil.rmtree(os.path.join(queue.path, "done"))
    assert queue.layout.leased_at(claimed.entry) is None


@pytest.mark.parametrize("code", names(HARD))
def test_change_that_fails_says_so_and_changes_nothing(queue, code):
    """Cancel, change, redrive, remove."""
    (message,) = queue.peek()
    for act in (message.cancel, lambda: message.change(delay=LONG)):
        with failing("rename", code), pytest.raises(QueueAccess) as caught:
            act()
        assert caught.value.errno == code
    with failing("unlink", code, when=of(message.id)), pytest.raises(QueueAccess):
        queue.layout.remove(message.entry)
    queue.get(timeout=0).reject("no")
    with failing("rename_noreplace", code), pytest.raises(QueueAccess):
        queue.redrive()
    assert queue.stats().dead == 1
    assert queue.layout.remove(message.entry) is False


def test_handle_that_names_nothing_here(queue):
    """Not one of ours, or of a lease that is gone."""
    lease = queue.get(timeout=0)
    for wrong in (f"dead/{lease.handle}", f"a/b/c/{lease.handle}", lease.message.id):
        with pytest.raises(SettingsError):
            queue.lease(wrong)
    for code in (errno.ENOENT, errno.ENOTDIR):
        with failing("stat", code, when=of(lease.handle)), pytest.raises(LeaseLost):
            queue.lease(lease.handle)
    queue.lease(lease.handle).ack()


def test_queue_that_is_not_there_holds_nothing(make):
    """Nothing is found, nothing can be taken, nothing is purged."""
    layout = make().layout
    assert layout.find("1700000000000000000000001") is None
    assert layout.purge() == Purged()
    assert supply.claimable(layout.directory, layout.settings).take() is None
    layout.create()
    assert os.path.isdir(layout.directory.path)


def test_directories_deeper_than_messages_lie_are_not_entered(queue):
    """A part in a part in a batch is nobody's; notes and tombstones among the dead are no messages."""
    part = "1700000000000000000000001.part"
    deep = os.path.join(queue.path, "1700000000000000000000001.batch", part, part)
    os.makedirs(deep)
    with open(os.path.join(deep, "1700000000000000000000001"), "wb"):
        pass
    os.makedirs(os.path.join(queue.path, "dead"))
    for name in ("1700000000000000000000001.new", "1700000000000000000000001.error"):
        with open(os.path.join(queue.path, "dead", name), "wb"):
            pass
    assert [message.body for message in queue.peek()] == [b"one"]
    assert queue.stats().dead == 0
