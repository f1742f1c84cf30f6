"""Forced races: calls of fs are replaced so that the other client acts at the worst moment."""

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
from dirqueue.layouts.native import due, publish


@pytest.fixture
def make(tmp_path):
    """Give a function that makes clients of one directory."""

    def make(**settings):
        return Queue(tmp_path / "queue", **{"sync": False, "margin": 0, "lease": LONG, **settings})

    return make


def once(call, action, *, when=lambda *arguments, **named: True, after=False):
    """Wrap a call of fs: run `action` before (or after) the first call that matches `when`."""
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


def test_claim_that_loses_the_race_gets_the_next_message(make):
    """Another client claims the message one call earlier: this one gets the next message."""
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


def test_ack_uses_the_name_of_a_concurrent_renewal(make):
    """Another thread renews the lease just before the unlink: the ack uses the new name."""
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


def test_get_lists_again_when_another_thread_emptied_the_snapshot(make):
    """The snapshot becomes empty between the check and the pop: get lists the directory again."""
    mine = make()
    mine.put(b"a")
    mine.put(b"b")
    mine.get(timeout=0).ack()

    class Emptied(list):
        def pop(self):
            self.clear()  # the other thread was faster
            raise IndexError

    mine.layout._cursor.row = ("", Emptied(["1"]), frozenset())
    assert mine.get(timeout=0).message.body == b"b"


def test_claim_stopped_for_half_its_lease_is_renewed_at_once(make):
    """The process is stopped between reading the clock and the rename: no expired lease is handed out."""
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


def test_claim_stopped_for_its_whole_lease_is_lost_to_the_next_consumer(make):
    """While the process was stopped another consumer claimed the message: get raises Empty."""
    queue, other = make(), make()
    queue.put(b"x")
    taken = []

    def take():
        time.sleep(0.3)
        taken.append(other.get(timeout=0))

    with replaced(fs, close=once(fs.close, take)), pytest.raises(Empty):
        queue.get(timeout=0, lease=0.2)
    taken[0].ack()


def test_claim_that_loses_the_race_for_the_last_message_raises_empty(make):
    """Another client claims the only message: get raises Empty."""
    mine, theirs = make(), make()
    mine.put(b"a")
    with (
        replaced(fs, rename=once(fs.rename, lambda: theirs.get(timeout=0))),
        pytest.raises(Empty),
    ):
        mine.get(timeout=0)


def test_ack_waits_for_a_renewal_of_the_same_lease(make):
    """Within a process ack and renew are serialized: the ack uses the renewed name."""
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


def test_claim_of_an_expired_lease_finds_nothing_after_its_ack(make):
    """The late holder acks between the listing and the rename of the next claim: the message is gone."""
    holder, other = make(), make()
    holder.put(b"a")
    lease = holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    with replaced(fs, rename=once(fs.rename, lease.ack)), pytest.raises(Empty):
        other.get(timeout=0)
    assert lease.ended == "acked"
    assert problems(holder.path) == []
    assert messages(holder.path)[0] == {}


def test_ack_of_an_expired_lease_that_was_claimed_is_refused(make):
    """The message is claimed just before the unlink of the ack: LeaseLost is raised."""
    holder, other = make(), make()
    holder.put(b"a")
    lease = holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    claimed = []
    with (
        replaced(fs, unlink=once(fs.unlink, lambda: claimed.append(other.get(timeout=0)))),
        pytest.raises(LeaseLost),
    ):
        lease.ack()
    assert claimed[0].message.attempts == 2
    claimed[0].ack()
    assert len(holder) == 0


@pytest.mark.parametrize("verb", ["retry", "release", "reject", "renew"])
def test_end_of_an_expired_lease_that_was_claimed_is_refused(make, verb):
    """Whatever the late holder does, the next holder keeps the message."""
    holder, other = make(), make()
    holder.put(b"a")
    lease = holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    claimed = []

    def claim():
        claimed.append(other.get(timeout=0))

    mine = lease.handle
    rename = once(fs.rename, claim, when=lambda src, dst, **named: src == mine)
    with replaced(fs, rename=rename), pytest.raises(LeaseLost):
        getattr(lease, verb)()
    claimed[0].ack()
    assert problems(holder.path) == []
    assert len(holder) == 0


def test_cancel_of_a_message_that_was_claimed_raises_message_not_found(make):
    """A consumer claims the message first: cancel raises, and the consumer keeps the message."""
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


