"""Errors of rooms: no inode for a bucket, a room that cannot be made, one that goes at the wrong moment."""

import errno
import os
import time
from pathlib import Path

import pytest
from lab import images
from support.checker import problems
from support.failing import FULL, HARD, before, failing, names, of
from support.kit import LONG, drain, files
from support.native import held_names, note_of, place_of

from dirqueue import Empty, Queue, QueueAccess
from dirqueue.disk import mount
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native.count import Counter
from dirqueue.layouts.native.supply import claimable


def no_inodes(queue, code=errno.ENOSPC):
    """Let every new directory be refused; of one that is there the kernel says that first."""

    def is_new(path, *_, **__):
        return not os.path.exists(os.path.join(queue.path, path))

    return failing("mkdir", code, when=is_new, times=999)


@pytest.mark.parametrize("code", names(FULL))
def test_retry_without_an_inode_for_a_bucket_waits_in_leased(queue, code):
    """With its time, its deliveries and its reason; and is delivered when its time has come."""
    lease = queue.get(timeout=0)
    with no_inodes(queue, code):
        lease.retry(0.2, "why")
    id = lease.message.id
    assert place_of(queue, id).startswith(f"leased/{id}.")
    assert place_of(queue, id).endswith(".1")
    assert note_of(queue) == f"leased/{id}.error"
    again = queue.get(timeout=LONG)
    assert (again.message.attempts, again.message.error) == (2, "why")
    again.ack()
    assert note_of(queue) is None
    assert len(queue) == 0


@pytest.mark.parametrize("code", names(FULL))
def test_release_that_finds_no_space_at_the_top_waits_in_leased(queue, code):
    """Under a name that consumers look for, this delivery not counted."""
    lease = queue.get(timeout=0)
    id = lease.message.id
    with failing("rename", code, when=lambda _, dst, **__: dst == id):
        lease.release()
    assert place_of(queue, id).startswith(f"leased/{id}.")
    assert place_of(queue, id).endswith(".0")
    for consumer in (queue, Queue(queue.path, sync=False)):
        again = consumer.get(timeout=0)
        assert again.message.attempts == 1
        with failing("rename", code, when=lambda _, dst, **__: dst == id):
            again.release()
    assert len(queue) == 1


def test_release_without_an_inode_for_a_bucket_waits_in_leased(queue):
    """One that was delivered before goes to a bucket, too."""
    queue.get(timeout=0).retry(0)
    lease = queue.get(timeout=0)
    bucket = Path(queue.path, "later")
    for each in bucket.iterdir():
        each.rmdir()
    with no_inodes(queue):
        lease.release()
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names(FULL))
def test_spent_message_without_an_inode_for_dead_keeps_no_other_from_being_delivered(make, code):
    """It is buried when there is one."""
    queue = make(max_attempts=1)
    queue.put(b"spent")
    queue.get(timeout=0, lease=0.001)
    queue.put(b"good")
    time.sleep(0.002)
    with no_inodes(queue, code):
        assert drain(queue) == [b"good"]
    assert drain(queue) == []
    assert [message.body for message in queue.peek("dead")] == [b"spent"]


