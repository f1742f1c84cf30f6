"""Where a message lies: each transition takes it to its room, and why it failed last goes along."""

import os
import re
import threading
import time
from pathlib import Path

import pytest
from support.checker import problems
from support.kit import LONG, drain, files, in_child
from support.native import listed, note_of, place_of, remote

from dirqueue import Empty, Queue, QueueAccess, QueueError
from dirqueue.disk import fs
from dirqueue.layouts.native import due, publish, rooms
from dirqueue.layouts.native.names import HOUR, MINUTE
from dirqueue.layouts.native.supply import claimable

LENGTHS = {"later": MINUTE, "dead": HOUR, "done": HOUR}
PAST = 1_500_000_000_000_000 - 1_500_000_000_000_000 % HOUR
OLD_ID = "1500000000000000000000001"


def shape(place):
    """Return a place with words for what differs each time; a bucket must be that of the time in the name."""
    *above, name = place.split("/")
    id, *rest = name.split(".")
    if rest and len(rest[0]) == 16:
        if above and above[0] in LENGTHS and len(above) > 1:
            length = LENGTHS[above[0]]
            assert int(above[1]) == int(rest[0]) - int(rest[0]) % length
            above[1] = "BUCKET"
        rest[0] = "TIME"
    if len(rest) == 3:
        rest[2] = "TOKEN"
    above = [re.sub(r"^[0-9]{25}", "X", each) for each in above]
    assert len(id) == 25
    return "/".join([*above, ".".join(["ID", *rest])])


def put(queue):
    return queue.put(b"one")


def put_later(queue):
    return queue.put(b"one", delay=LONG)


def put_path(queue, **how):
    file = Path(queue.path).with_name("file")
    file.write_bytes(b"one")
    return queue.put_path(file, delay=LONG, **how)


def put_link(queue):
    return put_path(queue, link=True)


def put_many_later(queue):
    return queue.put_many([b"one", b"two"], delay=LONG)[0]


def claim(queue):
    queue.put(b"one")
    return queue.get(timeout=0).message.id


def claim_delayed(queue):
    queue.put(b"one", delay=0.001)
    return queue.get(timeout=LONG).message.id


def claim_from_batch(queue):
    queue.put_many([b"one", b"two"])
    return queue.get(timeout=0).message.id


def claim_expired(queue):
    queue.put(b"one")
    queue.get(timeout=0, lease=0.001)
    return queue.get(timeout=LONG).message.id


def ended(queue, verb, *arguments):
    queue.put(b"one")
    lease = queue.get(timeout=0)
    getattr(lease, verb)(*arguments)
    return lease.message.id


def renew(queue):
    return ended(queue, "renew")


def retry(queue):
    return ended(queue, "retry", LONG)


def retry_now(queue):
    return ended(queue, "retry", 0, "why")


def release(queue):
    return ended(queue, "release")


def release_second(queue):
    id = ended(queue, "retry", 0)
    queue.get(timeout=0).release()
    return id


def release_remote(queue):
    return ended(remote(queue), "release")


def reject(queue):
    return ended(queue, "reject", "no")


def spend(queue):
    """Let a message run out of attempts."""
    queue.put(b"one")
    id = queue.get(timeout=0, lease=0.001).message.id
    time.sleep(0.002)
    with pytest.raises(Empty), Queue(queue.path, sync=False, margin=0, max_attempts=1) as strict:
        strict.get(timeout=0)
    return id


def ack_kept(queue):
    with Queue(queue.path, sync=False, keep_done=True) as keeping:
        return ended(keeping, "ack")


def cancel_kept(queue):
    with Queue(queue.path, sync=False, keep_done=True) as keeping:
        id = keeping.put(b"one")
        keeping.message(id).cancel()
        return id


def change_to_later(queue):
    id = queue.put(b"one")
    queue.message(id).change(delay=LONG)
    return id


def change_to_now(queue):
    id = queue.put(b"one", delay=LONG)
    queue.message(id).change(delay=0)
    return id