def test_redrive_by_two_clients_moves_the_message_once(make):
    """The message is delivered once more, and only one redrive returns it."""
    queue, other = make(), make()
    queue.put(b"a")
    queue.get(timeout=0).reject("no")
    theirs = []
    noreplace = once(fs.rename_noreplace, lambda: theirs.extend(other.redrive()))
    with replaced(fs, rename_noreplace=noreplace):
        mine = queue.redrive()
    assert (len(mine), len(theirs)) == (0, 1)
    assert drain(queue) == [b"a"]


def test_put_whose_unfinished_file_was_purged_writes_it_again(make):
    """The unfinished file is purged during the put: the message is written again."""
    queue, purger = make(), make(stale=0)
    queue.put(b"first")
    with replaced(fs, rename_noreplace=once(fs.rename_noreplace, purger.purge)):
        queue.put(b"slow")
    assert sorted(drain(queue)) == [b"first", b"slow"]


def test_put_whose_slice_was_removed_makes_another(make, monkeypatch):
    """The slice is removed between its creation and the first write: another one is made."""
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


def test_put_makes_a_removed_queue_again(make):
    """The whole directory is deleted: put and put_many make it again."""
    queue = make()
    queue.put(b"gone")
    wants_new = lambda path, *_, **named: str(path).endswith(".new")  # noqa: E731
    with replaced(fs, open=once(fs.open, lambda: shutil.rmtree(queue.path), when=wants_new)):
        queue.put(b"a")
    shutil.rmtree(queue.path)
    queue.put_many([b"b", b"c"])
    assert sorted(drain(make())) == [b"b", b"c"]


def test_put_raises_when_its_directory_stays_missing(make):
    """Every loop on an errno is bounded."""
    queue = make()
    queue.put(b"x")

    def never(path, *arguments, **named):
        if str(path).endswith(".new"):
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        return real["open"](path, *arguments, **named)

    with replaced(fs, open=never) as real, pytest.raises(QueueError, match="cannot put"):
        queue.put(b"y")


def test_put_onto_a_taken_name_uses_another_id(make):
    """Nothing is overwritten; the message gets another id."""
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


def test_get_lists_again_before_it_raises_empty(make):
    """A listing may miss a name that is being renamed, so Empty is raised only after a second one."""
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
    assert len(calls) > 2  # the queue, leased/, and the queue again


def test_put_within_one_tick_of_the_directory_time_is_found(make, monkeypatch):
    """A put during a slow listing may leave the mtime of the directory unchanged; it must still be found."""
    monkeypatch.setattr(due, "TICK_NS", 10**9)  # a busy machine may pause for longer than a real tick
    queue, other = make(), make()
    queue.put(b"first")
    drain(queue)

    class Listing:
        """A listing that is read before the put and closed long after it."""

        def __init__(self, found):
            self.entries = list(found)
            found.close()

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            if not state and len(calls) >= 3:  # the queue, leased/, the queue
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


def test_publish_learns_the_limits_of_a_mount_in_several_threads(tmp_path):
    """Several threads may find out at the same time that a call is missing; each message is published."""
    from dirqueue.disk.mount import Mount

    mount, barrier = Mount("ext4"), threading.Barrier(6)
    for number in range(6):
        (tmp_path / f"{number}.new").write_bytes(b"x")

    def cannot(src, dst, dir_fd):
        barrier.wait(PATIENCE)
        raise NotImplementedError

    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with replaced(fs, rename_noreplace=cannot):
            threads = [
                threading.Thread(target=mount.publish, args=(f"{number}.new", str(number), fd))
                for number in range(6)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
    finally:
        os.close(fd)
    assert sorted(os.listdir(tmp_path)) == [str(number) for number in range(6)]
    assert mount.publishes_by == "link"


def test_ack_and_reject_make_removed_directories_again(make):
    """A missing done/ or dead/ is made again and not reported as a lost lease."""
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


def test_create_refuses_other_settings_than_a_concurrent_create(tmp_path):
    """The second create gets the settings of the first one or an error, never a mixture."""
    from dirqueue import SettingsError

    path = tmp_path / "queue"
    with (
        replaced(fs, rename_noreplace=once(fs.rename_noreplace, lambda: Queue.create(path, lease=7.0))),
        pytest.raises(SettingsError, match="lease"),
    ):
        Queue.create(path, lease=9.0)
    assert Queue(path).settings.lease == 7.0
    assert [name for name in os.listdir(path) if name.startswith(".create")] == []
