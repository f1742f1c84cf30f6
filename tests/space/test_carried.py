"""What messages carry, while transactions of several clients and purges are at them."""

import errno
import time
from pathlib import Path

import pytest
from support.failing import before, failing

from dirqueue import Conflict, Queue, Space
from dirqueue.layouts.native import resolve

GIVEN = {"colour": "blue"}


def kept(space, queue):
    return {path.name for path in Path(space.path, queue, "attributes").glob("*/*")}


def purged(space, queue):
    """Purge one queue, everything in it stale."""

    def purge():
        time.sleep(0.1)
        Queue(Path(space.path, queue), stale=0.0).purge()

    return purge


def held(_, name, *__, **___):
    return ".mv." in str(name)


def record(_, name, *__, **___):
    return "/txn/" in str(name)


@pytest.mark.parametrize("when", [held, record], ids=["before it is held", "before the commit"])
def test_move_that_is_stopped_keeps_what_it_wrote_in_the_other_queue(space, when):
    """A purge comes to that queue, where the message is not yet."""
    space.queue("b").put(b"y")
    id = space.put("a", b"x", attributes=GIVEN)
    with before("rename", purged(space, "b"), when=when):
        space.get("a", timeout=0).move("b")
    assert space.message(id, "b").attributes == GIVEN


def test_move_that_is_committed_and_not_at_its_end_keeps_them(space, monkeypatch):
    """Its process died, and the queue that the message is to come to is purged first."""
    monkeypatch.setattr(resolve, "PATIENCE", 0.0)
    space.queue("b").put(b"y")
    id = space.put("a", b"x", attributes=GIVEN)
    with failing("rename", errno.EIO, when=lambda src, *_, **__: ".mv." in str(src), times=99):
        space.get("a", timeout=0).move("b")
    purged(space, "b")()
    other = Space(space.path, sync=False)
    while not list(other.queue("b").peek("ready", 2))[1:]:
        other.queue("a").peek()
        other.get("a", timeout=0) if len(other.queue("a")) else other.purge()
    assert other.message(id, "b").attributes == GIVEN


@pytest.mark.parametrize("into", ["b", "a"], ids=["another queue", "its own queue"])
def test_change_that_came_late_leaves_those_of_the_one_that_was_first(space, into):
    """Both take the message to the same queue: what is there is of the message, not of the second one."""
    id = space.put("a", b"x", attributes=GIVEN)
    beside = Space(space.path, sync=False)

    def first():
        with beside.transaction() as t:
            t.change(beside.message(id), queue=into, body=b"first")

    t = space.transaction()
    t.change(space.message(id), queue=into, body=b"second")
    t.put("c", b"z")
    with before("rename", first, when=held), pytest.raises(Conflict):
        t.commit()
    found = beside.message(id)
    assert (found.body, found.attributes) == (b"first", GIVEN)


def test_message_that_comes_back_at_once_keeps_them(space):
    """Another client moves it back before the first one has removed what it left."""
    id = space.put("a", b"x", attributes=GIVEN)
    beside = Space(space.path, sync=False)

    def back():
        time.sleep(0.02)  # a tick of the filesystem's clock
        beside.get("b", timeout=0).move("a")

    with before(
        "stat", back, when=lambda name, *_, **__: str(name).endswith(id) and "attributes" in str(name)
    ):
        space.get("a", timeout=0).move("b")
    assert space.message(id, "a").attributes == GIVEN
    assert kept(space, "b") == set()
