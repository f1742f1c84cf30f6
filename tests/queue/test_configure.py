"""Settings can be changed on a live queue: whole or not at all, and taken up by whoever consumes."""

import contextlib
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import typing

import pytest
from filelock import FileLock
from support.dying import Died, dying
from support.failing import failing
from support.patience import until

import dirqueue
from dirqueue import Queue, QueueAccess, QueueNotFound, QueueSet, SettingsError, Worker, stored_settings
from dirqueue.aio import AsyncQueue
from dirqueue.settings import FIXED, Given


@pytest.fixture
def queue(queue_dir):
    """Give a queue with settings of its own."""
    return Queue.create(queue_dir, sync=False, max_attempts=7, lease=20.0)


def kept(path):
    return json.loads((path / "queue.json").read_text())


def test_change_is_kept_and_holds_for_whoever_opens_the_queue(queue, queue_dir):
    after = queue.configure(max_attempts=3, backoff=0.5)
    assert (after.max_attempts, after.backoff, after.lease) == (3, 0.5, 20.0)
    assert kept(queue_dir) == {"format": 1, "sync": False, "max_attempts": 3, "backoff": 0.5, "lease": 20.0}
    assert Queue(queue_dir).settings == after
    with pytest.raises(SettingsError, match="dirqueue settings"):
        Queue(queue_dir, max_attempts=7)


def test_reset_goes_back_to_the_default(queue, queue_dir):
    assert queue.configure(reset=["lease"]).lease == 30.0
    assert "lease" not in kept(queue_dir)


def test_queue_made_by_a_put_can_get_settings(queue_dir):
    """Messages lie in it, and none of what can be changed changes what they are."""
    queue = Queue(queue_dir, sync=False)
    queue.put(b"x")
    assert queue.configure(max_attempts=2).max_attempts == 2
    assert kept(queue_dir) == {"format": 1, "max_attempts": 2}
    queue.get(timeout=0).ack()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layout": "vsqs"}, "convert"),
        ({"priorities": True}, "create another queue"),
        ({"maxelts": 5}, "layouts that keep no settings"),
        ({"lease": -1}, "lease must be"),
        ({"leese": 5}, "did you mean 'lease'"),
        ({"zzz": 5}, "there are layout, lease"),
        ({"reset": ["priorities"]}, "create another queue"),
        ({"max_attempts": 3, "order": "newest"}, "order must be one of"),
    ],
    ids=str,
)
def test_what_cannot_be_changed_is_refused_with_the_reason(queue, queue_dir, change, text):
    before = kept(queue_dir)
    with pytest.raises(SettingsError, match=text):
        queue.configure(**change)
    assert kept(queue_dir) == before


def test_other_layout_that_keeps_settings_changes_what_it_can_express(queue_dir):
    """VSQS's has a place for them; what its format has no way to express is refused by name, and nothing is written."""
    queue = Queue.create(queue_dir, layout="vsqs", lease=9.0)
    other = Queue(queue_dir)
    queue.configure(lease=4.0, margin=0.5)
    assert other.refresh()
    assert (other.layout.name, other.settings.lease, other.settings.margin) == ("vsqs", 4.0, 0.5)
    other.put(b"x")
    other.get(timeout=0).ack()
    for change in ({"keep_done": True}, {"max_attempts": 3}):
        with pytest.raises(dirqueue.Unsupported):
            queue.configure(**change)
    assert kept(queue_dir) == {"format": 1, "layout": "vsqs", "lease": 4.0, "margin": 0.5}


def test_queue_that_is_recognised_keeps_its_layout_with_its_settings(queue_dir):
    """Once it is empty nothing else says what it is: it would get names that programs of VSQS do not know."""
    with Queue(queue_dir, layout="vsqs", sync=False) as queue:
        queue.put(b"x")
    with Queue(queue_dir) as queue:
        queue.configure(lease=7.0)
        queue.get(timeout=0).ack()
    assert kept(queue_dir) == {"format": 1, "layout": "vsqs", "lease": 7.0}
    with Queue(queue_dir) as queue:
        assert (queue.layout.name, queue.settings.lease) == ("vsqs", 7.0)


@pytest.mark.parametrize("layout", ["dirq-simple", "dirq-normal"])
def test_layout_without_a_place_for_settings_refuses(queue_dir, layout):
    queue = Queue.create(queue_dir, layout=layout)
    with pytest.raises(SettingsError, match=f"{layout} queue, which has no place"):
        queue.configure(lease=5.0)
    assert not queue.refresh()
    assert not (queue_dir / "queue.json").exists()


