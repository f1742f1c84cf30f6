"""The index's `EntroQWorker`: claim, renew while the handler works, commit what it returns.

Layer: edges.
Invariant: what a handler returns is committed with the version of the last renewal, or not at all. A renewal that is
under way is waited for before the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from dirqueue.compat.entroq.client import EntroQJSON
from dirqueue.compat.entroq.types import (
    DependencyError,
    Modification,
    Task,
    TaskArrival,
    TaskChange,
    TaskID,
    TransportError,
)

_log = logging.getLogger(__name__)

#: A renewal comes when so much of the lease is over, and may fail for what is left of it.
RENEWED_AT = 2 / 3
#: Seconds that a renewal under way has to end.
HANDOFF = 10.0

Work = Callable[[Task, list[Any]], Awaitable[Modification | None]]


class StopWorker(Exception):
    """Stop the worker; the task in hand is given back, and no attempt is counted."""


class FatalWorker(Exception):
    """Stop the worker with this error; the task comes back when its lease is over."""


class RetryError(Exception):
    """The work failed: again after `delay_s` seconds; after the last attempt to the error queue, or to `or_move_to`."""

    def __init__(
        self,
        message: str = "",
        *,
        delay_s: float | None = None,
        or_move_to: str = "",
        then_stop: bool = False,
    ) -> None:
        super().__init__(message)
        self.delay_s = delay_s
        self.or_move_to = or_move_to
        self.then_stop = then_stop


class MoveError(Exception):
    """The work can never succeed: to the error queue, or to `queue`."""

    def __init__(self, message: str = "", *, queue: str = "", then_stop: bool = False) -> None:
        super().__init__(message)
        self.queue = queue
        self.then_stop = then_stop


def default_err_q_map(inbox: str) -> str:
    """Return the error queue of a queue."""
    return f"{inbox}/err"


class Handler(ABC):
    """What is done with a task."""

    @abstractmethod
    async def do_work(self, task: Task, docs: list[Any]) -> Modification | None:
        """Work on a task; return what is to be committed. `docs` is empty: dirqueue has none."""

    async def on_success(self, task: Task, docs: list[Any]) -> None:
        """Do what follows a commit; it cannot undo it."""
        await self.finish(task, docs)

    async def finish(self, task: Task, docs: list[Any]) -> None:  # noqa: B027 - may be left out
        """Do the same, by its former name."""


class FunctionHandler(Handler):
    """A handler made of functions."""

    def __init__(self, work: Work, after: Callable[[Task, list[Any]], Awaitable[None]] | None = None) -> None:
        self._work = work
        self._after = after

    async def do_work(self, task: Task, docs: list[Any]) -> Modification | None:
        return await self._work(task, docs)

    async def on_success(self, task: Task, docs: list[Any]) -> None:
        if self._after is not None:
            await self._after(task, docs)

    def finisher(self, after: Callable[[Task, list[Any]], Awaitable[None]]) -> FunctionHandler:
        """Return the same handler with what follows a commit."""
        return FunctionHandler(self._work, after)


class EntroQWorker:
    """Claims tasks of some queues, one after the other, and lets a handler work on them.

    Args:
        client: Where the tasks are.
        queues: Their queues.
        claim_duration_s: How long a claim lasts; it is renewed while the handler works.
        err_queue: Where tasks go that failed for good; or `err_q_map`, by their queue. QUEUE/err if neither is given.
        retry_delay_s: Seconds between a failure and the next attempt.
        work_timeout_s: Seconds after which a handler is cancelled and the task retried; 0 = none.
        max_attempts: Failures after which a task goes to the error queue; 0 = no limit.
        max_claims: Claims without a word after which a task goes to the error queue unseen; 0 = no limit.
    """

    def __init__(
        self,
        client: EntroQJSON,
        *queues: str,
        claim_duration_s: float = 45.0,
        err_queue: str = "",
        err_q_map: Callable[[str], str] | None = None,
        retry_delay_s: float = 30.0,
        work_timeout_s: float = 300.0,
        max_attempts: int = 0,
        max_claims: int = 5,
        retry_transport_errors: bool = True,
        transport_retry_base_s: float = 1.0,
        transport_retry_max_s: float = 30.0,
    ) -> None:
        if err_queue and err_q_map is not None:
            raise ValueError("err_queue and err_q_map say the same: give one of them")
        if not 0 <= transport_retry_base_s <= transport_retry_max_s:
            raise ValueError("transport_retry_base_s is from 0 to transport_retry_max_s")
        self._client = client
        self._queues = list(queues)
        self._duration_ms = int(claim_duration_s * 1000)
        self._err_q_map = (lambda _: err_queue) if err_queue else err_q_map or default_err_q_map
        self.retry_delay_s = retry_delay_s
        self.work_timeout_s = work_timeout_s
        self.max_attempts = max_attempts
        self.max_claims = max_claims
        self._again = retry_transport_errors
        self._pauses = (transport_retry_base_s, transport_retry_max_s)
        self._stopped = asyncio.Event()

    @classmethod
    def handler(cls, work: Work) -> FunctionHandler:
        """Return a handler made of an async function; a decorator."""
        return FunctionHandler(work)

    def stop(self) -> None:
        """Stop after the task in hand; a claim that waits ends at once."""
        self._stopped.set()

    def error_queue_for(self, inbox: str) -> str:
        """Return where tasks of a queue go that failed for good."""
        return self._err_q_map(inbox) or default_err_q_map(inbox)

    async def run(self, handler: Handler) -> None:
        """Work until it is stopped."""
        self._stopped.clear()
        client = self._client.as_claimant(secrets.token_hex(8))
        while (task := await self._claim(client)) is not None:
            try:
                if not await Hand(self, client, task).run(handler):
                    return
            except DependencyError as error:
                _log.warning("task %s was taken away, and its work thrown away: %s", task.id, error)

    async def _claim(self, client: EntroQJSON) -> Task | None:
        """Return the next task; None if the worker is to stop."""
        pause, longest = self._pauses
        while not self._stopped.is_set():
            claim = asyncio.ensure_future(client.claim(self._queues, duration_ms=self._duration_ms))
            stop = asyncio.ensure_future(self._stopped.wait())
            try:
                await asyncio.wait({claim, stop}, return_when=asyncio.FIRST_COMPLETED)
                if claim.done():
                    task: Task = claim.result()
                    return task
            except TransportError as error:
                if not (self._again and error.safe_to_retry):
                    raise
                _log.warning("a claim failed, and is tried again: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), random.uniform(0, pause))  # noqa: S311 - no secret
                pause = min(longest, pause * 2)
            finally:
                await _end(claim, stop)
        return None


class Hand:
    """One task in the hands of a worker."""

    def __init__(self, worker: EntroQWorker, client: EntroQJSON, task: Task) -> None:
        self._worker = worker
        self._client = client
        #: At the version of the last renewal.
        self._task = task
        self._lost: DependencyError | None = None
        self._over = asyncio.Event()

    async def run(self, handler: Handler) -> bool:
        """Work on the task and settle it; return whether the worker goes on."""
        worker = self._worker
        if 0 < worker.max_claims < self._task.claims:
            await self._move("", f"maximum claims exceeded ({worker.max_claims})")
            return True
        try:
            modification = await self._work(handler)
        except StopWorker:
            await self._settle(at=None)
            return False
        except (RetryError, MoveError) as error:
            await self._fail(error)
            return not error.then_stop
        except (FatalWorker, DependencyError):
            raise
        except Exception as error:
            # The last claim that is allowed: the next one would move it without saying why.
            if 0 < worker.max_claims <= self._task.claims:
                await self._move("", f"failed at the claim limit ({worker.max_claims}): {error}")
            raise
        return await self._commit(modification or Modification(), handler)

    async def _work(self, handler: Handler) -> Modification | None:
        """Let the handler work while the claim is renewed."""
        seconds = self._worker.work_timeout_s or None
        body = asyncio.ensure_future(handler.do_work(self._task, []))
        renewer = asyncio.ensure_future(self._renew(body))
        try:
            done, _ = await asyncio.wait({body}, timeout=seconds)
            if not done:
                raise RetryError(f"work did not finish within {seconds}s")
        finally:
            await _end(body)
            # Not cancelled: a renewal under way may have happened already, and only its answer tells the version.
            self._over.set()
            await asyncio.wait({renewer}, timeout=HANDOFF)
            await _end(renewer)
        if self._lost is not None and not isinstance(_failure(body), FatalWorker):
            raise self._lost
        return body.result()

    async def _renew(self, body: asyncio.Future[Any]) -> None:
        """Renew the claim until the work is over; cancel the work if the task is lost."""
        task = self._task
        lease = (task.at - (task.modified or datetime.now(UTC))).total_seconds()
        usual, margin = lease * RENEWED_AT, lease * (1 - RENEWED_AT)
        pause, failed = usual, 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause)
                return
            try:
                done = await self._client.modify(Modification(Modification.arriving(self._task, lease)))
                self._task, pause, failed = done.tasks_changed[0], usual, 0.0
            except DependencyError as error:
                self._lost = error
                body.cancel()
                return
            except TransportError as error:
                failed = min(usual, failed * 2 or margin / 8)
                pause = failed * random.uniform(1, 1.25)  # noqa: S311 - spreads workers, no secret
                _log.warning("renewing task %s failed, again in %.3f s: %s", task.id, pause, error)

    async def _commit(self, modification: Modification, handler: Handler) -> bool:
        """Commit what the handler returned, with the version that the task has now."""
        task = self._task
        named: list[TaskChange | TaskArrival | TaskID] = [
            *modification.task_changes,
            *modification.task_arrivals,
            *modification.task_deletes,
            *modification.task_depends,
        ]
        for each in named:
            if each.id == task.id:
                each.version = task.version
        for change in modification.task_changes:
            change.reset_claims = change.reset_claims or change.id == task.id
        if not modification.is_empty():
            await self._client.modify(modification)
        try:
            await handler.on_success(task, [])
        except StopWorker:
            return False
        except FatalWorker:
            raise
        except Exception:  # noqa: BLE001 - whatever it is: the commit stands
            _log.exception("task %s is committed, and what follows it failed", task.id)
        return not modification.then_stop

    async def _fail(self, error: RetryError | MoveError) -> None:
        worker, attempt = self._worker, self._task.attempt + 1
        if isinstance(error, MoveError):
            await self._move(error.queue, str(error))
        elif 0 < worker.max_attempts <= attempt:
            await self._move(error.or_move_to, str(error))
        else:
            delay = worker.retry_delay_s if error.delay_s is None else error.delay_s
            await self._settle(
                at=datetime.now(UTC) + timedelta(seconds=delay), attempt=attempt, err=str(error)
            )

    async def _move(self, queue: str, reason: str) -> None:
        """Move the task to the error queue, for people to look at."""
        to = queue or self._worker.error_queue_for(self._task.queue)
        await self._settle(queue=to, at=None, attempt=self._task.attempt + 1, err=reason)

    async def _settle(self, **fields: Any) -> None:
        change = Modification.changing(self._task, reset_claims=True, **fields)
        await self._client.modify(Modification(change))


async def _end(*futures: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait for it."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


def _failure(future: asyncio.Future[Any]) -> BaseException | None:
    return None if future.cancelled() else future.exception()
