"""Converting a queue: all of it, in order, once, whenever the process dies."""

import os

import pytest
from kit import drain

from dirqueue import Queue, QueueError, Unsupported, convert, fs
from dirqueue.convert import convert as convert_queue

LAYOUTS = ("native", "vsqs", "dirq-simple", "dirq-normal")
PAIRS = [(one, two) for one in LAYOUTS for two in LAYOUTS if one != two]


def filled(path, layout, count=5):
    with Queue(path, layout=layout, sync=False) as queue:
        for number in range(count):
            queue.put(b"m%d" % number)
    return [b"m%d" % number for number in range(count)]


def converted(path, layout):
    with Queue(path) as queue:
        assert queue.layout == layout
        return drain(queue)


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_every_message_comes_through_in_order(tmp_path, one, two):
    """From each layout to each other."""
    bodies = filled(tmp_path / "q", one)
    assert convert_queue(tmp_path / "q", layout=two) == (5, "")
    assert converted(tmp_path / "q", two) == bodies
    assert os.listdir(tmp_path) == ["q"]


def test_a_queue_that_is_held_is_refused(tmp_path):
    """Nothing is done while somebody works on a message."""
    filled(tmp_path / "q", "dirq-simple")
    with Queue(tmp_path / "q") as queue:
        lease = queue.get(timeout=0)
        with pytest.raises(QueueError, match="held"):
            convert_queue(tmp_path / "q", layout="native")
        lease.release()
        assert os.listdir(tmp_path) == ["q"]
    assert convert_queue(tmp_path / "q", layout="native").messages == 5


def test_it_waits_for_leases_if_told_to(tmp_path):
    """A message whose lease ends in time goes with the others."""
    bodies = filled(tmp_path / "q", "native")
    with Queue(tmp_path / "q", margin=0) as queue:
        queue.get(timeout=0, lease=0.3)
    assert convert_queue(tmp_path / "q", layout="vsqs", wait=30).messages == 5
    assert sorted(converted(tmp_path / "q", "vsqs")) == bodies


def test_what_the_new_layout_cannot_hold_is_refused(tmp_path):
    """Dead and delayed messages are not dropped in silence."""
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"later", delay=600)
    with pytest.raises(Unsupported, match="delayed"):
        convert_queue(tmp_path / "q", layout="dirq-simple")


def die_at(number):
    """Make this process die just before its n-th call of the filesystem."""
    left = [number]

    def deadly(call):
        def run(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return call(*arguments, **options)

        return run

    for name in fs.CALLS:
        setattr(fs, name, deadly(getattr(fs, name)))


@pytest.mark.parametrize(
    ("one", "two"),
    [("native", "dirq-simple"), ("dirq-simple", "native"), ("dirq-normal", "vsqs"), ("vsqs", "dirq-normal")],
)
def test_it_goes_on_after_dying_at_any_call(tmp_path, monkeypatch, one, two):
    """Whichever call is the last, the next run ends with every message once."""
    monkeypatch.setattr(convert, "LEASE", 0.02)
    number = 0
    finished = False
    while not finished:
        path = tmp_path / str(number) / "q"
        path.parent.mkdir()
        bodies = filled(path, one, 2)
        child = os.fork()
        if child == 0:
            status = 8
            try:
                die_at(number)
                convert_queue(path, layout=two, sync=False)
                status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        finished = status == 0
        if one.startswith("dirq"):
            # A lock that was not yet given its short time is honoured for ten minutes: let them pass.
            for each in path.rglob("*"):
                os.utime(each, (1e9, 1e9))
        convert_queue(path, layout=two, wait=30, sync=False)
        assert sorted(converted(path, two)) == bodies, number
        assert os.listdir(path.parent) == ["q"], number
        number += 7
    assert number > 50
