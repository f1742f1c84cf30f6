"""Pinned lots: taken out of the queue, the same on every look, ended by one rename."""

import os
import time

import pytest
from support.dying import every_death
from support.kit import drain, files

from dirqueue import LeaseLost, Queue, SettingsError
from dirqueue.layouts.native import pins
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import claimable


def consumer(path, name="c", timeout=600.0, **settings):
    queue = Queue(path, **settings)
    mine = Pins(queue.layout.directory, queue.settings, name)
    if not mine.known():
        mine.register(timeout)
    return queue, mine


def pin(mine, lot, limit=None, **kwargs):
    return mine.pin(lot, claimable(mine.directory, mine.settings), Limit(limit), **kwargs)


def bodies(queue, state="leased"):
    return sorted(message.data for message in queue.peek(state))


def test_pinned_messages_are_nobody_elses(queue_dir):
    """They are leased to the consumer, and other consumers find what is left."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    assert pin(mine, 1, 2) == 2
    assert bodies(queue) == [b"1", b"2"]
    assert {message.token for message in queue.peek("leased")} == {"c"}
    assert drain(queue) == [b"3"]
    assert len(queue) == 2


def test_an_acknowledged_lot_is_gone(queue_dir):
    """Ack removes the messages; a second ack is told that there is nothing."""
    queue, mine = consumer(queue_dir)
    queue.put(b"1")
    pin(mine, 1)
    assert mine.ack(1) == 1
    assert len(queue) == 0
    with pytest.raises(LeaseLost):
        mine.ack(1)


def test_kept_messages_go_to_done(queue_dir):
    """With keep, an ack moves the messages to done/, their deliveries counted."""
    queue, mine = consumer(queue_dir)
    queue.put(b"1")
    pin(mine, 1)
    mine.ack(1, keep=True)
    (message,) = queue.peek("done")
    assert (message.data, message.attempts) == (b"1", 1)


def test_a_released_lot_is_back_in_its_place(queue_dir):
    """Release gives everything back by one rename, in order, not counted as a delivery."""
    queue, mine = consumer(queue_dir)
    for body in (b"1", b"2", b"3"):
        queue.put(body)
    pin(mine, 1, 2)
    queue.put(b"4")
    assert mine.release(1)
    assert [(lease.message.data, lease.message.attempts) for lease in queue.get_many(1)] == [(b"1", 1)]
    assert drain(queue) == [b"2", b"3", b"4"]
    assert not mine.release(1)


def test_lots_are_limited_by_number_and_by_size(queue_dir):
    """A lot holds at most so many messages and bytes, but always at least one."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"x" * 10] * 5)
    supply = claimable(mine.directory, mine.settings)
    assert mine.pin(1, supply, Limit(None, 25)) == 2
    assert mine.pin(2, supply, Limit(None, 5)) == 1
    assert mine.pin(3, supply, Limit(1)) == 1
    assert mine.pin(4, supply, Limit()) == 1, "what did not fit into a lot is in the next"
    assert mine.lots() == [1, 2, 3, 4]


def test_a_lot_has_the_parts_that_were_asked_for(queue_dir):
    """So that as many tasks can read it."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"x"] * 10)
    pin(mine, 1, pieces=4)
    assert len(mine.parts(1)) == 4


def test_nothing_to_pin_makes_no_lot(queue_dir):
    """An empty queue, or only delayed and held messages."""
    queue, mine = consumer(queue_dir)
    assert pin(mine, 1) == 0
    queue.put(b"later", delay=3600)
    queue.put(b"held")
    lease = queue.get(timeout=0)
    assert pin(mine, 1) == 0
    assert mine.lots() == []
    lease.ack()


def test_due_and_expired_messages_are_pinned(queue_dir):
    """A delay that is over and a lease that ran out are claimable, and keep their count."""
    queue, mine = consumer(queue_dir, margin=0.0)
    queue.put(b"expired")
    queue.get(timeout=0, lease=0.001)
    queue.put(b"due", delay=0.001)
    deadline = time.monotonic() + 30
    while (stats := queue.stats()).expired + stats.ready != 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pin(mine, 1) == 2
    assert sorted((message.data, message.attempts) for message in queue.peek("leased")) == [
        (b"due", 1),
        (b"expired", 2),
    ]


def test_messages_taken_meanwhile_are_left_out(queue_dir):
    """RACE: a name that another consumer claimed between the listing and the rename is not in the lot."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2"])
    supply = claimable(mine.directory, mine.settings)
    assert drain(queue, 1) == [b"1"]
    assert mine.pin(1, supply, Limit()) == 1
    assert bodies(queue) == [b"2"]


