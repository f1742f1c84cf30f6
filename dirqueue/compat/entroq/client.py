"""The index's `EntroQJSON`, on a directory: the same methods, with no service in between.

Layer: edges.  Touches: what the store of tasks does (entroq/store.py).
Waiting is done as in the service (entroq/desk.py): woken by puts of other processes, and by time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from types import ModuleType, TracebackType
from typing import Any, Self

from dirqueue.compat.entroq import types as own_types
from dirqueue.entroq import tasks as words
from dirqueue.entroq import values
from dirqueue.entroq.desk import Desk
from dirqueue.errors import DirQueueError

#: The lists of a DependencyError.
KINDS = ("inserts", "changes", "deletes", "depends", "claims")
#: What cannot be asked of a directory of queues.
DOCUMENTS = "dirqueue has no documents: keep them in files or in a database, and their names in tasks"


class Connection:
    """The desk on one directory; several claimants share it. An event loop has its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._desk: Desk | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def desk(self) -> Desk:
        """Return the desk of the running loop."""
        loop = asyncio.get_running_loop()
        if self._desk is None or self._loop is not loop:
            self._desk, self._loop = self.make(), loop
            await self._desk.open()
        return self._desk

    def make(self) -> Desk:
        """Open the directory."""
        from dirqueue.entroq.store import DirectoryStore

        store = DirectoryStore(self.path)
        return Desk(store, store.watch())

    async def close(self) -> None:
        """Let go of the directory."""
        desk, self._desk = self._desk, None
        if desk is not None and self._loop is asyncio.get_running_loop():
            await desk.close()


