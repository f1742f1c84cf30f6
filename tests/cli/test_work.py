"""`dirqueue work`: any program as a worker; its exit status decides."""

import os
import signal
import sys
from datetime import UTC, datetime, timedelta

import pytest
from support.commandline import dq, start
from support.patience import until

import dirqueue


@pytest.fixture
def queue(tmp_path):
    """Give a queue named q in the directory where the commands run."""
    return dirqueue.Queue.create(tmp_path / "q", sync=False, backoff=0.01, max_backoff=0.01, max_attempts=2)


def work(tmp_path, *words, **env):
    return dq("work", "q", "--until-empty", *words, cwd=tmp_path, **env)


def test_the_body_is_the_standard_input(queue, tmp_path):
    """Without a placeholder the program reads the body, byte for byte."""
    queue.put(bytes(range(256)))
    done = work(tmp_path, "--", "cat")
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(range(256)), b"")
    assert queue.stats().total == 0


@pytest.mark.parametrize("body", [b"", b"to: ann", b"x" * 1000])
def test_a_link_is_the_standard_input_too(tmp_path, body):
    """A message that is a symbolic link has no file that could be opened."""
    queue = dirqueue.Queue.create(tmp_path / "q", sync=False, links=True)
    queue.put(body)
    assert (tmp_path / "q" / next(queue.peek()).entry.place).is_symlink()
    done = work(tmp_path, "--", "cat")
    assert (done.returncode, done.stdout, done.stderr) == (0, body, b"")
    assert queue.stats().total == 0


def test_braces_stand_for_the_body_as_one_argument(queue, tmp_path):
    """Blanks, quotes, line ends and bytes that are no text pass through {} unharmed and unsplit."""
    body = b" two words 'quoted' \n{path} {id} $HOME \xff"
    queue.put(body)
    show = "import os, sys; os.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))"
    done = work(tmp_path, "--", sys.executable, "-c", show, "{}", "a{}b")
    assert done.stdout == body + b"|a" + body + b"b"


def test_path_stands_for_a_private_file_that_goes_afterwards(queue, tmp_path):
    """{path} is a real file with the body, readable by us alone, removed when the program has ended."""
    body = os.urandom(300_000)
    queue.put(body)
    (tmp_path / "tmp").mkdir()
    show = (
        "import os, sys; p = sys.argv[1]; assert os.stat(p).st_mode & 0o777 == 0o600;"
        "os.write(2, p.encode()); sys.stdout.buffer.write(open(p, 'rb').read())"
    )
    done = work(tmp_path, "--", sys.executable, "-c", show, "{path}", TMPDIR=str(tmp_path / "tmp"))
    assert done.stdout == body
    assert done.stderr.decode().startswith(str(tmp_path / "tmp"))
    assert os.listdir(tmp_path / "tmp") == []


def test_id_and_attempts_are_in_the_environment(queue, tmp_path):
    """{id} and the environment name the message."""
    id = queue.put(b"x")
    done = work(tmp_path, "--", "sh", "-c", 'echo "$1 $DIRQUEUE_ID $DIRQUEUE_ATTEMPTS"', "sh", "{id}")
    assert done.stdout.decode().split() == [id, id, "1"]


