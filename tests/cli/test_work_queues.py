"""`dirqueue work` on several queues: fair, in the order given, or by time."""

import signal

import pytest
from support.commandline import dq, start
from support.patience import until

import dirqueue


@pytest.fixture
def queues(tmp_path):
    """Give two queues with three messages each, those of b put first."""
    made = {name: dirqueue.Queue(tmp_path / name, sync=False) for name in "ab"}
    for name in "ba":
        for number in range(3):
            made[name].put(f"{name}{number}")
    return made


@pytest.mark.parametrize(
    ("order", "bodies"),
    [
        ([], "a0 b0 a1 b1 a2 b2"),
        (["--order", "fair"], "a0 b0 a1 b1 a2 b2"),
        (["--order", "given"], "a0 a1 a2 b0 b1 b2"),
        (["--order", "time"], "b0 b1 b2 a0 a1 a2"),
    ],
)
def test_order_says_which_queue_comes_first(queues, tmp_path, order, bodies):
    done = dq("work", "a", "b", *order, "--until-empty", "--", "sed", "a\\", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().split() == bodies.split()
    assert all(queue.stats().total == 0 for queue in queues.values())


def test_options_may_stand_between_queues(queues, tmp_path):
    done = dq("work", "a", "-j2", "b", "--until-empty", "--", "cat", "--", "-", cwd=tmp_path)
    assert (done.returncode, len(done.stdout)) == (0, 12), done.stderr


@pytest.mark.parametrize("how", [[], ["--threads"]], ids=["process", "thread"])
def test_function_needs_no_dashes_and_knows_the_queue(queues, tmp_path, how):
    (tmp_path / "jobs.py").write_text(
        "def run(message): print(message.path, message.body.decode(), flush=True)\n"
    )
    done = dq("work", "a", "b", "--until-empty", *how, "jobs:run", cwd=tmp_path)
    lines = sorted(line.split() for line in done.stdout.decode().splitlines())
    assert [(path[-1], body) for path, body in lines] == [(n, f"{n}{i}") for n in "ab" for i in range(3)]


def test_program_knows_the_queue(queues, tmp_path):
    done = dq("work", "a", "b", "--until-empty", "--", "sh", "-c", 'basename "$DIRQUEUE_QUEUE"', cwd=tmp_path)
    assert sorted(done.stdout.decode().split()) == ["a"] * 3 + ["b"] * 3


def test_failures_go_to_the_dead_of_their_own_queue(queues, tmp_path):
    done = dq("work", "a", "b", "--until-empty", "-q", "--", "sh", "-c", "grep -q a || exit 65", cwd=tmp_path)
    assert done.returncode == 1
    assert [queues[name].stats().dead for name in "ab"] == [0, 3]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "a", "--", "true"], "in the set already"),
        (["jobs:run"], "no queue"),
        (["--", "true"], "required"),
        (["a", "b", "--order", "size", "--", "true"], "invalid choice"),
    ],
)
def test_invalid_queues_are_bad_usage(queues, tmp_path, words, text):
    done = dq("work", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr.decode()


def test_waiting_worker_wakes_up_for_each_queue(tmp_path):
    """Also for one that does not exist yet when it starts."""
    worker = start("work", "a", "b", "-v", "--", "sed", "a\\", cwd=tmp_path)
    try:
        until(lambda: "event=started" in (tmp_path / "said").read_text(), "the worker to begin")
        for name in "ba":
            dirqueue.Queue(tmp_path / name).put(f"from {name}")
            until(lambda name=name: f"from {name}" in (tmp_path / "said").read_text(), "the message")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
    finally:
        worker.kill()
        worker.wait()
