"""asyncio: the same names, awaited."""

import asyncio

import pytest
from support.kit import PATIENCE

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


def test_the_ends_of_a_lease(make, needs):
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


def test_a_cancelled_get_loses_nothing(make, given, tmp_path):
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


def test_a_cancelled_block_releases(make):
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
