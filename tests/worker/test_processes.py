"""Child processes may die in every way; no message is lost and the worker lives on."""

import ctypes
import os
import random
import signal
import threading

import pytest
from support.patience import until

import dirqueue
from dirqueue import Worker
from dirqueue.worker import processes, watchdog

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _no_core_files(monkeypatch):
    """A child that crashes on purpose leaves no core file, and none waits long to be replaced."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(processes, "LONGEST_PAUSE", 0.05)
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def segfault():
    import faulthandler

    faulthandler.disable()
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("death", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (segfault, "was killed by SIGSEGV"),
        (lambda: os._exit(7), "ended with status 7"),
    ],
    ids=["sigkill", "segfault", "exit"],
)
def test_a_message_that_kills_its_worker_is_dead_after_max_attempts(queue, tmp_path, death, how):
    """It runs max_attempts times and never again, dead/ says what it did, and others are handled meanwhile."""
    runs = tmp_path / "runs"

    def handler(message):
        if message.data == b"poison":
            with runs.open("a") as file:
                file.write("x")
            death()

    queue.put(b"poison")
    queue.put(b"good")
    counts = Worker(queue, handler, processes=1).run_until_empty(idle=0.5)
    assert counts == (1, 2, 1, 0, 0)
    assert runs.read_text() == "xxx"
    (dead,) = queue.peek("dead")
    assert how in dead.error


def test_a_message_of_a_killed_worker_is_not_run_again_when_out_of_attempts(queue, tmp_path):
    """Leases that ran out without a word count too: the next worker buries the message unseen, and says so."""
    id = queue.put(b"poison")
    name = f"{id}.1500000000000000.3.host-1-x-1"  # delivered three times, expired long ago
    os.rename(os.path.join(queue.path, id), os.path.join(queue.path, name))
    ran = []
    assert Worker(queue, ran.append).run_until_empty() == (0, 0, 1, 0, 0)
    assert ran == []
    (dead,) = queue.peek("dead")
    assert "delivered 3 times and never acknowledged" in dead.error


def test_child_that_dies_is_replaced_and_reported(queue):
    """Each death is an event with the pid, and the lane has a new child for the next message."""
    died = []
    queue.put(b"die")
    queue.put_many([b"live"] * 3)

    def handler(message):
        if message.data == b"die" and message.attempts == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    counts = Worker(queue, handler, processes=1, hooks={"died": died.append}).run_until_empty(idle=0.5)
    assert counts == (4, 1, 0, 0, 0)
    (event,) = died
    assert event.pid not in (None, os.getpid())
    assert "was killed by SIGKILL" in event.error


def test_child_that_is_being_killed_gets_no_other_message(queue, tmp_path, monkeypatch):
    """RACE: the child answers while the order to kill it is on its way; the next message goes to another child."""
    talk, died = processes.InProcess._talk, []

    def late(self, child, delivery):
        answer = talk(self, child, delivery)
        if delivery.lease.message.data == b"first" and delivery.attempts == 1:
            delivery.cancel(watchdog.LIMIT)
        return answer

    def handler(message):
        with (tmp_path / "pids").open("a") as file:
            file.write(f"{os.getpid()}\n")

    monkeypatch.setattr(processes.InProcess, "_talk", late)
    queue.put(b"first")
    queue.put(b"second")
    worker = Worker(queue, handler, processes=1, time_limit=600, hooks={"died": died.append})
    assert worker.run_until_empty(idle=0.3) == (2, 1, 0, 0, 0)
    first, *others = (tmp_path / "pids").read_text().split()
    assert first not in others
    assert died == []


def test_child_that_was_killed_at_its_time_limit_is_replaced(queue):
    """The message after it is handled at the first attempt, and no death is reported: it was ours to cause."""
    died, acked = [], []

    def handler(message):
        while message.data == b"endless":
            pass

    queue.put(b"endless")
    queue.put_many([b"quick"] * 2)
    hooks = {"died": died.append, "acked": acked.append}
    counts = Worker(queue, handler, processes=1, time_limit=0.5, hooks=hooks).run_until_empty(idle=0.3)
    assert (counts.acked, counts.retried, counts.dead) == (2, 2, 1)
    assert [event.attempts for event in acked] == [1, 1]
    assert died == []


def test_nothing_is_lost_when_children_are_killed_at_random(queue_dir, tmp_path):
    """Three hundred messages, children killed all the time: each is handled, none is left, none dies innocent."""
    queue = dirqueue.Queue(queue_dir, sync=False, backoff=0.001, max_backoff=0.001, max_attempts=0)
    ids = set(queue.put_many([b"x"] * 300))
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pids = os.open(tmp_path / "pids", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handler(message):
        os.write(pids, b"%d\n" % os.getpid())
        os.write(log, message.id.encode() + b"\n")

    done = threading.Event()

    def killer():
        chance = random.Random(5)
        while not done.wait(0.01):
            known = (tmp_path / "pids").read_text().split()
            pid = int(chance.choice(known[-3:])) if known else 0
            try:
                # Its number may belong to somebody else by now; a child of ours was forked from us.
                if pid and command_line(pid) == command_line("self"):
                    os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        counts = Worker(queue, handler, processes=2).run_until_empty(idle=0.5)
    finally:
        done.set()
        thread.join()
        os.close(log)
        os.close(pids)
    assert counts.acked == 300
    assert set((tmp_path / "log").read_text().split()) == ids
    assert len(queue) == 0


def command_line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def test_no_process_is_left_behind(queue, tmp_path):
    """When run() returns, the children and the process that started them have ended."""

    def handler(message):
        (tmp_path / f"{os.getpid()}").touch()
        (tmp_path / f"{os.getppid()}").touch()

    queue.put_many([b"x"] * 5)
    Worker(queue, handler, processes=2).run_until_empty()
    pids = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(pids) >= 2

    def all_gone():
        for pid in pids:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                continue
            return False
        return True

    until(all_gone, "the children to end")


def test_a_body_that_cannot_be_sent_is_a_failure_of_that_message_alone(queue_dir):
    """A codec that no child inherited and that cannot be pickled costs one message its attempt."""
    queue = dirqueue.Queue(queue_dir, sync=False, backoff=3600)
    queue.put(b"x")

    class Source:
        def get(self, *, timeout=None, lease=None):
            return dirqueue.Queue(queue_dir, codec=Local(), sync=False, backoff=3600).get(timeout=0)

    class Local:
        def encode(self, value):
            return value

        def decode(self, data):
            return data

    assert Worker(Source(), print, processes=1).run_until_empty().retried == 1
    (message,) = queue.peek("delayed")
    assert "pickle" in message.error
