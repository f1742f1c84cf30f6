"""A program that uses a published `entroq` package, whichever version is on its path, against a service.

It prints what it saw as one line of JSON; test_published.py runs it with each version and judges.
"""

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from entroq.json import EntroQJSON
from entroq.types import DependencyError, Modification, TaskData, TaskID
from entroq.worker import EntroQWorker, MoveError, RetryError, StopWorker

VERSION = tuple(map(int, version("entroq").split(".")))
URL = sys.argv[1]


async def insert(eq, *tasks):
    done = await eq.modify(Modification(*(Modification.inserting(task) for task in tasks)))
    return done.tasks_inserted


async def client(eq, other):
    """Everything that a client does by hand."""
    seen = {}
    seen["skew"] = abs((await eq.time() - datetime.now(UTC)).total_seconds())
    later = datetime.now(UTC) + timedelta(hours=1)
    value = {"a": [1, None, "ü"], "b": 2.5}
    first, second = await insert(eq, TaskData("c/one", value=value), TaskData("c/two", at=later, value="x"))
    seen["inserted"] = [first.version, first.value == value, second.claims, first.claimant == eq.claimant_id]
    seen["queues"] = [[q["name"], q["num_tasks"], q["num_available"]] for q in await eq.queues(prefix="c/")]
    got = await eq.try_claim(["c/one", "c/none"], duration_ms=20_000)
    seen["claimed"] = [got.id == first.id, got.version, got.claims, (got.at - got.modified).total_seconds()]
    seen["nothing"] = await eq.try_claim("c/one")
    try:
        await other.modify(Modification(Modification.deleting(got)))
    except DependencyError as error:
        seen["held"] = [each.id == got.id for each in error.claims]
    in_a_minute = datetime.now(UTC) + timedelta(seconds=60)
    done = await eq.modify(Modification(Modification.changing(got, at=in_a_minute)))
    (renewed,) = done.tasks_changed
    seen["renewed"] = [renewed.version, 50 < (renewed.at - renewed.modified).total_seconds() < 61]
    try:
        await eq.modify(
            Modification(Modification.deleting(got), Modification.deleting(TaskID("none", 3, "c/one")))
        )
    except DependencyError as error:
        seen["stale"] = [[each.id == got.id, each.version] for each in error.deletes]
    done = await eq.modify(
        Modification(
            Modification.changing(renewed, queue="c/moved", at=None, value=[1]),
            Modification.inserting(TaskData("c/new", value=True, id="own-id")),
            Modification.depending(second),
        )
    )
    (moved,), (own,) = done.tasks_changed, done.tasks_inserted
    seen["moved"] = [moved.queue, moved.version, moved.value, moved.claimant, own.id]
    try:
        await eq.modify(Modification(Modification.inserting(TaskData("c/x", id="own-id"))))
    except DependencyError as error:
        seen["taken"] = [each.id for each in error.inserts]
    seen["tasks"] = [[task.id, task.value] for task in await eq.tasks("c/new")]
    seen["bare"] = [task.value for task in await eq.tasks("c/new", omit_values=True)]
    waiting = asyncio.create_task(other.claim("c/wait", duration_ms=5_000))
    await asyncio.sleep(0.2)
    (came,) = await insert(eq, TaskData("c/wait", value=7))
    seen["waited"] = (await asyncio.wait_for(waiting, 10)).id == came.id
    for name in ("c/moved", "c/new"):
        task = await eq.try_claim(name)
        await eq.modify(Modification(Modification.deleting(task)))
    seen["left"] = sorted(q["name"] for q in await eq.queues(prefix="c/"))
    return seen


async def work(eq, seconds, handler, *queues, **settings):
    """Run a worker for at most so many seconds."""
    worker = EntroQWorker(eq, *queues, **settings)
    running = asyncio.create_task(worker.run(handler))
    await asyncio.wait((running,), timeout=seconds)
    worker.stop()
    await asyncio.wait_for(running, 15)


async def copying(eq):
    """Three workers do ten tasks, each once."""
    seen = {}
    await insert(eq, *(TaskData("w/in", value=i) for i in range(10)))
    count = 0

    @EntroQWorker.handler
    async def copy(task, docs):
        nonlocal count
        count += 1
        if count == 10:
            asyncio.get_running_loop().call_later(0.3, stop.set)
        return Modification(
            Modification.deleting(task), Modification.inserting(TaskData("w/out", value=task.value * 2))
        )

    stop = asyncio.Event()
    team = [EntroQWorker(eq, "w/in") for _ in range(3)]
    running = [asyncio.create_task(worker.run(copy)) for worker in team]
    await asyncio.wait_for(stop.wait(), 20)
    for worker in team:
        worker.stop()
    await asyncio.wait_for(asyncio.gather(*running), 10)
    seen["copied"] = sorted(task.value for task in await eq.tasks("w/out"))
    seen["emptied"] = await eq.queues(exact=["w/in"])
    return seen


