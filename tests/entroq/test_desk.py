"""Claims that wait: who is woken by what, and that nothing is taken for clients that have gone."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from model import Model

from dirqueue.entroq import desk as desks
from dirqueue.entroq.desk import Desk
from dirqueue.entroq.tasks import (
    Change,
    ClaimQuery,
    Exhausted,
    Modification,
    QueuesQuery,
    TaskData,
    TasksQuery,
    Unavailable,
)

pytestmark = pytest.mark.usefixtures("no_sweep")


@pytest.fixture
def no_sweep(monkeypatch):
    """Nobody is woken but by what should wake it."""
    monkeypatch.setattr(desks, "POLL", 3600.0)


def at_desk(test, store=None, **how):
    """Run a test at an open desk."""

    async def run():
        desk = Desk(store or Model(), **how)
        await desk.open()
        try:
            async with asyncio.timeout(30):
                return await test(desk)
        finally:
            await desk.close()

    return asyncio.run(run())


def put(*queues, by=0, claimant="p"):
    return Modification(claimant, inserts=[TaskData(queue, b"1", by=by) for queue in queues])


def waiting(desk, *queues, claimant="c"):
    return asyncio.create_task(desk.claim(ClaimQuery(queues, claimant, 60_000)))


async def until(condition, seconds=5):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another thread makes it true
            await asyncio.sleep(0.005)


def test_one_claim_is_woken_for_each_task_the_first_to_come_first():
    async def test(desk):
        claims = [waiting(desk, "q") for _ in range(5)]
        await until(lambda: desk.waiting == 5)
        await asyncio.sleep(0.05)
        await desk.modify(put("q", "q", "other"))
        await until(lambda: desk.waiting == 3)
        assert [claim.done() for claim in claims] == [True, True, False, False, False]
        await desk.modify(put("q", "q", "q"))
        await asyncio.gather(*claims)

    at_desk(test)


def test_looks_are_as_many_as_tasks_not_as_claims():
    """Cost: a hundred claims that wait are not a hundred looks for each task."""
    store = Model()
    looks = []
    claim = store.claim
    store.claim = lambda query: looks.append(1) or claim(query)

    async def test(desk):
        claims = [waiting(desk, "q") for _ in range(100)]
        await until(lambda: len(looks) == 100 and not desk._orphans)
        for _ in range(10):
            await desk.modify(put("q"))
        await until(lambda: desk.waiting == 90)
        await asyncio.sleep(0.05)
        assert len(looks) == 110
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)

    at_desk(test, store)


def test_no_wake_is_lost_while_others_look():
    """Tasks that come while claims look for them are all found, though nobody looks again by itself."""

    async def test(desk):
        for _ in range(30):
            claims = [waiting(desk, "q", "r") for _ in range(8)]
            await asyncio.gather(*(desk.modify(put("q" if i % 2 else "r")) for i in range(8)))
            async with asyncio.timeout(5):
                await asyncio.gather(*claims)

    at_desk(test)


def test_time_wakes():
    async def test(desk):
        claim = waiting(desk, "q")
        await until(lambda: desk.waiting == 1)
        await desk.modify(put("q", by=300))
        began = time.monotonic()
        task = await claim
        assert 0.2 < time.monotonic() - began < 5
        # The next one waits for the end of this claim.
        await desk.modify(Modification("c", changes=[Change(task.key, TaskData("q", b"1", by=300))]))
        again = await waiting(desk, "q")
        assert (again.id, again.version) == (task.id, 3)

    at_desk(test)


def test_a_lease_that_another_client_got_wakes_when_it_ends():
    async def test(desk):
        await desk.modify(put("q"))
        first = await desk.try_claim(ClaimQuery(["q"], "dies", 400))
        claim = waiting(desk, "q")
        assert (await claim).id == first.id

    at_desk(test)


def test_a_wake_that_is_not_used_goes_to_the_next():
    """It was woken for `a` and took a task of `b`: somebody else has to look at `a`."""
    store = Model()
    real, gate = store.claim, threading.Event()

    def claim(query):
        if query.claimant == "both" and gate.is_set():
            return real(ClaimQuery(["b"], "both", 60_000))  # as the shuffle may have it
        return real(query)

    store.claim = claim

    async def test(desk):
        both = waiting(desk, "a", "b", claimant="both")
        await until(lambda: desk.waiting == 1)
        only = waiting(desk, "a", claimant="only")
        await until(lambda: desk.waiting == 2)
        await asyncio.sleep(0.05)
        gate.set()
        store.modify(put("b"))  # by another process, and nothing told of it
        await desk.modify(put("a"))
        assert (await both).queue == "b"
        assert (await only).queue == "a"

    at_desk(test, store)


def test_a_wake_of_one_that_went_away_goes_to_the_next():
    async def test(desk):
        first = waiting(desk, "q", claimant="first")
        second = waiting(desk, "q", claimant="second")
        await until(lambda: desk.waiting == 2)
        await asyncio.sleep(0.05)
        desk._wake("q", 1)
        first.cancel()  # woken already
        desk.store.modify(put("q"))
        assert (await second).claimant == "second"

    at_desk(test)


def test_what_was_claimed_for_one_that_went_away_is_given_back():
    store = Model()
    real, began, go = store.claim, threading.Event(), threading.Event()

    def claim(query):
        if query.claimant == "gone":
            began.set()
            assert go.wait(10)
        return real(query)

    store.claim = claim

    async def test(desk):
        await desk.modify(put("q"))
        gone = waiting(desk, "q", claimant="gone")
        await until(began.is_set)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        other = asyncio.create_task(desk.claim(ClaimQuery(["q"], "other", 60_000)))
        taken = await other  # the one that went away had not taken it yet
        go.set()
        await asyncio.sleep(0.1)
        assert desk.waiting == 0
        (left,) = await desk.tasks(TasksQuery("q"))
        assert left == taken
        # And again, with nobody else: it comes back as if it had never been claimed.
        began.clear()
        go.clear()
        await desk.modify(Modification("other", changes=[Change(taken.key, TaskData("q", b"1"))]))
        gone = asyncio.create_task(desk.try_claim(ClaimQuery(["q"], "gone", 60_000)))
        await until(began.is_set)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        go.set()
        await asyncio.sleep(0.1)
        (left,) = await desk.queues(QueuesQuery())
        assert (left.available, left.claimed, left.max_claims) == (1, 0, 1)

    at_desk(test, store)


def test_a_modification_goes_on_without_its_client():
    store = Model()
    real, began, go = store.modify, threading.Event(), threading.Event()

    def modify(modification):
        began.set()
        assert go.wait(10)
        return real(modification)

    store.modify = modify

    async def test(desk):
        claim = waiting(desk, "q")
        modification = asyncio.create_task(desk.modify(put("q")))
        await until(began.is_set)
        modification.cancel()
        await asyncio.gather(modification, return_exceptions=True)
        go.set()
        assert (await claim).queue == "q"

    at_desk(test, store)


class Watch:
    """Tells of changes when the test says so."""

    def __init__(self):
        self.queues = set()

    def begin(self, changed):
        self.changed = changed

    def arm(self, queues):
        self.queues.update(queues)
        return True

    def missed(self, queues):
        return False

    def armed(self, queue):
        return queue in self.queues

    def end(self):
        pass

    def tell(self, queue):
        self.queues.discard(queue)
        self.changed(queue)


def test_what_other_processes_put_wakes_as_many_as_there_are_tasks():
    """One change may mean many tasks: whoever finds one lets the next look."""
    watch = Watch()

    async def test(desk):
        claims = [waiting(desk, "q", "r") for _ in range(4)]
        await until(lambda: desk.waiting == 4)
        await asyncio.sleep(0.05)
        assert watch.armed("q")
        desk.store.modify(put("q", "q", "q"))
        watch.tell("q")
        await until(lambda: desk.waiting == 1)
        assert watch.armed("q")  # by the one that found nothing
        claims[-1].cancel()
        await asyncio.gather(*claims, return_exceptions=True)

    at_desk(test, watch=watch)


def test_a_queue_that_cannot_be_watched_is_polled(monkeypatch):
    monkeypatch.setattr(desks, "POLL", 0.05)

    async def test(desk):
        claim = waiting(desk, "q")
        await until(lambda: desk.waiting == 1)
        await asyncio.sleep(0.05)
        desk.store.modify(put("q"))  # nothing tells of it
        assert (await claim).queue == "q"

    at_desk(test)


def test_two_thousand_claims_wait_and_the_next_is_told_so():
    async def test(desk):
        claims = [waiting(desk, f"q{i % 50}", "all") for i in range(2_000)]
        await until(lambda: desk.waiting == 2_000, 20)
        with pytest.raises(Exhausted, match="2,000"):
            await waiting(desk, "q")
        assert await desk.try_claim(ClaimQuery(["q"])) is None  # which does not wait
        await until(lambda: not desk._orphans, 20)
        await desk.modify(put(*(["all"] * 2_000)))
        done = await asyncio.gather(*claims)
        assert len({task.id for task in done}) == 2_000
        assert not desk._by_queue
        assert not desk._timers

    at_desk(test)


def test_closing_ends_those_that_wait():
    async def test(desk):
        claims = [waiting(desk, "q") for _ in range(3)]
        await until(lambda: desk.waiting == 3)
        desk.refuse()
        for claim in claims:
            with pytest.raises(Unavailable):
                await claim
        with pytest.raises(Unavailable):
            await waiting(desk, "q")
        await desk.modify(put("q"))  # what does not wait is finished
        assert await desk.try_claim(ClaimQuery(["q"])) is not None

    at_desk(test)


def test_a_store_that_fails_is_told_and_leaves_nothing():
    store = Model()

    def claim(query):
        raise OSError(5, "I/O error")

    store.claim = claim

    async def test(desk):
        with pytest.raises(OSError, match="I/O"):
            await waiting(desk, "q")
        assert desk.waiting == 0
        assert not desk._by_queue

    at_desk(test, store)


def test_a_long_listing_is_read_in_pages():
    store = Model()
    store.modify(put(*["q"] * 250))
    read = SimpleNamespace(count=0)
    real = store.tasks

    def tasks(query):
        for task in real(query):
            read.count += 1
            yield task

    store.tasks = tasks

    async def test(desk):
        counts = []
        async for page in desk.pages(TasksQuery("q")):
            counts.append((len(page), read.count))
        assert counts == [(100, 100), (100, 200), (50, 250)]

    at_desk(test, store)
