"""`dirqueue check` and what crashes of transactions leave."""

import contextlib
import errno
import gc
import os

import pytest
from support.dying import Died, dying
from support.failing import failing

from dirqueue import Put, Space
from dirqueue.tools.check import check


@pytest.fixture
def half_done(tmp_path):
    """A space with one transaction abandoned while it held a message, and one committed and not applied."""
    with Space(tmp_path / "s", sync=False) as space:
        for queue in "ab":
            space.put(queue, b"x")
            space.put(queue, b"y")
            space._ground.transacted(queue)
        space.put("b", b"warm", id="warm")
        seen = list(space.queue("a").peek())
        gc.collect()
        with dying(1), contextlib.suppress(Died), space.transaction() as t:
            for each in seen:
                t.cancel(each)
        lease = space.get("b", timeout=0)
        with failing("rename", errno.EIO, when=lambda src, *_, **__: ".if." in src, times=9):
            lease.ack(then=[Put("b", b"new")])
        yield space


def codes(space, queue, **more):
    return [(each.code, each.repaired) for each in check(os.path.join(space.path, queue), **more)]


def test_young_transactions_are_left_alone(half_done):
    assert codes(half_done, "a") == codes(half_done, "b") == []


def test_leftovers_of_transactions_are_found_and_repaired(half_done, monkeypatch):
    monkeypatch.setattr("dirqueue.layouts.native.resolve.PATIENCE", 0.0)
    monkeypatch.setattr("dirqueue.tools.check.walk.PATIENCE", 0.0)
    assert codes(half_done, "a") == [("Q26", False)]
    assert codes(half_done, "b") == [("Q27", False)]
    assert codes(half_done, "a", repair=True) == [("Q26", True)]
    assert codes(half_done, "b", repair=True) == [("Q27", True)]
    assert codes(half_done, "a") == codes(half_done, "b") == []
    assert sorted(message.body for message in half_done.queue("a").peek()) == [b"x", b"y"]
    assert b"new" in [message.body for message in half_done.queue("b").peek()]


def test_queue_that_was_moved_out_of_its_space_is_reported(half_done, tmp_path):
    os.rename(os.path.join(half_done.path, "b"), tmp_path / "elsewhere")
    assert [each.code for each in check(str(tmp_path / "elsewhere"))] == ["Q28"]
    assert [each.repaired for each in check(str(tmp_path / "elsewhere"), repair=True)] == [False]
    os.rename(tmp_path / "elsewhere", os.path.join(half_done.path, "b"))
    assert codes(half_done, "b") == []
