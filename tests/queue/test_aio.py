"""asyncio: the same names, awaited."""

import asyncio
import contextlib
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.kit import LONG, PATIENCE, in_child, wait_until

from dirqueue import Empty, LeaseLost, Queue
from dirqueue.aio import AsyncQueue


@pytest.fixture
def make(given, tmp_path):
    """Give a maker of asyncio queues."""
    return lambda **settings: AsyncQueue(
        tmp_path / "queue", **{"sync": False, "margin": 0, **given, **settings}
    )


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def test_put_get_ack(make):
    """The whole way, awaited."""

    async def story():
        queue = make()
        id = await queue.put(b"a")
        for body in (b"b", b"c"):
            await queue.put(body)
        assert (await queue.message(id)).body == b"a"
        bodies = []
        async for lease in queue.consume(timeout=0):
            async with lease as message:
                bodies.append(message.body)
        assert sorted(bodies) == [b"a", b"b", b"c"]
        assert (await queue.stats()).total == 0
        with pytest.raises(Empty):
            await queue.get(timeout=0)

    run(story())


def test_ends_of_a_lease(make, needs):
    """retry, release, reject, renew and redrive."""
    needs("attempts", "dead", "delay")

    async def story():
        queue = make()
        await queue.put(b"a")
        lease = await queue.get(timeout=0)
        await lease.renew()
        await lease.release()
        lease = await queue.get(timeout=PATIENCE)
        await lease.retry(0, "why")
        lease = await queue.get(timeout=PATIENCE)
        assert (lease.message.attempts, lease.message.error) == (2, "why")
        await lease.reject("no")
        with pytest.raises(LeaseLost):
            await lease.ack()
        assert [message.error for message in await queue.peek("dead")] == ["no"]
        assert len(await queue.redrive()) == 1
        assert await queue.flush() == 1

    run(story())


def test_many_waiters_wait_together(make, tmp_path):
    """A hundred waiting gets block neither the loop nor the threads of others."""

    async def story():
        queue = make()
        waiters = [asyncio.create_task(queue.get(timeout=PATIENCE)) for _ in range(100)]
        await asyncio.sleep(0.05)
        for n in range(100):
            await queue.put(f"{n}")
        leases = await asyncio.gather(*waiters)
        assert len({lease.message.id for lease in leases}) == 100
        for lease in leases:
            await lease.ack()
        assert (await queue.stats()).total == 0

    run(story())


def test_cancelled_get_loses_nothing(make, given, tmp_path):
    """What a cancelled call had claimed is given back."""

    async def story():
        queue = make(lease=600.0)
        for _ in range(50):
            await queue.put(b"x")
            task = asyncio.create_task(queue.get(timeout=PATIENCE))
            await asyncio.sleep(0)
            task.cancel()
            try:
                lease = await task
            except asyncio.CancelledError:
                lease = await queue.get(timeout=PATIENCE)
            await lease.ack()

    run(story())
    assert len(Queue(tmp_path / "queue", **given)) == 0


def test_cancelled_block_releases(make):
    """Cancellation is not the message's fault."""

    async def story():
        queue = make(lease=600.0)
        await queue.put(b"x")
        inside = asyncio.Event()

        async def work():
            async with await queue.get(timeout=PATIENCE):
                inside.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        lease = await queue.get(timeout=PATIENCE)
        assert lease.message.attempts <= 1
        await lease.ack()

    run(story())


class Gate:
    """Stops a method of a layout in its thread, from its nth call on, until the gate is opened."""

    def __init__(self, layout, name, monkeypatch, call=1):
        self.reached, self._opened, self._calls = threading.Event(), threading.Event(), itertools.count(1)
        real = getattr(layout, name)

        def gated(*arguments):
            if next(self._calls) >= call:
                self.reached.set()
                assert self._opened.wait(PATIENCE), "nobody opened the gate"
            try:
                return real(*arguments)
            finally:
                self.passed += 1

        self.passed = 0
        monkeypatch.setattr(layout, name, gated)

    async def reach(self):
        """Wait until a call stands at the gate."""
        assert await asyncio.to_thread(self.reached.wait, PATIENCE)

    def open(self, *_):
        self._opened.set()


def open_paths():
    """Return the paths of all descriptors of this process."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return paths


async def some_turns():
    """Let the loop go round: whatever is ready to run, runs."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_get_many_that_is_cancelled_keeps_nothing(make, monkeypatch, call):
    """Cancelled at any of its claims, it gives back those before and the one under way."""

    async def story():
        queue = make(lease=LONG)
        for n in range(3):
            await queue.put(f"{n}")
        gate = Gate(queue.queue.layout, "claim", monkeypatch, call)
        task = asyncio.create_task(queue.get_many(3, timeout=PATIENCE))
        await gate.reach()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await queue.close()  # waits for the thread
        monkeypatch.undo()
        assert len(await queue.get_many(3, timeout=0)) == 3

    run(story())


@pytest.mark.parametrize("verb", ["get", "get_many"])
def test_get_that_is_cancelled_as_the_loop_ends_keeps_nothing(make, monkeypatch, verb):
    """Its claim comes through when there is no loop any more to hear of it."""
    queue = make(lease=LONG)
    queue.queue.put(b"x")
    gate = Gate(queue.queue.layout, "claim", monkeypatch)

    async def story():
        task = asyncio.create_task(queue.get(timeout=5) if verb == "get" else queue.get_many(2, timeout=5))
        task.add_done_callback(gate.open)
        await gate.reach()  # and return: asyncio.run cancels the task

    run(story())
    wait_until(lambda: queue.queue.stats().ready == 1, "the release")


