"""`dirqueue work` at its events: exit statuses, the first signal, metrics, dead letters, queues that refuse."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.commandline import dq, start
from support.patience import until
from support.users import as_user, import_all, open_to_all

import dirqueue


@pytest.fixture
def queue(tmp_path):
    """Give a queue named q in the directory where the commands run."""
    return dirqueue.Queue.create(tmp_path / "q", sync=False, backoff=0.01, max_backoff=0.01, max_attempts=2)


@contextlib.contextmanager
def started(*words, cwd):
    process = start(*words, cwd=cwd)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(tmp_path):
    return (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    ("script", "how", "status"),
    [
        ("exit 0", ["--until-empty"], 0),
        ("exit 65", ["--until-empty"], 1),
        ("exit 9", ["--until-empty"], 75),
        ("exit 9", ["--idle", "0.5"], 1),  # tried again within that time, and dead
        ("[ $DIRQUEUE_ATTEMPTS = 2 ]", ["--idle", "0.5"], 0),  # failed once, then succeeded
    ],
)
def test_exit_status_tells_whether_messages_failed(tmp_path, queue, script, how, status):
    if status == 75:
        queue.close()
        os.unlink(tmp_path / "q" / "queue.json")  # the default backoff is longer than the look
    queue.put_many([b"x", b"y"])
    done = dq("work", "q", *how, "-q", "--", "sh", "-c", script, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (status, b"")


def test_stopped_before_the_queue_was_empty_is_status_130(tmp_path, queue):
    queue.put_many([b"x"] * 2)
    with started(
        "work", "q", "--until-empty", "--", "sh", "-c", "touch begun; sleep 3600", cwd=tmp_path
    ) as worker:
        until((tmp_path / "begun").exists, "the program to begin")
        worker.send_signal(signal.SIGINT)
        until(lambda: "stopping" in said(tmp_path), "the worker to notice")
        worker.send_signal(signal.SIGINT)
        assert worker.wait(40) == 130
    assert queue.stats().ready == 2


def test_first_signal_says_what_is_waited_for(tmp_path, queue):
    id = queue.put(b"x")
    script = "touch begun; while [ ! -e go ]; do sleep 0.05; done"
    with started("work", "q", "--drain", "90", "--", "sh", "-c", script, cwd=tmp_path) as worker:
        until((tmp_path / "begun").exists, "the program to begin")
        worker.send_signal(signal.SIGINT)
        line = until(lambda: said(tmp_path), "the notice")
        (tmp_path / "go").touch()
        assert worker.wait(40) == 0
    assert line.startswith(f"dirqueue: stopping: 1 message is being handled, the longest ({id}) for ")
    assert " s; waiting up to 90 s. Ctrl-C again " in line


def test_signal_to_an_idle_worker_says_nothing(tmp_path, queue):
    with started("work", "q", "-v", "--", "true", cwd=tmp_path) as worker:
        until(lambda: "event=started" in said(tmp_path), "the worker to begin")
        worker.send_signal(signal.SIGINT)
        assert worker.wait(40) == 0
    assert "being handled" not in said(tmp_path)


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_no_permission_ends_the_worker_at_once(tmp_path, queue, mode):
    """Not after ten tries: nothing passes until somebody changes the permissions."""
    open_to_all(tmp_path)
    queue.put(b"x")
    import_all(tmp_path / "other")
    os.chmod(queue.path, mode)

    def run():
        tries = []
        try:
            hooks = {"error": lambda event: tries.append(event.error)}
            dirqueue.Worker(dirqueue.Queue(queue.path), print, hooks=hooks).run()
        except dirqueue.QueueAccess as error:
            return error.errno, tries
        return 0, tries

    try:
        assert as_user(61001, run) == (errno.EACCES, [])
    finally:
        os.chmod(queue.path, 0o755)


@pytest.mark.needs("mount")
def test_read_only_filesystem_ends_the_worker_at_once(tmp_path):
    """A real one that turns read-only while the worker waits: one complaint, and status 1."""
    point = tmp_path / "mount"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", point], check=True)
    try:
        queue = dirqueue.Queue(point / "q", sync=False)
        queue.put(b"first")
        with started("work", "mount/q", "-v", "--", "true", cwd=tmp_path) as worker:
            until(lambda: "event=acked" in said(tmp_path), "the first message")
            queue.put(b"x", delay=1)
            queue.close()
            subprocess.run(["mount", "-o", "remount,ro", point], check=True)
            assert worker.wait(40) == 1
        assert "event=error" not in said(tmp_path)
        assert said(tmp_path).count("the filesystem is read-only") == 1
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def scraped(address):
    with urllib.request.urlopen(address, timeout=40) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_count_deliveries_and_durations(tmp_path, queue):
    """Served while it works, and readable by Prometheus' own parser."""
    queue.put_many([b"good", b"good", b"bad"])
    script = "grep -q good || exit 65"
    with started("work", "q", "-q", "--metrics", "0", "--", "sh", "-c", script, cwd=tmp_path) as worker:
        address = until(lambda: re.search(r"http://\S+/metrics", said(tmp_path)), "the address")[0]
        until(lambda: queue.stats().total == 0, "the messages to be handled")

        def counted():
            found = scraped(address)
            total = {s.labels["outcome"]: s.value for s in found["dirqueue_worker_deliveries"].samples}
            return found if total.get("acked") == 2 and total["dead"] == 1 else None

        found = until(counted, "the counts")
        took = {
            (s.name, s.labels.get("le")): s.value for s in found["dirqueue_worker_delivery_seconds"].samples
        }
        assert took["dirqueue_worker_delivery_seconds_count", None] == 3
        assert took["dirqueue_worker_delivery_seconds_bucket", "+Inf"] == 3
        assert took["dirqueue_worker_delivery_seconds_sum", None] > 0
        assert found["dirqueue_worker_running"].samples[0].value == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0