async def renewing(eq):
    """Work that takes longer than its lease: that is renewed, and the result is committed."""
    await insert(eq, TaskData("w/slow", value=1))
    versions = []

    @EntroQWorker.handler
    async def slow(task, docs):
        versions.append(task.version)
        await asyncio.sleep(2.6)
        others = await eq.try_claim("w/slow")
        return Modification(
            Modification.deleting(task), Modification.inserting(TaskData("w/done", value=others is None))
        )

    await work(eq, 4.5, slow, "w/slow", claim_duration_s=1.2)
    return {"renewed": [versions, [task.value for task in await eq.tasks("w/done")]]}


async def retrying(eq):
    """A task that fails is tried again, its attempts counted, then moved away."""
    await insert(eq, TaskData("w/bad", value=1))
    attempts = []

    @EntroQWorker.handler
    async def bad(task, docs):
        attempts.append([task.attempt, task.err])
        raise RetryError(f"not yet {task.attempt}", delay_s=0.1)

    await work(eq, 2.5, bad, "w/bad", max_attempts=3, err_queue="w/bad/err")
    (task,) = await eq.tasks("w/bad/err")
    return {"retried": [attempts, task.attempt, task.err, task.claimant]}


async def moving(eq):
    """A task that will never work is moved away, and the worker goes on."""
    await insert(eq, TaskData("w/move", value=1), TaskData("w/move", value=2))

    @EntroQWorker.handler
    async def move(task, docs):
        if task.value == 1:
            raise MoveError("never", queue="w/moved")
        return Modification(Modification.deleting(task))

    await work(eq, 1.0, move, "w/move")
    return {
        "moved": [[task.value, task.err] for task in await eq.tasks("w/moved")],
        "went on": await eq.queues(exact=["w/move"]),
    }


async def depending(eq):
    """What cannot be committed is thrown away, and the worker goes on."""
    await insert(eq, TaskData("w/dep", value=1), TaskData("w/dep", value=2))
    calls = []

    @EntroQWorker.handler
    async def dependent(task, docs):
        calls.append(task.value)
        if task.value == 1:
            return Modification(
                Modification.deleting(task), Modification.depending(TaskID("missing", 0, "w/dep"))
            )
        return Modification(Modification.deleting(task))

    await work(eq, 1.5, dependent, "w/dep", claim_duration_s=30)
    return {"depended": [sorted(calls), [task.value for task in await eq.tasks("w/dep")]]}


async def stopping(eq):
    """A handler ends its worker; the task comes back."""
    await insert(eq, TaskData("w/stop", value=1))

    @EntroQWorker.handler
    async def stop(task, docs):
        raise StopWorker

    worker = EntroQWorker(eq, "w/stop", claim_duration_s=1)
    await asyncio.wait_for(worker.run(stop), 10)
    again = await asyncio.wait_for(eq.claim("w/stop", duration_ms=1_000), 10)
    return {"stopped": again.value}


async def newest(eq):
    """What only the newest worker does: a task that kills its workers is set aside."""
    await insert(eq, TaskData("n/poison", value=1))
    for _ in range(3):
        await eq.claim("n/poison", duration_ms=50)  # and die
        await asyncio.sleep(0.06)
    calls = []

    @EntroQWorker.handler
    async def handler(task, docs):
        calls.append(task.value)
        return Modification(Modification.deleting(task))

    await work(eq, 1.0, handler, "n/poison", max_claims=3)
    (task,) = await eq.tasks("n/poison/err")
    return [calls, task.claims, task.attempt, task.err]


async def main():
    async with EntroQJSON(URL) as eq, EntroQJSON(URL) as other:
        seen = {"version": VERSION, "client": await client(eq, other), "workers": {}}
        scenarios = (copying, renewing, retrying, moving, depending, stopping)
        for found in await asyncio.gather(*(scenario(eq) for scenario in scenarios)):
            seen["workers"] |= found
        if VERSION >= (0, 15):
            seen["newest"] = await newest(eq)
    print(json.dumps(seen))


logging.disable(logging.WARNING)
asyncio.run(main())
