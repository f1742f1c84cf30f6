"""The desk: where claims wait for tasks, and where the store's calls are sent to threads.

One event loop; the store's calls block for the disk, so they run in a few threads. A waiting claim is woken by a
modification of this service (one claim for each task that came), by a change in the directory that another process
made, and by time. Whoever is woken looks again: a wake is a hint, and the store says who gets what.

Layer: edges.
Invariant: a wake that its claim could not use goes to the next one; what was claimed for a client that has gone is
given back.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from dirqueue.entroq.tasks import (
    ClaimQuery,
    Exhausted,
    Modification,
    Modified,
    QueuesQuery,
    QueueStat,
    Store,
    Task,
    TasksQuery,
    Unavailable,
)

T = TypeVar("T")

#: Calls of the store at a time: enough to keep a disk busy with fsync.
THREADS = 16
#: Claims that wait at a time.
WAITING = 2_000
#: Seconds between looks for claims that wait: at queues that are watched, and at others.
REST, POLL = 5.0, 0.5
#: Tasks of a listing that are read at a time, and sent before more are read.
PAGE = 100
#: Looks in a row of one claim, if each shows directories that the last one did not know.
LOOKS = 4
#: Seconds that calls have to finish when the desk closes.
CLOSING = 10.0
#: Seconds that are added to a known arrival: a look a moment too early would be in vain.
SOON = 0.001


class Watch(Protocol):
    """Tells of changes that other processes make."""

    def begin(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with the name of a queue, from any thread, once for each time it was armed."""
        ...

    def arm(self, queues: Sequence[str]) -> bool:
        """Tell of the next change of these; False if not all can be watched. Called before a look."""
        ...

    def missed(self, queues: Sequence[str]) -> bool:
        """Return whether a look has shown that `arm` did not watch everything: then arm, and look again."""
        ...

    def armed(self, queue: str) -> bool:
        """Return whether the next change of a queue will be told."""
        ...

    def end(self) -> None:
        """Tell nothing any more."""
        ...


class Look(NamedTuple):
    """What one look of a claim brought: a task, or in how many milliseconds each of its queues may have one."""

    task: Task | None
    arrivals: Sequence[tuple[str, int]] = ()


class Claimant:
    """A claim that waits."""

    __slots__ = ("event", "looking", "query", "resting", "woken")

    def __init__(self, query: ClaimQuery) -> None:
        self.query = query
        self.event = asyncio.Event()
        #: Whether it waits to be woken, and does not look just now.
        self.resting = False
        #: The queues it was woken for, and whether there may be more than one task there: since its look began, and
        #: those that this look is for.
        self.woken: dict[str, bool] = {}
        self.looking: dict[str, bool] = {}