def test_a_lost_consumer_loses_its_lots_to_the_queue(queue_dir):
    """After its timeout purge gives back what it pinned; the late consumer is told and changes nothing."""
    queue, mine = consumer(queue_dir, timeout=60.0, margin=0.0)
    queue.put_many([b"1", b"2"])
    pin(mine, 1)
    assert queue.purge().released == 0
    old = time.time() - 3600
    os.utime(queue_dir / mine.base / pins.OWNER, (old, old))
    assert queue.purge().released == 1
    assert bodies(queue, "ready") == [b"1", b"2"]
    for late in (lambda: mine.ack(1), mine.beat, lambda: mine.parts(1)):
        with pytest.raises(LeaseLost):
            late()
    assert not (queue_dir / mine.base).exists()


def test_a_sign_of_life_keeps_the_lots(queue_dir):
    """beat() starts the timeout anew."""
    queue, mine = consumer(queue_dir, timeout=60.0, margin=0.0)
    queue.put(b"1")
    pin(mine, 1)
    old = time.time() - 3600
    os.utime(queue_dir / mine.base / pins.OWNER, (old, old))
    mine.beat()
    assert queue.purge().released == 0


def test_a_note_that_cannot_be_read_is_never_given_up(queue_dir):
    """Somebody's hand was in it: a machine does not decide then."""
    queue, mine = consumer(queue_dir, margin=0.0)
    queue.put(b"1")
    pin(mine, 1)
    note = queue_dir / mine.base / pins.OWNER
    note.write_text("not json")
    os.utime(note, (0, 0))
    assert queue.purge().released == 0
    assert bodies(queue) == [b"1"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 101, "a.b"])
def test_a_consumer_has_a_plain_name(queue_dir, name):
    """Nothing else becomes a path."""
    queue = Queue(queue_dir)
    with pytest.raises(SettingsError):
        Pins(queue.layout.directory, queue.settings, name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead close nothing
def test_a_consumer_may_die_anywhere(tmp_path):
    """Dead at any call of pin, pin, ack: no message is lost, and none is in two places."""
    wanted = {b"%d" % i for i in range(6)}
    for at in every_death(lambda at: story(tmp_path / str(at))):
        path = tmp_path / str(at)
        if not path.exists() or not any(path.iterdir()):
            continue
        queue, mine = consumer(path, sync=False)
        if not any(name.startswith("put") for name in files(tmp_path) if name == f"put-{at}"):
            continue
        lots = mine.lots()
        # What a stream would do when it comes again: go on where it was.
        acked = (tmp_path / f"acking-{at}").exists()
        if acked:
            mine.ack_through(1)
        pin(mine, 3)
        seen = bodies(queue)
        left = [message.data for message in queue.peek()]
        assert len(seen) == len(set(seen)), (at, lots)
        assert not left, at
        missing = wanted - set(seen)
        assert not missing if not acked else len(missing) == 3, (at, lots, missing)
    assert at > 30


def story(path):
    """Put six, pin three, pin three more, acknowledge the first."""
    queue, mine = consumer(path, sync=False)
    queue.put_many([b"%d" % i for i in range(6)])
    (path.parent / f"put-{path.name}").touch()
    pin(mine, 1, 3)
    pin(mine, 2, 3)
    (path.parent / f"acking-{path.name}").touch()
    mine.ack_through(1)
