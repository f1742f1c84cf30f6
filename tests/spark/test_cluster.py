"""A standalone master and two workers on loopback: killed executors and copies of tasks double nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kit import drain, files

from dirqueue import Queue

HERE = Path(__file__).parent


def write_on_a_cluster(what, tmp_path):
    """Write a thousand messages on the cluster; return the directory for marks."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, str(HERE / "cluster.py"), what, str(tmp_path / "q"), str(scratch)],
            env=env, cwd=tmp_path, stdout=log, stderr=log, check=False,
        )  # fmt: skip
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    return scratch


@pytest.mark.slow
def test_an_executor_killed_in_the_middle_of_a_write_doubles_nothing(without_java, tmp_path):
    """Its tasks run again elsewhere; each message is there once, and nothing is left of the first try."""
    scratch = write_on_a_cluster("kill", tmp_path)
    assert (scratch / "killed").exists()
    queue = Queue(tmp_path / "q")
    assert not [name for name in files(queue.path) if ".batch.new" in name]
    assert sorted(map(int, drain(queue))) == list(range(1000))


@pytest.mark.slow
def test_an_executor_killed_while_it_writes_attributes_leaves_each_message_with_its_own(
    without_java, tmp_path
):
    """The file that it was writing is torn; the task runs again, and after a purge nothing is left of the first try."""
    scratch = write_on_a_cluster("attributes", tmp_path)
    assert (scratch / "killed").exists()
    queue = Queue(tmp_path / "q")
    queue.purge()
    found = sorted((int(each.data), dict(each.attributes)) for each in queue.peek())
    assert found == [(number, {"number": str(number)}) for number in range(1000)]
    assert len(carried_files(queue)) == 1000
    assert sorted(map(int, drain(queue))) == list(range(1000))
    queue.purge()
    assert carried_files(queue) == []
    assert not [name for name in files(queue.path) if ".batch" in name]


def carried_files(queue):
    return [name for name in files(queue.path) if name.startswith("attributes/") and name.count("/") == 2]


@pytest.mark.slow
def test_a_speculative_copy_of_a_task_doubles_nothing(without_java, tmp_path):
    """Two attempts of one task really ran side by side; each message is there once."""
    scratch = write_on_a_cluster("speculate", tmp_path)
    assert len(list(scratch.glob("attempt-*"))) >= 2
    assert not [name for name in files(tmp_path / "q") if ".batch.new" in name]
    assert sorted(map(int, drain(Queue(tmp_path / "q")))) == list(range(1000))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_lost_in_the_middle_of_a_stream_loses_and_doubles_nothing(without_java, tmp_path):
    """With its executor: the tasks of the batch run again on the other one."""
    queue = Queue(tmp_path / "q")
    queue.put_many([b"%d" % number for number in range(1000)])
    scratch = write_on_a_cluster("worker", tmp_path)
    assert (scratch / "killed").exists()
    assert not [name for name in files(tmp_path / "q.out") if ".batch.new" in name]
    assert sorted(map(int, drain(Queue(tmp_path / "q.out")))) == list(range(1000))
    assert queue.stats().total == 0
