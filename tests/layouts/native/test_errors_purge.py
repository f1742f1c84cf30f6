"""Errors of purging: every branch on an errno, each reached by the fault that it is for."""

import contextlib
import errno
import os

import pytest
from support.checker import problems
from support.failing import before, failing, names, of
from support.kit import drain
from support.native import held_names

from dirqueue import QueueAccess
from dirqueue.disk.identity import new_id


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_redrive_that_dies_half_way_leaves_one_name(make, call):
    """Without an exclusive rename too: whoever acknowledges the message ends it, and nothing brings it back."""
    queue = make()
    queue.put(b"one")
    queue.get(timeout=0).reject("no")
    queue.layout.directory.mount.no_exclusive_rename = True
    with failing(call, errno.EIO, done=True), contextlib.suppress(QueueAccess):
        queue.redrive()
    assert queue.stats().total + queue.stats().dead == 1
    assert drain(queue) == [b"one"]
    queue.purge()
    assert queue.redrive() == []
    assert drain(queue) == []
    assert problems(queue.path) == []


def test_staging_that_goes_while_it_is_purged_is_no_error(make):
    """Shown, or removed by another purger, between the look and the hand."""
    queue = make(stale=0)
    queue.put(b"one")
    staging = os.path.join(queue.path, "1700000000000000000000001.batch.new")
    for call, path in (("open", ".batch.new"), ("rename", ".batch.new")):
        os.mkdir(staging)
        os.utime(staging, (0, 0))
        with before(call, lambda: os.rmdir(staging), when=of(path)):
            queue.purge()
    os.mkdir(staging)
    os.utime(staging, (0, 0))
    with before("stat", lambda: os.rmdir(staging), when=of(".batch.new")):
        assert queue.purge().new == 0
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.ESTALE]))
def test_batch_that_goes_while_it_is_purged_is_no_error(make, code):
    """A consumer emptied and removed it."""
    queue = make()
    queue.put_many([b"one", b"two"])
    with failing("open", code, when=of(".batch/")):
        assert queue.purge().directories == 0
    assert drain(queue) == [b"one", b"two"]


def test_emptied_part_goes_with_its_batch(make):
    """Purge removes the part, and then the batch that it leaves empty; not a slice that producers may append to."""
    queue = make()
    queue.put(b"one")
    name = "1700000000000000000000001"
    os.makedirs(os.path.join(queue.path, f"{name}.batch", f"{name}.part"))
    young = f"{new_id()}.slice"
    os.makedirs(os.path.join(queue.path, young))
    assert queue.purge().directories == 2
    assert held_names(queue) == sorted([next(queue.peek()).id, young])
