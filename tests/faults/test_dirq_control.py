"""The control: the explorer on dirq 1.8 itself finds the bugs that are known to be in it."""

import functools
import os
from types import SimpleNamespace

import pytest
from lab import seam
from lab.schedule import DepthFirst, Pruned, Scheduler
from lab.simfs import SimFS

ELEMENT = "00000000/65000000000000"


def explore_dirq(monkeypatch, clients, limit=3000):
    """Run clients of dirq's QueueSimple in all orders; return what went wrong first, and after how many schedules."""
    module = pytest.importorskip("dirq.QueueSimple")
    monkeypatch.setattr(module, "_warn", lambda *_: None)
    chooser = DepthFirst()
    for number in range(1, limit):
        chooser.begin()
        clock = seam.Clock()
        scheduler = Scheduler(chooser)
        files = SimFS(clock.now_ns, scheduler)
        calls = {
            name: getattr(files, name) for name in ("link", "unlink", "utime", "stat", "listdir", "rmdir")
        }
        monkeypatch.setattr(module, "os", SimpleNamespace(path=os.path, **calls))
        monkeypatch.setattr(module, "time", clock)
        files.mkdir("/sim/q")
        files.mkdir("/sim/q/00000000")
        fd = files.open(f"/sim/q/{ELEMENT}", os.O_CREAT | os.O_WRONLY)
        files.close(fd)
        clock.advance(10_000)  # the element has been waiting for longer than maxlock
        queue = module.QueueSimple.__new__(module.QueueSimple)
        queue.path = "/sim/q"
        held = []
        try:
            scheduler.run({name: functools.partial(body, queue, held) for name, body in clients.items()})
        except Pruned:
            pass
        else:
            if len(held) > 1:
                return "two holders", number
            if scheduler.errors:
                return type(next(iter(scheduler.errors.values()))).__name__, number
        if not chooser.next():
            return "", number
    return "", limit


def _lock(queue, held):
    if queue.lock(ELEMENT):
        held.append(1)


def _purge(queue, held):
    queue.purge(maxtemp=0, maxlock=600)


def test_dirq_gives_one_fresh_lock_to_two_holders(monkeypatch):
    """D1: between link and utime the lock looks as old as the element, and purge takes it away."""
    wrong, schedules = explore_dirq(monkeypatch, {"a": _lock, "b": _lock, "c": _purge})
    assert wrong == "two holders"
    assert schedules < 1000


def test_dirq_without_a_purger_has_one_holder(monkeypatch):
    """The control of the control: two who lock, and nobody else, never both get it."""
    wrong, _schedules = explore_dirq(monkeypatch, {"a": _lock, "b": _lock})
    assert wrong == ""
