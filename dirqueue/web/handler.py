"""One HTTP request: whether it is well-formed, who may send it, and how its answer travels.

Layer: edges.
Everything but the empty page itself needs the token, in a header that no other site can make a browser send: so there
are no cookies, and nothing to forge. With `public`, reading needs none. On a loopback address only the names of
loopback are answered, so that no foreign name can be pointed at this machine (DNS rebinding).

A connection carries one request: whatever follows it is never read as another one. What is not plain HTTP/1 is
refused, not guessed at.
"""

from __future__ import annotations

import hmac
import io
import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from dirqueue.errors import DirQueueError, InvalidId, MessageNotFound, SettingsError
from dirqueue.web.api import Listing, UnknownQueue

if TYPE_CHECKING:
    from dirqueue.web.server import Server

#: All the files that a browser ever loads.
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/views.js": ("views.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/morph.js": ("morph.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}
#: Most bytes of a request's head, and of an order.
HEAD_BYTES = 96 << 10
ORDER_BYTES = 1 << 20
#: Seconds for a whole request to arrive, for its answer to leave, and for the client to close the connection.
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 1.0

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
_HOST = r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?"
HOST = re.compile(_HOST)
ORIGIN = re.compile(rf"null|[a-z][a-z0-9+.-]*://{_HOST}")
PATH = re.compile(r"/[\x21-\x7e]*")
LENGTH = re.compile(r"[0-9]{1,18}")
#: Headers that mean something here, and so must not be there twice.
ONCE = ("Host", "Origin", "Authorization", "Content-Length", "Content-Type")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

