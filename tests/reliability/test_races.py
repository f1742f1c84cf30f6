"""Races, scheduled: calls of fs are replaced by ones in which the other side acts at the worst moment."""

import errno
import os
import shutil
import threading
import time

import pytest
from support.checker import messages, problems
from support.kit import LONG, PATIENCE, drain, replaced

from dirqueue import Empty, LeaseLost, MessageNotFound, Queue, QueueError
from dirqueue.disk import fs
from dirqueue.layouts.native import cursor, publish


@pytest.fixture
def make(tmp_path):
    """Give a maker of clients of one directory."""

    def make(**settings):
        return Queue(tmp_path / "queue", **{"sync": False, "margin": 0, "lease": LONG, **settings})

    return make


def once(call, action, *, when=lambda *arguments, **named: True, after=False):
    """Wrap a call of fs: the first time it is called as wanted, something else happens first (or right after)."""
    state = {"done": False}

    def wrapped(*arguments, **named):
        hit = not state["done"] and when(*arguments, **named)
        if hit:
            state["done"] = True
            if not after:
                action()
        result = call(*arguments, **named)
        if hit and after:
            action()
        return result

    return wrapped


def test_two_claimers_of_one_name(make):
    """The other one is faster by one call: exactly one has it, the loser gets the next message."""
    mine, theirs = make(), make()
    mine.put(b"a")
    mine.put(b"b")
    taken = []
    rename = once(fs.rename, lambda: taken.append(theirs.get(timeout=0)))
    with replaced(fs, rename=rename):
        lease = mine.get(timeout=0)
    assert {lease.message.body, taken[0].message.body} == {b"a", b"b"}
    lease.ack()
    taken[0].ack()
    assert len(mine) == 0


def test_an_ack_finds_the_name_that_a_renewal_gave(make):
    """Another thread renews between our look and the unlink: the ack goes by the new name, and nothing is lost."""
    queue = make()
    queue.put(b"x")
    lease = queue.get(timeout=0)

    def renew():
        thread = threading.Thread(target=lease.renew)
        thread.start()
        thread.join(PATIENCE)

    with replaced(fs, unlink=once(fs.unlink, renew)):
        lease.ack()
    assert lease.ended == "acked"
    assert len(queue) == 0


def test_two_threads_pop_the_same_snapshot(make):
    """The list runs empty between our look at it and the pop: we look again."""
    mine = make()
    mine.put(b"a")
    mine.put(b"b")
    mine.get(timeout=0).ack()

    class Emptied(list):
        def pop(self):
            self.clear()  # the other thread, by a moment
            raise IndexError

    mine.layout._cursor.row = ("", Emptied(["1"]))
    assert mine.get(timeout=0).message.body == b"b"


def test_a_claim_that_was_stopped_for_half_its_lease_is_renewed_at_once(make):
    """The process stands still between its look at the clock and the rename: nobody gets a lease that is over."""
    queue = make()
    queue.put(b"x")
    renamed = []

    def slow(*arguments, **named):
        if not renamed:
            time.sleep(0.6)
        renamed.append(arguments)
        return real(*arguments, **named)

    real = fs.rename
    with replaced(fs, rename=slow):
        lease = queue.get(timeout=0, lease=1.0)
    assert len(renamed) == 2
    assert lease.handle == renamed[1][1]
    lease.ack()


def test_a_claim_that_was_stopped_for_all_of_its_lease_goes_to_who_took_it(make):
    """Stopped for so long that another consumer has the message by now: this one gets nothing."""
    queue, other = make(), make()
    queue.put(b"x")
    taken = []

    def take():
        time.sleep(0.3)
        taken.append(other.get(timeout=0))

    with replaced(fs, close=once(fs.close, take)), pytest.raises(Empty):
        queue.get(timeout=0, lease=0.2)
    taken[0].ack()


def test_two_claimers_of_the_last_name(make):
    """The loser finds nothing, and says so."""
    mine, theirs = make(), make()
    mine.put(b"a")
    with (
        replaced(fs, rename=once(fs.rename, lambda: theirs.get(timeout=0))),
        pytest.raises(Empty),
    ):
        mine.get(timeout=0)


def test_an_ack_waits_for_a_renewal_of_the_same_lease(make):
    """Inside a process ack and renew take turns: the ack uses the renewed name."""
    queue = make()
    queue.put(b"a")
    lease = queue.get(timeout=0)
    inside, go_on = threading.Event(), threading.Event()

    def stop():
        inside.set()
        assert go_on.wait(PATIENCE)

    with replaced(fs, rename=once(fs.rename, stop)):
        renewer = threading.Thread(target=lease.renew)
        renewer.start()
        assert inside.wait(PATIENCE)
        acker = threading.Thread(target=lease.ack)
        acker.start()
        go_on.set()
        renewer.join(PATIENCE)
        acker.join(PATIENCE)
    assert lease.ended == "acked"
    assert len(queue) == 0


