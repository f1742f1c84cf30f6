"""Spaces for asyncio."""

import asyncio
import pickle

import pytest
from support.kit import LONG

from dirqueue import Conflict, Empty, Put
from dirqueue.aio_space import AsyncSpace


@pytest.fixture
def run(tmp_path):
    """Run a coroutine function with a space."""

    def run(function):
        async def main():
            async with AsyncSpace(tmp_path / "space", sync=False) as space:
                return await function(space)

        return asyncio.run(main())

    return run


def test_ack_then_puts_everything(run):
    async def main(space):
        await space.put("a", b"x")
        lease = await space.get("a", timeout=1)
        await lease.ack(then=[Put("b", b"y")])
        assert await space.empty("a")
        assert (await space.get("b", timeout=0)).message.body == b"y"
        assert repr(space).startswith("AsyncSpace(")
        with pytest.raises(TypeError):
            pickle.dumps(space)

    run(main)


def test_transaction_of_every_verb(run):
    async def main(space):
        leases = {}
        for name in "arljnm":
            await space.put("in", name.encode())
            leases[name] = await space.get("in", timeout=0, lease=LONG)
        ids = [await space.put("w", body) for body in (b"cancelled", b"changed", b"moved", b"needed")]
        seen = [await space.message(id, "w") for id in ids]
        async with space.transaction() as t:
            t.ack(leases["a"])
            t.retry(leases["r"], 600, "no luck")
            t.release(leases["l"])
            t.reject(leases["j"], "bad")
            t.renew(leases["n"], 600)
            t.move(leases["m"], "other")
            t.cancel(seen[0])
            t.change(seen[1], delay=600)
            t.move(seen[2], "other")
            t.need(seen[3])
            await t.put("log", b"x", id="k")
        stats = await space.stats()
        assert {name: stats[name].total for name in stats} == {"in": 3, "log": 1, "other": 2, "w": 2}
        assert await space.names(prefix="o") == ["other"]
        with pytest.raises(Conflict):
            async with space.transaction() as t:
                await t.put("log", b"y", id="k")
        t = space.transaction()
        await t.put("log", b"z")
        t.abort()
        done = space.transaction()
        assert (await done.commit()).ids == []

    run(main)


def test_waiting_ends(run):
    async def main(space):
        with pytest.raises(Empty):
            await space.get("a", timeout=0.01)
        waiting = asyncio.create_task(space.get("a", timeout=30))
        await asyncio.sleep(0.01)
        await space.put("a", b"x")
        lease = await waiting
        assert not await space.wait_empty("a", timeout=0.01)
        asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(lease.ack()))
        assert await space.wait_empty("a", timeout=30)
        assert (await space.now()).year > 2000
        assert (await space.purge()).busy == 0
        assert space.path

    run(main)


def test_tasks_have_the_same_words(run):
    async def main(space):
        async with space.transaction(holder="ann") as t:
            await t.put("a", b"x", failures=1, error="before")
        lease = await space.get("a", timeout=1, holder="bob")
        [seen] = await space.messages("a")
        assert (seen.holder, seen.version, seen.failures, seen.error) == ("bob", 1, 1, "before")
        assert space.queue_of(seen) == space.queue_of(lease) == "a"
        t = space.transaction(holder="ann")
        t.change(seen, body=b"y")
        with pytest.raises(Conflict) as caught:
            await t.commit()
        assert [ref.version for ref in caught.value.held] == [1]
        t = space.transaction(holder="bob")
        t.renew(seen, LONG)
        [renewed] = (await t.commit()).changes
        assert renewed.version == 2
        t = space.transaction(holder="bob")
        t.change((await space.messages("a"))[0], body=b"y", queue="b", attempts=0)
        [changed] = (await t.commit()).changes
        assert (changed.queue, changed.version, changed.attempts) == ("b", 3, 0)

    run(main)
