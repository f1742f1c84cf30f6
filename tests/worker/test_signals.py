"""A worker as a process: signals, its own death, and the service manager. All of it real."""

import os
import signal
import socket

import pytest
from support.patience import until

import dirqueue

WAYS = pytest.mark.parametrize("way", ["threads=2", "processes=2"])


@pytest.fixture
def queue(tmp_path):
    """Open the queue that the program works on."""
    return dirqueue.Queue(tmp_path / "queue", sync=False)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@WAYS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_drains(program, queue, tmp_path, way, number):
    """The running handlers finish and are acknowledged; what was not begun stays ready."""
    queue.put_many([b"x"] * 5)
    worker = program(f"""
        def handler(message):
            tell("begun-" + message.id)
            wait("go")
        print(Worker(queue, handler, {way}).run())
    """)
    until(lambda: len([*tmp_path.glob("begun-*")]) >= 2 and no_parts(tmp_path), "two handlers to begin")
    worker.process.send_signal(number)
    until(lambda: "event=stopping" in worker.said(), "the worker to notice")
    assert worker.process.poll() is None
    (tmp_path / "go").touch()
    assert worker.ends() == 0
    assert "Counts(acked=2, retried=0, dead=0, released=0, lost=0)" in worker.said()
    assert (queue.stats().ready, queue.stats().leased) == (3, 0)


def no_parts(directory):
    return not [*directory.glob("*.part")]


@WAYS
def test_a_second_signal_releases_at_once(program, queue, tmp_path, way):
    """Handlers are stopped and their messages are ready again, not counted as failed."""
    queue.put_many([b"x"] * 2)
    worker = program(f"""
        def handler(message):
            tell("begun-" + message.id)
            while True:
                time.sleep(0.01)
        print(Worker(queue, handler, {way}, drain=3600).run())
    """)
    until(lambda: len([*tmp_path.glob("begun-*")]) >= 2 and no_parts(tmp_path), "two handlers to begin")
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "event=stopping" in worker.said(), "the first signal to be noticed")
    assert queue.stats().leased == 2
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert "released=2" in worker.said()
    assert [message.attempts for message in queue.peek("ready")] == [0, 0]


def test_handler_that_does_not_stop_has_its_message_released(program, queue, tmp_path):
    """A handler inside one long C call loses its message, and the process ends."""
    queue.put(b"x")
    worker = program("""
        def handler(message):
            tell("begun")
            time.sleep(3600)
        print(Worker(queue, handler, drain=0).run())
    """)
    worker.wait_for_file("begun")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert "released=1" in worker.said()
    assert queue.stats().ready == 1


@WAYS
def test_draining_ends_after_its_time(program, queue, tmp_path, way):
    """After `drain` seconds what still runs is released without a second signal."""
    queue.put(b"x")
    worker = program(f"""
        def handler(message):
            tell("begun")
            while True:
                time.sleep(0.01)
        print(Worker(queue, handler, {way}, drain=0.2).run())
    """)
    worker.wait_for_file("begun")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ends() == 0
    assert "Counts(acked=0, retried=0, dead=0, released=" in worker.said()
    assert queue.stats().ready == 1


def test_sigusr1_prints_a_status_line(program, queue):
    """As with dd: one line on stderr, and the work goes on."""
    id = queue.put(b"x")
    worker = program("""
        def handler(message):
            tell("begun")
            wait("go")
        Worker(queue, handler, threads=3, limit=1).run()
    """)
    worker.wait_for_file("begun")
    worker.process.send_signal(signal.SIGUSR1)
    line = until(
        lambda: [each for each in worker.said().splitlines() if each.startswith("event=status")], "the line"
    )[0]
    assert f"pid={worker.pid} state=running slots=3 running=1 acked=0" in line
    assert f"longest_id={id}" in line
    (worker.directory / "go").touch()
    assert worker.ends() == 0
    assert queue.stats().total == 0


def test_signal_handlers_are_given_back(program):
    """After run() the program's own handlers are in place again."""
    worker = program("""
        mine = lambda *_: None
        before = signal.signal(signal.SIGTERM, mine), signal.getsignal(signal.SIGINT)
        Worker(queue, print).run_until_empty()
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is before[1]
    """)
    assert worker.ends() == 0, worker.said()


