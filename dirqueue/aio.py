"""The queue for asyncio: the same names, awaited.

Layer: conveniences.  Each call runs in a thread of the queue's own; waiting does not.
A message claimed by a call that was cancelled meanwhile is released. An end of a lease (ack, retry, release, reject,
renew) is never abandoned half way: a task cancelled meanwhile is cancelled when the end is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, Unpack, overload

from dirqueue import codecs
from dirqueue.admission import PutOptions
from dirqueue.codecs import Codec
from dirqueue.consumer import FRESH_SECONDS, give_back
from dirqueue.disk.identity import PROCESS
from dirqueue.errors import DirQueueError, Empty, Full
from dirqueue.layouts.base import Purged
from dirqueue.lease import Lease
from dirqueue.message import Message
from dirqueue.queue import Queue
from dirqueue.settings import Given, Settings, StrPath, check_seconds
from dirqueue.stats import Stats
from dirqueue.waiting import GROWTH, LONGEST, SHORTEST

T = TypeVar("T")
R = TypeVar("R")


class Threads:
    """The threads of one queue. Its calls do not queue up behind those of other libraries in the loop's executor."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._generation = PROCESS.generation

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Start a call."""
        if self._pool is None or self._generation != PROCESS.generation:  # the parent's threads are not ours
            self._pool = ThreadPoolExecutor(thread_name_prefix="dirqueue-aio")
            self._generation = PROCESS.generation
        return self._pool.submit(call)

    async def run(self, call: Callable[[], R], undo: Callable[[R], object] | None = None) -> R:
        """Run a call. If the task is cancelled meanwhile the call is not started, or its result is undone."""
        future = self.submit(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and undo is not None:
                # Runs in the thread of the call, even if the loop has ended by then.
                future.add_done_callback(lambda done: None if done.exception() else undo(done.result()))
            raise

    async def finish(self, call: Callable[[], R]) -> R:
        """Run a call to its end. If the task is cancelled meanwhile, the cancellation waits for that."""
        future = asyncio.wrap_future(self.submit(call))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # retrieved: the cancellation is all that the task hears of
            raise cancelled
        return future.result()

    def close(self, *, wait: bool = True) -> None:
        """End the threads when the calls that run are over, and wait for that."""
        pool, self._pool = self._pool, None
        if pool is not None and self._generation == PROCESS.generation:
            pool.shutdown(wait=wait)


class AsyncLease(Generic[T]):
    """A lease whose ends are awaited; `async with` does what `with` does for a lease."""

    def __init__(self, lease: Lease[T], threads: Threads) -> None:
        self.lease = lease
        self._threads = threads

    def __repr__(self) -> str:
        return f"<Async{repr(self.lease)[1:]}"

    def __reduce__(self) -> NoReturn:
        self.lease.__reduce__()

    @property
    def message(self) -> Message[T]:
        """See `Lease.message`."""
        return self.lease.message

    @property
    def path(self) -> str:
        """See `Lease.path`."""
        return self.lease.path

    @property
    def codec(self) -> Codec[T]:
        """See `Lease.codec`."""
        return self.lease.codec

    @property
    def token(self) -> str:
        """See `Lease.token`."""
        return self.lease.token

    @property
    def handle(self) -> str:
        """See `Lease.handle`."""
        return self.lease.handle

    @property
    def seconds(self) -> float:
        """See `Lease.seconds`."""
        return self.lease.seconds

    @property
    def until(self) -> datetime:
        """See `Lease.until`."""
        return self.lease.until

    @property
    def ended(self) -> str:
        """See `Lease.ended`."""
        return self.lease.ended

    @property
    def lost(self) -> bool:
        """See `Lease.lost`."""
        return self.lease.lost

    async def ack(self, then: Iterable[Any] | None = None) -> None:
        """See `Lease.ack`."""
        await self._threads.finish(lambda: self.lease.ack(then))

    async def retry(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """See `Lease.retry`."""
        await self._threads.finish(lambda: self.lease.retry(delay, error))

    async def release(self) -> None:
        """See `Lease.release`."""
        await self._threads.finish(self.lease.release)

    async def reject(self, reason: str | BaseException = "rejected") -> None:
        """See `Lease.reject`."""
        await self._threads.finish(lambda: self.lease.reject(reason))

    async def renew(self, seconds: float | None = None) -> None:
        """See `Lease.renew`."""
        await self._threads.finish(lambda: self.lease.renew(seconds))

    async def __aenter__(self) -> Message[T]:
        return self.lease.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await self._threads.finish(lambda: self.lease.__exit__(kind, error, trace))


class AsyncQueue(Generic[T]):
    """A `Queue` for asyncio."""

    @overload
    def __init__(
        self: AsyncQueue[str],
        path: StrPath,
        *,
        codec: Literal["text"],
        create: bool = ...,
        **settings: Unpack[Given],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncQueue[T],
        path: StrPath,
        *,
        codec: Codec[T] | type[T],
        create: bool = ...,
        **settings: Unpack[Given],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncQueue[Any], path: StrPath, *, codec: str, create: bool = ..., **settings: Unpack[Given]
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncQueue[bytes], path: StrPath, *, create: bool = ..., **settings: Unpack[Given]
    ) -> None: ...

    def __init__(self, path: StrPath, *, codec: Any = codecs.BYTES, **settings: Any) -> None:
        """See `Queue`."""
        self.queue: Queue[T] = Queue(path, codec=codec, **settings)
        self._threads = Threads()

    @overload
    @classmethod
    async def create(
        cls, path: StrPath, *, codec: Literal["text"], **settings: Unpack[Given]
    ) -> AsyncQueue[str]: ...
    @overload
    @classmethod
    async def create(
        cls, path: StrPath, *, codec: Codec[R] | type[R], **settings: Unpack[Given]
    ) -> AsyncQueue[R]: ...
    @overload
    @classmethod
    async def create(cls, path: StrPath, *, codec: str, **settings: Unpack[Given]) -> AsyncQueue[Any]: ...
    @overload
    @classmethod
    async def create(cls, path: StrPath, **settings: Unpack[Given]) -> AsyncQueue[bytes]: ...

    @classmethod
    async def create(cls, path: StrPath, *, codec: Any = codecs.BYTES, **settings: Any) -> Any:
        """See `Queue.create`."""
        maker = Threads()
        try:
            await maker.run(lambda: Queue.create(path, codec=codec, **settings).close())
            return await maker.run(lambda: cls(path, codec=codec, **settings))
        finally:
            maker.close(wait=False)

    def __repr__(self) -> str:
        return f"Async{self.queue!r}"

    def __reduce__(self) -> NoReturn:
        self.queue.__reduce__()

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
        self.queue.close()

    @overload
    async def put(self: AsyncQueue[bytes], body: bytes | str, **how: Unpack[PutOptions]) -> str: ...
    @overload
    async def put(self, body: T, **how: Unpack[PutOptions]) -> str: ...

    async def put(
        self,
        body: Any,
        *,
        delay: float = 0,
        at: datetime | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> str:
        """See `Queue.put`. A put that is cancelled may still have happened."""
        return await self._patiently(
            Full,
            timeout,
            lambda: self.queue.put(
                body, delay=delay, at=at, ttl=ttl, priority=priority, attributes=attributes, timeout=0
            ),
        )

    async def put_many(
        self,
        bodies: Iterable[T | str],
        *,
        delay: float = 0,
        at: datetime | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """See `Queue.put_many`."""
        if self.settings.max_messages:
            bodies = list(bodies)
        return await self._patiently(
            Full,
            timeout,
            lambda: self.queue.put_many(
                bodies, delay=delay, at=at, ttl=ttl, priority=priority, attributes=attributes, timeout=0
            ),
        )

    async def put_path(
        self,
        file: StrPath,
        *,
        delay: float = 0,
        at: datetime | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
        link: bool = False,
    ) -> str:
        """See `Queue.put_path`."""
        return await self._patiently(
            Full,
            timeout,
            lambda: self.queue.put_path(
                file,
                delay=delay,
                at=at,
                ttl=ttl,
                priority=priority,
                attributes=attributes,
                timeout=0,
                link=link,
            ),
        )

    async def get(self, *, timeout: float | None = None, lease: float | None = None) -> AsyncLease[T]:
        """See `Queue.get`."""
        claimed = await self._patiently(
            Empty, timeout, lambda: self.queue.get(timeout=0, lease=lease), lambda late: give_back([late])
        )
        return AsyncLease(claimed, self._threads)

    async def _patiently(
        self,
        not_yet: type[DirQueueError],
        timeout: float | None,
        call: Callable[[], R],
        undo: Callable[[R], object] | None = None,
    ) -> R:
        """Retry in a thread and sleep on the event loop in between, so that a waiting task occupies no thread."""
        if timeout is not None:
            timeout = check_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = SHORTEST
        while True:
            try:
                return await self._threads.run(call, undo)
            except not_yet:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            left = pause if deadline is None else min(pause, max(0.0, deadline - time.monotonic()))
            await asyncio.sleep(left)
            pause = min(pause * GROWTH, LONGEST)

    async def get_many(
        self, n: int, *, timeout: float | None = None, lease: float | None = None
    ) -> list[AsyncLease[T]]:
        """See `Queue.get_many`."""
        claimed = await self._patiently(
            Empty, timeout, lambda: self.queue.get_many(n, timeout=0, lease=lease), give_back
        )
        return [AsyncLease(each, self._threads) for each in claimed]

    async def consume(
        self, timeout: float | None = None, limit: int | None = None, *, lease: float | None = None
    ) -> AsyncIterator[AsyncLease[T]]:
        """See `Queue.consume`."""
        done, looked = 0, time.monotonic()
        while limit is None or done < limit:
            try:
                claimed = await self.get(timeout=timeout, lease=lease)
            except Empty:
                return
            done += 1
            if time.monotonic() - looked > FRESH_SECONDS:
                await self._threads.finish(self.queue.refresh)
                looked = time.monotonic()
            yield claimed

    async def peek(self, state: str = "ready", limit: int | None = None) -> list[Message[T]]:
        """See `Queue.peek`; a list, since looking is done in a thread."""
        return await self._threads.run(lambda: list(self.queue.peek(state, limit)))

    async def message(self, id: str) -> Message[T]:
        """See `Queue.message`."""
        return await self._threads.run(lambda: self.queue.message(id))

    async def pause(self) -> bool:
        """See `Queue.pause`."""
        return await self._threads.run(self.queue.pause)

    async def resume(self) -> bool:
        """See `Queue.resume`."""
        return await self._threads.run(self.queue.resume)

    async def paused(self) -> bool:
        """See `Queue.paused`; awaited, since it looks at the disk."""
        return await self._threads.run(lambda: self.queue.paused)

    async def join(self, id: str | None = None, *, timeout: float | None = None) -> bool:
        """See `Queue.join`."""
        deadline = None if timeout is None else time.monotonic() + check_seconds("timeout", timeout)
        pause = SHORTEST
        while True:
            if await self._threads.run(lambda: self.queue.join(id, timeout=0)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST)

    async def stats(self) -> Stats:
        """See `Queue.stats`."""
        return await self._threads.run(self.queue.stats)

    async def redrive(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        match: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> list[str]:
        """See `Queue.redrive`."""
        return await self._threads.run(
            lambda: self.queue.redrive(ids, match=match, limit=limit, dry_run=dry_run)
        )

    async def purge(
        self, *, older_than: float | None = None, progress: Callable[[], None] | None = None
    ) -> Purged:
        """See `Queue.purge`."""
        return await self._threads.run(lambda: self.queue.purge(older_than=older_than, progress=progress))

    async def configure(self, *, reset: Iterable[str] = (), **settings: Unpack[Given]) -> Settings:
        """See `Queue.configure`."""
        return await self._threads.run(lambda: self.queue.configure(reset=reset, **settings))

    async def refresh(self) -> bool:
        """See `Queue.refresh`."""
        return await self._threads.run(self.queue.refresh)

    async def clear(self) -> int:
        """See `Queue.clear`."""
        return await self._threads.run(self.queue.clear)

    async def flush(self) -> int:
        """See `Queue.flush`."""
        return await self._threads.run(self.queue.flush)
