"""What messages carried that are gone: removed with them, or by a purge that is certain of it."""

import os
import time
from pathlib import Path

import pytest
from support.failing import before
from support.patience import until

from dirqueue import Queue
from dirqueue.disk import fs
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native import orphans, sight
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.register import register_beside
from dirqueue.layouts.native.supply import claimable
from dirqueue.message import Extras
from dirqueue.tools import transfer

GIVEN = {"colour": "blue"}
#: Put in November 2023.
OLD = 1_700_000_000


@pytest.fixture(name="queue")
def _queue(tmp_path):
    return Queue(tmp_path / "queue", sync=False, stale=0.0)


def kept(queue):
    return {path.name for path in Path(queue.path, "attributes").glob("*/*")}


def restless(monkeypatch):
    """Let no walk prove anything, as in a queue that is always in use."""
    monkeypatch.setattr(sight, "QUIET", 10**12)
    monkeypatch.setattr(sight, "QUIET_WHOLE", 10**12)


def removed_by_hand(queue):
    """Return the id of a message that a program removed which does not know of attributes."""
    id = queue.put(b"x", attributes=GIVEN)
    os.unlink(Path(queue.path, id))
    time.sleep(0.002)
    return id


@pytest.mark.parametrize("many", [True, False], ids=["a directory", "names"])
def test_acknowledged_lot_leaves_none(queue, many):
    """Those of its messages go with it, whoever finishes it; no purge is needed."""
    for _ in range(1 if many else 3):
        queue.put_many([b"x"] * 3, attributes=GIVEN) if many else queue.put(b"x", attributes=GIVEN)
    mine = Pins(queue.layout.directory, queue.settings, "c")
    mine.register(600.0)
    mine.pin(1, claimable(mine.directory, mine.settings), Limit())
    queue.put(b"stays", attributes=GIVEN)
    assert len(kept(queue)) == 4
    mine.ack(1)
    assert kept(queue) == {message.id for message in queue.peek()}
    assert len(kept(queue)) == 1


def test_lot_that_another_process_finishes_is_no_error(queue):
    """It is gone between the look at its parts and the look into one."""
    queue.put(b"x", attributes=GIVEN)
    mine = Pins(queue.layout.directory, queue.settings, "c")
    mine.register(600.0)
    mine.pin(1, claimable(mine.directory, mine.settings), Limit())
    part = mine.parts(1)[0].replace("/1/", "/1.ack/")
    with before(
        "exists",
        lambda: fs.remove_tree(part[:-1], mine.directory.fd),
        when=lambda name, _: name == "attributes",
    ):
        assert mine.ack(1) == 0


@pytest.mark.parametrize("state", ["dead", "done"])
def test_purge_of_what_ended_removes_what_it_carried(queue, monkeypatch, state):
    """With it, and without a proof: a queue may never rest."""
    restless(monkeypatch)
    queue = Queue(queue.path, sync=False, keep_done=True, keep_done_for=0.001, keep_dead_for=0.001)
    queue.put(b"x", attributes=GIVEN)
    lease = queue.get(timeout=0)
    lease.ack() if state == "done" else lease.reject("no")
    assert len(kept(queue)) == 1
    until(lambda: getattr(queue.purge(), state), "it is old enough")
    assert kept(queue) == set()


def test_purge_of_what_never_became_visible_removes_what_it_was_to_carry(queue, monkeypatch):
    """Of a put that was killed, and of a batch."""
    restless(monkeypatch)
    directory = queue.layout.directory
    directory.make()
    id, inner, batch = new_id(), new_id(), new_id()
    for each in (id, inner):
        queue.layout.keep_extras(each, Extras(GIVEN))
    Path(queue.path, f"{id}.new").write_bytes(b"x")
    Path(queue.path, f"{batch}.batch.new").mkdir()
    Path(queue.path, f"{batch}.batch.new", inner).write_bytes(b"x")
    until(lambda: queue.purge().new >= 0 and not kept(queue), "both gone")


def test_message_that_every_walk_misses_keeps_what_it_carries(queue, monkeypatch):
    """It is where each walk has not been yet, and then where it was already."""
    id = queue.put(b"x", attributes=GIVEN)
    queue.get(timeout=0).release()
    gone = removed_by_hand(queue)
    leased = f"leased/{id}.{time.time_ns() // 1000 + 10**9}.1.abcd"
    real, walks = fs.listing, []

    def listing(folder, fd):
        if folder == ".":
            fs.rename(id, leased, src_dir_fd=fd, dst_dir_fd=fd)
        found = list(real(folder, fd))
        if folder == ".":
            fs.rename(leased, id, src_dir_fd=fd, dst_dir_fd=fd)
            walks.append(folder)
        return iter(found)

    time.sleep(0.1)  # older than `stale`, and nothing has changed for long
    with monkeypatch.context() as patch:
        patch.setattr(fs, "listing", listing)
        queue.purge()
    assert len(walks) >= 2
    assert kept(queue) == {id, gone}
    assert queue.get(timeout=0).message.attributes == GIVEN
    queue.purge()
    assert kept(queue) == {id}, "nothing moves now"


def test_queue_that_never_rests_keeps_what_may_be_of_a_message(queue, monkeypatch):
    """One that is certain to be gone nobody can tell from one that was missed."""
    gone = removed_by_hand(queue)
    with monkeypatch.context() as patch:
        restless(patch)
        queue.purge()
        assert kept(queue) == {gone}
    queue.purge()
    assert kept(queue) == set()


