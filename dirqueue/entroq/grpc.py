"""The door for gRPC: `proto.EntroQ` and `api.EntroQ`, with grpc.health.v1.

Layer: edges.
A call that is cancelled or out of time is cancelled here too: its claim has taken nothing. What is refused carries its
details in `grpc-status-details-bin`, as EntroQ's clients read them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from dirqueue.entroq.authz import Caller
from dirqueue.entroq.service import Service
from dirqueue.entroq.tasks import (
    DependencyError,
    Exhausted,
    InvalidArgument,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from dirqueue.entroq.wire import METHODS, PACKAGES, Wire, wire
from dirqueue.errors import DirQueueError, SettingsError

#: Calls at a time: claims that wait, and some more.
CALLS = 4_096
#: Bytes of what was in the way of a modification: clients take 8 KiB of metadata, in base64 and with the rest.
LARGEST_DETAILS = 4_500
#: What `api.EntroQ` speaks: the numbers of protocol 2's fields are not public.
PROTOCOL, SERVED = "entroq-protocol", "1"

_Code = grpc.StatusCode
#: DEPENDENCY: EntroQ says NOT_FOUND.
CODES: dict[type[Exception], grpc.StatusCode] = {
    DependencyError: _Code.NOT_FOUND,
    InvalidArgument: _Code.INVALID_ARGUMENT,
    SettingsError: _Code.INVALID_ARGUMENT,
    Unauthenticated: _Code.UNAUTHENTICATED,
    PermissionDenied: _Code.PERMISSION_DENIED,
    Exhausted: _Code.RESOURCE_EXHAUSTED,
    Unimplemented: _Code.UNIMPLEMENTED,
    Unavailable: _Code.UNAVAILABLE,
}

#: grpc.aio.ServicerContext
Context = Any


class Door(grpc.GenericRpcHandler):
    """The methods of one package."""

    def __init__(self, service: Service, package: str) -> None:
        self._service = service
        self._wire: Wire = wire(package)
        calls: dict[str, Callable[..., Any]] = {
            "TryClaim": self._try_claim,
            "Claim": self._claim,
            "Modify": self._modify,
            "Tasks": self._tasks,
            "StreamTasks": self._stream,
            "Queues": self._queues,
            "QueueStats": self._queues,
            "Time": self._time,
        }
        self._handlers = {
            f"/{package}.EntroQ/{name}": self._handler(name, call) for name, call in calls.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return what carries out a method; None if there is none."""
        return self._handlers.get(handler_call_details.method)

    def _handler(self, name: str, call: Callable[..., Any]) -> grpc.RpcMethodHandler:
        takes, gives = METHODS[name]
        request = getattr(self._wire, takes)
        answer = getattr(self._wire, gives.rstrip("*"))
        if gives.endswith("*"):
            return grpc.unary_stream_rpc_method_handler(
                self._counted_stream(name, call), request.FromString, answer.SerializeToString
            )
        return grpc.unary_unary_rpc_method_handler(
            self._counted(name, call), request.FromString, answer.SerializeToString
        )

    # --- methods -------------------------------------------------------------------------------------------

    async def _time(self, caller: Caller, request: Any) -> Any:
        return self._wire.TimeResponse(time_ms=await self._service.time(caller))

    async def _try_claim(self, caller: Caller, request: Any) -> Any:
        task = await self._service.try_claim(caller, self._wire.claim_query(request))
        return self._wire.ClaimResponse(task=None if task is None else self._wire.task(task))

    async def _claim(self, caller: Caller, request: Any) -> Any:
        task = await self._service.claim(caller, self._wire.claim_query(request))
        return self._wire.ClaimResponse(task=self._wire.task(task))

    async def _modify(self, caller: Caller, request: Any) -> Any:
        modified = await self._service.modify(caller, self._wire.modification(request))
        return self._wire.modified(modified, request.claimant_id)

    async def _tasks(self, caller: Caller, request: Any) -> Any:
        answer = self._wire.TasksResponse()
        async for page in self._service.tasks(caller, self._wire.tasks_query(request)):
            answer.tasks.extend(self._wire.task(task) for task in page)
        return answer

    async def _stream(self, caller: Caller, request: Any) -> AsyncIterator[Any]:
        async for page in self._service.tasks(caller, self._wire.tasks_query(request)):
            for task in page:
                yield self._wire.TasksResponse(tasks=[self._wire.task(task)])

    async def _queues(self, caller: Caller, request: Any) -> Any:
        found = await self._service.queues(caller, self._wire.queues_query(request))
        return self._wire.QueuesResponse(queues=[self._wire.stat(each) for each in found])

    # --- calls ---------------------------------------------------------------------------------------------

    def _counted(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def method(request: Any, context: Context) -> Any:
            began, code = time.monotonic(), _Code.CANCELLED
            try:
                answer = await call(await self._begin(context), request)
                code = _Code.OK
                return answer
            except Exception as error:  # noqa: BLE001 - one call that breaks us must not break the service
                code = _code(error)
                return await self._abort(context, error, code)
            finally:
                self._service.meter.count("grpc", name, code.name, time.monotonic() - began)

        return method

    def _counted_stream(
        self, name: str, call: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def method(request: Any, context: Context) -> AsyncIterator[Any]:
            began, code = time.monotonic(), _Code.CANCELLED
            try:
                async for answer in call(await self._begin(context), request):
                    yield answer
                code = _Code.OK
            except Exception as error:  # noqa: BLE001 - as above
                code = _code(error)
                await self._abort(context, error, code)
            finally:
                self._service.meter.count("grpc", name, code.name, time.monotonic() - began)

        return method

    async def _begin(self, context: Context) -> Caller:
        """Read who calls, and refuse a protocol that is not spoken here."""
        said = {str(key).lower(): value for key, value in context.invocation_metadata() or ()}
        spoken = str(said.get(PROTOCOL, SERVED)).replace(" ", "").split(",")
        await context.send_initial_metadata(((PROTOCOL, SERVED),))
        if "2" in spoken and "1" not in spoken:
            raise Unimplemented("this service speaks protocol 1 over gRPC, and protocols 1 and 2 over HTTP")
        return Caller.read(str(said.get("authorization", "")))

    async def _abort(self, context: Context, error: Exception, code: grpc.StatusCode) -> Any:
        details: list[Any] = []
        text = str(error)
        if isinstance(error, DependencyError):
            details = self._wire.dependency(error)
        elif isinstance(error, PermissionDenied):
            details = self._wire.denied(error.failed, text)
        elif code is _Code.INTERNAL:
            text = _report(error)
        trailing: tuple[tuple[str, bytes], ...] = ()
        if details:
            status = status_pb2.Status(code=code.value[0], message=text)
            for each in details:
                if status.ByteSize() + each.ByteSize() > LARGEST_DETAILS:
                    break  # the text says how many there are
                status.details.add(
                    type_url=f"type.googleapis.com/{each.DESCRIPTOR.full_name}",
                    value=each.SerializeToString(),
                )
            trailing = (("grpc-status-details-bin", status.SerializeToString()),)
        await context.abort(code, text, trailing)


def _code(error: Exception) -> grpc.StatusCode:
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), _Code.INTERNAL)