def test_missing_queue_is_not_made(queue_dir):
    with pytest.raises(QueueNotFound):
        Queue(queue_dir).configure(lease=5.0)
    assert not queue_dir.exists()


def test_other_object_takes_it_up_by_refresh(queue, queue_dir):
    other = Queue(queue_dir)
    assert not other.refresh()
    queue.configure(max_attempts=1, max_size=3)
    assert other.settings.max_attempts == 7
    assert other.refresh()
    assert not other.refresh()
    assert other.settings.max_attempts == 1
    with pytest.raises(dirqueue.MessageTooLarge):
        other.put(b"long")
    other.put(b"x")
    other.get(timeout=0).retry()
    assert other.stats().dead == 1


def test_lease_that_is_held_fails_by_the_settings_of_now(queue, queue_dir):
    """max_attempts is looked at when it fails, not when it was claimed."""
    queue.put(b"x")
    lease = queue.get(timeout=0)
    Queue(queue_dir).configure(max_attempts=1)
    queue.refresh()
    lease.retry()
    assert lease.ended == "dead"


def test_kept_settings_win_over_those_of_the_object(queue_dir):
    mine = Queue(queue_dir, sync=False, max_attempts=9, backoff=4.0)
    mine.put(b"x")
    Queue(queue_dir).configure(max_attempts=2)
    assert mine.refresh()
    assert (mine.settings.max_attempts, mine.settings.backoff, mine.settings.sync) == (2, 4.0, False)


def test_refresh_of_a_damaged_file_is_an_error_and_changes_nothing(queue, queue_dir):
    queue.refresh()
    (queue_dir / "queue.json").write_text("{")
    with pytest.raises(dirqueue.LayoutError):
        queue.refresh()
    assert queue.settings.max_attempts == 7
    queue.put(b"x")


def test_consume_takes_it_up(queue, queue_dir, monkeypatch):
    monkeypatch.setattr("dirqueue.consumer.FRESH_SECONDS", -1.0)
    queue.put_many([b"1", b"2"])
    for lease in queue.consume(timeout=0):
        Queue(queue_dir).configure(max_attempts=1)
        lease.retry(3600)
    states = queue.stats()
    assert (states.delayed, states.dead) == (1, 1)


def test_queue_set_takes_it_up(tmp_path):
    queues = [Queue.create(tmp_path / name, lease=9.0) for name in "abc"]
    both = QueueSet([tmp_path / "a", tmp_path / "b"])
    queues[1].configure(lease=4.0)
    assert both.refresh()
    assert not both.refresh()
    assert [queue.settings.lease for queue in both.queues] == [9.0, 4.0]


async def _awaited(path):
    async with AsyncQueue(path) as queue:
        assert (await queue.configure(max_attempts=4)).max_attempts == 4
        assert not await queue.refresh()


def test_async_queue_has_both(queue, queue_dir):
    import asyncio

    asyncio.run(_awaited(queue_dir))
    assert kept(queue_dir)["max_attempts"] == 4


@pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_running_worker_takes_it_up(queue, queue_dir, tmp_path, way):
    """Also for the message that it is handling when the settings change."""
    seen = []

    def handler(message):
        (tmp_path / "begun").touch()
        until((tmp_path / "go").exists, "leave to fail")
        raise ValueError

    queue.put(b"x")
    worker = Worker(Queue(queue_dir), handler, hooks={"refreshed": seen.append, "dead": seen.append}, **way)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until((tmp_path / "begun").exists, "the handler to begin")
    queue.configure(max_attempts=1)
    time.sleep(0.6)  # at most twice a second is it looked for
    (tmp_path / "go").touch()
    until(lambda: len(seen) == 2, "the end of the message")
    worker.stop()
    thread.join(40)
    assert [event.name for event in seen] == ["refreshed", "dead"]


def test_idle_worker_takes_it_up(queue, queue_dir):
    seen = []
    worker = Worker(Queue(queue_dir), print, hooks={"refreshed": seen.append})
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: worker.status().get("slots"), "the worker to begin")
    queue.configure(lease=3.0)
    until(lambda: seen, "the change to be noticed")
    worker.stop()
    thread.join(40)


def test_worker_goes_on_by_its_old_settings_if_the_file_is_damaged(queue, queue_dir):
    errors, handled = [], []
    worker = Worker(
        Queue(queue_dir), lambda message: handled.append(message.id), hooks={"error": errors.append}
    )
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: worker.status().get("slots"), "the worker to begin")
    (queue_dir / "queue.json").write_text("{")
    until(lambda: errors, "the complaint")
    queue.put(b"x")
    until(lambda: handled, "the message")
    worker.stop()
    thread.join(40)
    assert "queue.json is not JSON" in errors[0].error


