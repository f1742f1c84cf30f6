"""Leases are kept while handlers run; one that is lost stops the handler and is never committed."""

import errno
import os
import threading
import time

import pytest
from support.patience import until

import dirqueue
from dirqueue import Worker
from dirqueue.disk import fs
from dirqueue.worker import Cancelled, watchdog

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def room(queue):
    return os.path.join(queue.path, "leased")


def leased(queue):
    return sorted(name for name in os.listdir(room(queue)) if name.count(".") == 3)


def in_background(worker):
    """Run a worker in a thread; return the thread and where its counts will be."""
    counts = []
    thread = threading.Thread(target=lambda: counts.append(worker.run_until_empty()), daemon=True)
    thread.start()
    return thread, counts


def steal(queue):
    """Take the message from its holder, as a consumer does that finds the lease expired; return its new name."""
    for _ in range(100):
        (name,) = until(lambda: leased(queue), "a lease")
        id, expiry, attempts, _token = name.split(".")
        taken = f"{id}.{int(expiry) + 3_600_000_000}.{int(attempts) + 1}.thief"
        try:
            os.rename(os.path.join(room(queue), name), os.path.join(room(queue), taken))
        except FileNotFoundError:  # renewed meanwhile
            continue
        return taken
    raise AssertionError("the lease is renewed faster than it can be stolen")


@pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])
def test_a_lease_is_renewed_while_the_handler_runs(queue, tmp_path, way):
    """The holder's name changes again and again, and nobody else gets the message."""
    queue.put(b"long")

    def handler(message):
        until((tmp_path / "go").exists, "leave to go on")

    worker = Worker(queue, handler, lease=3, **way)
    thread, counts = in_background(worker)
    seen = set()
    until(lambda: seen.update(leased(queue)) or len(seen) >= 3, "two renewals")
    with pytest.raises(dirqueue.Empty):
        dirqueue.Queue(queue.path).get(timeout=0)
    (tmp_path / "go").touch()
    thread.join(40)
    assert counts == [(1, 0, 0, 0, 0)]
    assert worker.status()["running"] == 0


def test_a_renewal_that_fails_is_tried_again(queue, monkeypatch):
    """A disk that refuses twice costs two error events, not the lease."""
    real, failures, renewed = fs.rename, [], threading.Event()

    def rename(src, dst, **kwargs):
        if src.count(".") == 3 and dst.count(".") == 3:
            if len(failures) < 2:
                failures.append(src)
                raise OSError(errno.EIO, "no luck")
            renewed.set()
        return real(src, dst, **kwargs)

    monkeypatch.setattr(fs, "rename", rename)
    errors = []
    queue.put(b"one")
    worker = Worker(queue, lambda message: renewed.wait(40), lease=4, hooks={"error": errors.append})
    assert worker.run_until_empty().acked == 1
    assert renewed.is_set()
    assert len(errors) == 2
    assert "EIO" in errors[0].error


def test_a_lost_lease_cancels_the_handler_in_its_thread(queue):
    """The handler is interrupted, its message is not touched, and the lane goes on with the next one."""
    cancelled, lost = [], []

    def handler(message):
        if message.data == b"quick":
            return
        try:
            while True:
                time.sleep(0.005)
        except Cancelled:
            cancelled.append(message.id)
            raise

    id = queue.put(b"slow")
    thread, counts = in_background(Worker(queue, handler, lease=0.6, hooks={"lost": lost.append}))
    taken = steal(queue)
    until(lambda: cancelled, "the cancellation")
    queue.put(b"quick")
    thread.join(40)
    assert cancelled == [id]
    assert counts[0].lost == 1
    assert [event.id for event in lost] == [id]
    assert taken in os.listdir(room(queue))


@pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])
def test_lost_delivery_is_never_committed(queue, way):
    """Whatever the handler did, no verb is tried on a lease that is known to be lost: the event has no error of one."""
    lost = []

    def handler(message):
        while True:
            time.sleep(0.005)

    queue.put(b"slow")
    thread, counts = in_background(Worker(queue, handler, lease=0.6, hooks={"lost": lost.append}, **way))
    taken = steal(queue)
    thread.join(40)
    assert counts == [(0, 0, 0, 0, 1)]
    assert [event.error for event in lost] == [None]
    assert taken in os.listdir(room(queue))