def test_a_claim_of_an_expired_lease_against_its_ack(make):
    """The late holder acks between the thief's look and the thief's rename: gone for good."""
    holder, thief = make(), make()
    holder.put(b"a")
    lease = holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    with replaced(fs, rename=once(fs.rename, lease.ack)), pytest.raises(Empty):
        thief.get(timeout=0)
    assert lease.ended == "acked"
    assert problems(holder.path) == []
    assert messages(holder.path)[0] == {}


def test_an_ack_against_the_claim_of_its_expired_lease(make):
    """The thief takes it between the holder's decision and its unlink: the ack is refused."""
    holder, thief = make(), make()
    holder.put(b"a")
    lease = holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    stolen = []
    with (
        replaced(fs, unlink=once(fs.unlink, lambda: stolen.append(thief.get(timeout=0)))),
        pytest.raises(LeaseLost),
    ):
        lease.ack()
    assert stolen[0].message.attempts == 2
    stolen[0].ack()
    assert len(holder) == 0


@pytest.mark.parametrize("verb", ["retry", "release", "reject", "renew"])
def test_an_end_against_the_claim_of_its_expired_lease(make, verb):
    """Whatever the late holder tries, the thief keeps the message."""
    holder, thief = make(), make()
    holder.put(b"a")
    lease = holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    stolen = []

    def steal():
        stolen.append(thief.get(timeout=0))

    mine = lease.handle
    rename = once(fs.rename, steal, when=lambda src, dst, **named: src == mine)
    with replaced(fs, rename=rename), pytest.raises(LeaseLost):
        getattr(lease, verb)()
    stolen[0].ack()
    assert problems(holder.path) == []
    assert len(holder) == 0


def test_a_cancel_against_a_claim(make):
    """The consumer is faster: the canceller is told, the consumer keeps it."""
    queue, other = make(), make()
    id = queue.put(b"a")
    message = queue.message(id)
    taken = []
    with (
        replaced(fs, rename=once(fs.rename, lambda: taken.append(other.get(timeout=0)))),
        pytest.raises(MessageNotFound),
    ):
        message.cancel()
    taken[0].ack()


def test_two_redrives_of_one_message(make):
    """It comes again once, and one of the two says that it did it."""
    queue, other = make(), make()
    queue.put(b"a")
    queue.get(timeout=0).reject("no")
    theirs = []
    noreplace = once(fs.rename_noreplace, lambda: theirs.extend(other.redrive()))
    with replaced(fs, rename_noreplace=noreplace):
        mine = queue.redrive()
    assert (len(mine), len(theirs)) == (0, 1)
    assert drain(queue) == [b"a"]


def test_a_purge_beside_a_slow_producer(make):
    """Purged under its hands, an unfinished message is written again: put still keeps its word."""
    queue, purger = make(), make(stale=0)
    queue.put(b"first")
    with replaced(fs, rename_noreplace=once(fs.rename_noreplace, purger.purge)):
        queue.put(b"slow")
    assert sorted(drain(queue)) == [b"first", b"slow"]


def test_a_producer_against_the_removal_of_its_slice(make, monkeypatch):
    """The slice is taken away between its making and the first write: the next one is made."""
    monkeypatch.setattr(publish, "DEEP", 0)
    queue = make()
    queue.put(b"a")

    def remove():
        for name in os.listdir(queue.path):
            if name.endswith(".slice") and not os.listdir(os.path.join(queue.path, name)):
                os.rmdir(os.path.join(queue.path, name))

    drain(queue)
    wants_new = lambda path, *_, **named: str(path).endswith(".new")  # noqa: E731
    with replaced(fs, open=once(fs.open, remove, when=wants_new)):
        queue.put(b"b")
    assert drain(queue) == [b"b"]


def test_a_producer_against_the_removal_of_the_queue(make):
    """Somebody deletes the whole directory: it is made again, for put and for put_many."""
    queue = make()
    queue.put(b"gone")
    wants_new = lambda path, *_, **named: str(path).endswith(".new")  # noqa: E731
    with replaced(fs, open=once(fs.open, lambda: shutil.rmtree(queue.path), when=wants_new)):
        queue.put(b"a")
    shutil.rmtree(queue.path)
    queue.put_many([b"b", b"c"])
    assert sorted(drain(make())) == [b"b", b"c"]