def test_metrics_work_beside_child_processes(tmp_path, queue):
    (tmp_path / "jobs.py").write_text("def run(message): pass\n")
    queue.put(b"x")
    with started("work", "q", "-j2", "--metrics", "127.0.0.1:0", "jobs:run", cwd=tmp_path) as worker:
        address = until(lambda: re.search(r"http://\S+/metrics", said(tmp_path)), "the address")[0]
        until(lambda: queue.stats().total == 0, "the message to be handled")
        until(lambda: scraped(address)["dirqueue_worker_delivery_seconds"].samples, "the count")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0


@pytest.mark.parametrize("where", ["http", "1:99999"])
def test_metrics_at_no_address_is_bad_usage(tmp_path, queue, where):
    done = dq("work", "q", "--metrics", where, "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert b"is not an address" in done.stderr


def test_on_dead_runs_a_command_with_the_failure(tmp_path, queue):
    (tmp_path / "jobs.py").write_text(
        "def run(message): raise ValueError('it is \\'bad\\'; $(touch harm)\\0')\n"
    )
    id = queue.put(b"x")
    command = (
        "cat > told.json; printf '%s|%s|%s|%s' "
        '"$DIRQUEUE_QUEUE" "$DIRQUEUE_ID" "$DIRQUEUE_ATTEMPTS" "$DIRQUEUE_ERROR" > told.env'
    )
    done = dq("work", "q", "--idle", "0.5", "-q", "--on-dead", command, "jobs:run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, b"")
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["id"], told["attempts"]) == (id, 2)
    assert told["error"] == "ValueError: it is 'bad'; $(touch harm)\0"
    assert "in run" in told["trace"]
    fields = (tmp_path / "told.env").read_text().split("|")
    assert fields == [told["queue"], id, "2", "ValueError: it is 'bad'; $(touch harm)\\0"]
    assert not (tmp_path / "harm").exists()


def test_on_dead_that_fails_is_logged_and_the_work_goes_on(tmp_path, queue):
    queue.put_many([b"x", b"y"])
    done = dq("work", "q", "--until-empty", "--on-dead", "exit 5", "--", "sh", "-c", "exit 65", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode().count('error="--on-dead failed: status 5"') == 2
    assert queue.stats().dead == 2


def test_on_dead_runs_for_what_is_found_expired(tmp_path, queue):
    """No handler had it."""
    id = queue.put(b"late", ttl=0.01)
    time.sleep(0.02)
    done = dq("work", "q", "--until-empty", "-q", "--on-dead", "cat > told.json", "--", "true", cwd=tmp_path)
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["id"], told["error"], done.returncode) == (id, "expired", 1)
