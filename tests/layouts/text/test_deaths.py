"""Killed before, after or in the midst of every call: nothing put is lost, nothing finished comes back."""

import contextlib
import os

import pytest
from support.dying import Died, Killer
from support.kit import LONG, drain

from dirqueue import DirQueueError, Queue
from dirqueue.layouts.text import grammar, journal

SETTINGS = {"sync": False, "margin": 0, "lease": LONG, "backoff": 0, "layout": "text"}
PAGE = grammar.PAGE


class TornKiller(Killer):
    """Dies in the midst of a write, too (how="torn")."""

    def last(self, name, call, arguments, named):
        super().last(name, call, arguments, named)
        if name == "close" and self.how != "after":
            call(*arguments)
        elif self.how == "torn" and name == "pwritev":
            fd, (data,), offset, flags = arguments
            end = os.fstat(fd).st_size
            cut = PAGE - end % PAGE  # the kernel writes whole pages
            if cut < len(data):
                call(fd, [data[:cut]], offset, flags)
        elif self.how == "torn" and name == "pwrite":
            fd, data, offset = arguments
            call(fd, data[: len(data) // 2], offset)


def put(queue):
    return lambda: queue.put(b"new")


def put_delayed(queue):
    return lambda: queue.put(b"new", delay=0.000001)


def put_long(queue):
    return lambda: queue.put(b"new " + b"-long\n" * 2000)


def put_many(queue):
    return lambda: queue.put_many([b"new%d " % n + b"x" * 900 for n in range(12)])


def get(queue):
    return lambda: queue.get(timeout=0)


def ack(queue):
    return queue.get(timeout=0).ack


def retry(queue):
    lease = queue.get(timeout=0)
    return lambda: lease.retry(0, "bad")


def release(queue):
    return queue.get(timeout=0).release


def reject(queue):
    lease = queue.get(timeout=0)
    return lambda: lease.reject("bad")


def renew(queue):
    return queue.get(timeout=0).renew


def cancel(queue):
    return next(queue.peek()).cancel


def change(queue):
    message = next(queue.peek())
    return lambda: message.change(delay=0.000001)


def redrive(queue):
    queue.get(timeout=0).reject("bad")
    return queue.redrive


def clear(queue):
    queue.get(timeout=0).ack()
    return queue.clear


def purge(queue):
    return queue.purge


STORIES = [put, put_delayed, put_long, put_many, get, ack, retry, release, reject, renew, cancel, change, redrive,
           clear, purge]  # fmt: skip
#: Those that end the first of the two messages: it may be gone if they were cut short, and is gone if they returned.
ENDS = ("ack", "reject", "cancel", "clear")


def _texts(path):
    with open(path, "rb") as file:
        data = file.read()
    items = list(grammar.items(data))
    assert not [item for item in items if item.foreign], data
    return [(item.control, item.text) for item in items if item.control != "#"]


def _die(path, story, at, how):
    """Run the story's preparation, then the operation, killed at its call `at`; return whether it was over before."""
    with Queue(path, **SETTINGS) as queue:
        act = story(queue)
        with TornKiller(at, how) as killer, contextlib.suppress(Died, DirQueueError):
            act()
        # What the dead process held open is closed; what it remembered is gone.
        queue.layout.ledger.forget()
    return not killer.dead


def _check(path, story, over):
    with Queue(path, **SETTINGS) as fresh:
        expired = [fresh.lease(entry.place) for entry in fresh.layout.entries(("leased",))]
        for lease in expired:
            lease.release()
        left = drain(fresh)
    name = story.__name__
    old = [body for body in left if body.startswith(b"old")]
    if name in ENDS:
        assert old in ([b"old0", b"old1"], [b"old1"]), (name, left)
        if over:
            assert old == [b"old1"]
    elif name == "redrive" and not over:
        assert old in ([b"old0", b"old1"], [b"old1"]), left
    else:
        assert old == [b"old0", b"old1"], (name, left)
    new = [body for body in left if body.startswith(b"new")]
    wanted = {"put": 1, "put_delayed": 1, "put_long": 1, "put_many": 12}.get(name, 0)
    assert len(new) in ({wanted} if over else {0, wanted}), (name, left)
    assert len(set(new)) == len(new)
    states = _texts(path)
    assert len([text for _, text in states if text.startswith(b"old")]) >= 1
    assert not [control for control, text in states if control == "-"]


@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("story", STORIES)
def test_death_at_every_call(tmp_path, story, how):
    at = 0
    while True:
        at += 1
        path = tmp_path / f"{at}.tq"
        with Queue(path, **SETTINGS) as queue:
            queue.put(b"old0")
            queue.put(b"old1")
        over = _die(path, story, at, how)
        _check(path, story, over)
        if over:
            break
    assert at > 5


@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("first", range(4, 16, 2))
def test_death_in_the_recovery_from_a_death(tmp_path, first, how):
    """A batch that was cut short, and whoever mended it killed at every call."""
    at = 0
    while True:
        at += 1
        path = tmp_path / f"{at}.tq"
        with Queue(path, **SETTINGS) as queue:
            queue.put(b"old0")
            queue.put(b"old1")
        _die(path, put_many, first, "torn")
        with Queue(path, **SETTINGS) as queue, TornKiller(at, how) as killer, contextlib.suppress(Died):
            queue.put(b"newest")
        over = not killer.dead
        with Queue(path, **SETTINGS) as fresh:
            left = drain(fresh)
        assert [body for body in left if body.startswith(b"old")] == [b"old0", b"old1"]
        batch = [body for body in left if body.startswith(b"new") and body != b"newest"]
        assert len(batch) in (0, 12)
        assert len(set(batch)) == len(batch)
        assert left.count(b"newest") in ((1,) if over else (0, 1))
        if over:
            break


@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_death_while_another_part_of_the_journal_begins(tmp_path, monkeypatch, how):
    monkeypatch.setattr(journal, "PART", 300)
    at = 0
    while True:
        at += 1
        path = tmp_path / f"{at}.tq"
        with Queue(path, **SETTINGS) as queue:
            queue.put(b"old0")
            queue.put(b"old1")
        over = _die(path, ack, at, how)
        _check(path, ack, over)
        if over:
            break