Answer = tuple[HTTPStatus, str, bytes]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Handler(BaseHTTPRequestHandler):
    """Serves one connection, which is one request: Python's handler does so for HTTP/1.0."""

    server: Server
    server_version = "dirqueue"
    sys_version = ""
    protocol_version = "HTTP/1.0"
    _answered = False

    def setup(self) -> None:
        """Bound the time and the size of what is read."""
        super().setup()
        self.rfile.close()
        self._incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def finish(self) -> None:
        """Wait a moment for the client to close.

        Closing with unread bytes would reset the connection, and the client could lose the answer with it.
        """
        super().finish()
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            self.connection.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(64 << 10):
                    break
        except OSError:
            pass

    def parse_request(self) -> bool:
        """Read the head of the request; answer 400 and return False if it is malformed."""
        good = super().parse_request()
        fault = self._fault() if good else "the request is empty"
        if (good and not fault) or self._answered:
            return good
        self.send_error(HTTPStatus.BAD_REQUEST, fault)
        return False

    def do_GET(self) -> None:
        """Answer a question."""
        self._respond(self._get)

    def do_POST(self) -> None:
        """Carry out an order."""
        self._respond(self._post)

    def _respond(self, work: Callable[[], Answer]) -> None:
        try:
            self._check_origin()
            answer = work()
        except Refused as refused:
            answer = _json(refused.status, {"error": refused.text})
        except (MessageNotFound, UnknownQueue) as error:
            answer = _json(HTTPStatus.NOT_FOUND, {"error": str(error)})
        except (SettingsError, InvalidId) as error:
            answer = _json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except (DirQueueError, OSError) as error:
            answer = _json(HTTPStatus.CONFLICT, {"error": str(error)})
        except Exception as error:  # noqa: BLE001 - one queue or message that breaks us must not break the page
            if os.environ.get("DIRQUEUE_TRACE"):
                import traceback

                traceback.print_exc()
            text = f"this is a defect in dirqueue: {type(error).__name__}: {error} (DIRQUEUE_TRACE=1 shows where)"
            answer = _json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": text})
        self._send(*answer)

    def _send(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self._answered = True
        self.server.is_read(
            self.connection
        )  # whatever is left of a refused one: it does not make room any more
        self.request_version = "HTTP/1.0"  # also where none was given: every answer has a status
        try:
            self.connection.settimeout(ANSWER_SECONDS)
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # the client went away

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what Python's handler refuses in the same form as everything else."""
        status = HTTPStatus(code)
        self._send(*_json(status, {"error": message or status.phrase}))

    # --- answers -------------------------------------------------------------------------------------------

    def _get(self) -> Answer:
        self._begin()
        path, _, words = self.path.partition("?")
        if path in FILES:
            name, kind = FILES[path]
            return HTTPStatus.OK, kind, resources.files(__package__).joinpath("static", name).read_bytes()
        if not path.startswith("/api/"):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if not self.server.public:
            self._check_token()
        query = {name: values[-1] for name, values in parse_qs(words).items()}
        api = self.server.api
        key = query.get("queue", "")
        questions: dict[str, Callable[[], Any]] = {
            "/api/queues": lambda: api.queues(query),
            "/api/queue": lambda: api.queue(key),
            "/api/messages": lambda: api.messages(key, Listing.read(query)),
            "/api/errors": lambda: api.errors(key),
            "/api/workers": lambda: api.workers(key),
            "/api/message": lambda: api.message(key, query.get("id", "")),
        }
        if path not in questions:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such question")
        return _json(HTTPStatus.OK, questions[path]())

    def _post(self) -> Answer:
        self._check_token()
        if self.path.partition("?")[0] != "/api/act":
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such order")
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an order is application/json")
        try:
            order = json.loads(self._body())
        except (ValueError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"not JSON: {error}") from None
        self._begin()
        return _json(HTTPStatus.OK, self.server.api.act(order))

    def _body(self) -> bytes:
        text = self.headers.get("Content-Length")
        if text is None:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "an order needs a Content-Length")
        length = int(text)
        if length > ORDER_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an order has at most {ORDER_BYTES} bytes")
        self._incoming.allowed = length
        try:
            data = self.rfile.read(length)
        except TimeoutError:
            text = f"the request took longer than {REQUEST_SECONDS:g} s"
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, text) from None
        if len(data) < length:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the order ends after {len(data)} of {length} bytes")
        return data

    def _begin(self) -> None:
        if not self.server.is_read(self.connection):
            # RACE: it was slow and had to make room just when it was complete; nothing is done for it.
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the connection was dropped: too many others came")

    # --- what is refused -----------------------------------------------------------------------------------

    def _fault(self) -> str:
        """Return what is malformed in the head of the request; an empty text if nothing is."""
        headers = self.headers
        if self.request_version == "HTTP/0.9":
            return "the request line has no HTTP version"
        if headers.defects or headers.get_unixfrom() or any(map(CONTROL.search, headers.values())):
            return "a header is malformed"
        for name in ONCE:
            if len(headers.get_all(name, [])) > 1:
                return f"{name} is there more than once"
        for name, pattern in (("Host", HOST), ("Origin", ORIGIN), ("Content-Length", LENGTH)):
            value = headers.get(name)
            if value is not None and not pattern.fullmatch(value):
                return f"{name} is malformed"
        if "Host" not in headers:
            return "Host is missing"
        if not PATH.fullmatch(self.path):
            return "the path is malformed"
        if "Transfer-Encoding" in headers:
            return "Transfer-Encoding is not supported: send a Content-Length"
        if self.command == "GET" and int(headers.get("Content-Length", "0")):
            return "a GET has no body"
        return ""

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "")
        wanted = f"Bearer {self.server.token}"
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            text = "the token is missing or wrong: open the address that `dirqueue web` printed"
            raise Refused(HTTPStatus.UNAUTHORIZED, text)

    def _check_origin(self) -> None:
        host = self.headers["Host"]
        found = HOST.fullmatch(host)
        name = (found["six"] or found["name"]).lower() if found else ""
        if self.server.loopback and name not in LOOPBACK_NAMES and not is_loopback(name):
            raise Refused(HTTPStatus.FORBIDDEN, "this page answers to the names of this machine only")
        origin = self.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(HTTPStatus.FORBIDDEN, "another site asked")

    def log_message(self, *_: object) -> None:
        """Log nothing: the page asks every two seconds."""


class _Incoming(io.RawIOBase):
    """What arrives on a connection: for so many seconds in all, and up to so many bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + REQUEST_SECONDS
        self.allowed = HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.allowed <= 0:
            raise HTTPException("the request is too long")
        self._connection.settimeout(left)
        count = self._connection.recv_into(memoryview(buffer)[: self.allowed])
        self.allowed -= count
        return count


def is_loopback(host: str) -> bool:
    """Return whether an address or a name means this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _json(status: HTTPStatus, value: Any) -> Answer:
    # Valid UTF-8 and valid JSON, whatever a name or an error text holds.
    return status, "application/json", json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
