"""What the service does, whichever door a request came through: judge it, then carry it out at the desk.

Layer: edges.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from dirqueue.entroq import authz, meter
from dirqueue.entroq.authz import CLAIM, READ, Anybody, Caller, Judge
from dirqueue.entroq.desk import Desk
from dirqueue.entroq.tasks import (
    Change,
    ClaimQuery,
    DependencyError,
    Modification,
    Modified,
    PermissionDenied,
    QueuesQuery,
    QueueStat,
    Task,
    TaskId,
    TasksQuery,
)
from dirqueue.tools import metrics
from dirqueue.tools.metrics import Family

#: The queue that no task is in: what a task is looked for in whose queue nobody knows, and nobody could judge.
NOWHERE = "\0"
#: Seconds for which counted queues are good enough for /metrics.
FRESH = 5.0


class Service:
    """EntroQ's methods, for callers."""

    def __init__(
        self,
        desk: Desk,
        judge: Judge | None = None,
        measure: Callable[[Sequence[str]], list[Family]] | None = None,
    ) -> None:
        self.desk = desk
        #: Counts queues in dirqueue's own terms.
        self._measure = measure
        self.judge: Judge = judge or Anybody()
        self.meter = meter.Meter()
        self._counted: tuple[float, list[QueueStat]] = (float("-inf"), [])
        self._measured: tuple[float, frozenset[str], list[Family]] = (float("-inf"), frozenset(), [])

    async def time(self, caller: Caller) -> int:
        """Return the store's now; whoever may ask anything may ask this."""
        if not self.judge.by_queue:
            await self.judge.check(caller, ())
        return await self.desk.time()

    async def try_claim(self, caller: Caller, query: ClaimQuery) -> Task | None:
        """Claim a task if there is one now."""
        query.check()
        await self.judge.check(caller, authz.each(query.queues, CLAIM), query.claimant)
        return await self.desk.try_claim(query)

    async def claim(self, caller: Caller, query: ClaimQuery) -> Task:
        """Claim a task, waiting until there is one."""
        query.check()
        await self.judge.check(caller, authz.each(query.queues, CLAIM), query.claimant)
        return await self.desk.claim(query)

    async def give_back(self, task: Task) -> None:
        """Undo a claim that did not reach its client."""
        self.meter.given_back += 1
        await self.desk.give_back(task)

    async def modify(self, caller: Caller, modification: Modification) -> Modified:
        """Do all of it or nothing."""
        modification.check()
        if self.judge.by_queue:
            modification = await self._judged(caller, modification)
        else:
            await self.judge.check(caller, ())
        try:
            return await self.desk.modify(modification)
        except DependencyError as error:
            self.meter.conflicts += 1
            raise _somewhere(error) from None

    async def tasks(self, caller: Caller, query: TasksQuery) -> AsyncIterator[list[Task]]:
        """Yield the tasks that are asked for in lists, without those that the caller may not read."""
        query.check()
        if query.queue or not self.judge.by_queue:
            await self.judge.check(caller, authz.each([query.queue] if query.queue else [], READ))
        async for page in self.desk.pages(query):
            if query.queue or not self.judge.by_queue:
                yield page
                continue
            readable = await self.judge.readable(caller, list({task.queue for task in page}))
            yield [task for task in page if task.queue in readable]

    async def queues(self, caller: Caller, query: QueuesQuery) -> list[QueueStat]:
        """Return the queues that are asked for, without those that the caller may not read."""
        query.check()
        if not self.judge.by_queue:
            await self.judge.check(caller, ())
            return await self.desk.queues(query)
        found = await self.desk.queues(replace(query, limit=0))
        readable = await self.judge.readable(caller, [stat.name for stat in found])
        return [stat for stat in found if stat.name in readable][: query.limit or None]

    async def metrics(self, caller: Caller) -> str:
        """Return what is counted, of queues that the caller may read."""
        counted, stats = self._counted
        if time.monotonic() - counted > FRESH:
            stats = await self.desk.queues(QueuesQuery())
            self._counted = (time.monotonic(), stats)
        readable = await self.judge.readable(caller, [stat.name for stat in stats])
        shown = [stat for stat in stats if stat.name in readable]
        own = await self._families(frozenset(readable))
        return metrics.text([meter.queue_sizes(shown), *own, *self.meter.families(self.desk.waiting)])

    async def _families(self, names: frozenset[str]) -> list[Family]:
        if self._measure is None:
            return []
        measured, of, families = self._measured
        if of != names or time.monotonic() - measured > FRESH:
            families = await self.desk.call(self._measure, sorted(names))
            self._measured = (time.monotonic(), names, families)
        return families

    async def close(self) -> None:
        """Finish what is being done, then let go of everything."""
        await self.desk.close()
        await self.judge.close()

    async def _judged(self, caller: Caller, modification: Modification) -> Modification:
        """Find out which queues the tasks are in, judge those, and name them to the store."""
        unnamed = [old.id for old in modification.used() if not old.queue]
        found = {}
        if unnamed:
            tasks = await self.desk.tasks(TasksQuery(ids=unnamed, omit_values=True))
            found = {task.id: task.queue for task in tasks}
        named = _named(modification, found)
        wanted = [wish for wish in authz.wishes(named) if wish.queue != NOWHERE]
        try:
            if wanted:
                await self.judge.check(caller, wanted, modification.claimant)
        except PermissionDenied as denied:
            # A queue that the caller did not name is not named to it.
            said = {wish.queue for wish in authz.wishes(modification)}
            if all(each.queue in said for each in denied.failed):
                raise
            raise PermissionDenied(
                "not allowed with the queue of a task that was named without one",
                failed=[each for each in denied.failed if each.queue in said],
            ) from denied
        return named


def _named(modification: Modification, found: dict[str, str]) -> Modification:
    """Return the modification with a queue for every task that it uses."""

    def name(old: TaskId) -> TaskId:
        return old if old.queue else old._replace(queue=found.get(old.id, NOWHERE))

    return replace(
        modification,
        changes=[Change(name(change.old), change.data, change.mode) for change in modification.changes],
        deletes=[name(old) for old in modification.deletes],
        depends=[name(old) for old in modification.depends],
    )


def _somewhere(error: DependencyError) -> DependencyError:
    """Return the error as the caller put it: a queue that nobody knows is none."""

    def plain(olds: Sequence[TaskId]) -> list[TaskId]:
        return [old._replace(queue="") if old.queue == NOWHERE else old for old in olds]

    return DependencyError(
        "" if error else error.text,
        inserts=error.inserts,
        changes=plain(error.changes),
        deletes=plain(error.deletes),
        depends=plain(error.depends),
        claims=plain(error.claims),
    )