def change_tried_to_now(queue):
    id = ended(queue, "retry", LONG)
    queue.message(id).change(delay=0)
    return id


def change_out_of_batch(queue):
    id, _ = queue.put_many([b"one", b"two"], delay=LONG)
    queue.message(id).change(delay=0)
    return id


def redrive(queue):
    id = ended(queue, "reject", "no")
    assert queue.redrive() == [id]
    return id


PLACES = {
    put: "ID",
    put_later: "later/BUCKET/ID.TIME.0",
    put_path: "later/BUCKET/ID.TIME.0",
    put_link: "later/BUCKET/ID.TIME.0",
    put_many_later: "later/BUCKET/X.batch/ID.TIME.0",
    claim: "leased/ID.TIME.1.TOKEN",
    claim_delayed: "leased/ID.TIME.1.TOKEN",
    claim_from_batch: "leased/ID.TIME.1.TOKEN",
    claim_expired: "leased/ID.TIME.2.TOKEN",
    renew: "leased/ID.TIME.1.TOKEN",
    retry: "later/BUCKET/ID.TIME.1",
    retry_now: "later/BUCKET/ID.TIME.1",
    release: "ID",
    release_second: "later/BUCKET/ID.TIME.1",
    release_remote: "later/BUCKET/ID.TIME.0",
    reject: "dead/BUCKET/ID.TIME.1",
    spend: "dead/BUCKET/ID.TIME.1",
    ack_kept: "done/BUCKET/ID.TIME.1",
    cancel_kept: "done/BUCKET/ID.TIME.0",
    change_to_later: "later/BUCKET/ID.TIME.0",
    change_to_now: "ID",
    change_tried_to_now: "later/BUCKET/ID.TIME.1",
    change_out_of_batch: "ID",
    redrive: "ID",
}


@pytest.mark.parametrize("sync", [False, True], ids=["fast", "durable"])
@pytest.mark.parametrize("act", PLACES, ids=lambda act: act.__name__)
def test_transition_takes_the_message_to_its_room(make, act, sync):
    """Every verb, once with every flush."""
    queue = make(sync=sync)
    id = act(queue)
    assert shape(place_of(queue, id)) == PLACES[act]
    if act is not put_link:  # whose message has the other name on purpose
        assert problems(queue.path) == []


# --- notes -------------------------------------------------------------------------------------------------


def test_note_goes_with_its_message_from_room_to_room(make):
    """Retried, claimed, released, claimed, given back without a reason, claimed, changed, rejected, redriven."""
    queue = make()
    id = retry_now(queue)

    def beside():
        """The only note lies where the message does."""
        note = note_of(queue)
        return os.path.dirname(note) == os.path.dirname(place_of(queue, id)) and note.endswith(f"/{id}.error")

    assert beside()
    lease = queue.get(timeout=0)
    assert note_of(queue) == f"leased/{id}.error"
    assert lease.message.error == "why"
    lease.release()
    assert beside()
    queue.get(timeout=0).retry(0)
    assert beside()
    assert queue.message(id).error == "why"
    queue.message(id).change(delay=LONG)
    assert beside()
    assert queue.message(id).error == "why"
    queue.message(id).change(delay=0)
    queue.get(timeout=0).reject("no")
    assert beside()
    assert queue.message(id).error == "no"
    queue.redrive()
    assert note_of(queue) is None


@pytest.mark.parametrize("end", ["ack", "cancel", "remove"])
def test_note_goes_when_its_message_does(make, end):
    """Acknowledged, cancelled, or removed for good."""
    queue = make()
    id = retry_now(queue)
    if end == "ack":
        queue.get(timeout=0).ack()
    elif end == "cancel":
        queue.message(id).cancel()
    else:
        assert queue.layout.remove(queue.message(id).entry)
    assert note_of(queue) is None


