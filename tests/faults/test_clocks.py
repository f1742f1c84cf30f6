"""Clocks that disagree or step: nothing is lost, nothing acknowledged twice, no live lease taken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.census import Census

import dirqueue

pytestmark = [pytest.mark.needs("faketime"), pytest.mark.timeout(300)]

WORKER = """
import json, os, sys, time
sys.path[:0] = json.loads(os.environ["LAB_PATH"])
import dirqueue
from dirqueue import fs
fs.utime = lambda fd: os.write(fd, b"x")  # libfaketime would stamp its own time; a write is stamped by the kernel
verb, path, name, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
queue = dirqueue.Queue(path, sync=False, lease=600.0)
said = []
if verb == "put":
    for number in range(count):
        body = f"{name}{number}".encode(); queue.put(body); said.append(body.decode())
        step = os.environ.get("FAKETIME_TIMESTAMP_FILE")
        if step and number == count // 2:
            with open(step, "w") as file: file.write("-3600s")
elif verb == "get":
    for _ in range(count):
        try:
            lease = queue.get(timeout=0)
        except dirqueue.Empty:
            break
        lease.ack(); said.append(lease.message.body.decode())
else:
    lease = queue.get(timeout=0); said.append(lease.message.body.decode())
print(json.dumps(said))
"""


def at(skew, verb, path, name="", count=1000, step=None):
    """Run a worker whose clock is off by `skew` seconds; return what it said."""
    library = next(Path("/usr/lib").rglob("libfaketime.so.1"))
    env = os.environ | {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{skew:+d}s",
        "NO_FAKE_STAT": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "LAB_PATH": json.dumps([entry for entry in sys.path if entry]),
    }
    if step is not None:
        Path(step).write_text("+0s")
        del env["FAKETIME"]
        env |= {"FAKETIME_TIMESTAMP_FILE": str(step), "FAKETIME_NO_CACHE": "1"}
    command = [sys.executable, "-c", WORKER, verb, str(path), name, str(count)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("skew", [5, -5, 86_400, -86_400])
def test_a_worker_with_a_wrong_clock_takes_no_live_lease(skew, tmp_path):
    """Held by a worker with a right clock, by one with a wrong clock: the other one leaves it alone."""
    path = tmp_path / "queue"
    dirqueue.Queue(path, sync=False).put(b"x")
    assert at(0, "hold", path) == ["x"]
    assert at(skew, "get", path) == []
    for name in os.listdir(path):
        if name.count(".") == 3 and not name.startswith("."):
            os.rename(path / name, path / name.partition(".")[0])
    assert at(skew, "hold", path) == ["x"]
    assert at(0, "get", path) == []


def test_workers_with_different_clocks_share_the_work(tmp_path):
    """Producers and consumers a day apart: each message comes once."""
    path = tmp_path / "queue"
    put = [body for skew in (0, 86_400, -86_400, 7) for body in at(skew, "put", path, f"s{skew}x", 50)]
    got = [body for skew in (-86_400, 0, 86_400, 3) for body in at(skew, "get", path, count=50)]
    assert sorted(got) == sorted(put)
    assert Census(path).waiting == []


def test_a_clock_that_steps_back_an_hour_loses_nothing(tmp_path):
    """The producer's clock is set back in mid-run: ids go on increasing, and everything is delivered."""
    path = tmp_path / "queue"
    put = at(0, "put", path, "a", 100, step=tmp_path / "step")
    ids = [name for name in os.listdir(path) if name.isdigit()]
    assert len(set(ids)) == len(put) == 100
    assert at(0, "get", path) == put