@pytest.mark.parametrize("verb", ["ack", "release", "renew", "block"])
def test_end_of_a_lease_holds_up_a_cancellation(make, monkeypatch, verb):
    """A task cancelled while it commits is over only when the commit is; what happened is known then."""

    async def story():
        queue = make(lease=LONG)
        await queue.put(b"x")
        lease = await queue.get(timeout=PATIENCE)

        async def block():
            async with lease:
                pass

        gate = Gate(queue.queue.layout, "ack" if verb == "block" else verb, monkeypatch)
        task = asyncio.create_task(block() if verb == "block" else getattr(lease, verb)())
        await gate.reach()
        try:
            for _ in range(3):  # however often
                task.cancel()
                await some_turns()
                assert not task.done()
        finally:
            gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.passed == 1
        assert lease.ended == {"release": "released", "renew": ""}.get(verb, "acked")

    run(story())


def test_put_many_of_a_generator_waits_for_room_and_puts_all(make):
    """It is tried more than once, and a generator can be read only once."""

    async def story():
        queue = make(max_messages=3)
        await queue.put(b"first")
        task = asyncio.create_task(queue.put_many((f"{n}".encode() for n in range(3)), timeout=PATIENCE))
        await asyncio.sleep(0.05)  # one try or more
        assert not task.done()
        await (await queue.get(timeout=0)).ack()
        assert len(await task) == 3
        leases = [lease async for lease in queue.consume(timeout=0)]
        assert sorted(lease.message.body for lease in leases) == [b"0", b"1", b"2"]

    run(story())


def test_queue_does_not_wait_for_the_executor_of_the_loop(make):
    """Other libraries may block every thread that asyncio has: an ack must not queue up behind them."""

    async def story():
        queue = make()
        over = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        blocked = asyncio.create_task(asyncio.to_thread(over.wait, PATIENCE))
        await some_turns()
        try:
            await queue.put(b"x")
            async with await queue.get(timeout=0) as message:
                assert message.body == b"x"
            await queue.close()
            assert not blocked.done()
        finally:
            over.set()
        assert await blocked

    run(story())


def test_close_waits_for_calls_and_ends_the_threads(make, monkeypatch):
    """Awaited, as everything else; what is used after it opens again."""

    async def story():
        async with make() as queue:
            await queue.put(b"x")
            gate = Gate(queue.queue.layout, "put", monkeypatch)
            put = asyncio.create_task(queue.put(b"x"))
            await gate.reach()
            home = getattr(queue.queue.layout.directory, "side", queue.path)
            assert home in open_paths()
            closed = asyncio.create_task(queue.close())
            await some_turns()
            assert not closed.done()
            gate.open()
            await closed
            assert await put
            leases = await queue.get_many(2, timeout=0)
        assert home not in open_paths()
        for lease in leases:
            await lease.ack()
        assert (await queue.stats()).total == 0
        await queue.close()

    before = set(threading.enumerate())
    run(story())
    wait_until(lambda: not [each for each in threading.enumerate() if each not in before and each.is_alive()
                            and each.name.startswith("dirqueue-aio")], "the end of the threads")  # fmt: skip


def test_queue_works_in_a_forked_child(make):
    """The threads of the parent are not in the child."""
    queue = make()

    async def story(body):
        await queue.put(body)
        async with await queue.get(timeout=0) as message:
            return message.body

    assert run(story(b"parent")) == b"parent"
    assert in_child(lambda: run(story(b"child"))) == b"child"
    run(queue.close())


def test_create_keeps_settings_that_the_format_has_no_place_for(tmp_path):
    """The queue object that create returns has them, as that of Queue.create."""

    async def story():
        queue = await AsyncQueue.create(tmp_path / "dirq", layout="dirq-simple", granularity=7)
        assert queue.settings.granularity == 7
        queue = await AsyncQueue.create(tmp_path / "native", lease=7)
        assert queue.settings.lease == 7
        await queue.close()

    run(story())


def test_lease_shows_what_a_lease_shows(make):
    async def story():
        queue = make()
        await queue.put(b"x")
        lease = await queue.get(timeout=0, lease=60)
        names = ("message", "path", "codec", "token", "handle", "seconds", "until", "ended", "lost")
        assert [getattr(lease, name) for name in names] == [getattr(lease.lease, name) for name in names]
        await lease.ack()
        assert repr(lease) == f"<AsyncLease {lease.message.id} acked>"
        await queue.close()

    run(story())


def test_other_verbs_are_those_of_the_queue(make, needs, tmp_path):
    """put_path, purge and clear; close without any call before it."""
    needs("done")
    (tmp_path / "file").write_bytes(b"x")

    async def story():
        queue = make(keep_done=True)
        await queue.put_path(tmp_path / "file")
        await (await queue.get(timeout=0)).ack()
        assert (await queue.purge(older_than=600)).busy == 0
        assert await queue.clear() == 1
        await queue.close()
        await queue.close()

    run(story())


def test_every_put_takes_attributes(make, needs, tmp_path):
    """One message, several, and a file."""
    needs("attributes")
    (tmp_path / "file").write_bytes(b"d")
    carried = {"attributes": {"colour": "blue"}, "ttl": 600}

    async def story():
        queue = make()
        await queue.put(b"a", **carried)
        await queue.put_many([b"b", b"c"], **carried)
        await queue.put_path(tmp_path / "file", **carried)
        for _ in range(4):
            message = (await queue.get(timeout=0)).message
            assert message.attributes == {"colour": "blue"}
            assert message.expires_at is not None
        await queue.close()

    run(story())