@pytest.mark.parametrize("verb", ["reject", "ack"])
def test_end_without_an_inode_for_its_room_is_told_and_the_lease_is_held(make, verb):
    """Nothing has changed: it can be ended in another way, or later."""
    queue = make(keep_done=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    with no_inodes(queue), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == errno.ENOSPC
    assert held_names(queue) == [lease.handle]
    assert note_of(queue) is None
    getattr(lease, verb)()
    assert held_names(queue) == []


@pytest.mark.parametrize("many", [False, True])
def test_delayed_put_without_an_inode_for_a_bucket_leaves_nothing(make, many):
    """Told, and nothing is visible then or later."""
    queue = make()
    queue.put(b"first")
    bucket = failing("mkdir", errno.ENOSPC, when=lambda path, *_, **__: path.startswith("later"), times=99)
    with bucket, pytest.raises(QueueAccess) as caught:
        queue.put_many([b"a", b"b"], delay=LONG) if many else queue.put(b"a", delay=LONG)
    assert caught.value.errno == errno.ENOSPC
    assert drain(queue) == [b"first"]
    assert [name for name in files(queue.path) if name[0].isdigit()] == []


@pytest.mark.parametrize("code", names([*HARD, errno.ENOSPC]))
def test_claim_that_cannot_make_leased_says_so(queue, code):
    """The message stays where it is."""
    os.rmdir(os.path.join(queue.path, "leased"))
    with failing("mkdir", code, times=2), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert drain(queue) == [b"one"]


def test_claim_of_a_message_that_goes_while_leased_is_made_goes_on(queue):
    """Another consumer took it: the next one is claimed."""
    queue.put(b"two")
    os.rmdir(os.path.join(queue.path, "leased"))
    first = os.path.join(queue.path, next(queue.peek()).id)
    with before("mkdir", lambda: os.unlink(first)):
        assert queue.get(timeout=0).message.body == b"two"


def test_claim_in_a_queue_that_goes_while_leased_is_made_finds_nothing(queue):
    """Removed as a whole, between the listing and the claim."""
    os.rmdir(os.path.join(queue.path, "leased"))

    def remove():
        for name in files(queue.path):
            os.unlink(os.path.join(queue.path, name))
        os.rmdir(queue.path)

    with before("mkdir", remove), pytest.raises(Empty):
        queue.get(timeout=0)
    assert not os.path.exists(queue.path)


@pytest.mark.parametrize("code", names([errno.EACCES, errno.EIO]))
@pytest.mark.parametrize("folder", ["batch", "top"])
def test_claim_that_is_refused_after_leased_was_made(make, code, folder):
    """A batch of another user's is stepped over; anything else is told."""
    queue = make()
    queue.put_many([b"one", b"two"]) if folder == "batch" else queue.put(b"one")
    os.rmdir(os.path.join(queue.path, "leased"))
    refused = failing("rename", code, when=lambda *_, **__: os.path.isdir(os.path.join(queue.path, "leased")))
    told = Empty if (folder, code) == ("batch", errno.EACCES) else QueueAccess
    with refused, pytest.raises(told):
        queue.get(timeout=0)
    assert len(drain(make())) == (2 if folder == "batch" else 1)


@pytest.mark.parametrize("room", ["leased", "later", "dead", "done"])
def test_file_in_the_place_of_a_room_is_told_and_left_alone(make, room):
    """Whatever made it, it is not ours: readers go on, and nothing is lost."""
    queue = make(keep_done=True)
    queue.put(b"one")
    path = Path(queue.path, room)
    if room == "leased":
        path.rmdir()
    path.write_bytes(b"precious")
    act = {
        "leased": lambda: queue.get(timeout=0),
        "later": lambda: queue.put(b"two", delay=LONG),
        "dead": lambda: queue.get(timeout=0).reject("no"),
        "done": lambda: queue.get(timeout=0).ack(),
    }[room]
    with pytest.raises(QueueAccess):
        act()
    assert queue.stats().total == 1
    found = [message.body for state in ("ready", "leased") for message in queue.peek(state)]
    assert found == [b"one"]
    queue.purge()
    assert claimable(queue.layout.directory, queue.settings) is not None
    assert path.read_bytes() == b"precious"


@pytest.mark.root
@pytest.mark.needs("mount")
def test_disk_without_inodes_is_drained(tmp_path):
    """A real one: what is there is claimed, retried, released and acknowledged; a delayed put is refused."""
    point = tmp_path / "mount"
    point.mkdir()
    images.run("mount", "-t", "tmpfs", "-o", "size=8M,nr_inodes=40", "tmpfs", str(point))
    try:
        queue = Queue(point / "queue", sync=False, margin=0, backoff=0)
        ids = [queue.put(b"%d" % number) for number in range(10)]
        with pytest.raises(OSError, match="No space left"):
            for number in range(100):
                (point / f"filler{number}").touch()
        with pytest.raises(QueueAccess):
            queue.put(b"late", delay=LONG)
        for lease in queue.get_many(len(ids), timeout=0):
            lease.retry(0, "why")
        for lease in queue.get_many(len(ids), timeout=0):
            lease.release()
        assert sorted(drain(queue)) == [b"%d" % number for number in range(10)]
        assert problems(queue.path) == []
        queue.close()
    finally:
        images.run("umount", "-l", str(point), check=False)


# --- the rest of the branches ------------------------------------------------------------------------------


def lost_to_others(queue, attempts=1):
    """Make a lease that expired long ago; return its place."""
    queue.layout.create()
    place = f"leased/1700000000000000000000001.1700000000000001.{attempts}.other"
    Path(queue.path, place).write_bytes(b"lost")
    return place


def test_spent_message_that_another_consumer_buries_first_is_passed_over(make):
    """Between the listing and the look at its name."""
    queue = make(max_attempts=1)
    queue.put(b"good")
    place = lost_to_others(queue)
    gone = before("stat", lambda: os.unlink(os.path.join(queue.path, place)), when=of(place))
    with gone:
        assert drain(queue) == [b"good"]
    assert queue.stats().dead == 0


def test_lease_that_is_renewed_before_it_is_taken_is_left_to_its_holder(make):
    """No sign of other consumers: what is ready is not jumped over."""
    queue = make()
    queue.put(b"good")
    place = lost_to_others(queue)
    renewed = f"leased/1700000000000000000000001.{time.time_ns() // 1000 + 10**9}.1.other"

    def renew():
        os.rename(os.path.join(queue.path, place), os.path.join(queue.path, renewed))

    with before("rename", renew, when=of(place)):
        assert drain(queue) == [b"good"]
    assert held_names(queue) == [renewed]


def test_bucket_that_refuses_a_claim_is_left_alone_for_a_while(make):
    """Not tried again at once; and found by whoever may."""
    queue = make()
    queue.put(b"one", delay=0.001)
    time.sleep(0.002)
    refused = failing("rename", errno.EACCES, when=lambda src, *_, **__: src.startswith("later/"), times=9)
    with refused as fault:
        for _ in range(3):
            with pytest.raises(Empty):
                queue.get(timeout=0)
    assert fault.hits == 1
    assert drain(make()) == [b"one"]


def test_leased_with_names_that_are_not_ours_is_looked_through(make):
    """Like a lease, but with more to it; and a tombstone that is young."""
    queue = make()
    lost_to_others(queue)
    strange = [f"{new_id()}.1700000000000000.1.token.new", f"{new_id()}.1700000000000000.1.token.ack"]
    for name in strange:
        Path(queue.path, "leased", name).write_bytes(b"")
    assert drain(queue) == [b"lost"]
    assert sorted(os.listdir(os.path.join(queue.path, "leased"))) == sorted(strange)


def test_bucket_that_may_not_be_removed_is_left(make):
    """Another user's, in a directory with the sticky bit."""
    queue = make()
    bucket = Path(queue.path, "later", "1700000040000000")
    bucket.mkdir(parents=True)
    with failing("rmdir", errno.EPERM, times=9), pytest.raises(Empty):
        queue.get(timeout=0)
    assert bucket.exists()


def test_delayed_put_whose_file_is_removed_as_a_leftover_is_written_again(make):
    """The producer was stopped for longer than stale."""
    queue = make()
    queue.layout.create()

    def remove():
        (new,) = Path(queue.path).glob("*.new")
        new.unlink()

    with before("rename_noreplace", remove):
        id = queue.put(b"one", delay=LONG)
    assert place_of(queue, id).startswith("later/")
    assert len(queue) == 1


@pytest.mark.parametrize("act", ["purge", "supply", "count"])
def test_queue_that_may_not_be_listed_is_told(make, act):
    """By whoever needs all of it: a directory inside may be another user's, the queue itself must not be."""
    queue = make(max_messages=1000)
    queue.put(b"one")
    call = {
        "purge": queue.layout.purge,
        "supply": lambda: claimable(queue.layout.directory, queue.settings),
        "count": lambda: Counter(queue.layout.directory).count(),
    }[act]
    with (
        failing("open", errno.EACCES, when=lambda path, *_, **__: path == "."),
        pytest.raises(PermissionError) as caught,
    ):
        call()
    assert caught.value.errno == errno.EACCES


def test_count_of_a_room_that_was_closed_to_us_is_not_remembered(make):
    """A change of its mode does not show in its time."""
    queue = make()
    lost_to_others(queue)
    os.utime(os.path.join(queue.path, "leased"), (1_700_000_000, 1_700_000_000))
    counter = Counter(queue.layout.directory)
    with failing("open", errno.EACCES, when=of("leased/")):
        assert counter.count() == 0
    assert counter.count() == 1


def test_ack_on_btrfs_flushes_the_whole_filesystem(make):
    """There a flush of leased/ may leave out the claim before it."""
    queue = make(sync=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    queue.layout.directory.mount = mount.Mount("btrfs")
    with failing("syncfs", errno.EIO), pytest.raises(QueueAccess):
        lease.ack()
    assert len(queue) == 0
