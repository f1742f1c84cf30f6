"""Purging: what crashes and time left behind goes, nothing else."""

import os
import threading
import time
from pathlib import Path

import pytest
from support.kit import PATIENCE, drain, files, put_all, replaced, wait_until

from dirqueue.disk import fs


def test_purge_of_a_clean_queue_changes_nothing(make_queue, needs):
    """Purge touches no message in any state, and is idempotent."""
    needs("delay", "dead")
    queue = make_queue(stale=0)
    for _ in range(4):
        queue.put(b"x")
    queue.put(b"later", delay=600)
    held = queue.get(timeout=0)
    queue.get(timeout=0).retry(600, error="why")
    queue.get(timeout=0).reject("no")
    queue.put_many([b"a", b"b"])
    before = queue.stats()
    for _ in range(3):
        queue.purge()
        assert queue.stats() == before
    held.ack()


def test_missing_queue_is_clean(queue):
    """Nothing to purge, nothing made."""
    assert not any(queue.purge())


def age(path, seconds=10_000):
    """Make a file or directory look old."""
    then = time.time() - seconds
    os.utime(path, (then, then))


OLD = "1500000000000000123456789"


def test_stale_unfinished_files_go_by_age(native, tmp_path):
    """A dead producer's ID.new goes after its time; a live one's stays."""
    queue = native(stale=3600)
    fresh = queue.put(b"x")
    directory = tmp_path / "queue"
    (directory / f"{OLD}.new").write_bytes(b"torn")
    (directory / f"{fresh}.new").write_bytes(b"live")
    assert queue.stats().new == 2
    assert queue.purge().new == 0  # its own time is fresh
    age(directory / f"{OLD}.new")
    age(directory / f"{fresh}.new")
    assert queue.purge().new == 1  # the id of the other is fresh
    assert files(directory) == sorted([fresh, f"{fresh}.new", *furniture(directory)])


def furniture(directory):
    return [name for name in os.listdir(directory) if name in (".purge.lock", ".ballast", "leased")]


def test_stale_staging_goes_by_age(native, tmp_path):
    """A batch whose producer died before the commit goes, parts included; a young part keeps it."""
    queue = native()
    queue.put(b"x")
    staging = tmp_path / "queue" / f"{OLD}.batch.new"
    part = staging / f"{OLD}.part"
    part.mkdir(parents=True)
    (part / OLD).write_bytes(b"a")
    (staging / OLD).write_bytes(b"b")
    for each in (staging / OLD, part / OLD, staging):
        age(each)
    assert queue.purge().new == 0
    age(part)
    assert queue.purge().new == 1
    assert not staging.exists()
    assert drain(queue) == [b"x"]


def test_emptied_batches_go(native, tmp_path):
    """A drained batch is removed by purge if no get has done it yet."""
    queue = native()
    queue.put_many([b"a", b"b", b"c"])
    leases = queue.get_many(3, timeout=0)
    for lease in leases:
        lease.ack()
    assert queue.purge().directories == 1
    assert not [name for name in files(tmp_path / "queue") if "batch" in name]


def test_done_and_dead_are_kept_for_their_time(native, tmp_path):
    """Retention is by the end of a message, each with its own time."""
    queue = native(keep_done=True, keep_done_for=3600, keep_dead_for=3600)
    for _ in range(2):
        queue.put(b"x")
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("no")
    assert queue.purge()[:4] == (0, 0, 0, 0)
    old = 1_600_000_000_000_000
    for state in ("done", "dead"):
        (tmp_path / "queue" / state / f"{OLD}.{old}.1").write_bytes(b"old")
    note = tmp_path / "queue" / "dead" / f"{OLD}.error"
    note.write_bytes(b"{}")
    age(note)
    purged = queue.purge()
    assert (purged.done, purged.dead, purged.other) == (1, 1, 1)
    stats = queue.stats()
    assert (stats.done, stats.dead) == (1, 1)


def test_purge_keeps_dead_messages_by_default(native, tmp_path):
    """Nobody's failures vanish unless asked for."""
    queue = native()
    queue.put(b"x")
    queue.get(timeout=0).reject("no")
    (tmp_path / "queue/dead" / f"{OLD}.1600000000000000.1").write_bytes(b"old")
    assert queue.purge().dead == 0
    assert queue.stats().dead == 2


def test_messages_out_of_attempts_are_buried(native, tmp_path):
    """Purge does what no consumer came to do."""
    queue = native(max_attempts=2)
    queue.put(b"x")
    (tmp_path / "queue" / f"{OLD}.1600000000000000.2.host-1-ab-1").write_bytes(b"poison")
    assert queue.purge().buried == 1
    assert "host-1-ab-1" in queue.message(OLD).error


