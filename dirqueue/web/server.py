"""The server: one thread for each connection, one request for each connection, and a bound on everything.

Layer: edges.
A client that is slow, or many of them, delay nobody else: when all places are taken, the connection that has been
sending its request for the longest time makes room.
"""

from __future__ import annotations

import errno
import resource
import socket
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from typing import Any

from dirqueue.errors import access_error
from dirqueue.web.api import Api
from dirqueue.web.handler import Handler, is_loopback

#: Connections at a time; and at most this part of the descriptors that the process may open, since queues need some.
CONNECTIONS = 64
SHARE = 4
#: Seconds that a connection waits for a place, and that the server pauses when the machine lets it accept none.
PLACE_SECONDS = 1.0
PAUSE_SECONDS = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n"
    b'{"error": "too many connections: try again"}'
)


class Server(ThreadingHTTPServer):
    """One page for one root."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, api: Api, host: str, port: int, token: str, *, public: bool) -> None:
        self.api, self.token, self.public = api, token, public
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.loopback = is_loopback(host)
        self._lock = threading.Lock()
        #: Connections whose request has not arrived in full, the oldest first.
        self._unread: dict[Any, None] = {}
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        places = CONNECTIONS if descriptors < 0 else max(1, min(CONNECTIONS, descriptors // SHARE))
        self._places = threading.BoundedSemaphore(places)
        super().__init__((host, port), Handler)

    def server_close(self) -> None:
        """Close the port and the queues."""
        super().server_close()
        self.api.close()

    @property
    def url(self) -> str:
        """The address of the page, with the token in the fragment, which no server log and no other site sees."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/#token={self.token}"

    # --- connections ---------------------------------------------------------------------------------------

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; pause if the machine has no descriptor for it, since it stays in the backlog."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._drop_slowest()
                time.sleep(PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in a thread of its own, or refuse it if there is no place."""
        if not self._places.acquire(blocking=False):
            self._drop_slowest()
            if not self._places.acquire(timeout=PLACE_SECONDS):
                self._refuse(request)
                return
        with self._lock:
            self._unread[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # the machine has no thread for it
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def is_read(self, request: Any) -> bool:
        """Note that a request has arrived in full; return False if its connection was dropped before."""
        with self._lock:
            if request not in self._unread:
                return False
            del self._unread[request]
            return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report in one line why a connection failed; clients that went away are not reported."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"dirqueue: web: {type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201

    def _leave(self, request: Any) -> None:
        with self._lock:
            self._unread.pop(request, None)
        self._places.release()

    def _drop_slowest(self) -> None:
        with self._lock:
            slowest = next(iter(self._unread), None)
            if slowest is not None:
                del self._unread[slowest]
        if slowest is not None:
            try:
                slowest.shutdown(
                    socket.SHUT_RDWR
                )  # its thread reads the end of the connection, and closes it
            except OSError:
                pass  # RACE: it is closed already

    def _refuse(self, request: Any) -> None:
        try:
            request.setblocking(False)
            request.send(_BUSY)
        except OSError:
            pass
        self.shutdown_request(request)


def make_server(root: str, host: str, port: int, token: str, *, public: bool = False) -> Server:
    """Return a server that listens already; serve_forever() answers."""
    try:
        return Server(Api(root), host, port, token, public=public)
    except OSError as error:
        raise access_error(f"{host}:{port}", "listen on", error) from error
