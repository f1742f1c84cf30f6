"""What becomes claimable in the rooms is found: in time, in order, and without listing what has not changed."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from support.failing import failing, names
from support.kit import LONG, drain, in_child, wait_until
from support.native import listed, remote
from support.users import GROUP, as_user, import_all, open_to_all

from dirqueue import Empty, Queue, QueueAccess, waiting
from dirqueue.disk import fs
from dirqueue.layouts.native import due

PAST = 1_600_000_000_000_000 - 1_600_000_000_000_000 % 60_000_000
SHORT = 0.2


def lease_of_another(queue, id, seconds, attempts=1):
    """Move a ready message of the top to leased/ as a program would of which this one knows nothing."""
    until = time.time_ns() // 1000 + int(seconds * 1_000_000)
    os.rename(
        os.path.join(queue.path, id), os.path.join(queue.path, "leased", f"{id}.{until}.{attempts}.other")
    )


def expire(queue, count, prefix="1700000000000000"):
    """Make so many leases that have expired; return their bodies."""
    queue.layout.create()
    for number in range(count):
        path = Path(queue.path, "leased", f"{prefix}{number:09d}.{PAST + number}.1.other")
        path.write_bytes(b"%d" % number)
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def listings(monkeypatch):
    """Count the listings of each directory, by its name in the queue."""
    seen = []
    real = fs.open

    def opened(path, flags, *arguments, **named):
        if flags == fs.DIRECTORY:
            seen.append(str(path))
        return real(path, flags, *arguments, **named)

    monkeypatch.setattr(fs, "open", opened)
    return seen


def settle(queue):
    """Look when a change from now on will show in the times of directories (a first look may read the clock there)."""
    for _ in range(2):
        with pytest.raises(Empty):
            queue.get(timeout=0)
        time.sleep(2 * due.TICK_NS / 1e9)
    with pytest.raises(Empty):
        queue.get(timeout=0)


# --- in time -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["inotify", "poll"])
def waits(request, monkeypatch):
    """Wait by notifications alone, or by polls alone."""
    if request.param == "poll":
        monkeypatch.setattr(waiting, "_open", lambda: None)
    else:
        pytest.importorskip("inotify_simple", reason="needs inotify-simple")
        monkeypatch.setattr(waiting, "LONGEST_WATCHED", LONG)
    return request.param


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("there", ["nothing", "later", "bucket", "longer delay"])
@pytest.mark.usefixtures("waits")
def test_short_delay_of_another_process_ends_a_wait(make, there):
    """Put while the consumer waits: whether later/ and the bucket of this minute are there already or not."""
    queue = make()
    queue.layout.create()
    if there != "nothing":
        queue.put(b"x", delay=0.001)
        queue.get(timeout=LONG).ack()
    if there == "later":
        for bucket in listed(queue, "later"):
            os.rmdir(os.path.join(queue.path, "later", bucket))
    if there == "longer delay":
        queue.put(b"x", delay=LONG)
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.get(timeout=LONG).message.body))
    thread.start()
    try:
        in_child(put_after_a_while, queue.path)
        wait_until(lambda: got == [b"short"], "the message, long before the end of the wait")
    finally:
        if not got:
            queue.put(b"end")
        thread.join()


def put_after_a_while(path):
    time.sleep(SHORT)
    Queue(path, sync=False).put(b"short", delay=SHORT)


@pytest.mark.usefixtures("waits")
def test_lease_that_is_known_ends_a_wait_when_it_expires(make):
    """Of another process, made before the wait began."""
    queue = make()
    id = queue.put(b"one")
    lease_of_another(queue, id, SHORT)
    assert queue.get(timeout=LONG).message.attempts == 2


def test_lease_that_is_made_while_a_consumer_waits_is_found(make):
    """No event tells of it: the next poll does, and then its end is known."""
    queue = make()
    queue.layout.create()
    Path(queue.path).with_name("outside").write_bytes(b"one")
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.get(timeout=LONG).message.body))
    thread.start()
    try:
        time.sleep(SHORT)
        until = time.time_ns() // 1000 + int(SHORT * 1_000_000)
        os.rename(
            Path(queue.path).with_name("outside"),
            Path(queue.path, "leased", f"1700000000000000000000001.{until}.1.other"),
        )
        wait_until(lambda: got == [b"one"], "the expired lease")
    finally:
        if not got:
            queue.put(b"end")
        thread.join()


def test_lease_that_expires_is_found_by_a_busy_consumer(make):
    """One that always has something else to do, and never waits."""
    queue = make()
    id = queue.put(b"lost")
    lease_of_another(queue, id, SHORT)
    for number in range(50):
        queue.put(b"%d" % number)

    def step():
        queue.put(b"more")
        lease = queue.get(timeout=0)
        lease.ack()
        return lease.message.id == id

    wait_until(step, "the expired lease among other work")


def test_delay_that_is_over_is_found_by_a_busy_consumer(make):
    """The same for a bucket."""
    queue = make()
    id = Queue(queue.path, sync=False).put(b"late", delay=SHORT)
    for number in range(50):
        queue.put(b"%d" % number)

    def step():
        queue.put(b"more")
        lease = queue.get(timeout=0)
        lease.ack()
        return lease.message.id == id

    wait_until(step, "the delayed message among other work")


def test_lease_that_is_over_is_found_however_soon_after_a_look(make):
    """In a room with few names nothing is put off."""
    queue = make()
    queue.layout.create()
    for number in range(20):
        with pytest.raises(Empty):
            queue.get(timeout=0)
        expire(queue, 1, f"17{number:014d}")
        queue.get(timeout=0).ack()


# --- large rooms -------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch):
    """Every room counts as large, few names of it are kept, and once listed it is never listed again by itself."""
    monkeypatch.setattr(due, "FEW", -1)
    monkeypatch.setattr(due, "KEPT", 4)
    monkeypatch.setattr(due, "REST_TIMES", 1e9)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("count", [3, 4, 5, 30])
def test_leases_that_expire_at_once_are_all_delivered_without_an_empty(make, count):
    """More than are remembered: it is known that there are more, so the room does not rest."""
    queue = make()
    bodies = expire(queue, count)
    assert drain(queue) == bodies


@pytest.mark.usefixtures("large")
def test_delays_that_are_over_at_once_are_all_delivered_without_an_empty(make):
    """The same for a bucket."""
    queue = make()
    bodies = expire(queue, 30)
    os.rename(os.path.join(queue.path, "leased"), os.path.join(queue.path, "away"))
    bucket = Path(queue.path, "later", str(PAST))
    bucket.mkdir(parents=True)
    for name in os.listdir(os.path.join(queue.path, "away")):
        os.rename(os.path.join(queue.path, "away", name), bucket / name.removesuffix(".other"))
    os.rmdir(os.path.join(queue.path, "away"))
    assert drain(queue) == bodies


@pytest.mark.usefixtures("large")
def test_lease_that_was_handed_over_and_dropped_is_found_again(make):
    """Another verb made the snapshot stale before it was this one's turn."""
    queue = make()
    bodies = expire(queue, 3)
    assert queue.get(timeout=0).message.body == bodies[0]
    queue.layout._cursor.stale()
    assert drain(queue) == bodies[1:]


