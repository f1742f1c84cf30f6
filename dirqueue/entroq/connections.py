"""Connections of the HTTP door: how many there may be, and how long one may take to say what it wants.

Layer: edges.
uvicorn bounds neither the time for the head of a request nor, without answering 503, the number of connections; a
client's worker takes every 5xx for the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Connections at a time: each claim that waits needs one.
CONNECTIONS = 4_096
#: Descriptors that are left for the directory: every queue that is used has one.
RESERVE = 512
#: Seconds for the head of a request to arrive, and for a connection to be idle: EntroQ's clients keep one for 60.
HEAD_SECONDS = 10.0
IDLE_SECONDS = 75
#: Bytes of the head of a request.
HEAD_BYTES = 64 << 10

_REASON = b'{"code":8,"message":"too many connections: try again later","details":[]}'
_BUSY = (
    b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_REASON), _REASON)
)


class Connection(H11Protocol):
    """A connection that may not take for ever to say what it wants."""

    #: How many there may be.
    limit = CONNECTIONS
    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to count the time; refuse the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            transport.write(_BUSY)
            transport.close()
        else:
            self._hurry()

    def data_received(self, data: bytes) -> None:
        """Read on; the time counts while no request is complete."""
        super().data_received(data)
        self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._relax()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Let the connection be idle."""
        self._relax()
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next request has begun already
            self._hurry()

    def _hurry(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self._relax()
        elif self._slow is None:
            self._slow = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _relax(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


class HttpServer(uvicorn.Server):
    """A server that leaves the signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def allow_descriptors() -> int:
    """Have as many descriptors as the machine lets us; return how many connections there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return CONNECTIONS
    return min(CONNECTIONS, max(16, hard - RESERVE))
