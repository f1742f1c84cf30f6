"""Slots: many messages at once, until empty, up to a limit, and through trouble."""

import errno
import itertools
import logging
import os
import threading

import pytest
from support.patience import until

import dirqueue
from dirqueue import Worker
from dirqueue.disk import fs
from dirqueue.worker import events, slot

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_threads_handle_messages_at_the_same_time(queue):
    """Four messages that wait for each other are all handled."""
    barrier = threading.Barrier(4)
    queue.put_many([b"x"] * 4)
    assert Worker(queue, lambda message: barrier.wait(40), threads=4).run_until_empty().acked == 4


def test_processes_handle_messages_at_the_same_time(queue, tmp_path):
    """Three messages in three processes wait for each other."""
    queue.put_many([b"x"] * 3)

    def handler(message):
        (tmp_path / f"at-{os.getpid()}").touch()
        until(lambda: len([*tmp_path.glob("at-*")]) == 3, "the others")

    assert Worker(queue, handler, processes=3).run_until_empty().acked == 3


@pytest.mark.parametrize("threads", [1, 4])
def test_until_empty_handles_what_handlers_put(queue, threads):
    """A tree of messages that put messages is worked off to the last leaf."""

    def handler(message):
        depth = int(message.data)
        if depth:
            for _ in range(2):
                queue.put(b"%d" % (depth - 1))

    queue.put(b"6")
    assert Worker(queue, handler, threads=threads).run_until_empty().acked == 2**7 - 1
    assert len(queue) == 0


def test_until_empty_on_a_queue_that_is_not_there_ends_at_once(queue):
    """No directory is as good as no message."""
    assert Worker(queue, print).run_until_empty() == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_limit_is_never_exceeded(queue, threads):
    """run() ends by itself after so many messages."""
    queue.put_many([b"x"] * 20)
    assert Worker(queue, lambda message: None, threads=threads, limit=7).run().acked == 7
    assert queue.stats().ready == 13


