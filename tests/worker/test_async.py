"""Async handlers: tasks of one event loop, cancelled when their lease or their time is over."""

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading

import pytest
from support.commandline import dq
from support.patience import until

import dirqueue
from dirqueue import Reject, Release, Retry, SettingsError, Worker
from dirqueue.worker import watchdog


@pytest.fixture(autouse=True)
def _no_loop_is_left():
    yield
    until(lambda: not [t for t in threading.enumerate() if t.name == "dirqueue-loop"], "the loop to end")


def test_returning_acknowledges(queue):
    async def handler(message):
        await asyncio.sleep(0)
        assert message.body == b"one"

    queue.put(b"one")
    assert Worker(queue, handler).run_until_empty() == (1, 0, 0, 0, 0)
    assert queue.stats().total == 0


@pytest.mark.parametrize(
    ("error", "field", "text"),
    [
        (ValueError("bad"), "retried", "ValueError: bad"),
        (Retry(0, "not yet"), "retried", "not yet"),
        (Reject("never"), "dead", "never"),
        (Release(), "released", None),
        (SystemExit("bye"), "retried", "SystemExit: bye"),
        (KeyboardInterrupt(), "retried", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "retried", "CancelledError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions_mean_what_they_mean_elsewhere(queue, error, field, text):
    async def handler(message):
        await asyncio.sleep(0)
        raise error

    id = queue.put(b"one")
    counts = Worker(queue, handler, limit=1).run()
    assert counts._asdict()[field] == sum(counts) == 1
    assert queue.message(id).error == text


def test_traceback_is_kept_without_the_worker(queue):
    async def inner():
        raise ValueError("bad")

    async def handler(message):
        await inner()

    id = queue.put(b"one")
    Worker(queue, handler, limit=1).run()
    lines = [line for line in queue.message(id).trace.splitlines() if line.startswith("  File")]
    assert [line.rpartition(" in ")[2] for line in lines] == ["inner", "handler"]


def test_so_many_run_at_once_and_no_more_in_one_loop(queue):
    running, most, loops, threads = set(), [], set(), set()

    async def handler(message):
        running.add(message.id)
        most.append(len(running))
        loops.add(asyncio.get_running_loop())
        threads.add(threading.get_ident())
        while max(most) < 10:  # noqa: ASYNC110 - a counter is simpler here
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        running.discard(message.id)

    queue.put_many([b"x"] * 50)
    assert Worker(queue, handler, concurrency=10).run_until_empty().acked == 50
    assert max(most) == 10
    assert (len(loops), len(threads)) == (1, 1)


def test_one_at_a_time_in_order_unless_asked_otherwise(queue):
    seen = []

    async def handler(message):
        seen.append(("begin", message.body))
        await asyncio.sleep(0.001)
        seen.append(("end", message.body))

    queue.put_many([b"1", b"2"])
    Worker(queue, handler).run_until_empty()
    assert seen == [("begin", b"1"), ("end", b"1"), ("begin", b"2"), ("end", b"2")]


def test_until_empty_waits_for_what_handlers_put(queue):
    """A handler that runs may bring work to an empty queue, up to its very end."""

    async def handler(message):
        await asyncio.sleep(0.05)
        if int(message.body):
            queue.put(str(int(message.body) - 1))

    queue.put(b"5")
    assert Worker(queue, handler, concurrency=4).run_until_empty().acked == 6


def test_limit_is_kept(queue):
    async def handler(message):
        await asyncio.sleep(0.01)

    queue.put_many([b"x"] * 20)
    assert Worker(queue, handler, concurrency=8, limit=11).run().acked == 11
    assert queue.stats().ready == 9


def test_time_limit_cancels_and_counts(queue):
    """The handler cleans up undisturbed; the others go on."""
    seen = []

    async def handler(message):
        if message.body == b"quick":
            return
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            seen.append("cleaned up")
            raise

    queue.put_many([b"slow", b"quick"])
    counts = Worker(queue, handler, concurrency=2, time_limit=0.1, limit=2).run()
    assert (counts.acked, counts.retried) == (1, 1)
    assert seen == ["cleaned up"]
    (message,) = [*queue.peek("ready"), *queue.peek("delayed")]
    assert message.error == "time limit of 0.1 s exceeded"


def test_handler_that_returns_after_its_time_is_not_acknowledged(queue):
    async def handler(message):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

    queue.put(b"x")
    counts = Worker(queue, handler, time_limit=0.1, limit=1).run()
    assert (counts.acked, counts.retried) == (0, 1)


def test_handler_that_cannot_be_cancelled_is_reported_and_loses_its_message(queue, monkeypatch):
    monkeypatch.setattr(watchdog, "GRACE", 0.1)
    seen, go = [], threading.Event()

    async def handler(message):
        go.wait(40)  # blocks the loop

    queue.put(b"x")
    hooks = {"stuck": lambda event: (seen.append(event), go.set())}
    counts = Worker(queue, handler, time_limit=0.1, limit=1, hooks=hooks).run()
    assert "blocks the event loop" in seen[0].error
    assert (counts.acked, counts.retried) == (0, 1)


def test_lost_lease_cancels_and_is_not_committed(queue):
    """Another consumer took the message: the handler hears of it at the next renewal."""
    begun, seen = threading.Event(), []

    async def handler(message):
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    id = queue.put(b"x")
    worker = Worker(queue, handler, lease=0.3, limit=1, hooks={"lost": lambda event: seen.append(event.id)})
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert begun.wait(40)
    assert queue.flush() == 1 or until(queue.flush, "the message to be gone")
    thread.join(40)
    assert seen == ["cancelled", id]


def test_lease_is_renewed_while_a_handler_blocks_the_loop(queue):
    tokens = set()

    async def handler(message):
        until(lambda: tokens.add(message.token) or len(tokens) >= 3, "two renewals")

    queue.put(b"x")
    assert Worker(queue, handler, lease=0.6).run_until_empty() == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("returned", ["coroutine", "Future", "generator"])
def test_returned_awaitable_is_a_failure(queue, returned):
    async def other():
        raise AssertionError("nobody awaits this")

    async def handler(message):
        if returned == "coroutine":
            return other()
        return asyncio.get_running_loop().create_future() if returned == "Future" else (x for x in "ab")

    id = queue.put(b"x")
    assert Worker(queue, handler, limit=1).run() == (0, 1, 0, 0, 0)
    assert queue.message(id).error.startswith(f"TypeError: the handler returned a {returned} instead")


class _Handlers:
    async def method(self, message): ...

    @staticmethod
    async def static(message): ...

    @classmethod
    async def of_class(cls, message): ...


class _Callable:
    async def __call__(self, message): ...


@pytest.mark.parametrize(
    "handler",
    [
        _Handlers().method,
        _Handlers.static,
        _Handlers.of_class,
        _Callable(),
        functools.partial(_Handlers().method),
        functools.partial(_Callable()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_async_callable_is_awaited(queue, handler):
    queue.put(b"x")
    assert Worker(queue, handler, concurrency=2).run_until_empty().acked == 1


async def nothing(message):
    """Do nothing."""


@pytest.mark.parametrize(
    ("handler", "arguments", "word"),
    [
        (nothing, {"threads": 2}, "concurrency"),
        (nothing, {"processes": 2}, "concurrency"),
        (nothing, {"concurrency": 0}, "concurrency"),
        (print, {"concurrency": 2}, "threads or processes"),
    ],
)
def test_arguments_that_do_not_fit_the_handler_are_refused(queue, handler, arguments, word):
    with pytest.raises(SettingsError, match=word):
        Worker(queue, handler, **arguments)


def test_async_hook_is_refused(queue):
    with pytest.raises(SettingsError, match=r"hook for 'acked'.*plain function"):
        Worker(queue, print, hooks={"acked": nothing})


def test_a_task_left_behind_that_exits_ends_the_worker_and_releases_its_messages(queue):
    """SystemExit in a task of the loop ends the loop; the messages of the others are not to blame."""

    async def exits():
        sys.exit("out")

    async def handler(message):
        if message.body == b"bad":
            handler.task = asyncio.ensure_future(exits())
        await asyncio.sleep(3600)

    queue.put_many([b"good", b"good", b"bad"])
    with pytest.raises(dirqueue.DirQueueError, match="ended the event loop: SystemExit: out"):
        Worker(queue, handler, concurrency=3).run()
    assert [message.attempts for message in queue.peek("ready")] == [0, 0, 0]
    handler.task.exception()


def test_a_child_that_a_handler_forks_does_not_work_on(queue, tmp_path):
    async def handler(message):
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0  # noqa: ASYNC222 - the child ends at once

    queue.put(b"x")
    assert Worker(queue, handler).run_until_empty() == (1, 0, 0, 0, 0)


def test_status_counts_places_and_running_handlers(queue):
    go, seen = threading.Event(), []

    async def handler(message):
        while not go.is_set():  # noqa: ASYNC110 - it is set by a thread
            await asyncio.sleep(0.001)

    queue.put_many([b"x"] * 3)
    worker = Worker(queue, handler, concurrency=5)
    thread = threading.Thread(target=lambda: seen.append(worker.run_until_empty()), daemon=True)
    thread.start()
    until(lambda: worker.status()["running"] == 3, "three handlers")
    assert worker.status()["slots"] == 5
    go.set()
    thread.join(40)
    assert seen[0].acked == 3


# --- real processes and signals ------------------------------------------------------------------------------

SLEEPER = """
    import asyncio
    async def handler(message):
        tell("begun-" + message.id)
        try:
            while not os.path.exists("go"):
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)  # cancelled once, so that this is not
            tell("cancelled-" + message.id)
            raise
    print(Worker(queue, handler, concurrency=3, drain=3600).run())
"""


def begun(directory, count):
    names = [path.name for path in directory.glob("begun-*")]
    return len(names) >= count and not [name for name in names if name.endswith(".part")]


def test_a_first_signal_drains(program, tmp_path):
    queue = dirqueue.Queue(tmp_path / "queue", sync=False)
    queue.put_many([b"x"] * 5)
    worker = program(SLEEPER)
    until(lambda: begun(tmp_path, 3), "three handlers to begin")
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "event=stopping" in worker.said(), "the worker to notice")
    (tmp_path / "go").touch()
    assert worker.ends() == 0
    assert "Counts(acked=3, retried=0, dead=0, released=0, lost=0)" in worker.said()
    assert (queue.stats().ready, queue.stats().leased) == (2, 0)


def test_a_second_signal_cancels_and_releases(program, tmp_path):
    queue = dirqueue.Queue(tmp_path / "queue", sync=False)
    queue.put_many([b"x"] * 3)
    worker = program(SLEEPER)
    until(lambda: begun(tmp_path, 3), "three handlers to begin")
    worker.process.send_signal(signal.SIGINT)
    until(lambda: "event=stopping" in worker.said(), "the worker to notice")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ends() == 0
    assert "released=3" in worker.said()
    assert len([*tmp_path.glob("cancelled-*")]) == 3
    assert [message.attempts for message in queue.peek("ready")] == [0, 0, 0]


def test_a_killed_worker_leaves_its_messages_to_others(program, tmp_path):
    queue = dirqueue.Queue(tmp_path / "queue", sync=False, margin=0)
    queue.put_many([b"x"] * 3)
    worker = program(SLEEPER.replace("drain=3600", "lease=0.5"))
    until(lambda: begun(tmp_path, 3), "three handlers to begin")
    worker.process.kill()
    worker.process.wait()
    attempts = [queue.get(timeout=40).message.attempts for _ in range(3)]
    assert attempts == [2, 2, 2]


def test_work_runs_an_async_function_of_a_module(tmp_path):
    """-j is how many are handled at once, in the one process."""
    (tmp_path / "shop.py").write_text(
        "import asyncio, os\n"
        "running, most = set(), 0\n"
        "async def ship(message):\n"
        "    global most\n"
        "    running.add(message.id)\n"
        "    most = max(most, len(running))\n"
        "    while most < 3:\n"
        "        await asyncio.sleep(0.001)\n"
        "    running.discard(message.id)\n"
        "    print(os.getpid(), message.body.decode(), flush=True)\n"
    )
    dirqueue.Queue(tmp_path / "q", sync=False).put_many([b"%d" % n for n in range(6)])
    done = dq("work", "q", "-j3", "--until-empty", "shop:ship", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert sorted(body for _, body in lines) == ["0", "1", "2", "3", "4", "5"]
    assert len({pid for pid, _ in lines}) == 1
    refused = dq("work", "q", "--threads", "--until-empty", "shop:ship", cwd=tmp_path)
    assert refused.returncode == 2
    assert b"shop:ship is async" in refused.stderr


def test_two_thousand_deliveries_all_end(queue):
    """None lost, none twice, whatever the order of ends."""
    seen = []

    async def handler(message):
        await asyncio.sleep(int(message.body) % 3 / 1000)
        seen.append(message.body)

    queue.put_many([b"%d" % n for n in range(2000)])
    assert Worker(queue, handler, concurrency=200).run_until_empty().acked == 2000
    assert len(set(seen)) == len(seen) == 2000