@pytest.mark.usefixtures("large")
def test_room_that_rests_says_when_it_will_be_listed(make, listings):
    """What came since its last listing is found then, and a wait ends then."""
    queue = make()
    queue.layout.create()
    with pytest.raises(Empty):
        queue.get(timeout=0)
    expire(queue, 1)
    listings.clear()
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert "leased/" not in listings
    assert queue.layout.wakes_in() > 0
    queue.layout._cursor._due._leased.took = 0.0
    assert queue.get(timeout=0).message.body == b"0"


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("room", ["leased", "later"])
def test_what_a_look_found_and_nobody_tried_is_found_again_without_a_listing(
    make, listings, monkeypatch, room
):
    """A look that another change makes old drops its names, and the room that they are in rests."""
    monkeypatch.setattr(due, "REST_TIMES_IDLE", 1e9)
    queue = make()
    if room == "leased":
        bodies = expire(queue, 3)
    else:
        bodies = [b"0", b"1", b"2"]
        for body in bodies:
            queue.put(body, delay=0.001)
        time.sleep(0.002)
    got = [queue.get(timeout=0).message.body]
    listings.clear()
    for _ in range(2):
        queue.layout._cursor.stale()
        got.append(queue.get(timeout=0).message.body)
    assert got == bodies
    assert not [each for each in listings if each.startswith((f"{room}/", f"{room}/1"))]
    queue.layout._cursor.stale()
    with pytest.raises(Empty):
        queue.get(timeout=0)