@pytest.mark.parametrize(
    ("status", "ends", "error"),
    [
        (0, "acked", None),
        (65, "dead", "exit status 65"),
        (75, "retried", "exit status 75"),
        (1, "retried", "exit status 1"),
    ],
)
def test_the_exit_status_says_what_becomes_of_the_message(queue, tmp_path, status, ends, error):
    """0 acknowledges, 65 rejects, 75 and all others are tried again; the last words are kept."""
    id = queue.put(b"x")
    script = f"echo some output; echo last words >&2; exit {status}"
    done = dq("work", "q", "--limit", "1", "--", "sh", "-c", script, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == b"some output\n"
    assert done.stderr.startswith(b"last words\n")
    if ends == "acked":
        with pytest.raises(dirqueue.MessageNotFound):
            queue.message(id)
        return
    message = queue.message(id)
    assert f"event={ends} " in done.stderr.decode()
    assert (message.state == "dead") == (ends == "dead")
    assert message.error.startswith(error)
    assert "some output" in message.trace
    assert "last words" in message.error


def test_a_program_that_is_killed_is_a_failure_by_name(queue, tmp_path):
    """Death by signal is tried again and then dead, and the error names the signal."""
    queue.put(b"x")
    assert dq("work", "q", "--idle", "0.3", "--", "sh", "-c", "kill -9 $$", cwd=tmp_path).returncode == 1
    (dead,) = queue.peek("dead")
    assert (dead.error, dead.attempts) == ("killed by SIGKILL", 2)


def test_only_the_last_of_long_output_is_kept(queue, tmp_path):
    """A megabyte of output passes through, and the error stays short."""
    id = queue.put(b"x")
    script = "import sys; print('x' * 1_000_000); sys.exit('the end')"
    done = dq("work", "q", "--limit", "1", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert len(done.stdout) == 1_000_001
    error = queue.message(id).error
    assert len(error) < 2100
    assert error.endswith("the end")


def test_a_body_that_cannot_be_an_argument_is_rejected(queue, tmp_path):
    """A NUL, or more than the kernel takes, will never work as {}: the error says what would."""
    queue.put(b"a\0b")
    queue.put(b"x" * 4_000_000)
    work(tmp_path, "--", "echo", "{}")
    assert [message.error.partition(":")[0] for message in queue.peek("dead")] == [
        "the body holds a NUL and cannot be an argument",
        "the body is too long for an argument",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "no-such-program"], "no program 'no-such-program'"),
        (["--", "{}"], "must not choose"),
        (["no_such_module:f"], "cannot import 'no_such_module'"),
        (["os:no_such_function"], "no function 'no_such_function'"),
        (["--idle", "soon", "--", "true"], "not a duration"),
        ([], "no command to run"),
        (["--"], "no command to run"),
    ],
)
def test_invalid_command_is_refused_before_a_claim(queue, tmp_path, words, said):
    """A wrong command is one sentence and status 2; the message is untouched."""
    queue.put(b"x")
    done = dq("work", "q", "--until-empty", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert [message.attempts for message in queue.peek()] == [0]


@pytest.mark.parametrize("how", [[], ["--threads"]], ids=["processes", "threads"])
@pytest.mark.parametrize("name", ["agenerator", "generator", "handlers.method"])
def test_function_that_would_do_nothing_is_bad_usage(queue, tmp_path, how, name):
    """A generator function is one sentence and status 2; the message is untouched."""
    (tmp_path / "jobs.py").write_text(
        "async def agenerator(message): yield\n"
        "def generator(message): yield\n"
        "class Handlers:\n"
        "    def method(self, message): yield\n"
        "handlers = Handlers()\n"
    )
    queue.put(b"x")
    done = work(tmp_path, *how, f"jobs:{name}")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert [message.attempts for message in queue.peek()] == [0]


def test_an_empty_queue_is_status_3(tmp_path):
    """As with get: nothing to do is said by the exit status, even when there is no queue yet."""
    assert work(tmp_path, "--", "true").returncode == 3


def test_jobs_run_at_the_same_time(queue, tmp_path):
    """-j3: three programs that wait for each other all succeed."""
    queue.put_many([b"x"] * 3)
    script = "touch at-$DIRQUEUE_ID; while [ $(ls at-* | wc -l) -lt 3 ]; do sleep 0.05; done"
    assert work(tmp_path, "-j3", "--", "sh", "-c", script).returncode == 0
    assert queue.stats().total == 0


@pytest.mark.parametrize("how", [["-j2"], ["-j2", "--threads"]], ids=["processes", "threads"])
def test_a_function_gets_the_message(queue, tmp_path, how):
    """MODULE:FUNCTION of a file beside us is called; exceptions are failures, and the verbs are verbs."""
    (tmp_path / "jobs.py").write_text(
        "import dirqueue\n"
        "class Jobs:\n"
        "    @staticmethod\n"
        "    def run(message):\n"
        "        if message.data == b'bad': raise dirqueue.Reject('no good')\n"
        "        open('done-' + message.data.decode(), 'w').close()\n"
    )
    for body in (b"one", b"bad", b"two"):
        queue.put(body)
    done = work(tmp_path, *how, "jobs:Jobs.run")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "done-one").exists()
    assert (tmp_path / "done-two").exists()
    (dead,) = queue.peek("dead")
    assert dead.error == "no good"


