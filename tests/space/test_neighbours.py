"""What flush, delete and lots do with the names of transactions: the register decides, and nothing is half done."""

import os
import shutil

import pytest
from support.failing import before

import dirqueue
from dirqueue import Space
from dirqueue.layouts.native import pins, resolve
from dirqueue.layouts.native.conditions import OPEN
from dirqueue.layouts.native.register import Register
from dirqueue.space.commit import Attempt
from dirqueue.tools.delete import delete


@pytest.fixture
def space(tmp_path):
    with Space(tmp_path / "s", sync=False, margin=0, stale=0) as space:
        space.put("a", b"x")
        space.put("b", b"warm")
        space.get("b", timeout=0).ack()
        yield space


def moving(space):
    """Return a transaction that moves the message of `a` to `b`, and puts into `c`."""
    t = space.transaction()
    t.move(space.get("a", timeout=0), "b")
    t.put("c", b"y")
    return t


def bodies(space, queue):
    return [message.body for message in space.messages(queue)]


def names(space, queue):
    return [name for _, _, found in os.walk(os.path.join(space.path, queue)) for name in found]


@pytest.mark.parametrize("verb", ["flush", "delete"])
def test_a_transaction_whose_message_is_removed_does_nothing(space, verb):
    """Between its hold and its commit its queue is flushed, or deleted: it is refused as a whole."""
    others = Space(space.path)

    def remove(*_, **__):
        queue = others.queue("a")
        assert queue.flush() == 1 if verb == "flush" else delete(queue.layout) == 1

    at_the_commit = before("rename", remove, when=lambda src, *_, **__: str(src).endswith(".plan"))
    with at_the_commit, pytest.raises(dirqueue.Conflict):
        moving(space).commit()
    assert [bodies(space, queue) for queue in "abc"] == [[], [], []]
    assert not [name for queue in "abc" for name in names(space, queue) if ".mv." in name or ".if." in name]


@pytest.mark.parametrize("verb", ["flush", "delete"])
def test_what_a_committed_transaction_moved_stays(space, verb, monkeypatch):
    """Its process died after the commit: the message is in the other queue, whatever lies in this one."""
    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_finish", lambda self: None)
        moving(space).commit()
    assert any(".mv." in name for name in names(space, "a"))
    queue = space.queue("a")
    assert (queue.flush() if verb == "flush" else delete(queue.layout)) == 0
    Space(space.path).purge()  # brings names to their ends
    assert bodies(space, "b") == [b"x"]
    assert bodies(space, "c") == [b"y"]


def test_flush_removes_what_a_committed_transaction_put(space, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_finish", lambda self: None)
        moving(space).commit()
    assert space.queue("c").flush() == 1
    assert bodies(space, "c") == []
    assert names(space, "c") == [".ballast"] or not names(space, "c")


def test_names_of_another_users_transaction_are_left(space, monkeypatch):
    """Nobody else can abort it: nothing is removed."""

    def die(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_commit", die)
        patch.setattr(Attempt, "_undo", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            moving(space).commit()
    with monkeypatch.context() as patch:
        patch.setattr(Register, "decide", lambda *_: OPEN)
        assert space.queue("a").flush() == 0
    assert space.queue("a").flush() == 1


def test_a_name_that_another_one_settles_is_told_by_its_plain_name(space, monkeypatch):
    moving(space)
    [entry] = [each for each in space.queue("a").layout.entries() if each.state == "leased"]
    place = f"{entry.place}.un.1{'0' * 24}-1"
    os.makedirs(os.path.join(space.path, ".space", "txn"), exist_ok=True)
    assert resolve.settled(space.queue("a").layout.directory, place) == entry.place
    assert resolve.settled(space.queue("a").layout.directory, entry.place) == entry.place


def test_delete_removes_the_side_files_of_its_tasks(space):
    with space.transaction(holder="ann") as t:
        t.put("d", b"first", failures=2)
    assert os.listdir(os.path.join(space.path, ".space", "side"))
    assert delete(space.queue("d").layout) == 1
    assert not [f for _, _, found in os.walk(os.path.join(space.path, ".space", "side")) for f in found]


def test_a_lot_that_another_process_finishes_is_no_error(space):
    layout = space.queue("a").layout
    lots = pins.Pins(layout.directory, layout.settings, "c")
    lots.register(600.0)
    os.makedirs(os.path.join(space.path, ".space"), exist_ok=True)
    shutil.rmtree(os.path.join(layout.directory.path, lots.base, "1.ack"), ignore_errors=True)
    assert lots.finish("1.ack", keep=False) == 0