@pytest.mark.usefixtures("large")
def test_room_that_rests_and_has_not_changed_ends_no_wait(make):
    """There is nothing to list it for."""
    queue = make()
    queue.layout.create()
    settled(queue)
    for _ in range(2):
        queue.layout._cursor._idle_mtime = -1
        with pytest.raises(Empty):
            queue.get(timeout=0)
    assert queue.layout.wakes_in() is None


@pytest.mark.usefixtures("large")
def test_look_of_a_busy_consumer_lists_no_room_that_rests(make, listings):
    """What merely lies there costs next to nothing."""
    queue = make()
    queue.put(b"held")
    queue.get(timeout=0)
    queue.put(b"late", delay=LONG)
    queue.put(b"soon", delay=30.0)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    listings.clear()
    for _ in range(10):
        queue.put(b"one")
        queue.get(timeout=0).ack()
    assert {name for name in listings if name != "."} <= {"later"}
    assert listings.count("later") <= 1


# --- what is remembered ------------------------------------------------------------------------------------


def test_look_at_a_queue_in_which_nothing_changed_lists_nothing(make, listings):
    """Beside delays and leases: their times say that nothing has come."""
    queue = make()
    queue.put(b"held")
    queue.get(timeout=0)
    queue.put(b"late", delay=LONG)
    settle(queue)
    listings.clear()
    for _ in range(5):
        with pytest.raises(Empty):
            queue.get(timeout=0)
    assert listings == []


@pytest.mark.parametrize("where", ["leased", "bucket", "new bucket"])
def test_look_sees_what_came_into_a_room_since_the_last_one(make, where):
    """Although nothing at the top has changed."""
    queue = make()
    bucket = Path(queue.path, "later", str(PAST))
    bucket.mkdir(parents=True)
    (bucket / "not ours").touch()
    queue.layout.create()
    Path(queue.path, "leased").mkdir()
    Path(queue.path).with_name("outside").write_bytes(b"one")
    settle(queue)
    place = {
        "leased": "leased/1700000000000000000000001.{}.1.other",
        "bucket": f"later/{PAST}/1700000000000000000000001.{{}}.1",
        "new bucket": f"later/{PAST + 60_000_000}/1700000000000000000000001.{{}}.1",
    }[where].format(PAST)
    Path(queue.path, place).parent.mkdir(exist_ok=True)
    os.rename(Path(queue.path).with_name("outside"), Path(queue.path, place))
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.EIO, errno.EMFILE]))
@pytest.mark.parametrize("room", ["later", "leased/", "later/bucket/"])
def test_room_that_cannot_be_listed_is_told_and_not_taken_for_empty(make, room, code):
    """The next look finds what is in it."""
    queue = make()
    bodies = expire(queue, 1)
    if room != "leased/":
        to_bucket(queue)
    settled(queue)
    path = room.replace("bucket", str(PAST))
    with failing("open", code, when=lambda name, *_, **__: name == path), pytest.raises(QueueAccess):
        queue.get(timeout=0)
    assert drain(queue) == bodies


@pytest.mark.parametrize("room", ["later", "leased/", "later/bucket/"])
def test_room_that_was_closed_to_us_is_found_when_it_is_opened(make, room):
    """A change of its mode does not show in its time."""
    queue = make()
    bodies = expire(queue, 1)
    if room != "leased/":
        to_bucket(queue)
    settled(queue)
    path = room.replace("bucket", str(PAST))
    refused = failing("open", errno.EACCES, when=lambda name, *_, **__: name == path, times=9)
    with refused, pytest.raises(Empty):
        queue.get(timeout=0)
    assert drain(queue) == bodies


