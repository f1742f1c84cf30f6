"""The published clients and workers of EntroQ, in four versions, against the service as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from services import Process

PROGRAM = Path(__file__).with_name("published.py")
VERSIONS = ["0.15.0", "0.14.0", "0.13.1", "0.12.4"]


def package(version):
    """Return where a version of the package is; it is fetched once, beside the other tools of the environment."""
    folder = Path(sys.prefix) / "entroq-clients"
    folder.mkdir(exist_ok=True)
    where = folder / version
    with FileLock(folder / f"{version}.lock"):
        if not (where / "done").exists():
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", where, f"entroq=={version}"],
                capture_output=True, text=True, check=False, timeout=50,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"the package index has no entroq {version} for us: {done.stderr[-200:]}")
            (where / "done").touch()
    return where


@pytest.fixture(params=VERSIONS)
def seen(request, tmp_path):
    where = package(request.param)
    with Process(tmp_path / "space") as service:
        done = subprocess.run(
            [sys.executable, PROGRAM, service.addresses.http],
            env=os.environ | {"PYTHONPATH": str(where)},
            capture_output=True, text=True, check=False, timeout=55,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert ".".join(map(str, seen["version"])) == request.param
    return seen


def test_its_client_and_its_worker(seen):
    client, workers, version = seen["client"], seen["workers"], tuple(seen["version"])
    assert client.pop("skew") < 5
    assert client == {
        "inserted": [0, True, 0, True],
        "queues": [["c/one", 1, 1], ["c/two", 1, 0]],
        "claimed": [True, 1, 1, 20.0],
        "nothing": None,
        "held": [True],
        "renewed": [2, True],
        "stale": [[True, 1], [False, 3]],
        "moved": ["c/moved", 3, [1], "", "own-id"],
        "taken": ["own-id"],
        "tasks": [["own-id", True]],
        "bare": [None],
        "waited": True,
        "left": ["c/two", "c/wait"],
    }
    assert workers["copied"] == [2 * i for i in range(10)]
    assert workers["emptied"] == []
    assert workers["renewed"] == [[1], [True]]
    attempts, attempt, error, claimant = workers["retried"]
    assert attempts == [[0, ""], [1, "not yet 0"], [2, "not yet 1"]]
    assert (attempt, error) == (3, "not yet 2" if version >= (0, 14) else "max attempts (3) exceeded")
    assert claimant == "" or version < (0, 13)  # 0.12 moves a task with its lease
    assert workers["moved"] == [[1, "never"]]
    assert workers["went on"] == []
    assert workers["depended"] == [[1, 2], [1]]
    assert workers["stopped"] == 1
    if version >= (0, 15):
        assert seen["newest"] == [[], 0, 1, "maximum claims exceeded (3)"]