class EntroQJSON:
    """A client for tasks in a directory; all methods that ask are coroutines.

    Args:
        base_url: The directory, a space; it is made by the first insert.
        claimant_id: Who claims and commits; drawn if None.
        types: The module whose classes are taken and given: `entroq` for the index's own, so that its worker runs on
            this client.
    """

    def __init__(
        self,
        base_url: str | os.PathLike[str],
        claimant_id: str | None = None,
        *,
        types: ModuleType = own_types,
        connection: Connection | None = None,
    ) -> None:
        self.claimant_id = claimant_id or secrets.token_hex(8)
        self._types: Any = types
        self._owner = connection is None
        self._connection = connection or Connection(os.fspath(base_url))

    async def aclose(self) -> None:
        """Let go of the directory; a client made by `as_claimant` leaves that to the one it was made of."""
        if self._owner:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def as_claimant(self, claimant_id: str) -> EntroQJSON:
        """Return a client of the same directory that acts as another claimant."""
        connection = self._connection
        return EntroQJSON(connection.path, claimant_id, types=self._types, connection=connection)

    # --- requests ------------------------------------------------------------------------------------------

    async def time(self) -> datetime:
        """Return the time by the clock of the file server."""
        with self._errors():
            return _instant(await (await self._connection.desk()).time())

    async def queues(
        self, prefix: str = "", exact: Sequence[str] = (), limit: int = 0
    ) -> list[dict[str, Any]]:
        """Return how many tasks each queue has."""
        query = words.QueuesQuery((prefix,) if prefix else (), tuple(exact), limit)
        with self._errors():
            found = await (await self._connection.desk()).queues(query)
        return [
            {
                "name": each.name,
                "num_tasks": each.size,
                "num_claimed": each.claimed,
                "num_available": each.available,
                "num_future": each.future,
            }
            for each in found
        ]

    async def tasks(self, queue: str = "", limit: int = 0, omit_values: bool = False) -> list[Any]:
        """Return the tasks of a queue."""
        query = words.TasksQuery(queue, limit=limit, omit_values=omit_values)
        with self._errors():
            return [self._task(each) for each in await (await self._connection.desk()).tasks(query)]

    async def try_claim(self, queue: str | list[str], duration_ms: int = 30000) -> Any:
        """Claim a task if there is one now; None if there is none."""
        with self._errors():
            task = await (await self._connection.desk()).try_claim(self._query(queue, duration_ms))
        return None if task is None else self._task(task)

    async def claim(
        self,
        queue: str | list[str],
        duration_ms: int = 30000,
        poll_ms: int = 30000,
        timeout_s: float | None = None,
    ) -> Any:
        """Claim a task, waiting until there is one; TimeoutError after `timeout_s` seconds."""
        with self._errors():
            desk = await self._connection.desk()
            try:
                waiting = desk.claim(self._query(queue, duration_ms))
                return self._task(await asyncio.wait_for(waiting, timeout_s))
            except TimeoutError:
                raise TimeoutError(f"claim timed out after {timeout_s}s") from None

    async def modify(self, modification: Any, *, unsafe_claimant_id: str | None = None) -> Any:
        """Do all of it, or nothing: DependencyError."""
        if any(
            getattr(modification, f"doc_{kind}", ()) for kind in ("inserts", "changes", "deletes", "depends")
        ):
            raise self._types.UnsupportedError(DOCUMENTS)
        with self._errors():
            whole = words.Modification(
                unsafe_claimant_id or self.claimant_id,
                inserts=[
                    words.TaskData(
                        each.queue,
                        values.from_json(each.value),
                        each.id or "",
                        each.attempt,
                        each.err,
                        by=_by(each.at),
                    )
                    for each in modification.task_inserts
                ],
                changes=[
                    *(_change(each) for each in modification.task_changes),
                    *(_arrival(each) for each in modification.task_arrivals),
                ],
                deletes=[_id(each) for each in modification.task_deletes],
                depends=[_id(each) for each in modification.task_depends],
            )
            done = await (await self._connection.desk()).modify(whole)
        inserted = [self._task(each) for each in done.inserted]
        return self._types.ModifyResult(inserted, [self._task(each) for each in done.changed])

    async def docs(self, *_: Any, **__: Any) -> list[Any]:
        """Return none: dirqueue has no documents."""
        return []

    async def claim_docs(self, *_: Any, **__: Any) -> list[Any]:
        """Refuse: dirqueue has no documents."""
        raise self._types.UnsupportedError(DOCUMENTS)

    async def claim_doc_sets(self, *_: Any, **__: Any) -> list[Any]:
        """Refuse: dirqueue has no documents."""
        raise self._types.UnsupportedError(DOCUMENTS)

    # --- words of the other side ---------------------------------------------------------------------------

    def _query(self, queue: str | list[str], duration_ms: int) -> words.ClaimQuery:
        queues = [queue] if isinstance(queue, str) else list(queue)
        return words.ClaimQuery(queues, self.claimant_id, duration_ms)

    def _task(self, task: words.Task) -> Any:
        return self._types.Task(
            id=task.id,
            version=task.version,
            queue=task.queue,
            at=_instant(task.at),
            claimant=task.claimant,
            value=values.to_json(task.value),
            created=_instant(task.created),
            modified=_instant(task.modified),
            claims=task.claims,
            attempt=task.attempt,
            err=task.err,
        )

    def _ids(self, ids: Iterable[words.TaskId]) -> list[Any]:
        return [self._types.TaskID(*each) for each in ids]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the other side's errors."""
        try:
            yield
        except words.DependencyError as error:
            found = {kind: self._ids(getattr(error, kind)) for kind in KINDS}
            raise self._types.DependencyError(
                str(error),
                missing=found["depends"] + found["deletes"],
                collisions=found["inserts"],
                **found,
            ) from error
        except words.InvalidArgument as error:
            raise self._types.InvalidArgumentError(str(error)) from error
        except DirQueueError as error:
            raise self._types.TransportError(str(error), cause=error, safe_to_retry=False) from error


def _change(change: Any) -> words.Change:
    return words.Change(
        words.TaskId(change.id, change.version, change.from_queue),
        words.TaskData(
            change.queue,
            values.from_json(change.value),
            attempt=change.attempt,
            err=change.err,
            by=_by(change.at),
        ),
        words.Mode.RESET_CLAIMS if change.reset_claims else words.Mode.DEFAULT,
    )


def _arrival(arrival: Any) -> words.Change:
    """A renewal: nothing but the arrival."""
    by = words.TaskData(by=int(arrival.by_s * 1000))
    return words.Change(words.TaskId(arrival.id, arrival.version, arrival.queue), by, words.Mode.LEASE)


def _id(given: Any) -> words.TaskId:
    return words.TaskId(given.id, given.version, given.queue)


def _by(at: datetime | None) -> int:
    """Return in how many milliseconds something arrives: the caller's clock is compared with itself only."""
    return 0 if at is None else int((at - datetime.now(UTC)).total_seconds() * 1000)


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