def to_bucket(queue):
    """Move what is leased to a bucket of long ago."""
    bucket = Path(queue.path, "later", str(PAST))
    bucket.mkdir(parents=True)
    for name in listed(queue, "leased"):
        os.rename(os.path.join(queue.path, "leased", name), bucket / name.removesuffix(".other"))


def settled(queue):
    """Make the times of all rooms old enough to be trusted."""
    for folder, _, _ in os.walk(queue.path):
        os.utime(folder, (1_700_000_000, 1_700_000_000))


@pytest.mark.parametrize("room", ["leased", f"later/{PAST}"])
def test_plain_name_in_a_room_is_claimed(make, room):
    """Nothing writes it there; whoever finds it by hand does not lose it."""
    queue = make()
    path = Path(queue.path, room, "1700000000000000000000001")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one")
    assert drain(queue) == [b"one"]


def test_what_is_no_message_in_a_room_is_stepped_over(make):
    """Foreign names, links, directories of other names, files that are named like buckets."""
    queue = make()
    queue.put(b"late", delay=LONG)
    expire(queue, 1)
    for name in (f"later/{PAST}", f"leased/1700000000000000000000002.{PAST}.1.x"):
        os.symlink("/nowhere", os.path.join(queue.path, name))
    for name in ("later/notes", "leased/notes", f"later/{PAST + 60_000_000}", "leased/1" * 2):
        Path(queue.path, name).parent.mkdir(exist_ok=True)
        Path(queue.path, name).write_bytes(b"")
    os.mkdir(os.path.join(queue.path, "leased", "1700000000000000000000003.slice"))
    assert drain(queue) == [b"0"]
    assert len(listed(queue, "leased")) >= 3


def test_network_filesystem_is_listed_each_time(make):
    """Its times are not to be trusted; what other hosts do in the rooms is found nevertheless."""
    queue, other = remote(make()), make()
    for number in range(3):
        with pytest.raises(Empty):
            queue.get(timeout=0)
        other.put(b"%d" % number, delay=0.001)
        other.put(b"held")
        other.get(timeout=0, lease=0.001)
        time.sleep(0.002)
        assert sorted(drain(queue)) == [b"%d" % number, b"held"]


def test_tombstone_in_a_room_is_removed_when_it_is_stale(make):
    """Of an ack on a network filesystem whose process died between its two calls."""
    queue = make(stale=3600)
    queue.layout.create()
    path = Path(queue.path, "leased", f"1600000000000000000000001.{PAST}.1.other.ack")
    path.write_bytes(b"done")
    young = Path(queue.path, "leased", f"1600000000000000000000002.{time.time_ns() // 1000}.1.other.ack")
    young.write_bytes(b"done")
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert not path.exists()
    assert young.exists()


# --- in order ----------------------------------------------------------------------------------------------


def spread(queue, **how):
    """Put six messages, of which one then is in leased/ (expired), two in buckets and three at the top."""
    ids = [queue.put(b"%d" % number, **how) for number in range(6)]
    lease_of_another(queue, ids[0], -1)
    for id in (ids[2], ids[4]):
        bucket = Path(queue.path, "later", str(PAST + int(id[-1]) % 2 * 60_000_000))
        bucket.mkdir(parents=True, exist_ok=True)
        os.rename(os.path.join(queue.path, id), bucket / f"{id}.{PAST}.1")
    return ids


def test_due_messages_are_delivered_by_their_ids_among_the_ready(make):
    """First in, first out, whatever room a message has come through."""
    spread(make())
    assert drain(make()) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_due_messages_are_merged_into_many_ready_ones(make):
    """A few among a thousand: each at its turn."""
    queue = make()
    spread(queue)
    for number in range(200):
        queue.put(b"more %d" % number)
    assert drain(make(), 8) == [b"0", b"1", b"2", b"3", b"4", b"5", b"more 0", b"more 1"]


