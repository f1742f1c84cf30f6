"""Running a handler in a child process: it may crash, hang or hold the GIL, and the lease is still renewed.

Layer: conveniences.  Touches: nothing; the body is read by the worker and sent, or its open file is.
The worker claims, renews and commits; the child only runs the handler. So a child can be killed at any moment, and
what killed it is known and written beside the message.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self

from dirqueue.codecs import Codec
from dirqueue.disk import fs
from dirqueue.errors import MessageNotFound
from dirqueue.lease import Outcome
from dirqueue.message import Details, Entry, Extras, Failure, Message
from dirqueue.worker.events import Event
from dirqueue.worker.forkserver import ForkServer
from dirqueue.worker.outcome import Cancelled, call, signal_name
from dirqueue.worker.watchdog import Delivery

_LENGTH = struct.Struct("!Q")
#: The pause before a child that died is replaced: the first, and the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0


class Parcel(NamedTuple):
    """What is sent to a child about a message."""

    entry: Entry
    codec: int | Codec[Any]
    #: None for a body too long for memory: then its open file comes along.
    data: bytes | None
    leased_at: datetime | None
    failure: Failure | None
    #: The directory of its queue.
    path: str
    extras: Extras | None = None
    #: What its side file says, without the body; and who holds it.
    details: Details | None = None
    holder: str | None = None


class InProcess:
    """Calls the handler in a child of its own, started when needed and replaced when it dies."""

    def __init__(
        self,
        forkserver: ForkServer,
        codecs: list[Codec[Any]],
        emit: Callable[[Event], None],
        wait: Callable[[float], bool],
    ) -> None:
        self._forkserver = forkserver
        self._codecs = codecs
        self._emit = emit
        self._wait = wait
        self._deaths = 0
        self.pid = 0
        self._socket: socket.socket | None = None
        self._running: Delivery | None = None
        self._lock = threading.Lock()

    def prepare(self) -> bool:
        """Start a child if there is none, before a claim. Return False if the worker stops meanwhile."""
        if self._socket is not None:
            return True
        if self._deaths and self._wait(min(FIRST_PAUSE * 2.0 ** (self._deaths - 1), LONGEST_PAUSE)):
            return False
        self.pid, self._socket = self._forkserver.start()
        return True

    def run(self, delivery: Delivery) -> Outcome:
        """Return how the handler ended; a child that died is a failure of the message."""
        child = self._socket
        if child is None:
            raise RuntimeError("prepare() comes first")
        with self._lock:
            self._running = delivery
        try:
            answer = self._talk(child, delivery)
        finally:
            with self._lock:
                self._running = None
        if delivery.cancelled:
            # RACE: a kill may be on its way to this child; the next message gets another one.
            self._forget()
            raise Cancelled
        if not answer:
            return self._died(delivery)
        self._deaths = 0
        outcome: Outcome = pickle.loads(answer)  # noqa: S301 - from our own child, over a private socket
        return outcome

    def _talk(self, child: socket.socket, delivery: Delivery) -> bytes:
        """Return the child's answer, empty if it died."""
        try:
            self._ask(child, delivery)
            return _receive(child)[0]
        except (BrokenPipeError, ConnectionResetError):
            return b""  # it died before it had read all

    def _ask(self, child: socket.socket, delivery: Delivery) -> None:
        message = delivery.lease.message
        codec = delivery.lease.codec
        known = [index for index, each in enumerate(self._codecs) if each is codec]
        tried = message.attempts > 1
        file: BinaryIO | None = None
        try:
            if message.size > fs.CHUNK:
                file = message.open()
            fd = _fileno(file)
            parcel = Parcel(
                message.entry,
                known[0] if known else codec,
                message.data if fd is None else None,
                message.leased_at if tried else None,
                message.failure if tried else None,
                message.path,
                message.extras,
                _details(message),
                message.holder,
            )
            _send(child, pickle.dumps(parcel), fd)
        finally:
            if file is not None:
                file.close()

    def _died(self, delivery: Delivery) -> Outcome:
        pid, status = self.pid, self._forkserver.ended(self.pid)
        self._forget()
        self._deaths += 1
        text = f"worker process {pid} {how_it_ended(status)} while it handled the message"
        self._emit(Event("died", delivery.lease.path, delivery.id, delivery.attempts, error=text, pid=pid))
        return Outcome("retry", None, text)

    def cancel(self, delivery: Delivery) -> bool:
        """Kill the child if it is at this delivery: nothing less stops any handler. Return False if it is not."""
        with self._lock:
            if self._running is not delivery:
                return False
            self._forkserver.kill(self.pid)
            return True

    def close(self) -> None:
        """Let the child go: it ends when its socket closes."""
        self._forget()

    def _forget(self) -> None:
        child, self._socket = self._socket, None
        if child is not None:
            child.close()


