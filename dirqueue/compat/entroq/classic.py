"""The interface of the Python module that EntroQ's document describes (git, contrib/py), on a directory.

    from dirqueue.compat.entroq.classic import EQWorker, EntroQ, entroq_pb2

Layer: edges.  Needs `pip install 'dirqueue[entroq]'`: messages are EntroQ's own, protocol buffers.
What is different, and why:

* `EntroQ` takes a directory, a space, in place of an address; there is no channel and no stub.
* `try_claim` returns None if there is no task, as it says; the original returns an empty one.
* `do_with_renew` renews at half of the lease, always the newest version, and returns it; the original's renewals are
  lost. Renewing keeps attempt and err.
* `modify` raises `DependencyError`; other errors are dirqueue's, not gRPC's.
* `pop_all` ends when there is nothing left to claim; the original waits for what others hold.
* `EQWorker.work` goes on after a commit that was refused, and ends with `stop()`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from google.protobuf import json_format

from dirqueue.entroq import tasks as words
from dirqueue.entroq.local import LocalStore
from dirqueue.entroq.wire import ACTIONS, wire

_log = logging.getLogger(__name__)

#: EntroQ's messages: TaskData, TaskChange, TaskID, Task, ModifyRequest, ...
entroq_pb2 = wire("proto")
CLAIM, DELETE, CHANGE = ACTIONS["CLAIM"], ACTIONS["DELETE"], ACTIONS["CHANGE"]
DEPEND, DETAIL, INSERT = ACTIONS["DEPEND"], ACTIONS["DETAIL"], ACTIONS["INSERT"]
KINDS = ("claims", "deletes", "changes", "depends", "inserts")


class DependencyError(Exception):
    """A modification was refused; the lists hold ID:VERSION."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[str] = []
        self.deletes: list[str] = []
        self.changes: list[str] = []
        self.depends: list[str] = []
        self.inserts: list[str] = []
        self.msg = ""

    @classmethod
    def of(cls, error: words.DependencyError) -> DependencyError:
        """Say what a store said."""
        self = cls()
        self.msg = str(error)
        for kind in KINDS:
            getattr(self, kind).extend(f"{each.id}:{each.version}" for each in getattr(error, kind))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return what is in the way."""
        return {name: value for name in (*KINDS, "msg") if (value := getattr(self, name))}

    def as_json(self) -> str:
        """Return the same as JSON."""
        return json.dumps(self.as_dict())

    __str__ = as_json


def id_str(task_id: Any) -> str:
    """Return ID:VERSION."""
    return f"{task_id.id}:{task_id.version}"


def as_id(task: Any) -> Any:
    """Return what names a task at its version."""
    return entroq_pb2.TaskID(id=task.id, version=task.version, queue=task.queue)


def as_change(task: Any) -> Any:
    """Return a change that leaves a task as it is."""
    data = entroq_pb2.TaskData(
        queue=task.queue, at_ms=task.at_ms, value=task.value, attempt=task.attempt, err=task.err
    )
    return entroq_pb2.TaskChange(old_id=as_id(task), new_data=data)


class EntroQ:
    """A client for tasks in a directory."""

    def __init__(self, eqaddr: str | os.PathLike[str]) -> None:
        self.addr = os.fspath(eqaddr)
        self.claimant_id = str(uuid.uuid4())
        self._store = LocalStore(self.addr)
        self.time_skew = self.time() - int(time.time() * 1000)

    def close(self) -> None:
        """Let go of the directory."""
        self._store.close()

    @staticmethod
    def to_dict(task: Any, value_type: str = "") -> dict[str, Any]:
        """Return a task as JSON has it; with value_type="json", its value too."""
        found: dict[str, Any] = json_format.MessageToDict(task)
        if value_type.lower() == "json" and found.get("value"):
            found["value"] = json.loads(base64.b64decode(found["value"]))
        return found

    # --- looking -------------------------------------------------------------------------------------------

    def queues(
        self, prefixmatches: Iterable[str] = (), exactmatches: Iterable[str] = (), limit: int = 0
    ) -> list[Any]:
        """Return how many tasks each queue has: those named, and those whose names begin so; all if neither."""
        query = words.QueuesQuery(tuple(prefixmatches), tuple(exactmatches), limit)
        return [entroq_pb2.stat(each) for each in self._store.queues(query)]

    def queue_empty(self, queue: str) -> bool:
        """Return whether a queue has no task."""
        return not self.queues(exactmatches=[queue])

    def tasks(
        self,
        queue: str = "",
        claimant_id: str = "",
        task_ids: Iterable[str] = (),
        limit: int = 0,
        omit_values: bool = False,
    ) -> list[Any]:
        """Return tasks of a queue, or of these ids."""
        query = words.TasksQuery(queue, tuple(task_ids), limit, omit_values, claimant_id)
        return [entroq_pb2.task(each) for each in self._store.tasks(query)]

    def task_by_id(self, task_id: str, queue: str = "") -> Any:
        """Return one task; ValueError if there is none."""
        for task in self.tasks(queue=queue, task_ids=[task_id], limit=1):
            return task
        raise ValueError(f"Task {task_id} not found")

    def time(self) -> int:
        """Return the time of the file server, in milliseconds."""
        return self._store.time()

    def now(self) -> int:
        """Return about the same, without asking."""
        return int(time.time() * 1000) + self.time_skew

    # --- claims --------------------------------------------------------------------------------------------

    def try_claim(self, queue: str | list[str], duration_ms: int = 30000) -> Any:
        """Claim a task if there is one now; None if there is none."""
        task = self._store.claim(self._query(queue, duration_ms))
        return None if task is None else entroq_pb2.task(task)

    def claim(self, queue: str | list[str], duration_ms: int = 30000, poll_ms: int = 30000) -> Any:
        """Claim a task, waiting until there is one."""
        return entroq_pb2.task(self._store.wait(self._query(queue, duration_ms)))

    def _query(self, queue: str | list[str], duration_ms: int) -> words.ClaimQuery:
        queues = list(queue) if isinstance(queue, (list, tuple)) else [queue]
        return words.ClaimQuery(queues, self.claimant_id, duration_ms)

    # --- changes -------------------------------------------------------------------------------------------

    def modify(
        self,
        inserts: Iterable[Any] = (),
        changes: Iterable[Any] = (),
        deletes: Iterable[Any] = (),
        depends: Iterable[Any] = (),
        unsafe_claimant_id: str | None = None,
    ) -> tuple[Any, Any]:
        """Do all of it, or nothing: DependencyError. Return the tasks that were inserted, and those that changed."""
        claimant = unsafe_claimant_id or self.claimant_id
        request = entroq_pb2.ModifyRequest(
            claimant_id=claimant, inserts=inserts, changes=changes, deletes=deletes, depends=depends
        )
        try:
            done = self._store.modify(entroq_pb2.modification(request))
        except words.DependencyError as error:
            raise DependencyError.of(error) from error
        answer = entroq_pb2.modified(done, claimant)
        return answer.inserted, answer.changed

    def delete(self, task_id: Any, unsafe_claimant_id: str | None = None) -> None:
        """Delete one task."""
        self.modify(deletes=[task_id], unsafe_claimant_id=unsafe_claimant_id)

    def renew_for(self, task: Any, duration: float = 30) -> Any:
        """Hold a task for so many seconds from now; return its new version."""
        change = as_change(task)
        change.new_data.at_ms = self.now() + int(1000 * duration)
        _, [renewed] = self.modify(changes=[change])
        return renewed

    def do_with_renew(
        self, task: Any, do_func: Callable[[Any], Any], duration: float = 30
    ) -> tuple[Any, Any]:
        """Call a function with a task that is renewed meanwhile; return the newest version, and what it returned."""
        newest, over = [task], threading.Event()
        failed: list[DependencyError] = []

        def renew() -> None:
            while not over.wait(duration / 2):
                try:
                    newest[0] = self.renew_for(newest[0], duration)
                except DependencyError as error:
                    failed.append(error)
                    return

        renewer = threading.Thread(target=renew, name="dirqueue-renew", daemon=True)
        renewer.start()
        try:
            result = do_func(task)
        finally:
            over.set()
            renewer.join()
        if failed:
            raise failed[0]
        return newest[0], result

    def pop_all(self, queue: str, force: bool = False) -> Iterator[Any]:
        """Remove the tasks of a queue, and yield each; with `force` also those that others hold."""
        if force:
            for task in self.tasks(queue=queue):
                self.delete(as_id(task), unsafe_claimant_id=task.claimant_id)
                yield task
            return
        while (task := self.try_claim(queue)) is not None:
            self.delete(as_id(task))
            yield task


class EQWorker:
    """Claims tasks and lets a function work on them."""

    def __init__(self, eq: EntroQ) -> None:
        self.eq = eq
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End after the task in hand; a claim that waits is not interrupted."""
        self._stopped.set()

    def work(self, queue: str | list[str], do_func: Callable[[Any], Any], claim_duration: float = 30) -> None:
        """Claim, renew while `do_func` works, commit the ModifyRequest that it returns; until `stop`."""
        while not self._stopped.is_set():
            task = self.eq.claim(queue, duration_ms=int(1000 * claim_duration))
            try:
                renewed, asked = self.eq.do_with_renew(task, do_func, claim_duration)
                if asked is not None and (asked.inserts or asked.changes or asked.deletes):
                    self._commit(renewed, asked)
            except DependencyError as error:
                _log.warning("the work on %s is thrown away: %s", task.id, error)

    def _commit(self, renewed: Any, asked: Any) -> None:
        for each in (*(change.old_id for change in asked.changes), *asked.deletes, *asked.depends):
            if each.id == renewed.id:
                if each.version > renewed.version:
                    raise ValueError("Task updated inside worker body, version too high")
                each.version = renewed.version
        self.eq.modify(asked.inserts, asked.changes, asked.deletes, asked.depends)