def test_a_queue_removed_for_ever_is_an_error_not_a_loop(make):
    """Every loop on an errno is bounded."""
    queue = make()
    queue.put(b"x")

    def never(path, *arguments, **named):
        if str(path).endswith(".new"):
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return real["open"](path, *arguments, **named)

    with replaced(fs, open=never) as real, pytest.raises(QueueError, match="cannot put"):
        queue.put(b"y")


def test_a_publish_onto_a_taken_name(make):
    """Nothing is overwritten: the message gets another id."""
    queue = make()
    queue.put(b"first")

    def occupy(src, dst, dir_fd):
        with open(os.path.join(queue.path, dst), "wb") as file:
            file.write(b"squatter")

    state = []

    def publish_late(src, dst, dir_fd):
        if not state:
            state.append(dst)
            occupy(src, dst, dir_fd)
        return real["rename_noreplace"](src, dst, dir_fd)

    with replaced(fs, rename_noreplace=publish_late) as real:
        id = queue.put(b"mine")
    assert id != state[0]
    assert queue.message(id).body == b"mine"
    assert queue.message(state[0]).body == b"squatter"
    assert problems(queue.path) == []


def test_a_listing_that_misses_a_name_is_not_believed(make):
    """A name being renamed may be missed: "empty" needs a second look."""
    queue = make()
    queue.put(b"a")
    calls = []

    class Blind:
        def __init__(self, found):
            self.found = found

        def __enter__(self):
            return iter(())

        def __exit__(self, *_):
            self.found.close()

    def scandir(fd):
        calls.append(fd)
        found = real["scandir"](fd)
        return Blind(found) if len(calls) == 1 else found

    with replaced(fs, scandir=scandir) as real:
        assert queue.get(timeout=0).message.body == b"a"
    assert len(calls) == 2


def test_a_put_within_one_tick_of_the_directorys_time_is_seen(make, monkeypatch):
    """A put during a slow listing leaves the directory's time as it was: it must be found all the same."""
    monkeypatch.setattr(cursor, "TICK_NS", 10**9)  # a machine may well stop for one of the real ticks
    queue, other = make(), make()
    queue.put(b"first")
    drain(queue)

    class Listing:
        """A listing that is complete before the put, and over long after it."""

        def __init__(self, found):
            self.entries = list(found)
            found.close()

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            if not state and len(calls) >= 2:
                state.append(1)
                facts = os.stat(queue.path)
                other.put(b"late")
                os.utime(queue.path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # the same tick
                time.sleep(1.1)

    state, calls = [], []

    def scandir(fd):
        calls.append(fd)
        return Listing(real["scandir"](fd))

    def fstat(fd):
        if not state:
            os.utime(queue.path)  # the directory changes right now
        return real["fstat"](fd)

    with replaced(fs, scandir=scandir, fstat=fstat) as real, pytest.raises(Empty):
        queue.get(timeout=0)
    assert state
    assert queue.get(timeout=0).message.body == b"late"


def test_two_threads_learn_at_once_what_a_mount_cannot(make):
    """Narrowing the ways to publish is safe from many threads."""
    from dirqueue.disk import mount

    mount = mount.Mount("ext4")
    barrier = threading.Barrier(6)

    def cannot(src, dst, dir_fd):
        barrier.wait(PATIENCE)
        raise NotImplementedError

    linked = []

    def link(src, dst, dir_fd):
        linked.append(src)

    mount._noreplace, mount._ways = False, [cannot, link, link]
    threads = [threading.Thread(target=mount.publish, args=(n, n, 0)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(linked) == list(range(6))


def test_done_removed_under_a_consumer_is_made_again(make):
    """A missing done/ or dead/ is not a lost lease."""
    queue = make(keep_done=True)
    for _ in range(4):
        queue.put(b"x")
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("no")
    shutil.rmtree(os.path.join(queue.path, "done"))
    shutil.rmtree(os.path.join(queue.path, "dead"))
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("no")
    stats = queue.stats()
    assert (stats.done, stats.dead) == (1, 1)


def test_two_creators_at_once_agree(tmp_path):
    """Whoever is second gets the first one's settings or an error, never a mixture."""
    from dirqueue import SettingsError

    path = tmp_path / "queue"
    with (
        replaced(fs, rename_noreplace=once(fs.rename_noreplace, lambda: Queue.create(path, lease=7.0))),
        pytest.raises(SettingsError, match="lease"),
    ):
        Queue.create(path, lease=9.0)
    assert Queue(path).settings.lease == 7.0
    assert [name for name in os.listdir(path) if name.startswith(".create")] == []