def how_it_ended(status: int | None) -> str:
    """Return a wait status in words."""
    if status is None:
        return "vanished"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"


def serve(handler: Callable[[Any], object], codecs: list[Codec[Any]], worker: socket.socket) -> None:
    """Run in a child: handle what comes until the socket closes."""
    while True:
        try:
            data, fd = _receive(worker)
        except OSError:
            return
        if not data:
            return
        parcel: Parcel = pickle.loads(data)  # noqa: S301 - from the worker that started us
        codec = codecs[parcel.codec] if isinstance(parcel.codec, int) else parcel.codec
        with _Sent(parcel, fd) as source:
            outcome = call(handler, Message(parcel.entry, source, codec, parcel.data))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _send(worker, pickle.dumps(outcome), None)


class _Sent:
    """The source of a message in a child: what was sent, and no way to change anything."""

    def __init__(self, parcel: Parcel, fd: int | None) -> None:
        self._parcel = parcel
        self._fd = fd

    @property
    def directory(self) -> Parcel:
        return self._parcel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            fs.close(self._fd)

    def load(self, place: str) -> bytes:
        with self.stream(place) as file:
            return file.read()

    def stream(self, _place: str) -> BinaryIO:
        if self._fd is None:
            return io.BytesIO(self._parcel.data or b"")
        # Opened anew by its descriptor: each reader has its own position, and a renewal may change the name.
        return io.BufferedReader(_Positioned(self._fd))

    def size(self, _place: str) -> int:
        return len(self._parcel.data or b"") if self._fd is None else fs.fstat(self._fd).st_size

    def leased_at(self, _entry: Entry) -> datetime | None:
        return self._parcel.leased_at

    def failure(self, _entry: Entry) -> Failure | None:
        return self._parcel.failure

    def extras(self, _entry: Entry) -> Extras | None:
        return self._parcel.extras

    def details(self, _entry: Entry) -> Details | None:
        return self._parcel.details

    def holder(self, entry: Entry) -> str:
        return self._parcel.holder or entry.token

    def cancel(self, entry: Entry) -> NoReturn:
        raise _held(entry)

    def change(self, entry: Entry, **_: Any) -> NoReturn:
        raise _held(entry)


def _details(message: Message[Any]) -> Details | None:
    """Return what the side file of a message says, without the body."""
    found: Details | None = message.layout.details(message.entry)
    return found and found._replace(body=None)


def _held(entry: Entry) -> MessageNotFound:
    return MessageNotFound(
        f"cannot change {entry.id}: it is leased, and only an unclaimed message can be changed",
        message_id=entry.id,
    )


class _Positioned(io.RawIOBase):
    """Reads a shared descriptor from a position of its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: fs.fstat(self._fd).st_size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        done = os.preadv(self._fd, [buffer], self._at)
        self._at += done
        return done


def _fileno(file: BinaryIO | None) -> int | None:
    try:
        return None if file is None else file.fileno()
    except (OSError, io.UnsupportedOperation):
        return None  # a layout that makes the body up: it is sent


def _send(to: socket.socket, data: bytes, fd: int | None) -> None:
    head = _LENGTH.pack(len(data))
    if fd is None:
        to.sendall(head)
    else:
        socket.send_fds(to, [head], [fd])
    to.sendall(data)


def _receive(source: socket.socket) -> tuple[bytes, int | None]:
    """Return one whole message and the descriptor that came with it; empty at the end."""
    head, fds, _, _ = socket.recv_fds(source, _LENGTH.size, 1)
    head += _exactly(source, _LENGTH.size - len(head)) if head else b""
    if len(head) < _LENGTH.size:
        return b"", None
    (length,) = _LENGTH.unpack(head)
    data = _exactly(source, length)
    return (data if len(data) == length else b""), (fds[0] if fds else None)


def _exactly(source: socket.socket, length: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < length:
        data = source.recv(min(length - len(pieces), 1 << 20))
        if not data:
            break
        pieces += data
    return bytes(pieces)
