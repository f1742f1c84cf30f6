"""Converting a queue: all of it, in order, once, whenever the process dies."""

import os
import shutil
import threading

import pytest
from support.kit import PATIENCE, drain, files, wait_until

from dirqueue import Queue, QueueError, Unsupported
from dirqueue.disk import fs
from dirqueue.tools import convert
from dirqueue.tools.convert import convert as convert_queue

LAYOUTS = ("native", "vsqs", "dirq-simple", "dirq-normal")
PAIRS = [(one, two) for one in LAYOUTS for two in LAYOUTS if one != two]


def filled(path, layout, count=5):
    with Queue(path, layout=layout, sync=False) as queue:
        for number in range(count):
            queue.put(b"m%d" % number)
    return [b"m%d" % number for number in range(count)]


def converted(path, layout):
    with Queue(path) as queue:
        assert queue.layout.name == layout
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
    """Make this process die just before its n-th call of the filesystem, which is just after the one before it."""
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


def converted_until(number, path, layout):
    """Convert in a child that dies at that call; whether it lived to the end."""
    child = os.fork()
    if child == 0:
        status = 8
        try:
            die_at(number)
            convert_queue(path, layout=layout, wait=PATIENCE, sync=False)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 0


KILLED = [
    pair
    for other in ("dirq-simple", "dirq-normal", "vsqs")
    for pair in (("native", other), (other, "native"))
]


@pytest.mark.parametrize(("one", "two"), [*KILLED, ("dirq-simple", "dirq-normal")])
@pytest.mark.timeout(180)
def test_it_goes_on_after_dying_at_any_call(tmp_path, monkeypatch, one, two):
    """Whichever call is the last, the next run ends with every message once, in whole."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    number = 0
    while True:
        path = tmp_path / str(number) / "q"
        path.parent.mkdir()
        if one in ("native", "vsqs"):
            Queue.create(
                path, layout=one, margin=0
            ).close()  # so that the lease of the dead one is over at once
        bodies = filled(path, one, 2 if "native" in (one, two) else 1)
        finished = converted_until(number, path, two)
        if one.startswith("dirq"):
            # A lock that was not yet given its short time is honoured for ten minutes: let them pass.
            for each in path.rglob("*"):
                os.utime(each, (1e9, 1e9))
        convert_queue(path, layout=two, wait=30, sync=False)
        assert sorted(converted(path, two)) == bodies, number
        assert os.listdir(path.parent) == ["q"], number
        if finished:
            break
        shutil.rmtree(path.parent)
        number += 1
    assert number > 80


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("one", "two"), [("native", "dirq-simple"), ("dirq-normal", "native")])
def test_it_goes_on_after_dying_again_and_again(tmp_path, monkeypatch, one, two):
    """Each run gets a little further than the one before, and dies too."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    path = tmp_path / "q"
    if one == "native":
        Queue.create(path, layout=one, margin=0).close()
    bodies = filled(path, one, 3)
    number = 1
    while not converted_until(number, path, two):
        if one.startswith("dirq"):
            for each in path.rglob("*"):
                os.utime(each, (1e9, 1e9))
        number += 1
        assert number < 2000
    assert sorted(converted(path, two)) == bodies
    assert os.listdir(tmp_path) == ["q"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_refuses_while_messages_are_held(tmp_path, layout):
    """One lease is enough; nothing is touched, and nothing is left behind."""
    filled(tmp_path / "q", layout, 2)
    with Queue(tmp_path / "q", sync=False) as queue:
        lease = queue.get(timeout=0)
        before = files(tmp_path)
        with pytest.raises(QueueError, match=r"1 messages .* held.*wait"):
            convert_queue(tmp_path / "q", layout="native" if layout != "native" else "vsqs")
        assert files(tmp_path) == before
        lease.ack()


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_it_waits_until_the_holder_is_done(tmp_path, layout):
    """What the holder acks meanwhile is not converted; what it gives back is."""
    filled(tmp_path / "q", layout, 3)
    with Queue(tmp_path / "q", sync=False) as queue:
        done, back = queue.get(timeout=0), queue.get(timeout=0)
        results = []
        waiting = threading.Thread(
            target=lambda: results.append(convert_queue(tmp_path / "q", layout="native", wait=PATIENCE))
        )
        waiting.start()
        wait_until((tmp_path / "q.converting" / "from").exists, "the beginning")
        done.ack()
        back.release()
        waiting.join(PATIENCE)
    assert [each.messages for each in results] == [2]
    assert sorted(converted(tmp_path / "q", "native")) == [b"m1", b"m2"]


def test_waiting_has_an_end(tmp_path):
    """Whoever holds on is named in the error; the messages that were moved stay moved, and the next run goes on."""
    bodies = filled(tmp_path / "q", "dirq-simple", 3)
    with Queue(tmp_path / "q", sync=False) as queue:
        lease = queue.get(timeout=0)
        with pytest.raises(QueueError, match=r"1 messages .* still held"):
            convert_queue(tmp_path / "q", layout="native", wait=0.01)
        lease.release()
    assert convert_queue(tmp_path / "q", layout="native").messages == 1
    assert sorted(converted(tmp_path / "q", "native")) == bodies
