"""Lots of pinned messages that a transaction ends: acknowledged with what is put, or nothing has happened."""

import contextlib
import gc

import pytest
from support.dying import Died, dying
from support.kit import drain, files, replaced

from dirqueue import Conflict, Space
from dirqueue.disk import fs
from dirqueue.layouts.native import held_lots, pins
from dirqueue.layouts.native.conditions import OPEN
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.register import Register
from dirqueue.layouts.native.supply import claimable
from dirqueue.space import purge, transaction

SETTINGS = {"sync": False, "margin": 0, "stale": 0}


def prepared(root, timeout=600.0):
    """Return a space with a lot of two of the three messages of `in`, and its pins."""
    space = Space(root, **SETTINGS)
    with space.transaction() as t:  # so that the registers are there
        t.put("in", b"warm")
        t.put("out", b"warm")
    for name in ("in", "out"):
        space.get(name, timeout=0).ack()
    queue = space.queue("in")
    queue.put_many([b"1", b"2", b"3"])
    mine = Pins(queue.layout.directory, queue.settings, "c")
    mine.register(timeout)
    assert mine.pin(1, claimable(mine.directory, mine.settings), Limit(2)) == 2
    return space, mine


def commit(space, mine):
    with space.transaction() as t:
        transaction.rename(t, space.queue("in").layout, f"{mine.base}/1", f"{mine.base}/1.ack")
        t.put("out", b"sum")


def live(space, name):
    queue = space.queue(name)
    return sorted(message.data for state in ("ready", "leased") for message in queue.peek(state))


def test_lot_ends_together_with_what_is_put(tmp_path):
    """The lot is acknowledged, and its result is there."""
    space, mine = prepared(tmp_path)
    commit(space, mine)
    assert live(space, "in") == [b"3"]
    assert live(space, "out") == [b"sum"]
    assert mine.finish("1.ack", keep=False) == 2
    mine.forget()
    assert pins.consumers(mine.directory) == []


def test_lot_alone_in_a_transaction_is_acknowledged(tmp_path):
    """With nothing put it is one rename."""
    space, mine = prepared(tmp_path)
    with space.transaction() as t:
        transaction.rename(t, space.queue("in").layout, f"{mine.base}/1", f"{mine.base}/1.ack")
    assert sorted(mine.names()) == ["1.ack", "owner"]


def test_lot_that_was_given_back_is_a_conflict(tmp_path):
    """Others may have its messages by now: nothing is put."""
    space, mine = prepared(tmp_path)
    mine.release(1)
    with pytest.raises(Conflict) as caught:
        commit(space, mine)
    assert [ref.queue for ref in caught.value.missing] == ["in"]
    assert live(space, "out") == []
    assert sorted(drain(space.queue("in"))) == [b"1", b"2", b"3"]


def cut(root, at):
    """Die at the n-th call of the commit; return whether it was reached, and the pins."""
    space, mine = prepared(root, timeout=0.0001)
    gc.collect()  # not while it dies: finalizers would
    with dying(at) as count, contextlib.suppress(Died):
        commit(space, mine)
    space._ground.owner().reset()  # the process is dead: it leaves nothing in order
    return count[0] > at, mine


def check(root, at, settle):
    """Whoever comes next finds all of it or nothing."""
    died, _ = cut(root, at)
    with Space(root, **SETTINGS) as space:
        for _ in range(2):  # all the same whether the lot is looked at before or after
            happened = live(space, "out") == [b"sum"]
            assert live(space, "out") == ([b"sum"] if happened else [])
            assert live(space, "in") == ([b"3"] if happened else [b"1", b"2", b"3"]), at
            settle(space)
        assert not [name for name in files(root) if ".mv." in name], at
        assert sorted(drain(space.queue("in"))) == ([b"3"] if happened else [b"1", b"2", b"3"])
    return died, happened


def give_up(space):
    queue = space.queue("in")
    pins.release_stale(queue.layout.directory, queue.settings)


def purge_twice(space):
    """The first one fences the registers, the second one forgets them: lots are settled before."""
    with replaced(pins, release_stale=lambda *_: 0):
        for _ in range(2):
            purge.clean(space, space._ground.directory)


@pytest.mark.parametrize("settle", [give_up, purge_twice])
def test_driver_may_die_at_any_call_of_the_commit(tmp_path, settle):
    """The messages are back and nothing is put, or they are gone and the result is there."""
    at, seen = 0, set()
    while True:
        died, happened = check(tmp_path / str(at), at, settle)
        seen.add(happened)
        if not died:
            break
        at += 1
    assert at > 8
    assert seen == {True, False}


def held(root):
    """Return the pins of a lot whose transaction is open, and its name."""
    for at in range(100):
        _, mine = cut(root / str(at), at)
        for name in mine.names():
            if held_lots.transaction_of(name):
                return mine, name
    raise AssertionError("never held")


def test_lot_of_another_users_transaction_is_left_alone(tmp_path, monkeypatch):
    """Who may not decide leaves it to others."""
    mine, name = held(tmp_path)
    monkeypatch.setattr(Register, "decide", lambda self, txn: OPEN)
    assert held_lots.settle(mine.directory, mine.base, name) == name
    assert name in mine.names()


def test_lot_settled_by_another_process_meanwhile_is_settled(tmp_path):
    """The second one finds the name gone."""
    mine, name = held(tmp_path)
    real = fs.rename_in

    def twice(src, dst, dir_fd):
        real(src, dst, dir_fd)
        real(src, dst, dir_fd)

    with replaced(fs, rename_in=twice):
        assert held_lots.settle(mine.directory, mine.base, name) == "1"
    assert "1" in mine.names()