def test_note_of_a_lease_that_expired_stays_with_it(make):
    """The next delivery shows why the one before the last failed."""
    queue = make()
    retry_now(queue)
    queue.get(timeout=0, lease=0.001)
    lease = queue.get(timeout=LONG)
    assert (lease.message.attempts, lease.message.error) == (3, "why")
    lease.ack()
    assert note_of(queue) is None


@pytest.mark.parametrize("room", ["", "leased/", f"later/{PAST}/", f"dead/{PAST}/", "dead/"])
def test_note_without_a_message_is_purged_when_it_is_old(make, room):
    """Crashed between the rename of the message and that of its note."""
    queue = make(stale=3600)
    queue.put(b"one")
    path = Path(queue.path, room)
    path.mkdir(parents=True, exist_ok=True)
    for name in (f"{OLD_ID}.error", f"{OLD_ID}.error.new"):
        (path / name).write_bytes(b"{}")
    queue.purge()
    assert len([name for name in files(queue.path) if ".error" in name]) == 2
    for name in (f"{OLD_ID}.error", f"{OLD_ID}.error.new"):
        os.utime(path / name, (0, 0))
    queue.purge()
    assert not [name for name in files(queue.path) if ".error" in name]
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("act", [retry_now, claim_expired])
def test_note_of_a_message_that_is_there_is_not_purged(make, act):
    """However old it is."""
    queue = make(stale=0)
    id = act(queue)
    note = Path(queue.path, os.path.dirname(place_of(queue, id)), f"{id}.error")
    note.write_text('{"error": "why", "at": 1}')
    os.utime(note, (0, 0))
    queue.purge()
    assert note.exists()


# --- buckets -----------------------------------------------------------------------------------------------


class Vanishing:
    """Removes the bucket just before each rename into it, so many times."""

    def __init__(self, queue, monkeypatch, times):
        self.path, self.left = queue.path, times
        for call in ("rename", "rename_noreplace"):
            monkeypatch.setattr(fs, call, self.wrapped(getattr(fs, call)))

    def wrapped(self, call):
        def rename(src, dst, *arguments, **named):
            bucket = os.path.join(self.path, os.path.dirname(dst))
            if dst.startswith(("later/", "dead/", "done/")) and self.left > 0 and os.path.isdir(bucket):
                self.left -= 1
                os.rmdir(bucket)
            return call(src, dst, *arguments, **named)

        return rename


#: Those that move something into a bucket; a note in it keeps it from being removed.
INTO_BUCKETS = [put_later, put_path, put_many_later, retry, release_second, ack_kept, change_to_later]


@pytest.mark.parametrize("act", INTO_BUCKETS, ids=lambda act: act.__name__)
def test_bucket_that_is_removed_is_made_again(make, monkeypatch, act):
    """Whoever finds one empty may remove it: whoever needs it makes it, as often as that."""
    queue = make()
    queue.layout.create()
    vanishing = Vanishing(queue, monkeypatch, 5)
    id = act(queue)
    assert vanishing.left == 0
    assert shape(place_of(queue, id)) == PLACES[act]


@pytest.mark.parametrize("act", INTO_BUCKETS, ids=lambda act: act.__name__)
def test_bucket_that_is_removed_for_ever_is_told_and_loses_nothing(make, monkeypatch, act):
    """No loop without a bound: the message is where it was, or was never put."""
    queue = make(sync=True)
    queue.layout.create()
    Vanishing(queue, monkeypatch, 10 * publish.TRIES)
    with pytest.raises((QueueAccess, QueueError)):
        act(queue)
    monkeypatch.undo()
    assert problems(queue.path) == []
    if act in (put_later, put_many_later):
        assert len(queue) == 0
    elif act is put_path:
        assert Path(queue.path).with_name("file").read_bytes() == b"one"
    else:
        assert len(queue) == 1