def test_purge_waits_a_moment_for_what_it_has_changed_itself(queue, monkeypatch):
    """It removes a leftover, and then nothing has changed for a while."""
    removed_by_hand(queue)
    pauses = []
    real = time.sleep
    monkeypatch.setattr(orphans.time, "sleep", lambda seconds: pauses.append(seconds) or real(seconds))
    Path(queue.path, f"{new_id()}.new").write_bytes(b"x")
    real(0.002)
    queue.purge()
    assert kept(queue) == set()
    assert len(pauses) == 1
    assert pauses[0] <= sight.PAUSE / 1e6


def test_nothing_is_removed_where_not_all_names_can_be_seen(queue, monkeypatch):
    """A message may lie there."""
    gone = removed_by_hand(queue)
    queue.put_many([b"x", b"y"])
    real = fs.listing

    def listing(folder, fd):
        if folder.endswith(".batch"):
            raise PermissionError(13, "denied", folder)
        return real(folder, fd)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "listing", listing)
        queue.purge()
    assert kept(queue) == {gone}


def test_directories_that_are_not_ours_hide_no_message(queue, monkeypatch):
    """As lost+found, which nobody may read."""
    removed_by_hand(queue)
    Path(queue.path, "lost+found").mkdir()
    real = fs.listing

    def listing(folder, fd):
        assert "lost" not in folder
        return real(folder, fd)

    monkeypatch.setattr(fs, "listing", listing)
    queue.purge()
    assert kept(queue) == set()


@pytest.mark.parametrize("rested", [True, False])
def test_with_cached_times_an_hour_without_a_change_is_a_proof(queue, monkeypatch, rested):
    """The purge's own look at the clock, which changes the queue, does not count."""
    queue.put(b"stays")
    queue.purge()  # the first one makes its lock
    gone = removed_by_hand(queue)
    queue.close()
    if rested:
        for folder in (Path(queue.path), *(each for each in Path(queue.path).rglob("*") if each.is_dir())):
            os.utime(folder, (OLD, OLD))
    other = Queue(queue.path, sync=False, stale=0.0)
    other.layout.directory.find()
    monkeypatch.setattr(other.layout.directory.mount, "attributes_are_cached", True)
    assert not other.layout.directory.clock.till, "it has not looked at the clock yet"
    other.purge()
    assert kept(queue) == (set() if rested else {gone})


def test_directory_that_goes_during_a_walk_proves_nothing(queue, monkeypatch):
    """A bucket that a consumer removes."""
    gone = removed_by_hand(queue)
    real = sight._quiet_at

    def vanished(folder, root):
        if folder != ".":
            raise FileNotFoundError(2, "gone", folder)
        return real(folder, root)

    queue.put(b"y")
    queue.get(timeout=0)
    with monkeypatch.context() as patch:
        patch.setattr(sight, "_quiet_at", vanished)
        queue.purge()
        assert kept(queue) == {gone}
    queue.purge()
    assert kept(queue) == set()


def test_change_of_priority_that_is_stopped_keeps_what_it_wrote(tmp_path):
    """It is written for the new id before the message has that."""
    queue = Queue(tmp_path / "queue", sync=False, stale=0.0, priorities=True)
    id = queue.put(b"x", attributes=GIVEN, priority=5)

    def purge():
        time.sleep(0.002)
        Queue(queue.path, stale=0.0).purge()

    with before("rename", purge, when=lambda src, *_, **__: str(src).startswith(id)):
        queue.message(id).change(priority=1)
    assert queue.get(timeout=0).message.attributes == GIVEN


def test_move_that_is_stopped_until_a_purge_writes_them_again(queue, tmp_path):
    """They are in the other queue before the message is."""
    queue.put(b"x", attributes=GIVEN)
    target = Queue(tmp_path / "target", sync=False)
    target.put(b"y")

    def purge():
        time.sleep(0.1)
        Queue(target.path, stale=0.0).purge()
        assert kept(target) == set()

    with before("rename_noreplace", purge):
        [id] = transfer.move(queue, target).ids
    assert target.message(id).attributes == GIVEN


def test_plans_name_what_is_about_to_move(queue, tmp_path):
    """Open and committed ones; whatever else lies among the registers does not matter."""
    queue.layout.directory.make()
    process = tmp_path / ".space" / "txn" / "1700000000000000000000001"
    register = register_beside(queue.layout.directory)
    assert list(register.planned()) == []
    process.mkdir(parents=True)
    (process.parent / "file").write_bytes(b"")
    (process / "1").mkdir()
    (process / "2").symlink_to("dirqueue:text")
    (process / "3").write_bytes(b"a body")
    (process / "4").write_bytes(b'{"move": {"51700000000000000000000002": "a/b"}}')
    (process / "5.plan").write_bytes(b'{"move": {"1700000000000000000000003": "a/b"}}')
    (process / "6.alive").write_bytes(b'{"move": {"1700000000000000000000004": "a/b"}}')
    (process / "7").write_bytes(b'{"move": 3}')
    assert set(register.planned()) == {"1700000000000000000000002", "1700000000000000000000003"}


def test_plan_that_cannot_be_read_keeps_all(queue, tmp_path):
    """Another user's may name what is about to come."""
    gone = removed_by_hand(queue)
    process = tmp_path / ".space" / "txn" / "1700000000000000000000001"
    process.mkdir(parents=True)
    (process / "5.plan").write_bytes(b"{}")
    real = fs.read_file

    def refuse(name, *arguments):
        if name.endswith(".plan"):
            raise PermissionError(13, "denied", name)
        return real(name, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "read_file", refuse)
        queue.purge()
    assert kept(queue) == {gone}
