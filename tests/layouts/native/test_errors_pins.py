"""Errors of pinned lots: every branch on an errno, each reached by the fault that it is for."""

import os
import shutil

import pytest
from support.failing import HARD, before, failing, names, of
from support.kit import LONG, drain

from dirqueue import LeaseLost, Queue, QueueAccess
from dirqueue.layouts.native import pins
from dirqueue.layouts.native.pins import Limit


@pytest.mark.parametrize("code", names(HARD))
def test_consumer_of_lots_is_told_what_fails(bench, code):
    """Registering, a sign of life, pinning, acknowledging, giving back: each says its errno and loses nothing."""
    bench.queue.put(b"x")
    with failing("mkdir", code), pytest.raises(QueueAccess):
        bench.consumer()
    mine = bench.consumer()
    with failing("utime", code), pytest.raises(QueueAccess):
        mine.beat()
    for call in ("mkdir", "rename", "scandir"):
        supply = bench.supply()
        with failing(call, code), pytest.raises(QueueAccess) as caught:
            mine.pin(1, supply, Limit())
        assert caught.value.errno == code
    assert bench.pin(mine, 1) == 1
    with failing("rename", code), pytest.raises(QueueAccess):
        mine.ack(1)
    with failing("rename", code), pytest.raises(QueueAccess):
        mine.release(1)
    assert mine.ack(1) == 1


def test_consumer_that_was_given_up_learns_it(bench):
    """Its directory is gone: pinning and giving a sign of life say so, looking finds nothing."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    shutil.rmtree(bench.path / mine.base)
    assert mine.names() == []
    with pytest.raises(LeaseLost):
        mine.beat()
    with pytest.raises(LeaseLost):
        bench.pin(mine, 1)
    assert pins.owner(bench.directory, "c") is None
    assert drain(bench.queue) == [b"x"]


def test_consumer_leaves_only_when_it_holds_nothing(bench):
    """With a lot it stays on the list."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    bench.pin(mine, 1)
    mine.forget()
    assert mine.known()
    mine.ack(1)
    mine.forget()
    assert not mine.known()
    assert pins.consumers(bench.directory) == []


def test_consumer_without_a_note_of_its_owner_is_given_time(bench, monkeypatch):
    """It is one being made, or half given up; after that its lots go back."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    bench.pin(mine, 1)
    os.unlink(bench.path / mine.base / pins.OWNER)
    assert bench.queue.purge().released == 0
    monkeypatch.setattr(pins, "OWNERLESS_SECONDS", -LONG)
    assert bench.queue.purge().released == 1
    assert drain(bench.queue) == [b"x"]


def test_what_else_lies_with_a_lost_consumer_is_left(bench):
    """Half acknowledged lots are finished, others given back; foreign names stay, and so does their directory."""
    for body in (b"1", b"2", b"3"):
        bench.queue.put(body)
    mine = bench.consumer(timeout=0.0)
    for lot in (1, 2):
        assert bench.pin(mine, lot, messages=1) == 1
    base = bench.path / mine.base
    os.rename(base / "1", base / "1.ack")
    (base / "2" / "note").write_bytes(b"foreign")
    (part,) = [each for each in os.listdir(base / "2") if each.endswith(".part")]
    (base / "2" / part / "note").write_bytes(b"foreign")
    (base / "note").write_bytes(b"foreign")
    assert [message.data for message in bench.queue.peek("leased")] == [b"2"]
    assert bench.queue.purge().released == 1
    assert os.listdir(base) == ["note"]
    assert drain(bench.queue) == [b"2", b"3"]


def test_unsealed_lot_with_nothing_in_it_goes(bench):
    """The try before died at once."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    os.makedirs(bench.path / mine.base / "1.new" / "1700000000000000000000001.part")
    assert bench.pin(mine, 1) == 1
    assert [message.data for message in bench.queue.peek("leased")] == [b"x"]


def test_lot_that_goes_while_it_is_looked_at_is_no_error(bench):
    """Acknowledged between two listings."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    bench.pin(mine, 1)
    with before("open", lambda: mine.ack(1), when=of("/1")):
        assert list(bench.queue.peek("leased")) == []


def test_message_that_goes_before_it_is_measured_is_passed_over(bench):
    """With a limit of bytes each is measured first."""
    for body in (b"1", b"2", b"3"):
        bench.queue.put(body)
    other = Queue(bench.path, sync=False)
    mine = bench.consumer()
    with before("stat", lambda: other.get(timeout=0).ack(), when=lambda path, **_: path.isdigit()):
        assert bench.pin(mine, 1, size=1000) == 2
    assert sorted(message.data for message in bench.queue.peek("leased")) == [b"2", b"3"]