# --- crashes, races, errors ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_death_at_any_call_leaves_the_old_settings_or_the_new(tmp_path):
    found = set()
    for at in range(100):
        path = tmp_path / f"queue-{at}"
        queue = Queue.create(path, max_attempts=7)
        queue.put(b"x")
        with dying(at) as count, contextlib.suppress(Died):
            queue.configure(max_attempts=3)
        fresh = Queue(path)
        found.add(fresh.settings.max_attempts)
        fresh.get(timeout=0).ack()
        left = [name for name in os.listdir(path) if name.startswith(".create-")]
        assert len(left) <= 1
        for name in left:
            os.utime(path / name, (0, 0))
        fresh.purge()
        assert not [name for name in os.listdir(path) if name.startswith(".create-")]
        if count[0] <= at:
            break
    assert found == {3, 7}
    assert count[0] <= at


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_failing_disk_leaves_the_old_settings(queue, queue_dir, call):
    import errno

    with failing(call, errno.EIO, when=lambda path, *_, **__: True), pytest.raises(QueueAccess):
        queue.configure(max_attempts=3)
    assert Queue(queue_dir).settings.max_attempts == 7
    assert not [name for name in os.listdir(queue_dir) if name.startswith(".create-")]


def _change(path, names):
    queue = Queue(path)
    for name in names:
        queue.configure(**{name: 11})


def test_changes_of_several_processes_are_all_kept(queue, queue_dir):
    """Each reads, changes and writes the whole: none undoes another's."""
    names = ["max_attempts", "max_messages", "max_size", "lease", "backoff", "max_backoff", "stale", "margin"]
    context = multiprocessing.get_context("spawn")
    parts = [names[:2], names[2:4], names[4:6], names[6:]]
    children = [context.Process(target=_change, args=(str(queue_dir), part)) for part in parts]
    for child in children:
        child.start()
    for child in children:
        child.join(40)
        assert child.exitcode == 0
    assert {name: kept(queue_dir)[name] for name in names} == dict.fromkeys(names, 11)


def test_a_purge_that_does_not_end_is_named(queue, monkeypatch):
    monkeypatch.setattr(stored_settings, "LOCK_SECONDS", 0.05)
    with FileLock(queue.layout.purge_lock()), pytest.raises(QueueAccess, match="purge or another change"):
        queue.configure(max_attempts=3)


# --- settings of producers -----------------------------------------------------------------------------------

PRODUCER = """
import sys
from dirqueue import Queue
queue = Queue("queue", sync=False, {given})
{do}
"""


def said_by(tmp_path, given, do):
    source = PRODUCER.format(given=given, do=do)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stderr


@pytest.mark.parametrize("do", ["queue.put(b'x')", "queue.put_many([b'x'])", "queue.put(b'x', delay=5)"])
def test_policy_of_a_producer_that_binds_no_consumer_is_reported(tmp_path, do):
    said = said_by(tmp_path, "max_attempts=3, backoff=2", do)
    assert said.count("\n") == 1
    assert said.startswith(
        "max_attempts=3, backoff=2 was given to a queue object that only put messages into 'queue'"
    )
    assert "Queue.create" in said


@pytest.mark.parametrize(
    ("given", "do"),
    [
        ("max_attempts=3", "queue.put(b'x'); queue.get(timeout=0).ack()"),  # its own consumer
        ("max_attempts=3", "queue.stats()"),
        ("lease=3, max_size=9", "queue.put(b'x')"),
        ("", "queue.put(b'x')"),
    ],
)
def test_nothing_is_reported_where_nothing_is_wrong(tmp_path, given, do):
    assert said_by(tmp_path, given, do) == ""


def test_policy_that_the_queue_keeps_binds_everybody(tmp_path):
    Queue.create(tmp_path / "queue", max_attempts=3)
    assert said_by(tmp_path, "max_attempts=3", "queue.put(b'x')") == ""


def test_report_comes_once_for_each_queue(queue_dir, caplog):
    with caplog.at_level(logging.WARNING, "dirqueue.queue"):
        for _ in range(3):
            Queue(queue_dir, max_attempts=3).put(b"x")
    assert len(caplog.records) == 1


def test_type_checkers_know_every_setting():
    """Given is what **settings may be, and must not drift from Settings."""
    hints = typing.get_type_hints(Given)
    assert [*hints] == [*dirqueue.Settings._fields]
    assert {*FIXED} <= {*hints}
