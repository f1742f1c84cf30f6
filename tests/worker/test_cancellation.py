"""A handler that is stopped in its thread is stopped in its own code, never inside the library."""

import threading
import time
import traceback

import pytest
from support.patience import until

import dirqueue
from dirqueue import Worker
from dirqueue.disk.identity import PROCESS
from dirqueue.interrupts import INTERRUPTS
from dirqueue.worker import Cancelled, watchdog
from dirqueue.worker.processes import InProcess
from dirqueue.worker.threads import InThread

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(name="patient")
def _patient(queue_dir):
    """Give a queue whose messages are tried again at once and for as long as it takes."""
    return dirqueue.Queue(queue_dir, sync=False, backoff=0, max_backoff=0.001, max_attempts=0)


def taken(*locks):
    """Return the locks that another thread cannot take."""
    found = []

    def look():
        for lock in locks:
            if lock.acquire(blocking=False):
                lock.release()
            else:
                found.append(lock)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def raised_in(error):
    """Return the functions that an exception came through, from a handler's own inwards."""
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    return " ".join(frames[1:] or frames)


def test_two_hundred_cancelled_puts_leave_no_lock_taken(patient, tmp_path):
    """A handler that puts in a tight loop is stopped each time, and the process can still put and get."""
    out = dirqueue.Queue(tmp_path / "out", sync=False)
    stopped = []

    def handler(message):
        try:
            for _ in range(1_000_000):
                out.put(b"x")
        except Cancelled as error:
            stopped.append(raised_in(error))
            raise

    patient.put(b"one")
    counts = Worker(patient, handler, time_limit=0.005, limit=200).run()
    assert (counts.retried, len(stopped)) == (200, 200)
    assert set(stopped) <= {"handler", "put check_interrupt _interrupt"}, "struck in the middle of a put"
    assert taken(PROCESS.lock, out.layout._cursor.lock, patient.layout._cursor.lock) == []
    assert not INTERRUPTS
    done = []
    thread = threading.Thread(target=lambda: done.append(out.put(b"last")), daemon=True)
    thread.start()
    thread.join(40)
    assert done
    out.close()


def test_cancellation_waits_for_the_end_of_a_call_into_the_library(patient, tmp_path):
    """A put that has begun ends as if nothing had happened; the next one raises Cancelled."""
    go, inside, seen = threading.Event(), threading.Event(), []

    class Slow:
        def encode(self, value):
            inside.set()
            while not go.is_set():
                go.wait(0.001)
            return value

        def decode(self, data):
            return data

    out = dirqueue.Queue(tmp_path / "out", sync=False, codec=Slow())

    def handler(message):
        try:
            seen.append(out.put(b"whole"))
        except Cancelled:
            seen.append("inside")
            raise
        try:
            out.put(b"never begun")
        except Cancelled:
            seen.append("at the next")
            raise

    patient.put(b"one")
    counts = []
    worker = Worker(patient, handler, time_limit=0.01, limit=1)
    thread = threading.Thread(target=lambda: counts.append(worker.run()))
    thread.start()
    assert inside.wait(40)
    until(lambda: INTERRUPTS, "the cancellation to be left for the thread")
    go.set()
    thread.join(40)
    assert counts == [(0, 1, 0, 0, 0)]
    assert [seen[0].isdigit(), *seen[1:]] == [True, "at the next"]
    assert [bytes(message.data) for message in out.peek()] == [b"whole"]
    out.close()


def test_cancellation_reaches_a_handler_that_leaves_the_library_for_good(patient, tmp_path):
    """The thread was inside a put when its time was over, and uses no queue after it."""
    go, inside, seen = threading.Event(), threading.Event(), []

    def bodies():
        inside.set()
        go.wait(40)
        yield b"whole"

    out = dirqueue.Queue(tmp_path / "out", sync=False)

    def handler(message):
        out.put_many(bodies())
        seen.append("whole")
        try:
            while True:
                go.wait(0.001)
        except Cancelled:
            seen.append("stopped")
            raise

    patient.put(b"one")
    counts = []
    worker = Worker(patient, handler, time_limit=0.01, limit=1)
    thread = threading.Thread(target=lambda: counts.append(worker.run()))
    thread.start()
    assert inside.wait(40)
    until(lambda: INTERRUPTS, "the cancellation to be left for the thread")
    go.set()
    thread.join(40)
    assert counts == [(0, 1, 0, 0, 0)]
    assert seen == ["whole", "stopped"]
    out.close()


