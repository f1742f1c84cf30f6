"""A service as a store of tasks: what the command line asks of an address, over HTTP/JSON or gRPC.

Any service that speaks EntroQ's protocol 2 over HTTP, or its first gRPC package: dirqueue's, and EntroQ's own.

Layer: edges.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator
from typing import Any, Protocol

from dirqueue.entroq import values
from dirqueue.entroq.tasks import (
    ClaimQuery,
    DependencyError,
    EntroqError,
    Exhausted,
    InvalidArgument,
    Mode,
    Modification,
    Modified,
    PermissionDenied,
    QueuesQuery,
    QueueStat,
    Task,
    TaskData,
    TaskId,
    TasksQuery,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

#: Ports of EntroQ's services.
HTTP_PORT, GRPC_PORT = 9100, 37706
#: Seconds for an answer that has nothing to wait for.
SECONDS = 60.0
#: How long a claim waits before it is asked again; proxies end requests that take longer.
WAIT_SECONDS = 120.0


#: The most that a refusal may list, in bytes.
METADATA = 4 << 20


class Failed(EntroqError, OSError):
    """The service did not answer, or not in a way that is understood."""


class Remote(Protocol):
    """What can be asked of a service."""

    def time(self) -> int: ...
    def claim(self, query: ClaimQuery) -> Task | None: ...
    def wait(self, query: ClaimQuery) -> Task:
        """Claim a task, waiting until there is one."""
        ...

    def modify(self, modification: Modification) -> Modified: ...
    def tasks(self, query: TasksQuery) -> Iterator[Task]: ...
    def queues(self, query: QueuesQuery) -> list[QueueStat]: ...
    def close(self) -> None: ...


def is_address(text: str) -> bool:
    """Return whether this names a service, not a directory."""
    return text.startswith(("http://", "https://", "grpc://", "grpcs://"))


def connect(address: str, *, token: str | None = None, secure: bool = False) -> Remote:
    """Return the service at an address: http://, https://, grpc:// or grpcs://HOST[:PORT]."""
    parts = urllib.parse.urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not is_address(address):
        raise InvalidArgument(
            f"{address!r:.80} is not an address: write http://HOST:PORT or grpc://HOST:PORT"
        )
    secure = secure or parts.scheme in ("https", "grpcs")
    if parts.scheme.startswith("http"):
        return Http(host, port or HTTP_PORT, token, secure=secure)
    return Grpc(host, port or GRPC_PORT, token, secure=secure)


# --- HTTP --------------------------------------------------------------------------------------------------

