"""The space for asyncio: the same names, awaited.

Layer: conveniences.  Each call runs in a thread of the space's own; waiting does not.
A transaction is built without waiting and committed by an await; its commit is never abandoned half way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from dirqueue import codecs
from dirqueue.aio import AsyncLease, Threads
from dirqueue.consumer import give_back
from dirqueue.errors import Empty
from dirqueue.layouts.base import Purged
from dirqueue.lease import Lease
from dirqueue.message import Message
from dirqueue.settings import StrPath, check_seconds
from dirqueue.space import Committed, Space, Transaction
from dirqueue.space.steps import KEEP, Keep
from dirqueue.stats import Stats
from dirqueue.waiting import GROWTH, LONGEST, SHORTEST

T = TypeVar("T")
R = TypeVar("R")


class AsyncTransaction:
    """A `Transaction` for asyncio: built as one, with leases of either kind, and committed by an await."""

    def __init__(self, transaction: Transaction, threads: Threads) -> None:
        self.transaction = transaction
        self._threads = threads

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._threads.finish(lambda: self.transaction.__exit__(kind, error, trace))

    async def put(
        self,
        queue: str,
        body: Any,
        *,
        delay: float = 0,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        id: str | None = None,
        skip_existing: bool = False,
        at: datetime | None = None,
        failures: int = 0,
        error: str | BaseException | None = None,
    ) -> str:
        """See `Transaction.put`."""
        return await self._threads.run(
            lambda: self.transaction.put(
                queue,
                body,
                delay=delay,
                ttl=ttl,
                priority=priority,
                attributes=attributes,
                id=id,
                skip_existing=skip_existing,
                at=at,
                failures=failures,
                error=error,
            )
        )

    def ack(self, lease: AsyncLease[Any]) -> None:
        """See `Transaction.ack`."""
        self.transaction.ack(lease.lease)

    def retry(
        self, lease: AsyncLease[Any], delay: float | None = None, error: str | BaseException | None = None
    ) -> None:
        """See `Transaction.retry`."""
        self.transaction.retry(lease.lease, delay, error)

    def release(self, lease: AsyncLease[Any]) -> None:
        """See `Transaction.release`."""
        self.transaction.release(lease.lease)

    def reject(self, lease: AsyncLease[Any], reason: str | BaseException = "rejected") -> None:
        """See `Transaction.reject`."""
        self.transaction.reject(lease.lease, reason)

    def renew(self, what: AsyncLease[Any] | Message[Any], seconds: float | None = None) -> None:
        """See `Transaction.renew`."""
        self.transaction.renew(_bare(what), seconds)

    def cancel(self, message: Message[Any]) -> None:
        """See `Transaction.cancel`."""
        self.transaction.cancel(message)

    def move(self, what: AsyncLease[Any] | Message[Any], queue: str, *, delay: float = 0) -> None:
        """See `Transaction.move`."""
        self.transaction.move(_bare(what), queue, delay=delay)

    def change(
        self,
        what: AsyncLease[Any] | Message[Any],
        *,
        body: Any = KEEP,
        delay: float | Keep = KEEP,
        at: datetime | None = None,
        queue: str | Keep = KEEP,
        failures: int | Keep = KEEP,
        error: str | BaseException | Keep | None = KEEP,
        attempts: int | Keep = KEEP,
    ) -> None:
        """See `Transaction.change`."""
        self.transaction.change(
            _bare(what),
            body=body,
            delay=delay,
            at=at,
            queue=queue,
            failures=failures,
            error=error,
            attempts=attempts,
        )

    def need(self, what: AsyncLease[Any] | Message[Any]) -> None:
        """See `Transaction.need`."""
        self.transaction.need(_bare(what))

    async def commit(self) -> Committed:
        """See `Transaction.commit`. A task that is cancelled meanwhile is cancelled when the commit is over."""
        return await self._threads.finish(self.transaction.commit)

    def abort(self) -> None:
        """See `Transaction.abort`."""
        self.transaction.abort()


class AsyncSpace(Generic[T]):
    """A `Space` for asyncio."""

    def __init__(self, root: StrPath, *, codec: Any = codecs.BYTES, **settings: Any) -> None:
        """See `Space`."""
        self.space: Space[T] = Space(root, codec=codec, **settings)
        self._threads = Threads()

    def __repr__(self) -> str:
        return f"Async{self.space!r}"

    def __reduce__(self) -> NoReturn:
        self.space.__reduce__()

    @property
    def path(self) -> str:
        """The directory."""
        return self.space.path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls that run, then let go of threads and descriptors; the next use opens them again."""
        closer = Threads()
        try:
            await closer.finish(self._close)
        finally:
            closer.close(wait=False)

    def _close(self) -> None:
        self._threads.close()
        self.space.close()

    async def put(
        self,
        queue: str,
        body: Any,
        *,
        delay: float = 0,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        id: str | None = None,
        skip_existing: bool = False,
    ) -> str:
        """See `Space.put`. A put that is cancelled may still have happened."""
        return await self._threads.run(
            lambda: self.space.put(
                queue,
                body,
                delay=delay,
                ttl=ttl,
                priority=priority,
                attributes=attributes,
                id=id,
                skip_existing=skip_existing,
            )
        )

    async def get(
        self,
        *queues: str,
        timeout: float | None = None,
        lease: float | None = None,
        holder: str | None = None,
    ) -> AsyncLease[T]:
        """See `Space.get`. What a cancelled call has claimed is given back."""
        claimed: Lease[T] = await self._patiently(
            timeout,
            lambda: self.space.get(*queues, timeout=0, lease=lease, holder=holder),
            lambda late: give_back([late]),
        )
        return AsyncLease(claimed, self._threads)

    async def _patiently(
        self, timeout: float | None, call: Callable[[], R], undo: Callable[[R], object] | None = None
    ) -> R:
        """Retry in a thread and sleep on the event loop in between, so that a waiting task occupies no thread."""
        if timeout is not None:
            timeout = check_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = SHORTEST
        while True:
            try:
                return await self._threads.run(call, undo)
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            left = pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic()))
            await asyncio.sleep(left)
            pause = min(pause * GROWTH, LONGEST)

    def transaction(self, *, holder: str | None = None) -> AsyncTransaction:
        """See `Space.transaction`; `async with` commits at the end of the block."""
        return AsyncTransaction(self.space.transaction(holder=holder), self._threads)

    async def names(
        self, *, prefix: str = "", names: Iterable[str] = (), limit: int | None = None
    ) -> list[str]:
        """See `Space.names`."""
        return await self._threads.run(lambda: self.space.names(prefix=prefix, names=names, limit=limit))

    async def stats(
        self, *, prefix: str = "", names: Iterable[str] = (), limit: int | None = None
    ) -> dict[str, Stats]:
        """See `Space.stats`."""
        return await self._threads.run(lambda: self.space.stats(prefix=prefix, names=names, limit=limit))

    async def message(self, id: str, queue: str | None = None) -> Message[T]:
        """See `Space.message`."""
        return await self._threads.run(lambda: self.space.message(id, queue))

    async def messages(self, queue: str, *, limit: int | None = None) -> list[Message[T]]:
        """See `Space.messages`."""
        return await self._threads.run(lambda: self.space.messages(queue, limit=limit))

    def queue_of(self, what: AsyncLease[Any] | Message[Any]) -> str:
        """See `Space.queue_of`."""
        return self.space.queue_of(_bare(what))

    async def empty(self, *queues: str) -> bool:
        """See `Space.empty`."""
        return await self._threads.run(lambda: self.space.empty(*queues))

    async def wait_empty(self, *queues: str, timeout: float | None = None) -> bool:
        """See `Space.wait_empty`."""
        deadline = None if timeout is None else time.monotonic() + check_seconds("timeout", timeout)
        pause = SHORTEST
        while not await self.empty(*queues):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST)
        return True

    async def now(self) -> datetime:
        """See `Space.now`."""
        return await self._threads.run(self.space.now)

    async def purge(self) -> Purged:
        """See `Space.purge`."""
        return await self._threads.run(self.space.purge)


def _bare(what: AsyncLease[Any] | Message[Any]) -> Lease[Any] | Message[Any]:
    return what.lease if isinstance(what, AsyncLease) else what