class Desk:
    """Carries out requests on a store; claims may wait.

    Args:
        store: Where the tasks are.
        watch: Tells of changes by other processes; without one, queues are polled.
        waiting: How many claims may wait at a time.
    """

    def __init__(self, store: Store, watch: Watch | None = None, *, waiting: int = WAITING) -> None:
        self.store = store
        self._watch = watch
        self._limit = waiting
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dirqueue-entroq")
        self._waiting: dict[Claimant, None] = {}
        self._by_queue: dict[str, dict[Claimant, None]] = {}
        #: When a task of a queue becomes claimable, as far as is known.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._looked: dict[str, float] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._closing = False
        #: Calls that go on although nobody waits for them any more.
        self._orphans: set[asyncio.Future[Any]] = set()

    @property
    def waiting(self) -> int:
        """How many claims wait now."""
        return len(self._waiting)

    @property
    def closing(self) -> bool:
        """Whether no claim waits any more."""
        return self._closing

    async def open(self) -> None:
        """Begin to watch."""
        loop = asyncio.get_running_loop()
        if self._watch is not None:
            self._watch.begin(lambda queue: _tell(loop, self._wake, queue))
        self._sweeper = loop.create_task(self._sweep())

    def refuse(self) -> None:
        """Let no claim wait any more: those that do end with Unavailable."""
        self._closing = True
        for claimant in self._waiting:
            claimant.event.set()

    async def close(self) -> None:
        """Finish what is being done, then let go of the store."""
        self.refuse()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for timer in self._timers.values():
            timer.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSING
        while (self._orphans or self._waiting) and loop.time() < deadline:  # noqa: ASYNC110 - few, soon over
            await asyncio.sleep(0.01)
        if self._watch is not None:
            await loop.run_in_executor(self._pool, self._watch.end)
        await loop.run_in_executor(self._pool, self.store.close)
        self._pool.shutdown(wait=False)

    # --- requests ------------------------------------------------------------------------------------------

    async def time(self) -> int:
        """Return the store's now."""
        return await self.call(self.store.time)

    async def try_claim(self, query: ClaimQuery) -> Task | None:
        """Claim a task if there is one now."""
        query.check()
        task, _ = await self._claim(self._try, query)
        if task is not None:
            self._expect(task)
        return task

    async def claim(self, query: ClaimQuery) -> Task:
        """Claim a task, waiting until there is one; cancelled, it has taken nothing."""
        query.check()
        if len(self._waiting) >= self._limit:
            raise Exhausted(f"{self._limit:,} claims are waiting already: try again later")
        claimant = Claimant(query)
        self._enter(claimant)
        task: Task | None = None
        try:
            while task is None:
                if self._closing:
                    raise Unavailable("the service is going down: ask another one, or this one later")
                claimant.event.clear()
                claimant.looking, claimant.woken = claimant.woken, {}
                task, arrivals = await self._claim(self._look, query)
                if task is None:
                    claimant.looking = {}
                    self._rest(query.queues, arrivals)
                    claimant.resting = True
                    await claimant.event.wait()
                    claimant.resting = False
        finally:
            self._leave(claimant, task)
        self._expect(task)
        return task

    async def give_back(self, task: Task) -> None:
        """Undo a claim that did not reach its client."""
        await self.call(self.store.give_back, task)
        self._wake(task.queue)

    async def modify(self, modification: Modification) -> Modified:
        """Do all of it or nothing; it goes on if the client goes away."""
        return await self.call(self.store.modify, modification, then=self._modified)

    async def tasks(self, query: TasksQuery) -> list[Task]:
        """Return the tasks that are asked for."""
        return await self.call(lambda: list(self.store.tasks(query)))

    async def pages(self, query: TasksQuery) -> AsyncIterator[list[Task]]:
        """Yield the tasks that are asked for in lists; the next is read when the last was taken."""
        found = self.store.tasks(query)
        while page := await self.call(_page, found):
            yield page

    async def queues(self, query: QueuesQuery) -> list[QueueStat]:
        """Return the queues that are asked for."""
        return await self.call(self.store.queues, query)

    # --- calls ---------------------------------------------------------------------------------------------

    def _start(
        self, call: Callable[..., T], *arguments: Any, then: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Run a call in a thread, to its end whoever waits for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.run_in_executor(self._pool, call, *arguments)
        self._orphans.add(future)
        future.add_done_callback(functools.partial(self._ended, then=then))
        return future

    def _ended(self, future: asyncio.Future[T], then: Callable[[T], None] | None) -> None:
        self._orphans.discard(future)
        if not future.cancelled() and future.exception() is None and then is not None:
            then(future.result())

    async def call(
        self, call: Callable[..., T], *arguments: Any, then: Callable[[T], None] | None = None
    ) -> T:
        """Run a call that may block in a thread; it ends even if nobody waits for it any more."""
        return await asyncio.shield(self._start(call, *arguments, then=then))

    async def _claim(self, look: Callable[[ClaimQuery], Look], query: ClaimQuery) -> Look:
        """Look for a task; what is found after the client has gone is given back."""
        future = self._start(look, query)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._unclaim)
            raise

    def _unclaim(self, future: asyncio.Future[Look]) -> None:
        if (
            not future.cancelled()
            and future.exception() is None
            and (task := future.result().task) is not None
        ):
            self._start(self.store.give_back, task, then=lambda _: self._wake(task.queue))

    def _try(self, query: ClaimQuery) -> Look:
        return Look(self.store.claim(query))

    def _look(self, query: ClaimQuery) -> Look:
        for _ in range(LOOKS):
            # RACE: armed before the look, so that what comes after it is told.
            if self._watch is not None:
                self._watch.arm(query.queues)
            task = self.store.claim(query)
            if task is not None:
                return Look(task)
            if self._watch is None or not self._watch.missed(query.queues):
                break
        now = self.store.time()
        arrivals = [(queue, self.store.next_arrival((queue,))) for queue in query.queues]
        return Look(None, [(queue, at - now) for queue, at in arrivals if at is not None])

    # --- waiting -------------------------------------------------------------------------------------------

    def _enter(self, claimant: Claimant) -> None:
        self._waiting[claimant] = None
        for queue in claimant.query.queues:
            self._by_queue.setdefault(queue, {})[claimant] = None

    def _leave(self, claimant: Claimant, task: Task | None) -> None:
        """Hand on the wakes that were not used."""
        del self._waiting[claimant]
        for queue in set(claimant.query.queues):
            others = self._by_queue[queue]
            del others[claimant]
            if not others:
                del self._by_queue[queue]
                self._looked.pop(queue, None)
                if (timer := self._timers.pop(queue, None)) is not None:
                    timer.cancel()
        # RACE: a wake that came during the look may be of another task than the one it found.
        unused = dict.fromkeys(claimant.woken)
        unused |= dict.fromkeys(
            queue for queue, more in claimant.looking.items() if more or task is None or task.queue != queue
        )
        for queue in unused:
            self._wake(queue)

    def _wake(self, queue: str, count: int | None = None) -> None:
        """Let so many claims look at a queue; without a number, one, and the next one if that finds something."""
        left = count or 1
        waiting = self._by_queue.get(queue, ())
        for resting in (True, False):  # whoever looks just now may find it anyway
            for claimant in waiting:
                if not left:
                    return
                if claimant.resting is resting and not claimant.event.is_set():
                    claimant.woken[queue] = count is None
                    claimant.event.set()
                    left -= 1

    def _rest(self, queues: Iterable[str], arrivals: Iterable[tuple[str, int]]) -> None:
        """Learn from a look that found nothing when something will be there."""
        looked = asyncio.get_running_loop().time()
        for queue in queues:
            self._looked[queue] = looked
        for queue, milliseconds in arrivals:
            self._wake_in(queue, milliseconds)

    def _expect(self, task: Task) -> None:
        """Remember when a task that is held can be claimed again, if somebody waits for it."""
        if task.queue in self._by_queue:
            self._wake_in(task.queue, task.at - task.modified)

    def _wake_in(self, queue: str, milliseconds: int) -> None:
        if queue not in self._by_queue:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, milliseconds / 1000) + SOON
        timer = self._timers.get(queue)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[queue] = loop.call_at(when, self._due, queue)

    def _due(self, queue: str) -> None:
        del self._timers[queue]
        self._wake(queue)

    def _modified(self, modified: Modified) -> None:
        """Wake one claim for each task that can be claimed now."""
        counts: dict[str, int] = {}
        for task in (*modified.inserted, *modified.changed):
            if task.at <= task.modified:
                counts[task.queue] = counts.get(task.queue, 0) + 1
            else:
                self._wake_in(task.queue, task.at - task.modified)
        for queue, count in counts.items():
            self._wake(queue, count)

    async def _sweep(self) -> None:
        """Look again at queues that are not watched, or that nothing was heard of for long: a hint may be lost."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL)
            now = loop.time()
            for queue in list(self._by_queue):
                watched = self._watch is not None and self._watch.armed(queue)
                if now - self._looked.get(queue, now) >= (REST if watched else POLL):
                    self._looked[queue] = now
                    self._wake(queue)


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[str], None], queue: str) -> None:
    try:
        loop.call_soon_threadsafe(call, queue)
    except RuntimeError:
        pass  # RACE: the loop has ended


def _page(found: Iterator[Task]) -> list[Task]:
    page = []
    for task in found:
        page.append(task)
        if len(page) == PAGE:
            break
    return page
