"""Clocks that disagree or step: no message is lost or acknowledged twice, and no live lease is claimed."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.census import Census

import dirqueue

pytestmark = [pytest.mark.needs("faketime"), pytest.mark.timeout(300)]

WORKER = """
import ctypes, json, os, sys, time
sys.path[:0] = json.loads(os.environ["LAB_PATH"])
import dirqueue
from dirqueue.disk import fs
syscall = ctypes.CDLL(None).syscall
# Raw system calls: those of libfaketime would set or sleep by the faked time, which no server does.
UTIMENSAT, NANOSLEEP = {"aarch64": (88, 101)}.get(os.uname().machine, (280, 35))
def touched(fd, **_):
    if syscall(UTIMENSAT, fd, None, None, 0):
        raise OSError("utimensat")
probe = os.environ["LAB_PROBE"]
fs.utime = touched if probe == "utime" else lambda fd, **_: os.write(fd, b"x")
verb, path, name, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
queue = dirqueue.Queue(path, sync=False, lease=float(os.environ.get("LAB_LEASE", "600")))
step, results = os.environ.get("FAKETIME_TIMESTAMP_FILE"), []
def turn(number):  # set the clock of this process back an hour in the middle of its work
    if step and number == count // 2:
        with open(step, "w") as file: file.write("-3600s")
if verb == "put":
    for number in range(count):
        body = f"{name}{number}"; queue.put(body); results.append(body)
        turn(number)
elif verb == "get":
    for _ in range(count):
        try:
            lease = queue.get(timeout=0)
        except dirqueue.Empty:
            break
        lease.ack(); results.append(lease.message.body.decode())
elif verb == "work":
    while True:
        last = os.path.exists(name)
        for lease in queue.consume(timeout=0):
            lease.ack(); results.append(lease.message.body.decode())
            turn(len(results))
        if last:
            break
        syscall(NANOSLEEP, (ctypes.c_long * 2)(0, 5_000_000), None)
elif verb == "wait":
    print(json.dumps([queue.get(timeout=120).message.body.decode(), str(time.monotonic())])); sys.exit()
else:
    began = time.monotonic()
    lease = queue.get(timeout=0); results += [lease.message.body.decode(), str(began)]
print(json.dumps(results))
"""


def at(skew, verb, path, name="", count=1000, step=None, probe="utime", lease=600.0):
    """Run a worker whose clock is off by `skew` seconds; return what it printed."""
    library = next(Path("/usr/lib").rglob("libfaketime.so.1"))
    env = os.environ | {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{skew:+d}s",
        "NO_FAKE_STAT": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "LAB_PROBE": probe,
        "LAB_LEASE": str(lease),
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


@pytest.mark.parametrize("probe", ["utime", "write"])
@pytest.mark.parametrize("skew", [5, -5, 86_400, -86_400])
def test_worker_with_a_wrong_clock_claims_no_live_lease(skew, probe, tmp_path):
    """A worker with a wrong clock leaves the lease of one with a correct clock alone, and vice versa."""
    path = tmp_path / "queue"
    dirqueue.Queue(path, sync=False).put(b"x")
    assert at(0, "hold", path, probe=probe)[0] == "x"
    assert at(skew, "get", path, probe=probe) == []
    for name in os.listdir(path / "leased"):
        os.rename(path / "leased" / name, path / name.partition(".")[0])
    assert at(skew, "hold", path, probe=probe)[0] == "x"
    assert at(0, "get", path, probe=probe) == []


@pytest.mark.parametrize("skew", [5, -5, 86_400, -86_400])
def test_expired_lease_is_claimed_and_not_before_its_end(skew, tmp_path):
    """Even a worker with a wrong clock waits for the end of the lease by the clock of the file server."""
    path, lease = tmp_path / "queue", 2.0
    dirqueue.Queue(path, sync=False).put(b"x")
    _body, began = at(0, "hold", path, lease=lease)
    body, taken = at(skew, "wait", path, lease=lease)
    assert body == "x"
    assert float(taken) - float(began) >= lease


def test_workers_with_different_clocks_get_each_message_once(tmp_path):
    """The clocks of producers and consumers differ by a day: each message is delivered once."""
    path = tmp_path / "queue"
    put = [body for skew in (0, 86_400, -86_400, 7) for body in at(skew, "put", path, f"s{skew}x", 50)]
    got = [body for skew in (-86_400, 0, 86_400, 3) for body in at(skew, "get", path, count=50)]
    assert sorted(got) == sorted(put)
    assert Census(path).waiting == []


def test_clock_set_back_an_hour_loses_no_message(tmp_path):
    """The clock of the producer is set back during its run: ids keep increasing, and all messages are delivered."""
    path = tmp_path / "queue"
    put = at(0, "put", path, "a", 100, step=tmp_path / "step")
    ids = [name for name in os.listdir(path) if name.isdigit()]
    assert len(set(ids)) == len(put) == 100
    assert at(0, "get", path) == put


def test_clocks_set_back_under_load_lose_nothing_and_ack_nothing_twice(tmp_path):
    """Clocks differ by a day and are set back an hour while producers and consumers run: each message is acked once."""
    path, stop = tmp_path / "queue", tmp_path / "stop"
    with ThreadPoolExecutor(4) as pool:
        consumers = [
            pool.submit(at, 0, "work", path, str(stop), 60, step=tmp_path / "step0"),
            pool.submit(at, 86_400, "work", path, str(stop)),
        ]
        producers = [
            pool.submit(at, 0, "put", path, "a", 150, step=tmp_path / "step1"),
            pool.submit(at, -86_400, "put", path, "b", 150),
        ]
        put = [body for each in producers for body in each.result(240)]
        stop.touch()
        acked = [body for each in consumers for body in each.result(240)]
    assert len(put) == 300
    assert sorted(acked) == sorted(put)
    assert Census(path).waiting == []
