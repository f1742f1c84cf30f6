"""The index's client on a directory: with our types and worker, and with the index's own, unchanged."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import entroq as index
import pytest
from model import Model

from dirqueue import Queue
from dirqueue.compat import entroq as ours
from dirqueue.compat.entroq import client as clients
from dirqueue.entroq.desk import Desk


class ModelConnection(clients.Connection):
    def make(self):
        return Desk(Model())


@pytest.fixture(params=["ours", "index"])
def kit(request):
    """The module whose types and worker are used."""
    return {"ours": ours, "index": index}[request.param]


@pytest.fixture(params=["model", "directory"])
def make(request, kit, tmp_path):
    """Return a function that makes a client."""
    if request.param == "model":
        connection = ModelConnection("")
    else:
        pytest.importorskip("dirqueue.entroq.store")
        connection = clients.Connection(str(tmp_path / "space"))
    types = kit if kit is index else clients.own_types

    def client(claimant=None):
        found = ours.EntroQJSON("", claimant, types=types, connection=connection)
        found._owner = True
        return found

    return client


@pytest.fixture
def run(make):
    """Run a coroutine function that takes a client."""

    def run(story, seconds=30):
        async def main():
            async with make("tester") as client:
                return await asyncio.wait_for(story(client), seconds)

        return asyncio.run(main())

    return run


def insert(kit, queue, *values, **fields):
    M = kit.Modification
    return M(*(M.inserting(kit.TaskData(queue, value=value, **fields)) for value in values))


# --- the client ----------------------------------------------------------------------------------------------


def test_task_goes_from_insert_to_delete(kit, run):
    async def story(client):
        M = kit.Modification
        done = await client.modify(insert(kit, "in", {"n": 1}))
        [put] = done.tasks_inserted
        assert isinstance(put, kit.Task)
        assert (put.version, put.value, put.claimant, put.queue) == (0, {"n": 1}, "tester", "in")
        task = await client.try_claim("in", duration_ms=5000)
        assert (task.id, task.version, task.claims) == (put.id, 1, 1)
        assert (task.at - task.modified).total_seconds() == 5
        assert await client.try_claim(["in", "other"]) is None
        [held] = await client.queues(prefix="i")
        assert held == {"name": "in", "num_tasks": 1, "num_claimed": 1, "num_available": 0, "num_future": 0}
        done = await client.modify(M(M.changing(task, queue="out", value=[2], attempt=3, err="bad")))
        [moved] = done.tasks_changed
        assert (moved.queue, moved.value, moved.attempt, moved.err, moved.claimant) == (
            "out",
            [2],
            3,
            "bad",
            "",
        )
        assert [each.value for each in await client.tasks("out", limit=5)] == [[2]]
        assert [each.value for each in await client.tasks("out", omit_values=True)] == [None]
        await client.modify(M(M.depending(moved), M.inserting(kit.TaskData("log"))))
        await client.modify(M(M.deleting(moved)))
        assert [each["name"] for each in await client.queues()] == ["log"]
        assert [each["name"] for each in await client.queues(exact=["log"], limit=1)] == ["log"]
        assert abs(await client.time() - datetime.now(UTC)) < timedelta(minutes=1)
        assert await client.docs(namespace="n") == []

    run(story)


def test_waiting_claim_is_woken_by_an_insert_and_by_time(kit, run):
    async def story(client):
        waiting = asyncio.ensure_future(client.claim("in"))
        await asyncio.sleep(0.05)
        await client.modify(insert(kit, "in", 1, at=datetime.now(UTC) + timedelta(seconds=0.3)))
        task = await waiting
        assert task.value == 1
        with pytest.raises(TimeoutError, match="claim timed out"):
            await client.claim("in", timeout_s=0.05)
        await client.modify(insert(kit, "in", 2))
        assert (await client.claim("in", timeout_s=20)).value == 2  # what gave up took nothing

    run(story)


def test_plain_messages_and_tasks_share_a_queue(tmp_path):
    """A plain put wakes a waiting claim, and a plain consumer gets what a client inserted."""
    space = tmp_path / "space"

    async def story():
        async with ours.EntroQJSON(space) as client:
            await client.modify(insert(ours, "in", "first"))
            assert (await client.claim("in", duration_ms=60_000)).value == "first"
            waiting = asyncio.ensure_future(client.claim("in"))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(Queue(space / "in").put, b'"plain"')
            task = await asyncio.wait_for(waiting, 20)
            assert (task.value, task.claims) == ("plain", 1)
            await client.modify(insert(ours, "in", {"n": 2}))
            lease = await asyncio.to_thread(Queue(space / "in").get, timeout=20)
            assert lease.message.body == b'{"n":2}'
            lease.ack()
            M = ours.Modification
            await client.modify(M(M.deleting(task)))
            assert [each["num_tasks"] for each in await client.queues()] == [1]

    asyncio.run(story())


def test_errors_are_those_of_the_module(kit, run):
    async def story(client):
        M = kit.Modification
        await client.modify(insert(kit, "in", 1, id="one"))
        with pytest.raises(kit.DependencyError) as caught:
            await client.modify(
                M(
                    *[M.inserting(kit.TaskData("in", id="one"))],
                    M.deleting(kit.TaskID("gone", 3, "in")),
                    M.depending(kit.TaskID("off", 0, "in")),
                )
            )
        error = caught.value
        assert [each.id for each in error.inserts] == [each.id for each in error.collisions] == ["one"]
        assert error.deletes == [kit.TaskID("gone", 3, "in")]
        assert [each.id for each in error.missing] == ["off", "gone"]
        assert error.has_missing()
        await client.as_claimant("bob").claim("in")
        with pytest.raises(kit.DependencyError) as caught:
            await client.modify(M(M.deleting(kit.TaskID("one", 1, "in"))))
        assert caught.value.claims == [kit.TaskID("one", 1, "in")]
        await client.modify(M(M.deleting(kit.TaskID("one", 1, "in"))), unsafe_claimant_id="bob")
        with pytest.raises(kit.InvalidArgumentError, match="empty"):
            await client.modify(M())
        with pytest.raises(kit.UnsupportedError, match="no documents"):
            await client.claim_docs("n", "k")

    run(story)


def test_documents_in_a_modification_are_refused(run, kit):
    if kit is ours:
        pytest.skip("there is no type for them")

    async def story(client):
        with pytest.raises(kit.UnsupportedError, match="no documents"):
            await client.modify(kit.Modification(kit.Modification.inserting(kit.DocData("n", "k"))))

    run(story)


def test_client_can_be_used_by_one_loop_after_another(kit, tmp_path):
    """asyncio.run twice, as scripts do."""
    pytest.importorskip("dirqueue.entroq.store")
    client = ours.EntroQJSON(tmp_path / "space")
    asyncio.run(client.modify(insert(ours, "in", 1)))

    async def claim():
        async with client:
            return await client.claim("in")

    assert asyncio.run(claim()).value == 1


# --- the worker ----------------------------------------------------------------------------------------------


class Crew:
    """One worker of the module, and what its handler saw."""

    def __init__(self, kit, client, work, *queues, **options):
        self.worker = kit.EntroQWorker(client, *(queues or ("in",)), **{"claim_duration_s": 60, **options})
        self.seen = []

        async def do(task, docs):
            assert docs == []
            self.seen.append(task)
            return await work(task)

        self.running = asyncio.ensure_future(self.worker.run(kit.EntroQWorker.handler(do)))

    async def until(self, condition):
        """Wait until something is so, then stop the worker."""
        while not await condition():
            assert not self.running.done(), self.running.result()
            await asyncio.sleep(0.01)
        self.worker.stop()
        await self.running


def empty(client, *queues):
    async def condition():
        return not await client.queues(exact=queues)

    return condition


def size(client, queue, number):
    async def condition():
        return [each["num_tasks"] for each in await client.queues(exact=[queue])] == [number]

    return condition


def test_worker_does_every_task_once(kit, run):
    async def story(client):
        M = kit.Modification

        async def work(task):
            return M(M.deleting(task), M.inserting(kit.TaskData("out", value=task.value)))

        crew = Crew(kit, client, work, "in", "also")
        await asyncio.sleep(0.02)  # it waits already
        await client.modify(insert(kit, "in", *range(5)))
        await client.modify(insert(kit, "also", *range(5, 10)))
        await crew.until(size(client, "out", 10))
        assert sorted(task.value for task in crew.seen) == list(range(10))
        assert sorted(task.value for task in await client.tasks("out")) == list(range(10))

    run(story)


def test_claim_is_renewed_while_the_handler_works(kit, run):
    """And the commit names the version of the last renewal."""

    async def story(client):
        M = kit.Modification
        versions = []

        async def work(task):
            while len(versions) < 3:
                await asyncio.sleep(0.05)
                [now] = await client.tasks("in")
                if now.version not in versions:
                    versions.append(now.version)
                assert now.claimant == task.claimant
            return M(M.deleting(task))

        await client.modify(insert(kit, "in", 1))
        crew = Crew(kit, client, work, claim_duration_s=1.5)
        await crew.until(empty(client, "in"))
        assert versions == [1, 2, 3]
        assert len(crew.seen) == 1

    run(story)


def test_retried_task_comes_again_and_ends_in_the_error_queue(kit, run):
    async def story(client):
        async def work(task):
            raise kit.RetryError(f"no luck {task.attempt}", delay_s=0.01)

        await client.modify(insert(kit, "in", 1))
        crew = Crew(kit, client, work, max_attempts=3)
        await crew.until(size(client, "in/err", 1))
        assert [(task.attempt, task.err) for task in crew.seen] == [
            (0, ""),
            (1, "no luck 0"),
            (2, "no luck 1"),
        ]
        [failed] = await client.tasks("in/err")
        assert (failed.attempt, failed.err, failed.claims, failed.value) == (3, "no luck 2", 0, 1)

    run(story)


def test_moved_task_is_in_the_queue_that_was_named(kit, run):
    async def story(client):
        async def work(task):
            raise kit.MoveError("never", queue="odd" if task.value else "")

        await client.modify(insert(kit, "in", 0, 1))
        crew = Crew(kit, client, work, err_q_map=lambda queue: f"failed/{queue}")
        await crew.until(empty(client, "in"))
        [odd], [even] = await client.tasks("odd"), await client.tasks("failed/in")
        assert (odd.value, even.value, even.err, even.attempt) == (1, 0, "never", 1)

    run(story)


def test_work_whose_commit_is_refused_is_thrown_away(kit, run, caplog):
    """The worker goes on; the task comes again when its lease is over."""

    async def story(client):
        M = kit.Modification

        async def work(task):
            if task.value == "bad" and task.claims == 1:
                return M(M.deleting(task), M.depending(kit.TaskID("nobody", 0, "in")))
            return M(M.deleting(task))

        await client.modify(insert(kit, "in", "bad", "good"))
        crew = Crew(kit, client, work, claim_duration_s=0.5)
        await crew.until(empty(client, "in"))
        assert sorted(task.value for task in crew.seen) == ["bad", "bad", "good"]

    with caplog.at_level(logging.WARNING):
        run(story)
    assert "nobody" in caplog.text or "ependency" in caplog.text


def test_task_that_was_claimed_too_often_does_not_reach_the_handler(kit, run):
    async def story(client):
        await client.modify(insert(kit, "in", 1))
        for _ in range(2):
            await client.claim("in", duration_ms=1)
            await asyncio.sleep(0.01)

        async def work(task):
            raise AssertionError("it reached the handler")

        crew = Crew(kit, client, work, max_claims=2)
        await crew.until(size(client, "in/err", 1))
        [failed] = await client.tasks("in/err")
        assert failed.err == "maximum claims exceeded (2)"
        assert (failed.claims, failed.attempt) == (0, 1)
        assert crew.seen == []

    run(story)


def test_lost_claim_stops_the_handler(kit, run):
    """Somebody forced the task away: the next renewal says so, and the work is cancelled."""

    async def story(client):
        M = kit.Modification
        ended = []

        async def work(task):
            try:
                now = await client.tasks("in")
                await client.modify(
                    M(M.changing(now[0], queue="elsewhere")), unsafe_claimant_id=task.claimant
                )
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        await client.modify(insert(kit, "in", 1))
        crew = Crew(kit, client, work, claim_duration_s=0.3)

        async def over():
            return bool(ended)

        await crew.until(over)
        [task] = await client.tasks("elsewhere")
        assert (task.version, task.attempt) == (2, 0)

    run(story)


def test_work_that_takes_too_long_is_a_failed_attempt(kit, run):
    async def story(client):
        async def work(task):
            await asyncio.sleep(30)

        await client.modify(insert(kit, "in", 1))
        crew = Crew(kit, client, work, work_timeout_s=0.1, max_attempts=1)
        await crew.until(size(client, "in/err", 1))
        [failed] = await client.tasks("in/err")
        assert failed.err == "work did not finish within 0.1s"
        assert failed.attempt == 1

    run(story)


def test_stop_ends_a_claim_that_waits(kit, run):
    async def story(client):
        async def work(task):
            raise AssertionError("there is no task")

        crew = Crew(kit, client, work)
        await asyncio.sleep(0.05)
        crew.worker.stop()
        await crew.running
        await client.modify(insert(kit, "in", 1))
        assert (await client.try_claim("in")).claims == 1  # the claim that was given up took nothing

    run(story)


def test_handler_that_stops_the_worker_gives_its_task_back(kit, run):
    async def story(client):
        async def work(task):
            raise kit.StopWorker

        await client.modify(insert(kit, "in", 1))
        await Crew(kit, client, work).running
        [task] = await client.tasks("in")
        assert (task.claims, task.attempt, task.claimant) == (0, 0, "")
        assert await client.try_claim("in") is not None

    run(story)


def test_worker_stops_after_what_says_so(kit, run):
    async def story(client):
        M = kit.Modification

        async def work(task):
            if task.value == "last":
                return M(M.deleting(task), then_stop=True)
            raise kit.RetryError("later", delay_s=60, then_stop=True)

        await client.modify(insert(kit, "in", "last"))
        await Crew(kit, client, work).running
        assert await client.queues() == []
        await client.modify(insert(kit, "in", "retry"))
        await Crew(kit, client, work).running
        [task] = await client.tasks("in")
        assert (task.attempt, task.err) == (1, "later")

    run(story)


@pytest.mark.parametrize("name", ["FatalWorker", "ValueError"])
def test_other_errors_end_the_worker(kit, run, name):
    """The task is left alone; at its last claim it goes to the error queue, but not for FatalWorker."""
    kind = {"FatalWorker": kit.FatalWorker, "ValueError": ValueError}[name]

    async def story(client):
        async def work(task):
            raise kind("broken")

        await client.modify(insert(kit, "in", 1))
        with pytest.raises(kind, match="broken"):
            await Crew(kit, client, work, max_claims=1).running
        moved = await client.tasks("in/err")
        assert len(moved) == (name == "ValueError")
        assert all("broken" in task.err for task in moved)

    run(story)


def test_what_follows_a_commit_cannot_undo_it(kit, run, caplog):
    async def story(client):
        M = kit.Modification

        class Deleting(kit.Handler):
            async def do_work(self, task, docs):
                return M(M.deleting(task))

            async def on_success(self, task, docs):
                assert await client.tasks("in") == []
                if task.value == "stop":
                    raise kit.StopWorker
                raise ValueError("after")

        worker = kit.EntroQWorker(client, "in")
        await client.modify(insert(kit, "in", "fails"))
        running = asyncio.ensure_future(worker.run(Deleting()))
        while await client.queues():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        await client.modify(insert(kit, "in", "stop"))
        await running

    run(story)


def test_options_that_contradict_each_other_are_refused(kit, run):
    async def story(client):
        with pytest.raises(ValueError, match="err_q"):
            kit.EntroQWorker(client, "in", err_queue="a", err_q_map=str)
        with pytest.raises(ValueError, match="transport_retry"):
            kit.EntroQWorker(client, "in", transport_retry_base_s=2, transport_retry_max_s=1)
        assert kit.EntroQWorker(client, "in", err_queue="bad").error_queue_for("in") == "bad"

    run(story)