def test_tombstones_and_orphaned_notes_go(native, tmp_path):
    """An ack that died half-way, and a note whose message is gone."""
    queue = native()
    queue.put(b"x")
    directory = tmp_path / "queue"
    (directory / f"{OLD}.1600000000000000.2.host-1-ab-1.ack").write_bytes(b"")
    (directory / f"{OLD}.error").write_bytes(b"{}")
    (directory / ".clock-host-1-0123456789-1").write_bytes(b"")
    age(directory / f"{OLD}.error")
    age(directory / ".clock-host-1-0123456789-1")
    assert queue.stats().foreign == 0
    assert queue.purge().other == 3
    assert len(queue) == 1


def test_second_name_of_a_published_message_goes(native, tmp_path):
    """A publish by link that died before its unlink: the message stays, ID.new goes."""
    queue = native()
    queue.put(b"y")
    directory = tmp_path / "queue"
    (directory / f"{OLD}.new").write_bytes(b"x")
    os.link(directory / f"{OLD}.new", directory / OLD)
    age(directory / OLD)
    assert queue.purge().new == 1
    assert sorted(drain(queue)) == [b"x", b"y"]


def test_one_purger_at_a_time(native):
    """The second one says busy and does nothing."""
    queue, other = native(), native()
    queue.put(b"x")
    inside, go_on = threading.Event(), threading.Event()

    def slowly():
        inside.set()
        assert go_on.wait(PATIENCE)

    thread = threading.Thread(target=queue.purge, kwargs={"progress": slowly})
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        assert other.purge().busy == 1
    finally:
        go_on.set()
        thread.join(PATIENCE)
    assert other.purge().busy == 0


def test_purge_beside_traffic_loses_nothing(make_queue):
    """Purging while others put and get, with nothing considered too young."""
    queue, purger = make_queue(stale=3600), make_queue(stale=3600)
    stop = threading.Event()

    def purge():
        while not stop.is_set():
            purger.purge()

    thread = threading.Thread(target=purge)
    thread.start()
    try:
        put, got = set(), set()
        for n in range(150):
            put.add(f"{n}".encode())
            queue.put(f"{n}".encode())
            if n % 3 == 0:
                put |= {f"{n}a".encode(), f"{n}b".encode()}
                put_all(queue, [f"{n}a", f"{n}b"])
            if n % 2:
                got |= set(drain(queue, 2))
        wait_until(lambda: got.update(drain(queue)) or got == put, "the last message")
    finally:
        stop.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("state", ["clear", "flush"])
def test_clear_takes_the_done_and_flush_takes_all(native, state):
    """Clear is for history; flush empties everything."""
    queue = native(keep_done=True)
    for _ in range(6):
        queue.put(b"x")
    queue.put(b"later", delay=600)
    queue.put_many([b"a", b"b"])
    queue.get(timeout=0).ack()
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0)
    if state == "clear":
        assert queue.clear() == 2
        stats = queue.stats()
        assert (stats.done, stats.dead, stats.total) == (0, 1, 6)
    else:
        assert queue.flush() == 9
        stats = queue.stats()
        assert (stats.done, stats.dead, stats.total) == (0, 0, 0)
        assert queue.flush() == 0


def test_flush_empties_every_layout(make_queue):
    """Whatever the format."""
    queue = make_queue()
    put_all(queue, [b"a", b"b", b"c"])
    queue.get(timeout=0)
    assert queue.flush() == 3
    assert len(queue) == 0


def test_purge_without_permission_is_an_error(native):
    """A refused unlink does not pass for a clean queue; a refused listing is typed."""
    queue = native()
    queue.put(b"x")

    def refuse(*arguments, **names):
        raise PermissionError(13, "Permission denied")

    with replaced(fs, scandir=refuse), pytest.raises(OSError, match="no permission"):
        queue.purge()


def test_consumer_removes_stale_leftovers_in_passing(make_queue):
    """Cron is a comfort, not a need: what is stale goes when somebody looks, what is fresh stays."""
    queue = make_queue(stale=60)
    if queue.layout.name != "native":
        pytest.skip(f"{queue.layout.name} leaves this to purge")
    queue.put(b"a")
    old, young = "1700000000000000123456789", str(time.time_ns() // 1000) + "123456789"
    for id in (old, young):
        (Path(queue.path) / f"{id}.new").write_bytes(b"half")
        (Path(queue.path) / f"{id}.batch.new").mkdir()
    for path in Path(queue.path).glob(f"{old}*"):
        os.utime(path, (1, 1))
    queue.get(timeout=0).ack()
    left = sorted(path.name for path in Path(queue.path).glob("*new"))
    assert left == [f"{young}.batch.new", f"{young}.new"]
