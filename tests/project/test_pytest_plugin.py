"""The fixtures for users' own tests: found by pytest, real queues, a clock that moves."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import dirqueue
from dirqueue import Queue

ROOT = Path(__file__).parents[2]


def run_pytest(folder, source, *options):
    (folder / "test_users.py").write_text(source)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            *options,
            "test_users.py",
        ],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_examples_of_the_page_pass(tmp_path):
    """In a project of its own, with strict marks, found by the entry point."""
    page = (ROOT / "docs" / "howto" / "testing.md").read_text()
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    done = run_pytest(tmp_path, source, "--strict-markers", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_it_can_be_left_out(tmp_path):
    done = run_pytest(tmp_path, "def test_it(dirqueue_queue): pass", "-p", "no:dirqueue")
    assert "fixture 'dirqueue_queue' not found" in done.stdout


def test_queue_is_empty_private_and_removed(tmp_path):
    source = (
        "from pathlib import Path\n"
        "def test_one(dirqueue_queue, dirqueue_path):\n"
        "    assert str(dirqueue_path) == dirqueue_queue.path\n"
        "    dirqueue_queue.put(b'x')\n"
        "    Path('where').write_text(dirqueue_queue.path)\n"
        "def test_two(dirqueue_queue):\n"
        "    assert len(dirqueue_queue) == 0\n"
        "    assert dirqueue_queue.path != Path('where').read_text()\n"
    )
    done = run_pytest(tmp_path, source)
    assert done.returncode == 0, done.stdout
    where = Path((tmp_path / "where").read_text())
    assert not where.parent.exists()
    if os.access("/dev/shm", os.W_OK):
        assert where.is_relative_to("/dev/shm")


def test_lease_ends_when_the_clock_is_moved_and_not_before(dirqueue_queue, dirqueue_clock):
    dirqueue_queue.put(b"x")
    first = dirqueue_queue.get(timeout=0, lease=100)
    dirqueue_clock.move(99)
    with pytest.raises(dirqueue.Empty):
        dirqueue_queue.get(timeout=0)
    dirqueue_clock.move(1.5)
    second = dirqueue_queue.get(timeout=0)
    assert second.message.attempts == 2
    with pytest.raises(dirqueue.LeaseLost):
        first.ack()
    second.ack()


def test_delay_ends_when_the_clock_is_moved(dirqueue_queue, dirqueue_clock):
    dirqueue_queue.put(b"x", delay=86400 * 30)
    assert dirqueue_queue.stats().delayed == 1
    dirqueue_clock.move(86400 * 30 + 1)
    dirqueue_queue.get(timeout=0).ack()


def test_clock_is_that_of_queues_that_were_open_before(dirqueue_path, request):
    with Queue(dirqueue_path, sync=False, margin=0) as queue:
        queue.put(b"x", delay=50)
        clock = request.getfixturevalue("dirqueue_clock")
        clock.move(51)
        queue.get(timeout=0).ack()


def test_clock_is_real_again_afterwards(tmp_path):
    source = (
        "import time\n"
        "from dirqueue import Queue\n"
        "queue = Queue('queue', sync=False)\n"
        "def test_one(dirqueue_clock):\n"
        "    dirqueue_clock.move(1000)\n"
        "    assert queue.put(b'x', delay=5)\n"
        "    assert queue.layout.directory.clock.now() > time.time_ns() // 1000 + 900_000_000\n"
        "def test_two():\n"
        "    assert abs(queue.layout.directory.clock.now() - time.time_ns() // 1000) < 60_000_000\n"
        "    assert queue.layout.directory.clock.till > time.time_ns()\n"
    )
    done = run_pytest(tmp_path, source)
    assert done.returncode == 0, done.stdout


def test_purge_goes_by_the_moved_clock(dirqueue_path, dirqueue_clock):
    with Queue(dirqueue_path, sync=False, keep_done=True, keep_done_for=3600.0) as queue:
        queue.put(b"x")
        queue.get(timeout=0).ack()
        assert queue.purge().done == 0
        dirqueue_clock.move(86400 * 9)
        assert queue.purge().done == 1


def test_now_is_what_the_clock_shows(dirqueue_clock):
    dirqueue_clock.move(3600)
    assert abs(dirqueue_clock.now - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)
