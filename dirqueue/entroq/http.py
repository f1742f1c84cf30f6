"""The door for HTTP: EntroQ's /api/v0, /metrics and /healthz.

    GET  /api/v0/time                    POST /api/v0/claim        try
    GET  /api/v0/tasks  .../stream       POST /api/v0/claim/wait   wait until there is a task
    GET  /api/v0/queues .../stats        POST /api/v0/modify

On a loopback address only the names of loopback are answered, and nothing that another site asks for: without a token
that is all that stands between a page in a browser and the tasks. What is refused is refused in one sentence.

Layer: edges.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dirqueue.entroq import letters, values
from dirqueue.entroq.authz import Caller
from dirqueue.entroq.service import Service
from dirqueue.entroq.tasks import (
    DependencyError,
    Exhausted,
    InvalidArgument,
    PermissionDenied,
    Task,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from dirqueue.errors import DirQueueError, SettingsError
from dirqueue.tools import metrics
from dirqueue.web.handler import HOST, is_loopback

API = "/api/v0"
#: What a request declares, and what every answer says.
PROTOCOL = "entroq-protocol"
SERVED = "1,2"
#: The most bytes of a request, and the seconds for its body to arrive.
LARGEST = 10 << 20
BODY_SECONDS = 30.0
#: Seconds for a client to take a part of an answer.
ANSWER_SECONDS = 60.0

#: What each error is called in HTTP, and by its number in gRPC.
STATUS: dict[type[Exception], tuple[int, int]] = {
    DependencyError: (409, 10),
    InvalidArgument: (400, 3),
    SettingsError: (400, 3),
    Unauthenticated: (401, 16),
    PermissionDenied: (403, 7),
    Exhausted: (429, 8),
    Unimplemented: (501, 12),
    Unavailable: (503, 14),
}
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 8, 415: 3, 429: 8}

Endpoint = Callable[[Request], Awaitable[Response]]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Door:
    """Answers requests of one service."""

    def __init__(self, service: Service, *, loopback: bool, largest: int = LARGEST) -> None:
        self._service = service
        self._loopback = loopback
        self._largest = largest

    def app(self) -> ASGIApp:
        """Return the application."""
        table: list[tuple[str, str, str, Endpoint]] = [
            ("GET", "/time", "Time", self._time),
            ("POST", "/claim", "TryClaim", self._try_claim),
            ("POST", "/claim/wait", "Claim", self._claim),
            ("POST", "/modify", "Modify", self._modify),
            ("GET", "/tasks", "Tasks", self._tasks),
            ("GET", "/tasks/stream", "StreamTasks", self._stream),
            ("GET", "/queues", "Queues", self._queues),
            ("GET", "/queues/stats", "QueueStats", self._queues),
            ("GET", "/docs", "Docs", self._documents),
            ("POST", "/docs/claim", "ClaimDocs", self._documents),
            ("GET", "/namespaces/stats", "NamespaceStats", self._documents),
        ]
        routes = [
            Route(API + path, self._counted(name, call), methods=[method])
            for method, path, name, call in table
        ]
        routes += [
            Route("/metrics", self._counted("metrics", self._metrics), methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
        ]
        return _Guard(Starlette(routes=routes, exception_handlers={HTTPException: _missing}), self)

    # --- methods -------------------------------------------------------------------------------------------

    async def _time(self, request: Request) -> Response:
        return _json({"timeMs": str(await self._service.time(_caller(request)))})

    async def _try_claim(self, request: Request) -> Response:
        query = letters.read_claim(await self._body(request))
        task = await self._service.try_claim(_caller(request), query)
        return _json({"task": None if task is None else letters.task(task)})

    async def _claim(self, request: Request) -> Response:
        query = letters.read_claim(await self._body(request))
        task = await self._while_there(request, self._service.claim(_caller(request), query))
        return _json({"task": letters.task(task)})

    async def _modify(self, request: Request) -> Response:
        body = await self._body(request)
        modification = letters.read_modification(body, _protocol(request.headers))
        return _json(letters.modified(await self._service.modify(_caller(request), modification)))

    async def _tasks(self, request: Request) -> Response:
        query = letters.read_tasks(request.query_params.multi_items())
        pages = self._service.tasks(_caller(request), query)
        return _json({"tasks": [letters.task(task) async for page in pages for task in page]})

    async def _stream(self, request: Request) -> Response:
        query = letters.read_tasks(request.query_params.multi_items())
        pages = self._service.tasks(_caller(request), query)
        first: list[Task] = await anext(pages, [])  # what is refused is refused before the answer begins

        async def lines() -> AsyncIterator[bytes]:
            for task in first:
                yield _line(task)
            async for page in pages:
                for task in page:
                    yield _line(task)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _queues(self, request: Request) -> Response:
        query = letters.read_queues(request.query_params.multi_items())
        found = await self._service.queues(_caller(request), query)
        return _json({"queues": [letters.stat(each) for each in found]})

    async def _documents(self, request: Request) -> Response:
        raise Unimplemented("dirqueue has no documents, only tasks")

    async def _metrics(self, request: Request) -> Response:
        return Response(await self._service.metrics(_caller(request)), media_type=metrics.CONTENT_TYPE)

    async def _health(self, request: Request) -> Response:
        if self._service.desk.closing:
            return _json({"status": "NOT_SERVING"}, 503)
        return _json({"status": "SERVING"})

    # --- requests ------------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> Any:
        """Read the body of a request: JSON, not too long, and not too slow."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the content type of a request is application/json")
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > self._largest:
                        raise Refused(413, f"a request has at most {self._largest} bytes")
        except TimeoutError:
            raise Refused(408, f"the request took longer than {BODY_SECONDS:g} seconds") from None
        try:
            return values.parse(bytes(data))
        except ValueError as error:
            raise InvalidArgument(f"the request is not JSON: {error}") from None

    async def _while_there(self, request: Request, wait: Awaitable[Task]) -> Task:
        """Wait for a task while the client does; what comes too late is given back."""
        waiting = asyncio.ensure_future(wait)
        gone = asyncio.ensure_future(_gone(request.receive))
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                return await waiting
        finally:
            gone.cancel()
            waiting.cancel()
        with suppress(asyncio.CancelledError, DirQueueError):
            await self._service.give_back(await waiting)
        raise ClientDisconnect

    def check_origin(self, headers: Headers) -> None:
        """Refuse what another site asks for, and names that somebody pointed at this machine."""
        host = headers.get("host", "")
        found = HOST.fullmatch(host)
        if found is None:
            raise Refused(400, "Host is missing or malformed")
        if self._loopback and not is_loopback((found["six"] or found["name"]).lower()):
            raise Refused(403, "this service answers to the names of this machine only")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "another site asked")

    def _counted(self, method: str, call: Endpoint) -> Endpoint:
        """Return an endpoint that answers errors, too, and counts what it does."""

        async def endpoint(request: Request) -> Response:
            began = time.monotonic()
            try:
                answer = await call(request)
            except ClientDisconnect:
                answer = Response(status_code=499)
            except Exception as error:  # noqa: BLE001 - one request that breaks us must not break the service
                answer = _answer(error)
            self._service.meter.count("http", method, str(answer.status_code), time.monotonic() - began)
            return answer

        return endpoint