def test_due_batch_has_its_turn_among_the_ready(make):
    """A batch that was put with a delay, between messages that were put before and after it."""
    queue = make()
    queue.put(b"before")
    queue.put_many([b"a", b"b"], delay=0.001)
    queue.put(b"after")
    time.sleep(0.002)
    assert drain(make()) == [b"before", b"a", b"b", b"after"]


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_due_batches_have_their_turns_among_ready_batches(make, order):
    """By id, whichever room they come from."""
    queue = make()
    for number in range(4):
        queue.put_many([b"%d" % number, b"%d" % number], delay=0.001 if number % 2 else 0)
    time.sleep(0.002)
    expected = [b"%d" % (number // 2) for number in range(8)]
    assert drain(make(order=order)) == (expected if order == "fifo" else expected[::-1])


def test_due_messages_come_last_first_in_a_lifo_queue(make):
    """By id, too."""
    spread(make())
    assert drain(make(order="lifo")) == [b"5", b"4", b"3", b"2", b"1", b"0"]


def test_due_messages_come_by_priority(make):
    """One that backs off is as urgent as it was."""
    queue = make(priorities=True)
    for priority in (4, 2, 3):
        queue.put(b"%d" % priority, priority=priority)
    queue.put(b"2 again", priority=2)
    for _ in range(4):
        queue.get(timeout=0).retry(0.001)
    queue.put(b"1", priority=1)
    queue.put(b"5", priority=5)
    time.sleep(0.002)
    assert drain(make(priorities=True)) == [b"1", b"2", b"2 again", b"3", b"4", b"5"]


def test_due_messages_are_all_delivered_in_random_order(make):
    """With batches and rooms: each once."""
    queue = make()
    spread(queue)
    queue.put_many([b"6", b"7"], delay=0.001)
    time.sleep(0.002)
    assert sorted(drain(make(order="random"))) == [b"%d" % number for number in range(8)]


def test_own_message_that_is_retried_at_once_is_next(make):
    """Most likely it is the oldest."""
    queue = make()
    for number in range(3):
        queue.put(b"%d" % number)
    queue.get(timeout=0).retry(0)
    assert drain(queue) == [b"0", b"1", b"2"]


# --- other users -------------------------------------------------------------------------------------------

ANN, BOB = 61001, 61002


def put_late(path):
    Queue(path, sync=False).put(b"of ann", delay=0.001)
    time.sleep(0.002)


def get_all(path):
    return drain(Queue(path, sync=False, margin=0.0))


def get_and_count(path):
    calls = []
    real = fs.rename
    fs.rename = lambda *arguments, **named: (calls.append(arguments), real(*arguments, **named))
    queue = Queue(path, sync=False, margin=0.0)
    got = drain(queue)
    for _ in range(5):
        got += drain(queue)
    return got, len(calls)


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
def test_bucket_of_another_users_is_stepped_over(tmp_path, mode):
    """Made with another mode by another program: it costs a call or two, and its owner gets what is in it."""
    import_all(tmp_path / "any")
    path = open_to_all(tmp_path) / "queue"
    path.mkdir()
    os.chown(path, 0, GROUP)
    os.chmod(path, 0o2770)
    as_user(ANN, put_late, path)
    (bucket,) = path.glob("later/*")
    os.chmod(bucket, mode)
    Queue(path, sync=False).put(b"for all")
    got, renames = as_user(BOB, get_and_count, path)
    assert got == [b"for all"]
    assert renames <= 3  # of six looks: the one that makes leased/ tries again
    assert as_user(ANN, get_all, path) == [b"of ann"]


@pytest.mark.root
def test_room_that_one_user_makes_another_can_use(tmp_path):
    """Buckets have the mode of the queue, whatever the umask."""
    import_all(tmp_path / "any")
    path = open_to_all(tmp_path) / "queue"
    path.mkdir()
    os.chown(path, 0, GROUP)
    os.chmod(path, 0o2770)
    as_user(ANN, put_late, path)
    assert as_user(BOB, get_all, path) == [b"of ann"]
    as_user(BOB, put_late, path)
    assert as_user(ANN, get_all, path) == [b"of ann"]
