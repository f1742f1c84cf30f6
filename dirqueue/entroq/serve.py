"""Run the service: take the addresses, answer until a signal, then stop without breaking anything off.

Layer: edges.
An address that others can reach needs TLS or the word `plaintext`, and somebody who judges or the word `open`: both are
things that a person has to say. Nothing of a running service is anywhere but in the directory: kill -9 needs no repair.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from dirqueue.entroq import opa
from dirqueue.entroq.authz import Anybody, Judge, Token, read_token
from dirqueue.entroq.desk import Desk, Watch
from dirqueue.entroq.service import Service
from dirqueue.entroq.tasks import Store
from dirqueue.errors import SettingsError, access_error
from dirqueue.web.handler import is_loopback

if TYPE_CHECKING:
    from dirqueue.entroq.grpc import GrpcServer

#: Where EntroQ's own service listens.
HTTP, GRPC = "127.0.0.1:9100", "127.0.0.1:37706"
AUTHZ = ("none", "token", "opahttp")
#: Seconds that requests have to finish when the service stops.
GRACE = 10.0
MAX_SIZE_MB = 10


@dataclass(frozen=True)
class Options:
    """How to serve.

    `http` and `grpc` are HOST:PORT, or None for no such door; port 0 takes one that is free.
    """

    http: str | None = HTTP
    grpc: str | None = GRPC
    #: none, token or opahttp.
    authz: str = "none"
    token_file: str | None = None
    opa_url: str = opa.URL
    opa_path: str = opa.PATH
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    #: Others may listen to what is said.
    plaintext: bool = False
    #: Others may do what they like.
    open: bool = False
    max_size_mb: int = MAX_SIZE_MB

    def check(self) -> None:
        """Raise SettingsError for what does not go together, or is not safe without a word."""
        if self.http is None and self.grpc is None:
            raise SettingsError("there is nothing to serve without HTTP and without gRPC")
        if self.authz not in AUTHZ:
            raise SettingsError(f"authz is one of {', '.join(AUTHZ)}, not {self.authz!r}")
        if (self.authz == "token") != (self.token_file is not None):
            raise SettingsError("authz token needs a token file, and only it does")
        if (self.tls_cert is None) != (self.tls_key is None) or (self.tls_client_ca and not self.tls_cert):
            raise SettingsError("TLS needs a certificate and its key, also where clients show theirs")
        if not 1 <= self.max_size_mb <= 1024:
            raise SettingsError(f"a request may have 1 to 1024 MB, not {self.max_size_mb}")
        for address in (self.http, self.grpc):
            if address is not None and not is_loopback(split(address)[0]):
                self._check_public(address)

    def _check_public(self, address: str) -> None:
        if self.tls_cert is None and not self.plaintext:
            raise SettingsError(
                f"{address} can be reached by others: give a TLS certificate and key, or say --plaintext"
            )
        if self.authz == "none" and not self.open:
            raise SettingsError(
                f"{address} can be reached by others: choose --authz token or opahttp, or say --open"
            )

    def judge(self) -> Judge:
        """Return who judges."""
        if self.authz == "token" and self.token_file is not None:
            return Token(read_token(self.token_file))
        return opa.Opa(self.opa_url, self.opa_path) if self.authz == "opahttp" else Anybody()


@dataclass(frozen=True)
class Addresses:
    """Where a service answers."""

    http: str | None
    grpc: str | None


def run(space: str, options: Options | None = None, ready: Callable[[Addresses], None] | None = None) -> None:
    """Serve a directory until SIGTERM or SIGINT.

    Args:
        space: The directory; it is made by the first insert.
        options: How; on this machine only if None.
        ready: Called once with the addresses, when both doors answer.
    """
    options = options or Options()
    options.check()
    from dirqueue.entroq.store import DirectoryStore

    store = DirectoryStore(space)
    try:
        asyncio.run(_run(store, store.watch(), options, ready))
    finally:
        store.close()


async def _run(
    store: Store, watch: Watch | None, options: Options, ready: Callable[[Addresses], None] | None
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with Running(store, watch, options) as running:
        if ready is not None:
            ready(running.addresses)
        await stopped.wait()


class Running:
    """A service that answers inside of `async with`."""

    def __init__(self, store: Store, watch: Watch | None, options: Options) -> None:
        self._options = options
        self._largest = options.max_size_mb << 20
        self.service = Service(Desk(store, watch), options.judge(), getattr(store, "families", None))
        self._http: Any = None
        self._http_task: asyncio.Task[None] | None = None
        self._grpc: GrpcServer | None = None
        self._stack = AsyncExitStack()
        self.addresses = Addresses(None, None)

    async def __aenter__(self) -> Self:
        options = self._options
        tls = "s" if options.tls_cert else ""
        http = grpc = None
        async with AsyncExitStack() as stack:
            await self.service.desk.open()
            stack.push_async_callback(self.service.close)
            if options.http is not None:
                host, port = await self._open_http(options.http)
                stack.push_async_callback(self._close_http)
                http = f"http{tls}://{_shown(host)}:{port}"
            if options.grpc is not None:
                host, port = await self._open_grpc(options.grpc)
                stack.push_async_callback(self._close_grpc)
                grpc = f"grpc{tls}://{_shown(host)}:{port}"
            self._stack = stack.pop_all()
        self.addresses = Addresses(http, grpc)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._grpc is not None:
            await self._grpc.refuse()
        self.service.desk.refuse()
        await self._stack.aclose()

    async def _open_http(self, address: str) -> tuple[str, int]:
        import uvicorn

        from dirqueue.entroq import connections
        from dirqueue.entroq.http import Door

        options = self._options
        host, port = split(address)
        connections.Connection.limit = connections.allow_descriptors()
        listener = _listen(host, port)
        config = uvicorn.Config(
            Door(self.service, loopback=is_loopback(host), largest=self._largest).app(),
            http=connections.Connection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=connections.HEAD_BYTES,
            timeout_keep_alive=connections.IDLE_SECONDS,
            timeout_graceful_shutdown=int(GRACE),
        )
        if options.tls_cert is not None:
            config.ssl_certfile, config.ssl_keyfile = options.tls_cert, options.tls_key
            if options.tls_client_ca is not None:
                config.ssl_ca_certs, config.ssl_cert_reqs = options.tls_client_ca, ssl.CERT_REQUIRED
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            listener.close()
            raise SettingsError(f"the TLS certificate or key cannot be used: {error}") from error
        self._http = connections.HttpServer(config)
        self._http_task = asyncio.create_task(self._http.serve(sockets=[listener]))
        while not self._http.started:
            if self._http_task.done():
                await self._http_task
            await asyncio.sleep(0.005)
        return host, int(listener.getsockname()[1])

    async def _close_http(self) -> None:
        self._http.should_exit = True
        if self._http_task is not None:
            await self._http_task

    async def _open_grpc(self, address: str) -> tuple[str, int]:
        from dirqueue.entroq.grpc import GrpcServer, credentials

        options, secret = self._options, None
        if options.tls_cert is not None and options.tls_key is not None:
            secret = credentials(
                _read(options.tls_cert), _read(options.tls_key), _read(options.tls_client_ca) or None
            )
        self._grpc = GrpcServer(self.service, self._largest)
        host, _ = split(address)
        port = self._grpc.listen(address, secret)
        await self._grpc.start()
        return host, port

    async def _close_grpc(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop(GRACE)


def split(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [HOST]:PORT."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"an address is HOST:PORT, not {address!r}")
    return host, int(port)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # COST: asyncio sends at once only where the protocol is named: 1 ms for a request instead of 44.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise access_error(f"{host}:{port}", "listen on", error) from error
    listener.setblocking(False)
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _read(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise access_error(path, "read", error) from error