_ERRORS: dict[int, type[EntroqError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    429: Exhausted,
    501: Unimplemented,
    503: Unavailable,
}


class Http:
    """A service that speaks JSON."""

    def __init__(self, host: str, port: int, token: str | None, *, secure: bool) -> None:
        self._where = f"{host}:{port}"
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(host, port, timeout=SECONDS, context=ssl.create_default_context())
            if secure
            else http.client.HTTPConnection(host, port, timeout=SECONDS)
        )
        self._headers = {"entroq-protocol": "2", "content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: Any = None, seconds: float = SECONDS) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.timeout = seconds
            if self._connection.sock is not None:
                self._connection.sock.settimeout(seconds)
            self._connection.request(method, f"/api/v0{path}", data, self._headers)
            answer = self._connection.getresponse()
            text = answer.read()
        except TimeoutError:
            self._connection.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Failed(f"{self._where} does not answer: {error}") from error
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        if answer.status == 200 and isinstance(found, dict):
            return found
        raise self._error(answer.status, found if isinstance(found, dict) else {})

    def _error(self, status: int, found: dict[str, Any]) -> EntroqError:
        text = str(found.get("message") or f"{self._where} answers with status {status}")
        details = [each for each in found.get("details") or () if isinstance(each, dict)]
        if status in (404, 409) and details:
            return _dependency(text, [(each.get("type", ""), _id(each.get("id") or {})) for each in details])
        return _ERRORS.get(status, Failed)(text)

    def time(self) -> int:
        """Return the service's now."""
        return int(self._ask("GET", "/time")["timeMs"])

    def claim(self, query: ClaimQuery) -> Task | None:
        """Claim a task if there is one now."""
        found = self._ask("POST", "/claim", self._query(query)).get("task")
        return None if found is None else _task(found)

    def wait(self, query: ClaimQuery) -> Task:
        """Claim a task, waiting until there is one."""
        while True:
            try:
                return _task(self._ask("POST", "/claim/wait", self._query(query), WAIT_SECONDS)["task"])
            except TimeoutError:
                continue

    @staticmethod
    def _query(query: ClaimQuery) -> dict[str, Any]:
        return {
            "claimantId": query.claimant,
            "queues": list(query.queues),
            "durationMs": str(query.duration),
            "pollMs": "30000",
        }

    def modify(self, modification: Modification) -> Modified:
        """Do all of it or nothing."""
        data = [*modification.inserts, *(each.data for each in modification.changes)]
        now = self.time() if any(each.at is not None for each in data) else 0
        asked = {
            "claimantId": modification.claimant,
            "inserts": [self._data(each, now) for each in modification.inserts],
            "changes": [
                {"oldId": each.old._asdict(), "newData": self._data(each.data, now)}
                | ({} if each.mode is Mode.DEFAULT else {"mode": each.mode.value})
                for each in modification.changes
            ],
            "deletes": [each._asdict() for each in modification.deletes],
            "depends": [each._asdict() for each in modification.depends],
        }
        found = self._ask("POST", "/modify", asked)
        return Modified(
            [_task(each) for each in found.get("inserted") or ()],
            [_task(each) for each in found.get("changed") or ()],
        )

    @staticmethod
    def _data(data: TaskData, now: int) -> dict[str, Any]:
        by = data.by if data.at is None else data.at - now
        given = {
            "queue": data.queue,
            "value": values.to_json(data.value),
            "id": data.id,
            "attempt": data.attempt,
            "err": data.err,
            "byMs": str(by) if by else None,
        }
        return {name: value for name, value in given.items() if value or name == "value"}

    def tasks(self, query: TasksQuery) -> Iterator[Task]:
        """Yield tasks."""
        given = [("queue", query.queue), ("limit", query.limit), ("claimantId", query.claimant)]
        given += [("omitValues", "true" if query.omit_values else ""), *(("taskId", id) for id in query.ids)]
        asked = urllib.parse.urlencode([pair for pair in given if pair[1]])
        yield from (_task(each) for each in self._ask("GET", f"/tasks?{asked}").get("tasks") or ())

    def queues(self, query: QueuesQuery) -> list[QueueStat]:
        """Return the queues."""
        given: list[tuple[str, Any]] = [("matchPrefix", each) for each in query.prefixes]
        given += [("matchExact", each) for each in query.exact]
        given += [("limit", query.limit)] if query.limit else []
        found = self._ask("GET", f"/queues/stats?{urllib.parse.urlencode(given)}").get("queues") or ()
        names = ("numTasks", "numClaimed", "numAvailable", "numFuture", "maxClaims")
        return [QueueStat(each["name"], *(int(each.get(name) or 0) for name in names)) for each in found]


def _task(found: dict[str, Any]) -> Task:
    return Task(
        id=str(found["id"]),
        version=int(found.get("version") or 0),
        queue=str(found.get("queue") or ""),
        at=int(found.get("atMs") or 0),
        claimant=str(found.get("claimantId") or ""),
        value=values.from_json(found.get("value")),
        created=int(found.get("createdMs") or 0),
        modified=int(found.get("modifiedMs") or 0),
        claims=int(found.get("claims") or 0),
        attempt=int(found.get("attempt") or 0),
        err=str(found.get("err") or ""),
    )


def _id(found: dict[str, Any]) -> TaskId:
    return TaskId(str(found.get("id") or ""), int(found.get("version") or 0), str(found.get("queue") or ""))


def _dependency(text: str, details: list[tuple[str, TaskId]]) -> DependencyError:
    kinds: dict[str, list[TaskId]] = {
        kind: [] for kind in ("inserts", "changes", "deletes", "depends", "claims")
    }
    for kind, id in details:
        kinds.get(f"{kind.lower()}s", []).append(id)
    return DependencyError(text, **kinds)


# --- gRPC --------------------------------------------------------------------------------------------------


class Grpc:
    """A service that speaks gRPC: EntroQ's first package, whose values are bytes."""

    def __init__(self, host: str, port: int, token: str | None, *, secure: bool) -> None:
        import grpc

        from dirqueue.entroq.wire import METHODS, wire

        self._where = f"{host}:{port}"
        self._grpc = grpc
        self._wire = wire("proto")
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            # All that is in the way of a large modification comes as metadata, of which 8 KiB are taken otherwise.
            ("grpc.max_metadata_size", METADATA),
            ("grpc.absolute_max_metadata_size", METADATA),
        ]
        target = f"[{host}]:{port}" if ":" in host else self._where
        self._channel = (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if secure
            else grpc.insecure_channel(target, options)
        )
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._calls = {
            name: self._channel.unary_unary(
                f"/proto.EntroQ/{name}",
                getattr(self._wire, takes).SerializeToString,
                getattr(self._wire, gives).FromString,
            )
            for name, (takes, gives) in METHODS.items()
            if not gives.endswith("*")
        }

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _ask(self, name: str, request: Any, seconds: float = SECONDS) -> Any:
        try:
            return self._calls[name](request, timeout=seconds, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._error(error) from error

    def _error(self, error: Any) -> Exception:
        code, codes = error.code(), self._grpc.StatusCode
        text = error.details() or str(code)
        kinds: dict[Any, type[EntroqError]] = {
            codes.INVALID_ARGUMENT: InvalidArgument,
            codes.UNAUTHENTICATED: Unauthenticated,
            codes.PERMISSION_DENIED: PermissionDenied,
            codes.RESOURCE_EXHAUSTED: Exhausted,
            codes.UNIMPLEMENTED: Unimplemented,
        }
        if code is codes.DEADLINE_EXCEEDED:
            return TimeoutError(text)
        if code is codes.NOT_FOUND:
            return _dependency(text, self._details(error))
        return kinds[code](text) if code in kinds else Failed(f"{self._where} does not answer: {text}")

    def _details(self, error: Any) -> list[tuple[str, TaskId]]:
        from google.rpc import status_pb2

        from dirqueue.entroq.wire import ACTIONS

        names = {number: name for name, number in ACTIONS.items()}
        packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        found = [
            self._wire.ModifyDep.FromString(each.value)
            for each in status_pb2.Status.FromString(packed).details
        ]
        return [
            (names.get(each.type, ""), TaskId(each.id.id, each.id.version, each.id.queue)) for each in found
        ]

    def time(self) -> int:
        """Return the service's now."""
        return int(self._ask("Time", self._wire.TimeRequest()).time_ms)

    def claim(self, query: ClaimQuery) -> Task | None:
        """Claim a task if there is one now."""
        answer = self._ask("TryClaim", self._query(query))
        return self._task(answer.task) if answer.HasField("task") else None

    def wait(self, query: ClaimQuery) -> Task:
        """Claim a task, waiting until there is one."""
        while True:
            try:
                return self._task(self._ask("Claim", self._query(query), WAIT_SECONDS).task)
            except TimeoutError:
                continue

    def _query(self, query: ClaimQuery) -> Any:
        return self._wire.ClaimRequest(
            claimant_id=query.claimant, queues=list(query.queues), duration_ms=query.duration, poll_ms=30000
        )

    def modify(self, modification: Modification) -> Modified:
        """Do all of it or nothing."""
        wire = self._wire
        data = [*modification.inserts, *(each.data for each in modification.changes)]
        now = self.time() if any(each.by for each in data) else 0
        answer = self._ask(
            "Modify",
            wire.ModifyRequest(
                claimant_id=modification.claimant,
                inserts=[self._data(each, now) for each in modification.inserts],
                changes=[
                    wire.TaskChange(old_id=self._id(each.old), new_data=self._data(each.data, now))
                    for each in modification.changes
                ],
                deletes=[self._id(each) for each in modification.deletes],
                depends=[self._id(each) for each in modification.depends],
            ),
        )
        return Modified(
            [self._task(each) for each in answer.inserted], [self._task(each) for each in answer.changed]
        )

    def _data(self, data: TaskData, now: int) -> Any:
        at = data.at if data.at is not None else now + data.by if data.by else 0
        return self._wire.TaskData(
            queue=data.queue, at_ms=at, value=data.value, id=data.id, attempt=data.attempt, err=data.err
        )

    def _id(self, id: TaskId) -> Any:
        return self._wire.TaskID(id=id.id, version=id.version, queue=id.queue)

    def tasks(self, query: TasksQuery) -> Iterator[Task]:
        """Yield tasks."""
        request = self._wire.TasksRequest(
            claimant_id=query.claimant,
            queue=query.queue,
            limit=query.limit,
            task_id=list(query.ids),
            omit_values=query.omit_values,
        )
        yield from (self._task(each) for each in self._ask("Tasks", request).tasks)

    def queues(self, query: QueuesQuery) -> list[QueueStat]:
        """Return the queues."""
        request = self._wire.QueuesRequest(
            match_prefix=list(query.prefixes), match_exact=list(query.exact), limit=query.limit
        )
        return [
            QueueStat(q.name, q.num_tasks, q.num_claimed, q.num_available, q.num_future, q.max_claims)
            for q in self._ask("QueueStats", request).queues
        ]

    @staticmethod
    def _task(found: Any) -> Task:
        return Task(
            id=found.id,
            version=found.version,
            queue=found.queue,
            at=found.at_ms,
            claimant=found.claimant_id,
            value=found.value,
            created=found.created_ms,
            modified=found.modified_ms,
            claims=found.claims,
            attempt=found.attempt,
            err=found.err,
        )
