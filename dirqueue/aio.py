"""The queue for asyncio: the same names, awaited.

Layer: conveniences.  Each call runs in a thread, waiting does not; a message claimed by a call that was cancelled
meanwhile is released.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from dirqueue import codecs
from dirqueue.errors import DirQueueError, Empty, Full
from dirqueue.layouts.base import Purged
from dirqueue.lease import Lease
from dirqueue.message import Message
from dirqueue.queue import Queue
from dirqueue.settings import Settings, check_seconds
from dirqueue.stats import Stats
from dirqueue.waiting import GROWTH, LONGEST, SHORTEST

T = TypeVar("T")
R = TypeVar("R")


class AsyncLease(Generic[T]):
    """A lease whose ends are awaited; `async with` does what `with` does for a lease."""

    def __init__(self, lease: Lease[T]) -> None:
        self.lease = lease

    def __repr__(self) -> str:
        return f"<Async{repr(self.lease)[1:]}"

    def __getattr__(self, name: str) -> Any:
        """Whatever needs no waiting is the lease's own: message, token, until, seconds, lost, ended."""
        return getattr(self.lease, name)

    async def ack(self) -> None:
        """See `Lease.ack`."""
        await asyncio.to_thread(self.lease.ack)

    async def retry(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """See `Lease.retry`."""
        await asyncio.to_thread(self.lease.retry, delay, error)

    async def release(self) -> None:
        """See `Lease.release`."""
        await asyncio.to_thread(self.lease.release)

    async def reject(self, reason: str | BaseException = "rejected") -> None:
        """See `Lease.reject`."""
        await asyncio.to_thread(self.lease.reject, reason)

    async def renew(self, seconds: float | None = None) -> None:
        """See `Lease.renew`."""
        await asyncio.to_thread(self.lease.renew, seconds)

    async def __aenter__(self) -> Message[T]:
        return self.lease.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Shielded: a task that is cancelled while it commits must still have committed or not, not both.
        return await asyncio.shield(asyncio.to_thread(self.lease.__exit__, kind, error, trace))


class AsyncQueue(Generic[T]):
    """A `Queue` for asyncio."""

    def __init__(self, path: str | os.PathLike[str], *, codec: Any = codecs.BYTES, **settings: Any) -> None:
        self.queue: Queue[T] = Queue(path, codec=codec, **settings)

    @classmethod
    async def create(
        cls, path: str | os.PathLike[str], *, codec: Any = codecs.BYTES, **settings: Any
    ) -> AsyncQueue[T]:
        """See `Queue.create`."""
        await asyncio.to_thread(lambda: Queue.create(path, codec=codec, **settings))
        return await asyncio.to_thread(lambda: cls(path, codec=codec))

    def __repr__(self) -> str:
        return f"Async{self.queue!r}"

    @property
    def path(self) -> str:
        """The directory."""
        return self.queue.path

    @property
    def settings(self) -> Settings:
        """What the queue was opened with."""
        return self.queue.settings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See `Queue.close`."""
        self.queue.close()

    async def put(
        self, body: T | str, *, delay: float = 0, priority: int | None = None, timeout: float | None = None
    ) -> str:
        """See `Queue.put`. A put that is cancelled may still have happened."""
        return await self._patiently(
            Full, timeout, lambda: self.queue.put(body, delay=delay, priority=priority, timeout=0)
        )

    async def put_many(
        self,
        bodies: Iterable[T | str],
        *,
        delay: float = 0,
        priority: int | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """See `Queue.put_many`."""
        if self.settings.max_messages:
            bodies = list(bodies)
        return await self._patiently(
            Full, timeout, lambda: self.queue.put_many(bodies, delay=delay, priority=priority, timeout=0)
        )

    async def put_path(
        self,
        file: str | os.PathLike[str],
        *,
        delay: float = 0,
        priority: int | None = None,
        timeout: float | None = None,
    ) -> str:
        """See `Queue.put_path`."""
        return await self._patiently(
            Full, timeout, lambda: self.queue.put_path(file, delay=delay, priority=priority, timeout=0)
        )

    async def get(self, *, timeout: float | None = None, lease: float | None = None) -> AsyncLease[T]:
        """See `Queue.get`."""
        return AsyncLease(
            await self._patiently(
                Empty, timeout, lambda: self.queue.get(timeout=0, lease=lease), undo=_give_back
            )
        )

    async def _patiently(
        self,
        not_yet: type[DirQueueError],
        timeout: float | None,
        call: Callable[[], R],
        undo: Callable[[asyncio.Future[R]], None] | None = None,
    ) -> R:
        """Try in a thread, sleep outside of it, try again: who waits holds no thread that others need."""
        if timeout is not None:
            timeout = check_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = SHORTEST
        while True:
            attempt = asyncio.ensure_future(asyncio.to_thread(call))
            try:
                return await asyncio.shield(attempt)
            except not_yet:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            except asyncio.CancelledError:
                attempt.add_done_callback(undo or _ignore)
                raise
            left = pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic()))
            await asyncio.sleep(left)
            pause = min(pause * GROWTH, LONGEST)

    async def get_many(
        self, n: int, *, timeout: float | None = None, lease: float | None = None
    ) -> list[AsyncLease[T]]:
        """See `Queue.get_many`."""
        leases = [await self.get(timeout=timeout, lease=lease)]
        if n > 1:
            try:
                more = await asyncio.to_thread(self.queue.get_many, n - 1, timeout=0, lease=lease)
            except Empty:
                return leases
            leases += map(AsyncLease, more)
        return leases

    async def consume(
        self, timeout: float | None = None, limit: int | None = None, *, lease: float | None = None
    ) -> AsyncIterator[AsyncLease[T]]:
        """See `Queue.consume`."""
        done = 0
        while limit is None or done < limit:
            try:
                claimed = await self.get(timeout=timeout, lease=lease)
            except Empty:
                return
            done += 1
            yield claimed

    async def peek(self, state: str = "ready", limit: int | None = None) -> list[Message[T]]:
        """See `Queue.peek`; a list, since looking is done in a thread."""
        return await asyncio.to_thread(lambda: list(self.queue.peek(state, limit)))

    async def message(self, id: str) -> Message[T]:
        """See `Queue.message`."""
        return await asyncio.to_thread(self.queue.message, id)

    async def stats(self) -> Stats:
        """See `Queue.stats`."""
        return await asyncio.to_thread(self.queue.stats)

    async def redrive(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        match: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> list[str]:
        """See `Queue.redrive`."""
        return await asyncio.to_thread(self.queue.redrive, ids, match=match, limit=limit, dry_run=dry_run)

    async def purge(self, *, progress: Callable[[], None] | None = None) -> Purged:
        """See `Queue.purge`."""
        return await asyncio.to_thread(self.queue.purge, progress=progress)

    async def clear(self) -> int:
        """See `Queue.clear`."""
        return await asyncio.to_thread(self.queue.clear)

    async def flush(self) -> int:
        """See `Queue.flush`."""
        return await asyncio.to_thread(self.queue.flush)


def _ignore(attempt: asyncio.Future[Any]) -> None:
    """Nobody will ask for the outcome of a cancelled call."""
    if not attempt.cancelled():
        attempt.exception()


def _give_back(claim: asyncio.Future[Lease[Any]]) -> None:
    """Release what a cancelled get claimed after all."""
    if claim.cancelled() or claim.exception() is not None:
        return
    try:
        claim.result().release()
    except DirQueueError:
        pass  # then it runs out by itself