def test_cancellation_ends_a_wait_for_a_message(patient, tmp_path):
    """A handler that waits for another queue without a timeout is stopped between two looks."""
    empty = dirqueue.Queue(tmp_path / "empty", sync=False)
    empty.put(b"x")
    empty.get(timeout=0).ack()
    seen = []

    def handler(message):
        try:
            empty.get()
        except Cancelled:
            seen.append("stopped")
            raise

    patient.put(b"one")
    assert Worker(patient, handler, time_limit=0.05, limit=1).run().retried == 1
    assert seen == ["stopped"]
    assert not INTERRUPTS
    empty.close()


@pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])
def test_cancellation_before_the_handler_has_begun_is_not_forgotten(patient, tmp_path, monkeypatch, way):
    """RACE: the lease is lost, or the time over, between the claim and the call; the handler is still stopped."""
    for kind in (InThread, InProcess):

        def early(self, delivery, run=kind.run):
            delivery.cancel(watchdog.LIMIT)
            return run(self, delivery)

        monkeypatch.setattr(kind, "run", early)

    def handler(message):
        for _ in range(2000):
            time.sleep(0.005)
        (tmp_path / "finished").touch()

    patient.put(b"one")
    assert Worker(patient, handler, time_limit=600, limit=1, **way).run().retried == 1
    assert not (tmp_path / "finished").exists()


def test_cancellation_is_raised_once(patient, tmp_path):
    """What a handler puts while it cleans up after Cancelled is put."""
    out = dirqueue.Queue(tmp_path / "out", sync=False)

    def handler(message):
        try:
            while True:
                out.put(b"x")
        finally:
            for _ in range(20):
                out.put(b"cleaned up")

    patient.put(b"one")
    assert Worker(patient, handler, time_limit=0.01, limit=20).run().retried == 20
    assert [message.data for message in out.peek()].count(b"cleaned up") == 400
    out.close()


def test_interrupt_is_not_inherited_by_a_forked_child(patient):
    """A child has other work to do than the thread that it was forked from."""
    from support.kit import in_child

    def interrupt():
        raise AssertionError("interrupted")

    INTERRUPTS[threading.get_ident()] = interrupt
    try:
        assert in_child(lambda: patient.put(b"x"))
        with pytest.raises(AssertionError, match="interrupted"):
            patient.put(b"x")
    finally:
        INTERRUPTS.clear()


WAYS = pytest.mark.parametrize("way", ["threads=1", "processes=1"])


@WAYS
@pytest.mark.parametrize(
    ("ending", "status"),
    [("return", 0), ("sys.exit(7)", 7), ("raise ValueError", 1)],
    ids=["return", "exit", "raise"],
)
def test_child_that_a_handler_forked_never_becomes_a_second_worker(program, tmp_path, way, ending, status):
    """A forked process that comes back from the handler ends; the worker handles each message itself, once."""
    queue = dirqueue.Queue(tmp_path / "queue", sync=False)
    queue.put_many([b"x"] * 3)
    worker = program(f"""
        import warnings
        warnings.simplefilter("ignore")
        def handler(message):
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                {ending}
            tell("status-" + message.id, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(Worker(queue, handler, {way}).run_until_empty())
    """)
    assert worker.ends() == 0, worker.said()
    assert "Counts(acked=3, retried=0, dead=0, released=0, lost=0)" in worker.said()
    assert [path.read_text() for path in tmp_path.glob("status-*")] == [str(status)] * 3
    assert worker.said().count("event=leased") == 3
