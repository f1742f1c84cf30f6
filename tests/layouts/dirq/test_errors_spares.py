"""Emptied elements of dirq-normal that become locks: every errno branch, reached by its fault."""

import errno
import os

import pytest
from support.dirq_queues import again
from support.failing import failing, of
from support.kit import drain, replaced

from dirqueue import QueueAccess
from dirqueue.disk import fs


class Gone(list):
    """A list from which another thread takes the last item just before us."""

    def pop(self):
        self.clear()
        return super().pop()


@pytest.fixture
def spared(made):
    """Give a queue of dirq-normal that keeps an emptied element for the next lock."""
    queue = made("dirq-normal")
    for number in range(6):
        queue.put(b"%d" % number)
    again(queue).get(timeout=0).ack()
    assert len(queue.layout._spares._names) == 1
    return queue


def test_emptied_element_becomes_the_next_lock(spared):
    """One rename that replaces nothing; none is left when the queue is drained or closed."""
    with replaced(fs, mkdir=lambda *_, **__: pytest.fail("made anew")):
        again(spared).get(timeout=0).ack()
    assert len(drain(spared)) == 4
    assert os.listdir(os.path.join(spared.path, "obsolete")) == []


def test_emptied_element_cannot_become_a_lock_that_is_there(spared):
    """Another consumer has that element: the next one is tried, with the same directory."""
    with failing("rename_noreplace", errno.EEXIST):
        assert again(spared).get(timeout=0).message.body == b"2"
    assert spared.layout._spares._names == []


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EIO, None])
def test_emptied_element_that_cannot_be_renamed_goes(spared, code):
    """Purged by Python's dirq, a disk in trouble, or no such call: the lock is made the plain way."""
    with failing("rename_noreplace", code):
        assert again(spared).get(timeout=0).message.body == b"1"
    assert os.listdir(os.path.join(spared.path, "obsolete")) == []


def test_lock_that_cannot_be_looked_at_is_given_back(spared):
    """The disk is in trouble right after the rename: the error is reported, and the element is nobody's."""
    with failing("stat", errno.EIO, when=of("/locked")), pytest.raises(QueueAccess):
        again(spared).get(timeout=0)
    assert again(spared).get(timeout=0).message.body == b"1"


def test_emptied_elements_that_another_thread_takes_are_not_dropped_twice(spared):
    """Between the look at the list and the pop; and an error leaves the directory to purge."""
    spares = spared.layout._spares
    kept, spares._names = spares._names, Gone(["obsolete/5f00000000000a"])
    spares.drop()
    spares._names = kept
    with failing("rmdir", errno.EIO):
        spares.drop()
    assert len(os.listdir(os.path.join(spared.path, "obsolete"))) == 1