def test_buckets_that_are_removed_all_the_time_lose_no_message(make):
    """One thread removes every bucket that it finds empty, another puts with a delay and retries."""
    queue, over = make(), threading.Event()
    queue.layout.create()

    def remove():
        while not over.is_set():
            for bucket in listed(queue, "later"):
                fs.remove_quietly(f"later/{bucket}", queue.layout.directory.fd)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        ids = [queue.put(b"%d" % number, delay=0.001) for number in range(100)]
        for _ in range(100):
            queue.get(timeout=LONG).retry(0.001)
        got = []
        for _ in range(100):
            lease = queue.get(timeout=LONG)
            got.append(lease.message.id)
            lease.ack()
    finally:
        over.set()
        remover.join()
    assert sorted(got) == sorted(ids)
    assert len(queue) == 0


def test_bucket_is_removed_by_a_look_when_it_is_empty_and_over(make):
    """Not the present one, not one to come, not one with anything in it."""
    queue = make()
    queue.layout.create()
    present = int(time.time() * 1_000_000) // MINUTE * MINUTE
    kept = {
        present + MINUTE,
        present + 60 * MINUTE,
        PAST + MINUTE,
    }  # the next one: the minute may end meanwhile
    for bucket in (PAST, PAST + 2 * MINUTE, *kept):
        os.makedirs(os.path.join(queue.path, "later", str(bucket)))
    Path(queue.path, "later", str(PAST + MINUTE), "not ours").write_bytes(b"")
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert listed(queue, "later") == sorted(map(str, kept))


def test_bucket_of_the_present_minute_stays(make):
    """Others are about to move something into it."""
    queue = make()
    queue.layout.create()
    while True:
        present = int(time.time() * 1_000_000) // MINUTE * MINUTE
        os.makedirs(os.path.join(queue.path, "later", str(present)))
        with pytest.raises(Empty):
            queue.get(timeout=0)
        kept = listed(queue, "later")
        if int(time.time() * 1_000_000) < present + MINUTE:
            break  # else the minute was over meanwhile
    assert kept[-1:] == [str(present)]


def test_bucket_is_removed_by_whoever_takes_lots(make):
    """A queue that only Spark consumes has no other look."""
    queue = make()
    queue.layout.create()
    for bucket in (PAST, PAST + MINUTE):
        os.makedirs(os.path.join(queue.path, "later", str(bucket)))
    Path(queue.path, "later", str(PAST), f"{OLD_ID}.{PAST}.1").write_bytes(b"one")
    supply = claimable(queue.layout.directory, queue.settings)
    assert supply.take() == (f"later/{PAST}/", f"{OLD_ID}.{PAST}.1")
    assert listed(queue, "later") == [str(PAST)]


@pytest.mark.parametrize("room", ["later", "dead", "done"])
def test_bucket_is_removed_by_purge_an_hour_after_it_is_over(make, room):
    """Others may be about to move something into a young one."""
    queue = make()
    queue.put(b"one")
    young = int(time.time() * 1_000_000) // HOUR * HOUR
    for bucket in (PAST, young):
        os.makedirs(os.path.join(queue.path, room, str(bucket)))
    assert queue.purge().directories == 1
    assert listed(queue, room) == [str(young)]


def test_bucket_goes_with_the_last_batch_in_it(make):
    """By the consumer that took the last message."""
    queue = make()
    batch = Path(queue.path, "later", str(PAST), f"{OLD_ID}.batch")
    batch.mkdir(parents=True)
    (batch / f"{OLD_ID}.{PAST}.0").write_bytes(b"one")
    assert drain(queue) == [b"one"]
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert listed(queue, "later") == []


# --- a room that is not there ------------------------------------------------------------------------------


def test_leased_is_made_with_the_queue(make):
    """So that a consumer of a full disk needs no inode."""
    make().put(b"one")
    assert listed(make(), "leased") == []
    assert os.path.isdir(os.path.join(make().path, "leased"))


@pytest.mark.parametrize("when", ["before", "between"])
def test_leased_that_is_removed_is_made_by_the_next_claim(make, when):
    """By hand, while it was empty: no message is passed over, no Empty is raised."""
    queue = make()
    for number in range(20):
        queue.put(b"%d" % number)
    got = []
    if when == "between":
        got = drain(queue, 1)
    os.rmdir(os.path.join(queue.path, "leased"))
    assert sorted(got + drain(queue)) == sorted(b"%d" % number for number in range(20))