def test_a_handler_that_swallows_the_cancellation_commits_nothing(queue):
    """Neither returning nor raising after the loss changes anything on disk."""

    def handler(message):
        try:
            while True:
                time.sleep(0.005)
        except Cancelled:
            return

    queue.put(b"slow")
    thread, counts = in_background(Worker(queue, handler, lease=0.6))
    taken = steal(queue)
    thread.join(40)
    assert counts == [(0, 0, 0, 0, 1)]
    assert [name for name in os.listdir(room(queue)) if name.startswith(taken[:20])] == [taken]


def test_a_lost_lease_kills_the_handlers_process(queue, tmp_path):
    """A handler in a child is killed for sure, whatever it is doing, with what it started."""

    def handler(message):
        (tmp_path / "part").write_text(str(os.getpid()))
        (tmp_path / "part").rename(tmp_path / "pid")
        time.sleep(3600)

    queue.put(b"slow")
    thread, counts = in_background(Worker(queue, handler, lease=0.6, processes=1))
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the pid"))
    taken = steal(queue)
    thread.join(40)
    assert counts == [(0, 0, 0, 0, 1)]
    assert taken in os.listdir(room(queue))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_ack_that_comes_too_late_is_lost_not_done(queue):
    """A handler that finishes after its message was taken, before any renewal noticed, commits nothing."""
    queue.put(b"one")
    taken = []
    counts = Worker(queue, lambda message: taken.append(steal(queue)), lease=3600).run_until_empty()
    assert counts == (0, 0, 0, 0, 1)
    assert taken[0] in os.listdir(room(queue))


@pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])
def test_a_time_limit_stops_the_handler_and_counts(queue, way):
    """What runs too long is stopped, retried by policy, and dead in the end, saying why."""

    def handler(message):
        while True:
            time.sleep(0.005)

    queue.put(b"endless")
    counts = Worker(queue, handler, time_limit=0.1, **way).run_until_empty(idle=0.3)
    assert (counts.retried, counts.dead) == (2, 1)
    (dead,) = queue.peek("dead")
    assert dead.error == "time limit of 0.1 s exceeded"


def test_handler_that_does_not_stop_loses_its_message(queue, monkeypatch):
    """One long C call does not see the cancellation; the message is given to others and not committed later."""
    monkeypatch.setattr(watchdog, "GRACE", 0.1)
    go, events = threading.Event(), []
    queue.put(b"one")
    hooks = {"stuck": events.append, "retried": events.append, "acked": events.append}
    worker = Worker(queue, lambda message: go.wait(), time_limit=0.1, limit=1, hooks=hooks)
    thread, counts = in_background(worker)
    until(lambda: [event.name for event in events] == ["stuck", "retried"], "the message to be taken")
    message = until(lambda: [*queue.peek("ready")], "the message to be ready again")[0]
    go.set()
    thread.join(40)
    assert counts == [(0, 1, 0, 0, 0)]
    assert (message.attempts, message.error) == (1, "time limit of 0.1 s exceeded")
    assert [event.name for event in events] == ["stuck", "retried"]


def test_a_cancellation_never_reaches_the_next_message(queue):
    """Time limits that strike at the very end of a handler hit this delivery or none."""
    for _ in range(60):
        queue.put(b"one")

    def handler(message):
        time.sleep(0.02)

    worker = Worker(queue, handler, time_limit=0.02, threads=2)
    counts = worker.run_until_empty(idle=0.3)
    # Each delivery ended exactly once, and every message is either done or dead.
    assert counts.acked + counts.dead == 60
    assert counts.released == counts.lost == 0
    assert len([*queue.peek("dead")]) == counts.dead


def test_a_commit_that_the_disk_refuses_is_tried_again(queue, monkeypatch):
    """One failed unlink does not cost the work that was done."""
    real, failed = fs.unlink, []

    def unlink(path, **kwargs):
        if path.count(".") == 3 and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "no luck")
        return real(path, **kwargs)

    monkeypatch.setattr(fs, "unlink", unlink)
    queue.put(b"one")
    assert Worker(queue, lambda message: None).run_until_empty().acked == 1
    assert failed


def test_commit_that_keeps_failing_is_reported_and_left_to_the_lease(queue, monkeypatch):
    """The message stays leased, an error event says why, and the worker goes on."""
    errors = []

    def unlink(path, **kwargs):
        raise OSError(errno.EIO, "no luck")

    monkeypatch.setattr(fs, "unlink", unlink)
    queue.put(b"one")
    counts = Worker(queue, lambda message: None, hooks={"error": errors.append}).run_until_empty()
    assert counts == (0, 0, 0, 0, 0)
    assert "EIO" in errors[0].error
    assert len(leased(queue)) == 1