def _report(error: Exception) -> str:
    """Report what went wrong here; return what the client is told. The path of the space is nobody's business."""
    if isinstance(error, (DirQueueError, OSError)):
        print(f"dirqueue: entroq: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return f"the directory could not be used: {getattr(error, 'strerror', None) or type(error).__name__}"
    import traceback

    traceback.print_exception(error)
    return f"this is a defect in dirqueue: {type(error).__name__}"


class GrpcServer:
    """A gRPC server of one service; it has its ports before it answers.

    Args:
        service: What it answers for.
        largest: The most bytes of a request.
    """

    def __init__(self, service: Service, largest: int) -> None:
        self._server = grpc.aio.server(
            handlers=[Door(service, package) for package in PACKAGES],
            maximum_concurrent_rpcs=CALLS,
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a second service on the same port is a mistake, and should say so
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        self._health = health.HealthServicer()
        add_HealthServicer_to_server(self._health, self._server)

    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Take an address; return the port."""
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise SettingsError(f"cannot listen on {address} for gRPC: {error}") from error

    async def start(self) -> None:
        """Begin to answer."""
        await self._server.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def refuse(self) -> None:
        """Say that no more calls are wanted."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, seconds: float) -> None:
        """Take no more calls; end those that go on for longer."""
        await self._server.stop(seconds)

    async def _say(self, status: Any) -> None:
        for name in ("", *(f"{package}.EntroQ" for package in PACKAGES)):
            await self._health.set(name, status)


def credentials(cert: bytes, key: bytes, client_ca: bytes | None) -> grpc.ServerCredentials:
    """Return what makes connections secret, and clients show a certificate if there is an authority for them."""
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )
