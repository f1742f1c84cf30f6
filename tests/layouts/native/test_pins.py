"""Pinned lots: taken out of the queue, the same on every look, ended by one rename."""

import contextlib
import errno
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.dying import every_death
from support.failing import failing, of
from support.kit import PATIENCE, drain, files, replaced

from dirqueue import LeaseLost, Queue, QueueError, SettingsError
from dirqueue.disk import fs
from dirqueue.layouts.native import claim, pins
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


def test_acknowledged_lot_is_gone(queue_dir):
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


def test_an_acknowledged_lot_is_removed_part_by_part(queue_dir):
    """Several parties may remove different parts of it at once; what another has removed is no error."""
    queue, mine = consumer(queue_dir)
    for _ in range(3):
        queue.put_many([b"x"] * 4)
    pin(mine, 1)
    parts = []
    (name,) = mine.end_through(1)
    with ThreadPoolExecutor(2) as pool:
        gone = mine.finish(
            name, keep=False, mapped=lambda do, some: (parts.extend(some), pool.map(do, some))[1]
        )
    assert (gone, len(parts), len(set(parts))) == (12, 3, 3)
    assert queue.stats().total == 0
    assert not mine.names()[1:], "only the owner's note is left"
    assert mine.finish(name, keep=False) == 0


def foreign_among_links(queue_dir):
    """Return a queue with one batch of links, three of them foreign links with names of messages, and those names."""
    queue, mine = consumer(queue_dir, links=True)
    ids = queue.put_many([b"%d" % n for n in range(6)])
    (batch,) = queue_dir.glob("*.batch")
    (queue_dir.parent / "outside").write_bytes(b"outside")
    targets = ["../../outside", "/nowhere", ids[5]]
    for id, target in zip(ids[1:4], targets, strict=True):
        (batch / id).unlink()
        (batch / id).symlink_to(target)
    return queue, mine, dict(zip(ids[1:4], targets, strict=True))


@pytest.mark.parametrize("keep", [False, True])
def test_a_foreign_link_that_came_along_with_its_directory_stays_in_the_queue(queue_dir, keep):
    """It is taken by the one rename, gives no message, and is put out when the lot has ended: never removed."""
    queue, mine, foreign = foreign_among_links(queue_dir)
    pin(mine, 1)
    assert bodies(queue) == [b"0", b"4", b"5"]
    mine.ack(1, keep=keep)
    assert {id: os.readlink(queue_dir / id) for id in foreign} == foreign
    assert (queue.stats().total, queue.stats().done) == (0, 3 if keep else 0)
    assert drain(queue) == []
    assert (queue_dir.parent / "outside").read_bytes() == b"outside"


def test_a_foreign_link_is_put_out_by_either_of_two_that_finish_a_lot(queue_dir):
    """RACE: one that finds a link gone goes on to the next before it removes anything."""
    queue, mine, foreign = foreign_among_links(queue_dir)
    pin(mine, 1)
    (name,) = mine.end_through(1)
    first, *_ = foreign
    real = fs.readlink

    def other(path, **more):
        found = real(path, **more)
        if path.decode().endswith(first) and not os.path.lexists(queue_dir / first):
            os.rename(queue_dir / path.decode(), queue_dir / first)
        return found

    with replaced(fs, readlink=other):
        mine.finish(name, keep=False)
    assert {id: os.readlink(queue_dir / id) for id in foreign} == foreign
    assert queue.stats().total == 0


def test_a_foreign_link_goes_back_with_a_lot_that_is_given_back(queue_dir):
    """And gives nobody a message there."""
    queue, mine, foreign = foreign_among_links(queue_dir)
    pin(mine, 1)
    assert mine.release(1)
    assert drain(queue) == [b"0", b"4", b"5"]
    assert {each.name for each in queue_dir.rglob("*") if each.is_symlink()} == set(foreign)


def test_released_lot_is_back_in_its_place(queue_dir):
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


def renames(counted):
    """Return fs.rename that counts its calls."""
    real = fs.rename
    return lambda *each, **more: (counted.append(each[0]), real(*each, **more))[1]


def test_a_directory_of_claimable_messages_is_pinned_by_one_rename(queue_dir):
    """However many they are; flat messages beside it go by name."""
    queue, mine = consumer(queue_dir)
    queue.put(b"flat")
    queue.put_many([b"%d" % n for n in range(300)])
    counted = []
    with replaced(fs, rename=renames(counted)):
        assert pin(mine, 1) == 301
    assert len(counted) == 3, "the flat one, the directory, and the lot that is sealed"
    assert len(bodies(queue)) == 301
    assert mine.release(1)
    assert drain(queue)[0] == b"flat"


@pytest.mark.parametrize("spoiler", ["delayed", "foreign", "staging", "held"])
def test_a_directory_with_anything_else_in_it_is_emptied_by_name(queue_dir, spoiler):
    """What cannot be claimed now, or is not a message at all, stays where it is."""
    queue, mine = consumer(queue_dir)
    ids = queue.put_many([b"1", b"2", b"3"])
    (batch,) = queue_dir.glob("*.batch")
    until = time.time_ns() // 1000 + 3_600_000_000
    name = {
        "delayed": f"{ids[0]}.{until}.0",
        "foreign": "readme.txt",
        "staging": f"{ids[0]}.new",
        "held": f"{ids[0]}.{until}.1.host-1-0123456789-1",  # as an earlier version held it
    }[spoiler]
    (batch / ids[0]).rename(batch / name)
    assert pin(mine, 1) == 2
    assert bodies(queue)[:2] == [b"2", b"3"] or spoiler == "held"
    assert os.path.lexists(batch / name)


def test_a_slice_that_producers_may_append_to_is_emptied_by_name(queue_dir):
    """Until it is old enough: then it is pinned whole."""
    queue, mine = consumer(queue_dir)
    queue.put(b"flat")
    now = time.time_ns() // 1000
    for age, moved in ((0, False), (3600, True)):
        start = now - age * 1_000_000
        place = queue_dir / f"{start}000000000.slice"
        place.mkdir()
        for n in range(3):
            (place / f"{start}{n:09d}").write_bytes(b"x")
        assert pin(mine, 1) == 3 + (age == 0)
        assert place.exists() is not moved
        mine.ack(1)


def test_what_is_claimed_between_the_listing_and_the_rename_is_not_counted(queue_dir):
    """RACE: the lot holds what was in the directory when it was taken."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    real = fs.rename

    def late(src, dst, **more):
        if src.endswith(".batch"):
            assert drain(Queue(queue_dir), 1) == [b"1"]
        return real(src, dst, **more)

    with replaced(fs, rename=late):
        assert pin(mine, 1) == 2
    assert bodies(queue) == [b"2", b"3"]


def test_a_directory_that_the_disk_does_not_give_is_an_error_and_stays(queue_dir):
    """With its errno; nothing is pinned."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2"])
    with failing("rename", errno.EIO, when=of(".batch")), pytest.raises(QueueError):
        pin(mine, 1)
    assert bodies(queue, "ready") == [b"1", b"2"]


def test_a_batch_whose_delay_is_over_is_pinned_whole(queue_dir):
    """Its names keep their time; what is not a message is no reason to count it, or to stop."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2"], delay=0.001)
    deadline = time.monotonic() + PATIENCE
    while queue.stats().ready != 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    real = fs.rename

    def late(src, dst, **more):
        real(src, dst, **more)
        if dst.endswith(".part"):  # a producer that was about to append
            (queue_dir / dst / "1700000000000000000000001.new").write_bytes(b"")

    with replaced(fs, rename=late):
        assert pin(mine, 1) == 2
    assert bodies(queue) == [b"1", b"2"]
    assert mine.ack(1) == 3
    assert len(queue) == 0


@pytest.mark.parametrize("error", [errno.ENOTEMPTY, errno.EACCES, errno.ENOENT])
def test_a_directory_that_cannot_be_taken_whole_is_emptied_by_name(queue_dir, error):
    """There is a part of that name, it is another user's, or it was just emptied."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    real = fs.rename

    def refuse(src, dst, **more):
        if src.endswith(".batch"):
            raise OSError(error, os.strerror(error), src)
        return real(src, dst, **more)

    with replaced(fs, rename=refuse):
        assert pin(mine, 1) == 3
    assert bodies(queue) == [b"1", b"2", b"3"]


def test_on_a_network_filesystem_no_directory_is_taken_whole(queue_dir):
    """NFS: another host that has its handle would go on to claim in it."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    mine.directory.mount.replies_can_be_lost = True
    assert pin(mine, 1) == 3
    assert [list(each.iterdir()) for each in queue_dir.glob("*.batch")] == [[]]
    (part,) = mine.parts(1)
    assert len(list((queue_dir / part).iterdir())) == 3


def test_a_lot_that_is_half_full_leaves_a_large_directory_to_the_next(queue_dir):
    """So that it is taken whole and not name by name."""
    queue, mine = consumer(queue_dir)
    for _ in range(3):
        queue.put_many([b"x"] * 400)
    supply = claimable(mine.directory, mine.settings)
    counted = []
    with replaced(fs, rename=renames(counted)):
        assert [mine.pin(lot, supply, Limit(1000)) for lot in (1, 2)] == [800, 400]
    assert len(counted) == 5, "three directories and two lots"
    assert mine.pin(3, supply, Limit(1000)) == 0


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


def test_lost_consumer_loses_its_lots_to_the_queue(queue_dir):
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


def silence(queue_dir, mine, seconds=3600.0):
    """Make it so long ago that the consumer gave a sign of life."""
    old = time.time() - seconds
    os.utime(queue_dir / mine.base / pins.OWNER, (old, old))


def test_lots_of_a_lost_consumer_come_back_without_purge(queue_dir):
    """A consumer that finds nothing else gives them back, and gets them."""
    queue, mine = consumer(queue_dir, timeout=60.0, margin=0.0)
    queue.put_many([b"1", b"2"])
    pin(mine, 1)
    other = Queue(queue_dir)
    assert drain(other) == []
    silence(queue_dir, mine)
    assert drain(Queue(queue_dir)) == [b"1", b"2"]
    with pytest.raises(LeaseLost):
        mine.ack(1)


def test_lots_of_a_lost_consumer_come_back_beside_a_backlog(queue_dir, monkeypatch):
    """A consumer that always finds something looks for them too, at a bounded rate."""
    queue, mine = consumer(queue_dir, timeout=60.0, margin=0.0)
    queue.put(b"pinned")
    pin(mine, 1)
    silence(queue_dir, mine)
    queue.put(b"1")
    queue.put(b"2")
    assert sorted(drain(Queue(queue_dir), 3)) == [b"1", b"2", b"pinned"]


def test_waiting_consumer_gets_the_lots_of_a_lost_one(queue_dir, monkeypatch):
    """It has found nothing before, and nothing in the queue's directory changes."""
    monkeypatch.setattr(claim, "LOST_SECONDS", 0.05)
    queue, mine = consumer(queue_dir, timeout=0.2, margin=0.0)
    queue.put(b"1")
    pin(mine, 1)
    assert Queue(queue_dir).get(timeout=PATIENCE).message.body == b"1"


def test_lost_consumers_are_looked_for_at_a_bounded_rate(queue_dir):
    """Looks that find nothing, one after the other, list the consumers once."""
    queue, mine = consumer(queue_dir)
    queue.put(b"1")
    pin(mine, 1)
    listed = []
    real = pins.release_stale
    with replaced(pins, release_stale=lambda *each: (listed.append(1), real(*each))[1]):
        for _ in range(5):
            assert drain(queue) == []
    assert len(listed) <= 1
    without = Queue(queue_dir.parent / "without")
    without.put(b"x")
    with replaced(pins, release_stale=lambda *_: pytest.fail("there are no pins in this queue")):
        assert drain(without) == [b"x"]


def test_leases_of_others_are_pinned_only_after_the_margin(queue_dir):
    """As by any other consumer."""
    holder = Queue(queue_dir, margin=0.0)
    holder.put(b"held")
    holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    _, mine = consumer(queue_dir, margin=600.0)
    assert pin(mine, 1) == 0
    _, hasty = consumer(queue_dir, "hasty", margin=0.0)
    assert pin(hasty, 1) == 1


def test_lots_are_given_back_only_after_the_margin(queue_dir):
    """Hosts whose clocks disagree need it."""
    queue, mine = consumer(queue_dir, timeout=60.0, margin=600.0)
    queue.put(b"1")
    pin(mine, 1)
    silence(queue_dir, mine, 120.0)
    assert queue.purge().released == 0
    assert drain(Queue(queue_dir, margin=600.0)) == []
    silence(queue_dir, mine, 720.0)
    assert queue.purge().released == 1


def test_messages_out_of_attempts_are_not_pinned(queue_dir):
    """Delayed after a failure, or held by somebody who died: they are buried, not delivered once more."""
    queue = Queue(queue_dir, margin=0.0)
    for body in (b"failed", b"lost"):
        queue.put(body)
    failed, _ = queue.get_many(2, timeout=0, lease=0.001)
    queue.put(b"good")
    failed.retry(0.0, "why")
    time.sleep(0.005)
    strict, mine = consumer(queue_dir, max_attempts=1, margin=0.0)
    assert pin(mine, 1) == 1
    assert [message.data for message in strict.peek("leased") if message.token == "c"] == [b"good"]
    assert strict.stats().dead == 0, "the next consumer or purge buries them"


def test_two_parties_that_give_up_one_consumer_do_no_harm(queue_dir):
    """A purger and a consumer at once, at every call: each message comes back once."""
    for at in range(200):
        path = queue_dir / str(at)
        queue, mine = consumer(path, timeout=60.0, margin=0.0, sync=False)
        mine.register(60.0, keep=True)
        queue.put_many([b"1", b"2", b"3"])
        pin(mine, 1, 1)
        pin(mine, 2)
        os.rename(path / mine.base / "1", path / mine.base / "1.ack")
        silence(path, mine)
        other = Queue(path, sync=False)
        other.layout.directory.need()
        calls = itertools.count()
        release = lambda at=at, calls=calls, other=other: (  # noqa: E731
            next(calls) == at
            and pins._give_up(
                Pins(other.layout.directory, other.settings, "c"), keep=True
            )  # it has looked before
        )
        with every_call(release):
            pins.release_stale(queue.layout.directory, queue.settings)
        assert bodies(queue, "ready") == [b"2", b"3"], at
        assert bodies(queue, "done") == [b"1"], at
        if next(calls) <= at:
            break
    assert 10 < at < 199


@contextlib.contextmanager
def every_call(action):
    """Do something before every filesystem call, but not before those of the action itself."""
    real = {name: getattr(fs, name) for name in fs.CALLS}
    inside = []

    def wrap(call):
        def wrapped(*arguments, **named):
            if not inside:
                inside.append(1)
                action()
                inside.clear()
            return call(*arguments, **named)

        return wrapped

    with replaced(fs, **{name: wrap(call) for name, call in real.items()}):
        yield


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"timeout": 1e999}', '{"timeout": [1]}', "[]", '{"timeout": "x"}']
)
def test_owner_that_is_not_as_we_write_them_is_never_given_up(queue_dir, text):
    """Brackets beyond any depth, numbers beyond any size, wrong types."""
    queue, mine = consumer(queue_dir, margin=0.0)
    queue.put(b"1")
    pin(mine, 1)
    (queue_dir / mine.base / pins.OWNER).write_text(text)
    assert queue.purge().released == 0
    assert bodies(queue) == [b"1"]
    assert drain(Queue(queue_dir)) == []


def test_sign_of_life_keeps_the_lots(queue_dir):
    """beat() starts the timeout anew."""
    queue, mine = consumer(queue_dir, timeout=60.0, margin=0.0)
    queue.put(b"1")
    pin(mine, 1)
    old = time.time() - 3600
    os.utime(queue_dir / mine.base / pins.OWNER, (old, old))
    mine.beat()
    assert queue.purge().released == 0


def test_note_that_cannot_be_read_is_never_given_up(queue_dir):
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
def test_consumer_has_a_plain_name(queue_dir, name):
    """Nothing else becomes a path."""
    queue = Queue(queue_dir)
    with pytest.raises(SettingsError):
        Pins(queue.layout.directory, queue.settings, name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead close nothing
def test_consumer_may_die_anywhere(tmp_path):
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


def test_a_paused_queue_gives_no_lots(queue_dir):
    """Until it is resumed."""
    queue, mine = consumer(queue_dir)
    queue.put_many([b"1", b"2"])
    queue.pause()
    assert pin(mine, 1) == 0
    queue.resume()
    assert pin(mine, 1) == 2


def test_in_a_space_no_directory_is_taken_whole(tmp_path):
    """A transaction may be about to hold a name in it."""
    (tmp_path / ".space").mkdir()
    queue, mine = consumer(tmp_path / "q")
    queue.put_many([b"1", b"2", b"3"])
    counted = []
    with replaced(fs, rename=renames(counted)):
        assert pin(mine, 1) == 3
    assert len(counted) == 4, "each message, and the lot that is sealed"
