"""Running async handlers: tasks of one event loop, in a thread of its own.

Layer: conveniences.
One thread claims, the loop runs the handlers, a few threads commit: so a handler that awaits holds no thread, and a
slow disk does not hold up the loop. Leases are renewed elsewhere, so even a handler that blocks the loop keeps its own.
Invariant: every delivery that was started is settled once, when its task has ended, however it ended.
Limit: a task is cancelled at its next await. One that blocks the loop, or swallows the cancellation, goes on.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dirqueue.errors import DirQueueError
from dirqueue.lease import Lease, Outcome
from dirqueue.worker.outcome import call_async
from dirqueue.worker.slot import LOOK_SECONDS, Slot, settle
from dirqueue.worker.watchdog import Delivery

if TYPE_CHECKING:
    from dirqueue.worker.run import Run

#: Threads that commit: enough for their waits for the disk to overlap.
COMMITTERS = 8
#: How long the loop may take to end: what handlers have left behind is cancelled, its threads are waited for.
END_SECONDS = 2.0


class Committers:
    """Threads that run calls, in the order in which they come.

    Not those of concurrent.futures: they would keep the program from ending while a disk does not answer.
    """

    def __init__(self, number: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._main, name=f"dirqueue-commit-{each}", daemon=True)
            for each in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Have a call run soon."""
        self._calls.put(call)

    def close(self) -> None:
        """End the threads after the calls that have come."""
        for _ in self._threads:
            self._calls.put(None)

    def _main(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            call()


class Tasks:
    """The handlers that are running: at most `concurrency` tasks of one event loop."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        concurrency: int,
        ended: Callable[[Delivery, Outcome], None],
        fail: Callable[[Exception], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._ended = ended
        self._fail = fail
        self._stopping = stopping
        # Reentrant: a signal handler may come here while the code that it interrupted is here.
        self._changed = threading.Condition(threading.RLock())
        #: Every delivery that is not settled yet, and its task once it has begun.
        self._tasks: dict[Delivery, asyncio.Task[Outcome] | None] = {}
        #: Those whose task was cancelled: once, so that its own cleaning up is not cancelled too.
        self._cancelled: set[Delivery] = set()
        self._broken = False
        self._committers = Committers(min(concurrency, COMMITTERS))
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="dirqueue-loop", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a delivery is not settled yet."""
        return bool(self._tasks)

    def prepare(self) -> bool:
        """Wait for a free place, before a claim. Return False if the worker stops meanwhile."""
        with self._changed:
            while len(self._tasks) >= self._concurrency and not self._stopping():
                self._changed.wait(LOOK_SECONDS)
        return not self._stopping()

    def run(self, delivery: Delivery) -> Outcome:
        """Not used: a delivery is started, and `ended` is called."""
        raise NotImplementedError

    def start(self, delivery: Delivery) -> None:
        """Run the handler as a task; `ended` is called with what came of it, in another thread."""
        with self._changed:
            self._tasks[delivery] = None
        try:
            self._loop.call_soon_threadsafe(self._begin, delivery)
        except RuntimeError:  # the loop broke down, and is closed
            self._settle(delivery, Outcome("release"))

    def cancel(self, delivery: Delivery) -> bool:
        """Cancel the task. Return False if it has not begun yet, to be tried again."""
        with self._changed:
            task = self._tasks.get(delivery)
            if task is None:
                return False
            if delivery not in self._cancelled:
                self._cancelled.add(delivery)
                try:
                    self._loop.call_soon_threadsafe(task.cancel)
                except RuntimeError:
                    pass  # the loop broke down, and took its tasks with it
        return True

    def close(self) -> None:
        """Wait until every delivery is settled, then end the loop."""
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks)
        self._committers.close()
        try:
            self._loop.call_soon_threadsafe(self._over.set)
        except RuntimeError:
            pass  # it broke down
        self._thread.join(END_SECONDS)

    # --- in the thread of the loop -------------------------------------------------------------------------

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._until_over())
            except BaseException as error:  # noqa: BLE001 - SystemExit in a task that a handler left behind
                self._broken = True
                reason = f"{type(error).__name__}: {error}"
                self._fail(DirQueueError(f"a task that a handler started ended the event loop: {reason}"))
        for delivery in list(self._tasks):  # none, unless the loop broke down before it had begun with them
            self._settle(delivery, Outcome("release"))

    async def _until_over(self) -> None:
        await self._over.wait()

    def _begin(self, delivery: Delivery) -> None:
        task = self._loop.create_task(call_async(self._handler, delivery.lease.message))
        task.add_done_callback(lambda done: self._finished(delivery, done))
        with self._changed:
            self._tasks[delivery] = task

    def _finished(self, delivery: Delivery, task: asyncio.Task[Outcome]) -> None:
        # A task that is cancelled before its first step has no outcome; one whose loop broke down is not to blame.
        outcome = Outcome("release") if task.cancelled() or self._broken else task.result()
        self._committers.submit(lambda: self._settle(delivery, outcome))

    # --- in a thread that commits --------------------------------------------------------------------------

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        try:
            self._ended(delivery, outcome)
        except Exception as error:  # noqa: BLE001 - raised by run()
            self._fail(error)
        finally:
            with self._changed:
                self._tasks.pop(delivery, None)
                self._cancelled.discard(delivery)
                self._changed.notify_all()


class LoopSlot(Slot):
    """Claims in its own thread as long as there is a free place, and has the loop handle the messages."""

    call: Tasks

    def __init__(self, run: Run, handler: Callable[[Any], Awaitable[object]], concurrency: int) -> None:
        self._looked_in_vain = False
        tasks = Tasks(handler, concurrency, self._settle, run.fail, lambda: run.stopping)
        super().__init__(run, tasks, 1)
        self.places = concurrency

    @property
    def idle(self) -> bool:
        """Whether the last look found nothing, and nothing runs."""
        return self._looked_in_vain and not self.call.busy

    @idle.setter
    def idle(self, value: bool) -> None:
        self._looked_in_vain = value

    def _deliver(self, lease: Lease[Any]) -> None:
        delivery = self._begun(lease)
        if delivery is not None:
            self.call.start(delivery)

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        run = self._run
        run.watchdog.remove(delivery)
        run.refresh()
        settle(delivery, outcome, run.plan.time_limit, run.emit)
        run.worked()