@pytest.mark.parametrize(
    "error", [dirqueue.Empty("nothing"), OSError(errno.EIO, "no luck")], ids=["empty", "trouble"]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_limit_counts_messages_and_not_looks(queue, monkeypatch, error, threads):
    """Ten looks that brought nothing leave a limit of two as it is."""
    monkeypatch.setattr(slot, "FIRST_PAUSE", 0.001)
    looks = itertools.count()

    class Source:
        def get(self, *, timeout=None, lease=None):
            if next(looks) < 9:
                raise error
            return queue.get(timeout=timeout, lease=lease)

    queue.put_many([b"x"] * 5)
    assert Worker(Source(), lambda message: None, threads=threads, limit=2).run().acked == 2
    assert queue.stats().ready == 3


def test_stop_from_another_thread_drains(queue):
    """stop() lets the running handler finish and claims no more."""
    at_work, go = threading.Event(), threading.Event()
    queue.put_many([b"x"] * 3)

    def handler(message):
        at_work.set()
        go.wait(40)

    worker = Worker(queue, handler)
    counts = []
    thread = threading.Thread(target=lambda: counts.append(worker.run()))
    thread.start()
    assert at_work.wait(40)
    worker.stop()
    assert worker.status()["state"] == "stopping"
    go.set()
    thread.join(40)
    assert counts == [(1, 0, 0, 0, 0)]
    assert queue.stats().ready == 2


def test_a_worker_can_run_again_and_counts_anew(queue):
    """Each run returns its own counts; the status has all."""
    worker = Worker(queue, lambda message: None)
    for _ in range(2):
        queue.put(b"x")
        assert worker.run_until_empty().acked == 1
    assert worker.status()["acked"] == 2


def test_a_worker_runs_once_at_a_time(queue):
    """A second run() of the same worker is refused, not mixed in."""
    queue.put(b"x")
    refused = []

    def handler(message):
        try:
            worker.run()
        except dirqueue.SettingsError as error:
            refused.append(str(error))

    worker = Worker(queue, handler)
    worker.run_until_empty()
    assert "running already" in refused[0]


def test_events_follow_the_life_of_a_message(queue):
    """leased, retried, dead and acked come in their order with id, attempts and error."""
    seen = []
    hooks = dict.fromkeys(("leased", "acked", "retried", "dead"), seen.append)

    def handler(message):
        if message.data == b"good":
            queue.put(b"bad")
        else:
            raise ValueError("no good")

    queue.put(b"good")
    Worker(queue, handler, hooks=hooks).run_until_empty(idle=0.3)
    assert [event.name for event in seen] == [
        "leased", "acked", "leased", "retried", "leased", "retried", "leased", "dead",
    ]  # fmt: skip
    assert [event.attempts for event in seen[2:]] == [1, 1, 2, 2, 3, 3]
    assert seen[-1].error == "ValueError: no good"
    assert len({event.id for event in seen[2:]}) == 1


def test_a_hook_that_raises_changes_nothing(queue, caplog):
    """Hooks are guests: their errors are logged."""

    def hook(event):
        raise RuntimeError("hook is broken")

    queue.put(b"x")
    assert Worker(queue, lambda message: None, hooks={"acked": hook}).run_until_empty().acked == 1
    assert "hook is broken" in caplog.text


def test_log_lines_are_key_value(queue, caplog):
    """Each event is one line of key=value, quoted where needed, whatever the error text holds."""
    caplog.set_level(logging.DEBUG, logger="dirqueue.worker")

    def handler(message):
        raise ValueError('two\nlines and "quotes"')

    id = queue.put(b"x")
    Worker(queue, handler, limit=1).run()
    lines = [record.getMessage() for record in caplog.records]
    assert all("\n" not in line and line.startswith("event=") for line in lines)
    (line,) = [line for line in lines if line.startswith("event=retried")]
    assert f"queue={queue.path} id={id} attempts=1 seconds=" in line
    assert line.endswith(r'error="ValueError: two\nlines and \"quotes\""')
    assert [line.split()[0] for line in lines] == [
        "event=started", "event=leased", "event=retried", "event=stopped",
    ]  # fmt: skip


def test_quoting_leaves_plain_words_alone():
    """Words stay words; anything else becomes one quoted string."""
    assert events.key_values({"a": 1, "b": "x/y", "c": "two words", "d": "", "e": "k=v"}) == (
        'a=1 b=x/y c="two words" d="" e="k=v"'
    )


def test_trouble_that_passes_is_survived(queue, monkeypatch):
    """A queue that cannot be listed for a moment costs error events, no message."""
    monkeypatch.setattr(slot, "FIRST_PAUSE", 0.001)
    real, failures, errors = fs.open, [], []

    def open_(path, flags, *args, **kwargs):
        if path == "." and len(failures) < 3:
            failures.append(path)
            raise OSError(errno.EIO, "no luck")
        return real(path, flags, *args, **kwargs)

    queue.put(b"x")
    monkeypatch.setattr(fs, "open", open_)
    worker = Worker(queue, lambda message: None, hooks={"error": errors.append})
    assert worker.run_until_empty().acked == 1
    assert len(failures) == len(errors) == 3
    assert "EIO" in errors[0].error


def test_trouble_that_stays_ends_the_worker_with_that_error(queue, monkeypatch):
    """The worker does not try without end, and run() raises what was wrong."""
    monkeypatch.setattr(slot, "FIRST_PAUSE", 0.001)
    real = fs.open

    def open_(path, flags, *args, **kwargs):
        if path == ".":
            raise OSError(errno.EIO, "no luck")
        return real(path, flags, *args, **kwargs)

    queue.put(b"x")
    monkeypatch.setattr(fs, "open", open_)
    with pytest.raises(dirqueue.QueueAccess, match="EIO"):
        Worker(queue, print, threads=2).run()
    monkeypatch.undo()
    assert queue.stats().ready == 1
