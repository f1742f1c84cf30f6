"""`dirqueue settings`: what is in force, where it comes from, and changing it on a live queue."""

import json
import signal

import pytest
from support.commandline import dq as run
from support.commandline import start
from support.patience import until
from support.running import sentence

import dirqueue


@pytest.fixture(name="queue")
def _queue(queue):
    """Have the queue exist."""
    queue.put(b"x")
    return queue


def rows(done):
    return {row["setting"]: row for row in map(json.loads, done.lines)}


def test_all_settings_are_shown_with_their_source(dq, queue):
    dirqueue.Queue(queue.path).configure(max_attempts=3)
    found = rows(dq("settings", queue.path, "--json"))
    assert set(found) == set(dirqueue.Settings._fields)
    assert (found["max_attempts"]["value"], found["max_attempts"]["source"]) == (3, "queue.json")
    assert (found["lease"]["value"], found["lease"]["source"]) == (30.0, "default")
    assert (found["layout"]["value"], found["layout"]["changeable"]) == ("native", False)
    head, *lines = dq("settings", queue.path, "--table").lines
    assert head.split() == ["SETTING", "VALUE", "SOURCE", "CHANGEABLE"]
    assert len(lines) == len(found)


def test_named_settings_only(dq, queue):
    assert [*rows(dq("settings", queue.path, "lease", "order", "--json"))] == ["lease", "order"]


def test_change_is_kept_shown_and_explained(dq, queue):
    done = dq("settings", queue.path, "lease=5m", "keep_done=yes", "order=lifo", "--json")
    assert (done.status, {name: row["value"] for name, row in rows(done).items()}) == (
        0,
        {"lease": 300.0, "keep_done": True, "order": "lifo"},
    )
    assert "within a second" in done.err
    assert dirqueue.Queue(queue.path).settings[:5:4] == ("auto", "lifo")
    again = dq("settings", queue.path, "lease=300")
    assert "nothing has changed" in again.err
    done = dq("settings", queue.path, "lease=default", "--json")
    assert rows(done)["lease"] == {"setting": "lease", "value": 30.0, "source": "default", "changeable": True}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["priorities=true"], "create another queue"),
        (["layout=vsqs"], "dirqueue convert"),
        (["max_atempts=3"], "did you mean 'max_attempts'?"),
        (["max_atempts"], "did you mean 'max_attempts'?"),
        (["lease=soon"], "is not a duration"),
        (["max_attempts=1.5"], "whole number"),
        (["order=newest"], "one of fifo, lifo, random"),
        (["=3"], "there is no setting ''"),
    ],
)
def test_invalid_change_is_bad_usage_and_changes_nothing(dq, queue, words, text):
    done = dq("settings", queue.path, "max_size=7", *words)
    assert done.status == 2
    assert text in sentence(done)
    assert dirqueue.Queue(queue.path).settings.max_size == 0


def test_what_is_no_queue_is_not_configured(dq, queue, tmp_path):
    assert dq("settings", str(tmp_path / "missing"), "lease=5").status == 1
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "notes").write_text("mine")
    done = dq("settings", str(tmp_path / "root"), "lease=5")
    assert done.status == 1
    assert not (tmp_path / "root" / "queue.json").exists()


def test_running_worker_takes_up_a_change(tmp_path):
    """Two real processes: the worker says so, and buries at the first failure from then on."""
    queue = dirqueue.Queue.create(tmp_path / "q", sync=False, max_attempts=9, backoff=0.01)
    worker = start("work", "q", "-v", "--", "false", cwd=tmp_path)
    try:
        until(lambda: "event=started" in (tmp_path / "said").read_text(), "the worker to begin")
        assert run("settings", "q", "max_attempts=1", cwd=tmp_path).returncode == 0
        until(lambda: "event=refreshed" in (tmp_path / "said").read_text(), "the change to be taken up")
        queue.put(b"x")
        until(lambda: queue.stats().dead, "the message to be dead")
        assert [message.attempts for message in queue.peek("dead")] == [1]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
    finally:
        worker.kill()
        worker.wait()


def test_work_has_settings_of_its_own(tmp_path):
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    words = ("work", "q", "-q", "--until-empty", "--max-attempts", "1", "--backoff", "0.01", "--", "false")
    assert run(*words, cwd=tmp_path).returncode == 1
    assert queue.stats().dead == 1
    dirqueue.Queue(tmp_path / "q").configure(max_attempts=4)
    refused = run(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert b"dirqueue settings" in refused.stderr