def test_a_time_limit_ends_the_program_and_what_it_started(queue, tmp_path):
    """The whole group is ended, and the error says why."""
    id = queue.put(b"x")
    script = "sleep 3600 & echo $! > pid.part; mv pid.part pid; wait"
    dq("work", "q", "--limit", "1", "--time-limit", "0.5", "--", "sh", "-c", script, cwd=tmp_path)
    assert queue.message(id).error == "time limit of 0.5 s exceeded"
    if (tmp_path / "pid").exists():  # it may have been stopped before it came so far
        until(lambda: not running(int((tmp_path / "pid").read_text())), "the grandchild to end")


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
@pytest.mark.parametrize(
    "words", [("work", "q", "--"), ("get", "q", "--wait", "--exec")], ids=["work", "get --exec"]
)
def test_program_ends_with_a_worker_that_is_killed(queue, tmp_path, words):
    """SIGKILL of the worker leaves no program running beside the next delivery of its message."""
    queue.put(b"x")
    script = "trap '' TERM HUP INT; echo $$ > pid.part; mv pid.part pid; while :; do sleep 0.1; done"
    worker = start(*words, "sh", "-c", script, cwd=tmp_path)
    try:
        until((tmp_path / "pid").exists, "the program to begin")
        pid = int((tmp_path / "pid").read_text())
        assert running(pid)
        worker.kill()
        worker.wait()
        try:
            until(lambda: not running(pid), "the program to end", 10)
        except AssertionError:
            os.killpg(pid, signal.SIGKILL)
            raise
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_program_outlives_the_other_slots(queue, tmp_path):
    """One slot has ended, and its thread with it: the program of the other one is not touched."""
    queue.put_many([b"quick", b"slow"])
    script = 'if [ "$1" = quick ]; then exit 0; fi; touch begun; while [ ! -e go ]; do sleep 0.05; done; touch finished'
    worker = start(
        "work", "q", "-j2", "--limit", "2", "-v", "--", "sh", "-c", script, "sh", "{}", cwd=tmp_path
    )
    try:
        until((tmp_path / "begun").exists, "the program to begin")
        until(lambda: "event=acked" in (tmp_path / "said").read_text(), "the other one to end")
        until(lambda: len(os.listdir(f"/proc/{worker.pid}/task")) <= 4, "the thread of the other slot to end")
        (tmp_path / "go").touch()
        assert worker.wait(40) == 0
    finally:
        worker.kill()
        worker.wait()
    assert (tmp_path / "finished").exists()
    assert queue.stats().total == 0


def running(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_daemon_left_behind_does_not_hold_up_the_worker(queue, tmp_path):
    """A program that leaves a child with its output open has still ended when it ends."""
    queue.put(b"x")
    done = work(tmp_path, "--", "sh", "-c", "sleep 3600 & echo $!")
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0
    assert queue.stats().total == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_program_finish(queue, tmp_path, number):
    """The worker drains: the program is not signalled, its message is acknowledged, the next stays."""
    queue.put_many([b"x"] * 2)
    script = "touch begun; while [ ! -e go ]; do sleep 0.05; done; touch finished"
    worker = start("work", "q", "-v", "--", "sh", "-c", script, cwd=tmp_path)
    try:
        until((tmp_path / "begun").exists, "the program to begin")
        worker.send_signal(number)
        until(lambda: "event=stopping" in (tmp_path / "said").read_text(), "the worker to notice")
        (tmp_path / "go").touch()
        assert worker.wait(40) == 0
    finally:
        worker.kill()
        worker.wait()
    assert (tmp_path / "finished").exists()
    assert queue.stats().ready == 1


def test_a_second_signal_ends_the_program_and_gives_the_message_back(queue, tmp_path):
    """At once, uncounted."""
    queue.put(b"x")
    worker = start("work", "q", "-v", "--", "sh", "-c", "touch begun; sleep 3600", cwd=tmp_path)
    try:
        until((tmp_path / "begun").exists, "the program to begin")
        worker.send_signal(signal.SIGTERM)
        until(lambda: "event=stopping" in (tmp_path / "said").read_text(), "the worker to notice")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
    finally:
        worker.kill()
        worker.wait()
    assert [message.attempts for message in queue.peek()] == [0]


def test_quiet_and_verbose_say_less_and_more(queue, tmp_path):
    """Failures are reported by default, nothing with -q, every message with -v."""
    for flag, words in (("-q", []), ("-v", ["started", "acked", "stopped"])):
        queue.put(b"x")
        done = work(tmp_path, flag, "--", "true")
        lines = [line.split() for line in done.stderr.decode().splitlines()]
        assert [line[1] for line in lines] == [f"event={word}" for word in words]
        times = [datetime.fromisoformat(line[0].removeprefix("time=")) for line in lines]
        assert all(abs(datetime.now(UTC) - each) < timedelta(hours=1) for each in times)


# --- get --exec --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 75", 75), ("exit 9", 75), ("exit 65", 1)]
)
def test_get_exec_runs_a_program_for_one_message(queue, tmp_path, script, status):
    """The exit status says what became of the message: done, to be tried again, dead."""
    queue.put_many([b"x"] * 2)
    done = dq("get", "q", "--exec", "sh", "-c", script, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    stats = queue.stats()
    assert (stats.total, stats.dead) == (1 if status in (0, 1) else 2, int(status == 1))


def test_get_exec_of_nothing_is_status_3(tmp_path):
    """No message, no program."""
    done = dq("get", "q", "--exec", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 3
    assert not (tmp_path / "ran").exists()