class _Guard:
    """What is done with every request: where it comes from is checked, and every answer says the protocols."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (PROTOCOL.encode(), SERVED.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"cache-control", b"no-store"),
                ]
            async with asyncio.timeout(ANSWER_SECONDS):
                await send(message)

        try:
            self._door.check_origin(Headers(scope=scope))
        except Refused as refused:
            await _answer(refused)(scope, receive, say)
        else:
            await self._app(scope, receive, say)


# --- answers -----------------------------------------------------------------------------------------------


def _answer(error: Exception) -> Response:
    """Return the answer that tells of an error."""
    if isinstance(error, Refused):
        return _error(error.status, _CODES.get(error.status, 13), error.text)
    for kind, (status, code) in STATUS.items():
        if isinstance(error, kind):
            details = letters.dependency(error) if isinstance(error, DependencyError) else []
            return _error(status, code, str(error), details, error)
    if isinstance(error, (DirQueueError, OSError)):
        # The path of the space is nobody's business.
        print(f"dirqueue: entroq: {error}", file=sys.stderr, flush=True)  # noqa: T201
        why = getattr(error, "strerror", None) or type(error).__name__
        return _error(500, 13, f"the directory could not be used: {why}")
    import traceback

    traceback.print_exception(error)
    return _error(500, 13, f"this is a defect in dirqueue: {type(error).__name__}")


def _error(
    status: int,
    code: int,
    text: str,
    details: list[dict[str, Any]] | None = None,
    error: Exception | None = None,
) -> Response:
    body: dict[str, Any] = {"code": code, "message": text, "details": details or []}
    if isinstance(error, PermissionDenied) and error.failed:
        body["details"] = [
            {
                "@type": "type.googleapis.com/api.AuthzDep",
                "exact": each.queue,
                "actions": list(each.actions),
            }
            for each in error.failed
        ]
    answer = _json(body, status)
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    if status in (408, 413):
        answer.headers["connection"] = "close"  # the rest of the request is not read
    return answer


def _json(value: Any, status: int = 200) -> Response:
    return Response(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"),
        status,
        media_type="application/json",
    )


def _line(task: Task) -> bytes:
    text = json.dumps({"tasks": [letters.task(task)]}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


async def _missing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {404: "there is no such page", 405: f"{request.method} is not what this page takes"}
    return _error(status, _CODES.get(status, 13), text.get(status, "refused"))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _caller(request: Request) -> Caller:
    return Caller.read(request.headers.get("authorization"))


def _protocol(headers: Headers) -> int:
    """Return the protocol that a request declares; 1 if none that is known."""
    said = headers.get(PROTOCOL, "").replace(" ", "").split(",")
    return 2 if "2" in said else 1
