"""The rooms of a native queue: buckets that come and go, rooms that are missing, notes, and what is flushed."""

import os
import time

import pytest
from support.checker import empty_buckets, orphans, problems
from support.kit import LONG, drain, replaced

from dirqueue import Empty, Queue
from dirqueue.disk import fs, mount
from dirqueue.layouts.native.due import Due

MINUTE, HOUR = 60_000_000, 3_600_000_000


@pytest.fixture
def make(tmp_path):
    """Give a function that makes clients of one directory."""

    def make(**settings):
        return Queue(
            tmp_path / "queue", **{"sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        )

    return make


def plant(queue, minutes, body):
    """Write a message that was due so many minutes ago, with nothing but the grammar; return its bucket."""
    until = time.time_ns() // 1000 - minutes * MINUTE
    bucket = os.path.join(queue.path, "later", str(until - until % MINUTE))
    os.makedirs(bucket, exist_ok=True)
    with open(os.path.join(bucket, f"{until}{minutes:09d}.{until}.0"), "wb") as file:
        file.write(body)
    return bucket


def test_bucket_that_fills_while_it_is_removed_keeps_its_message(make):
    """A put that was stopped for minutes comes to its bucket as a consumer removes it as empty: nothing is lost."""
    queue = make()
    queue.put(b"x")
    bucket = plant(queue, 5, b"gone")
    os.unlink(os.path.join(bucket, os.listdir(bucket)[0]))
    remove = Due._remove
    filled = []

    def fill(self, path):
        if not filled:
            filled.append(plant(queue, 5, b"late"))
        remove(self, path)

    with replaced(Due, _remove=fill):
        got = drain(queue)
    assert filled == [bucket]
    assert sorted(got + drain(make())) == [b"late", b"x"]
    assert problems(queue.path) == []


def test_every_bucket_that_is_due_is_looked_at(make):
    """Messages of several past minutes are all found, by one consumer and at once."""
    queue = make()
    queue.put(b"now")
    for minutes in (0, 1, 2, 3, 90):
        plant(queue, minutes, str(minutes).encode())
    assert sorted(drain(queue)) == [b"0", b"1", b"2", b"3", b"90", b"now"]
    with pytest.raises(Empty):
        queue.get(timeout=0)
    drain(make())
    assert len(empty_buckets(queue.path)) <= 1  # that of this minute


def test_leases_that_expire_later_are_found_too(make):
    """A consumer that has looked at leased/ before finds what was leased, and expired, since then; again and again."""
    holder, consumer = make(), make()
    for number in range(3):
        with pytest.raises(Empty):
            consumer.get(timeout=0)
        holder.put(b"%d" % number)
        holder.get(timeout=0, lease=0.001)
        time.sleep(0.03)
        assert consumer.get(timeout=0).message.body == b"%d" % number
        with pytest.raises(Empty):
            consumer.get(timeout=0)


def test_claim_makes_the_room_that_is_missing(make):
    """A queue that mkdir made, with a message that a shell put, has no leased/: a claim makes it."""
    queue = make()
    os.mkdir(queue.path)
    with open(os.path.join(queue.path, "1700000000000000000000001"), "wb") as file:
        file.write(b"x")
    lease = queue.get(timeout=0)
    assert os.listdir(os.path.join(queue.path, "leased")) == [os.path.basename(lease.handle)]
    lease.ack()


def flushed(action):
    """Run something; return the directories, relative to the queue, that it flushed, and whether all of the disk."""
    found, whole = [], []

    def fsync(fd):
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        return real["fsync"](fd)

    def syncfs(fd):
        whole.append(fd)
        return real["syncfs"](fd)

    with replaced(fs, fsync=fsync, syncfs=syncfs) as real:
        action()
    return found, bool(whole)


def test_delayed_put_flushes_its_bucket_and_all_above(make):
    """The names on the way to a delayed message are durable when its put returns."""
    queue = make(sync=True)
    queue.put(b"x")
    found, _ = flushed(lambda: queue.put(b"later", delay=600))
    room = os.path.join(queue.path, "later")
    (bucket,) = os.listdir(room)
    assert {queue.path, room, os.path.join(room, bucket)} <= {os.path.realpath(each) for each in found}
    found, _ = flushed(lambda: queue.put(b"later", delay=600))
    assert any(each.startswith(room + "/") for each in found)


def test_note_goes_with_its_message(make):
    """Through retry, claim, release, reject and ack there is one note at most, and it lies beside its message."""
    queue = make(max_attempts=0)
    queue.put(b"x")
    queue.get(timeout=0).retry(0, "first")
    assert orphans(queue.path) == []
    lease = queue.get(timeout=0)
    assert lease.message.error == "first"
    assert orphans(queue.path) == []
    lease.retry(0, "second")
    assert orphans(queue.path) == []
    queue.get(timeout=0).release()
    assert orphans(queue.path) == []
    lease = queue.get(timeout=0)
    assert lease.message.error == "second"
    lease.reject("third")
    assert orphans(queue.path) == []
    queue.redrive()
    queue.get(timeout=0).ack()
    assert orphans(queue.path) == problems(queue.path) == []


@pytest.mark.parametrize("verb", ["put", "delayed put", "put_many", "ack", "reject", "redrive"])
def test_flush_on_btrfs_is_one_of_the_filesystem(make, verb):
    """There a flush of one directory leaves out what left another: a message could be in two rooms."""
    queue = make(sync=True)
    queue.put(b"x")
    queue.layout.directory.mount = mount.Mount("btrfs")
    lease = queue.get(timeout=0)
    if verb == "redrive":
        lease.reject("no")
    act = {
        "put": lambda: queue.put(b"y"),
        "delayed put": lambda: queue.put(b"y", delay=600),
        "put_many": lambda: queue.put_many([b"y", b"z"]),
        "ack": lease.ack,
        "reject": lambda: lease.reject("no"),
        "redrive": queue.redrive,
    }[verb]
    directories, whole = flushed(act)
    assert whole
    assert not [each for each in directories if os.path.isdir(each)]


def test_delayed_put_stopped_for_longer_than_stale_is_written_again(make):
    """Its unfinished file was purged and its bucket removed while it was stopped: the message is there nevertheless."""
    queue, purger = make(), make(stale=0)
    queue.put(b"first")
    done = []

    def stopped(src, dst, dir_fd):
        if not done and dst.startswith("later/"):
            done.append(dst)
            purger.purge()
            os.rmdir(os.path.join(queue.path, os.path.dirname(dst)))
        return real["rename_noreplace"](src, dst, dir_fd)

    with replaced(fs, rename_noreplace=stopped) as real:
        queue.put(b"later", delay=0.001)
    assert done
    time.sleep(0.01)
    assert sorted(drain(make())) == [b"first", b"later"]
    assert problems(queue.path) == []


@pytest.mark.parametrize("verb", ["retry", "release", "reject", "ack"])
def test_room_or_bucket_that_goes_again_and_again_is_made_again(make, verb):
    """Others remove the empty bucket between its making and the rename, three times: the message arrives."""
    queue = make(keep_done=True)
    queue.put(b"x")
    queue.get(timeout=0).retry(0, "once")
    lease = queue.get(timeout=0)
    times = []

    def swept(src, dst, **named):
        folder = os.path.join(queue.path, os.path.dirname(dst))
        if src == lease.handle and len(times) < 3 and os.path.isdir(folder):
            times.append(dst)
            for each in os.listdir(folder):
                os.unlink(os.path.join(folder, each))
            os.rmdir(folder)
        return real["rename"](src, dst, **named)

    with replaced(fs, rename=swept) as real:
        getattr(lease, verb)(*(("no",) if verb == "reject" else ()))
    assert times
    assert problems(queue.path) == []
    assert len(list(queue.peek("ready")) + list(queue.peek("dead")) + list(queue.peek("done"))) == 1


PUTS = {
    "put": lambda queue: queue.put(b"x", delay=600),
    "put of a link": lambda queue: queue.put(b"x", delay=600),
    "put_many": lambda queue: queue.put_many([b"x", b"y"], delay=600),
    "put_path": lambda queue: queue.put_path(_file(queue), delay=600),
    "change": lambda queue: next(iter(queue.peek())).change(delay=600),
}


def _file(queue):
    path = os.path.join(os.path.dirname(queue.path), "file")
    with open(path, "wb") as file:
        file.write(b"x")
    return path


@pytest.mark.parametrize("sync", [False, True], ids=["fast", "durable"])
@pytest.mark.parametrize("verb", PUTS)
def test_bucket_that_goes_under_a_put_is_made_again(make, verb, sync):
    """Others remove the empty bucket right before the call that puts into it, three times: the message arrives."""
    queue = make(links=verb == "put of a link", sync=sync)
    if verb == "change":
        queue.put(b"x")
    times = []

    def sweep(place):
        folder = os.path.join(queue.path, os.path.dirname(place))
        if place.startswith("later/") and len(times) < 3 and os.path.isdir(folder):
            os.rmdir(folder)
            times.append(place)

    def swept(name):
        def call(src, dst, *more, **named):
            sweep(dst)
            return real[name](src, dst, *more, **named)

        return call

    calls = ("rename", "rename_noreplace", "symlink")
    with replaced(fs, **{name: swept(name) for name in calls}) as real:
        PUTS[verb](queue)
    assert len(times) == 3
    assert problems(queue.path) == []
    wanted = [b"x", b"y"] if verb == "put_many" else [b"x"]
    assert sorted(message.body for message in queue.peek("delayed")) == wanted