def test_a_worker_that_is_killed_takes_its_children_with_it(program, queue, tmp_path):
    """SIGKILL of the worker leaves no handler running, and the message is delivered again after its lease."""
    queue.put(b"x")
    worker = program("""
        def handler(message):
            tell("pids", f"{os.getpid()} {os.getppid()}")
            time.sleep(3600)
        Worker(queue, handler, processes=1, lease=0.5).run()
    """)
    pids = [int(word) for word in worker.wait_for_file("pids").split()]
    worker.process.kill()
    worker.process.wait()
    until(lambda: not any(alive(pid) for pid in pids), "the children to end")
    lease = queue.get(timeout=40)
    assert lease.message.attempts == 2
    lease.ack()


@WAYS
@pytest.mark.parametrize(
    "ending", ["return", "raise ValueError", "raise dirqueue.Reject"], ids=["ack", "retry", "reject"]
)
def test_worker_stopped_for_longer_than_its_lease_commits_nothing(program, queue, tmp_path, way, ending):
    """SIGSTOP, another consumer takes the message, SIGCONT: the delivery is lost, and the other's lease is intact."""
    queue.put(b"x")
    worker = program(f"""
        def handler(message):
            tell("begun")
            wait("go")
            {ending}
        print(Worker(queue, handler, {way}, lease=0.5, limit=1).run())
    """)
    worker.wait_for_file("begun")
    worker.process.send_signal(signal.SIGSTOP)
    try:
        lease = queue.get(timeout=40, lease=600)
        (tmp_path / "go").touch()
    finally:
        worker.process.send_signal(signal.SIGCONT)
    assert worker.ends() == 0, worker.said()
    assert "Counts(acked=0, retried=0, dead=0, released=0, lost=1)" in worker.said()
    assert lease.message.attempts == 2
    lease.ack()
    assert queue.stats().total == 0


def test_worker_whose_fork_server_is_killed_reports_it_and_ends(program, queue, tmp_path):
    """Without the process that starts children it finishes what runs and fails with one sentence."""
    queue.put(b"x")
    worker = program("""
        def handler(message):
            tell("server", os.getppid())
            wait("go")
        try:
            Worker(queue, handler, processes=1).run()
        except dirqueue.DirQueueError as error:
            sys.exit(f"said: {error}")
    """)
    os.kill(int(worker.wait_for_file("server")), signal.SIGKILL)
    until(lambda: "event=stopping" in worker.said(), "the worker to notice")
    (tmp_path / "go").touch()
    assert worker.ends() == 1
    assert "which starts the worker processes, was killed" in worker.said()
    assert queue.stats().total == 0, "what ran was finished and acknowledged"


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_service_manager_is_notified(program, queue, tmp_path, abstract):
    """READY when started, WATCHDOG while alive, STOPPING when draining, to a real socket."""
    address = f"dirqueue-test-{os.getpid()}-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address if abstract else address)
        manager.settimeout(40)
        worker = program(
            "Worker(queue, print).run()",
            NOTIFY_SOCKET="@" + address if abstract else address,
            WATCHDOG_USEC="200000",
        )
        heard = []
        while heard.count("WATCHDOG=1") < 3:
            heard += manager.recv(4096).decode().split("\n")
        assert heard[0] == "READY=1"
        assert heard[1].startswith("STATUS=event=status queue=queue pid=")
        worker.process.terminate()
        while "STOPPING=1" not in heard:
            heard += manager.recv(4096).decode().split("\n")
    assert worker.ends() == 0


def test_a_watchdog_meant_for_another_process_is_not_fed(program, queue, tmp_path):
    """WATCHDOG_PID names who is to give signs of life."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(40)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}
        worker = program("print('every', dirqueue.worker.systemd.Notifier().every)", **env)
        assert worker.ends() == 0
    assert "every None" in worker.said()


def test_a_manager_that_does_not_listen_is_no_trouble(program, queue, tmp_path):
    """A stale NOTIFY_SOCKET does not keep the worker from its work."""
    queue.put(b"x")
    worker = program("Worker(queue, print).run_until_empty()", NOTIFY_SOCKET=str(tmp_path / "nobody"))
    assert worker.ends() == 0
    assert queue.stats().total == 0