def test_queue_that_is_removed_and_made_again_is_looked_at_anew(make):
    """What was remembered of the rooms of the first holds nothing back in the second."""
    queue, other = make(), make()
    queue.put(b"later", delay=LONG)
    queue.put(b"held")
    queue.get(timeout=0)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    remove_tree(queue.path)
    other.put(b"one")
    other.get(timeout=0, lease=0.001)
    other.put(b"two", delay=0.001)
    time.sleep(0.002)
    assert sorted(drain(queue)) == [b"one", b"two"]
    remove_tree(queue.path)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    queue.put(b"three", delay=0.001)
    assert queue.get(timeout=LONG).message.body == b"three"


def test_queue_that_is_made_again_does_not_rest_from_the_one_before(make, monkeypatch):
    """What was listed, and how long that took, was another directory."""
    monkeypatch.setattr(due, "FEW", -1)
    monkeypatch.setattr(due, "REST_TIMES", 1e9)
    queue, other = make(), make()
    queue.put(b"held")
    queue.get(timeout=0)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    remove_tree(queue.path)
    other.put(b"one")
    other.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    assert drain(queue) == [b"one"]


def remove_tree(path):
    for each in reversed(files(path)):
        full = Path(path, each)
        full.rmdir() if full.is_dir() else full.unlink()
    os.rmdir(path)


def test_forked_child_looks_at_the_rooms_for_itself(make):
    """Each message is delivered once, to the parent or to its child."""
    queue = make()
    for number in range(4):
        queue.put(b"%d" % number, delay=0.001)
    time.sleep(0.002)
    mine = drain(queue, 2)
    theirs = in_child(drain, queue)
    assert mine + theirs == [b"%d" % number for number in range(4)]
    assert drain(queue) == []


# --- dead/ is a queue --------------------------------------------------------------------------------------


def test_dead_is_consumed_as_a_queue(make):
    """Whatever is in its buckets can be claimed, retried, rejected and acknowledged; to the queue it stays dead."""
    queue = make()
    for number in range(3):
        queue.put(b"%d" % number)
        queue.get(timeout=0).reject(f"reason {number}")
    dead = Queue(os.path.join(queue.path, "dead"), sync=False, margin=0, lease=LONG)
    first = dead.get(timeout=0)
    assert (first.message.body, first.message.error, first.message.attempts) == (b"0", "reason 0", 2)
    assert queue.stats().dead == 3
    first.retry(LONG, "again")
    assert shape(place_of(dead, first.message.id)) == "later/BUCKET/ID.TIME.2"
    assert queue.stats().dead == 3
    assert queue.message(first.message.id).state == "dead"
    dead.get(timeout=0).reject("for good")
    assert (dead.stats().dead, queue.stats().total) == (1, 0)
    assert drain(dead) == [b"2"]
    queue.put(b"3")
    queue.get(timeout=0).reject("reason 3")
    assert drain(dead) == [b"3"]
    assert first.message.id in queue.redrive()


def test_dead_that_is_consumed_keeps_no_empty_buckets(make):
    """Whoever takes the last one removes it; the next message that dies makes it again."""
    queue = make()
    for _ in range(2):
        reject(queue)
        dead = Queue(os.path.join(queue.path, "dead"), sync=False, margin=0)
        assert drain(dead) == [b"one"]
        assert [name for name in listed(queue, "dead") if name.isdigit()] == []


def test_make_of_a_room_forgets_after_a_bounded_number(make, monkeypatch):
    """What is known to be durable is bounded, and flushed again when forgotten."""
    monkeypatch.setattr(rooms, "REMEMBERED", 2)
    queue = make(sync=True)
    for delay in (LONG, 10 * LONG, 20 * LONG, LONG):
        queue.put(b"one", delay=delay)
    assert len(queue.layout._rooms._durable) <= 2
    assert len(queue) == 4
