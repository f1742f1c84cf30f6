"""The HTTP side: who may ask, and how answers travel.

Layer: edges.
Everything but the empty page itself needs the token, in a header that no other site can make a browser send: so there
are no cookies, and nothing to forge. With `public`, reading needs none. On a loopback address only the names of
loopback are answered, so that no foreign name can be bent to this machine (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dirqueue.errors import DirQueueError, InvalidId, MessageNotFound, SettingsError, access_error
from dirqueue.web.api import Api, UnknownQueue

#: The page: three files, all that a browser ever loads.
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: The longest order that is read.
ORDER_BYTES = 1 << 20
LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Server(ThreadingHTTPServer):
    """One page for one root."""

    daemon_threads = True

    def __init__(self, api: Api, host: str, port: int, token: str, *, public: bool) -> None:
        self.api, self.token, self.public = api, token, public
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.loopback = _is_loopback(host)
        super().__init__((host, port), _Handler)

    def server_close(self) -> None:
        """Let go of the port and of the queues."""
        super().server_close()
        self.api.close()

    @property
    def url(self) -> str:
        """Where the page is, with the token where no server log and no other site sees it."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/#token={self.token}"


def make_server(root: str, host: str, port: int, token: str, *, public: bool = False) -> Server:
    """Return a server that listens already; serve_forever() answers."""
    try:
        return Server(Api(root), host, port, token, public=public)
    except OSError as error:
        raise access_error(f"{host}:{port}", "listen on", error) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "dirqueue"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, work: Any) -> None:
        try:
            self._check_host()
            status, kind, data = work()
        except Refused as refused:
            status, kind, data = _told(refused.status, {"error": refused.text})
        except (MessageNotFound, UnknownQueue) as error:
            status, kind, data = _told(HTTPStatus.NOT_FOUND, {"error": str(error)})
        except (SettingsError, InvalidId) as error:
            status, kind, data = _told(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except (DirQueueError, OSError) as error:
            status, kind, data = _told(HTTPStatus.CONFLICT, {"error": str(error)})
        if status >= HTTPStatus.BAD_REQUEST:
            self.close_connection = True  # what is left of the request is not read
        try:
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the browser went away

    # --- answers -------------------------------------------------------------------------------------------

    def _get(self) -> tuple[HTTPStatus, str, bytes]:
        parts = urlsplit(self.path)
        if parts.path in FILES:
            name, kind = FILES[parts.path]
            return HTTPStatus.OK, kind, resources.files(__package__).joinpath("static", name).read_bytes()
        if not parts.path.startswith("/api/"):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if not self.server.public:
            self._check_token()
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        api = self.server.api
        if parts.path == "/api/queues":
            return _told(HTTPStatus.OK, api.queues())
        if parts.path == "/api/messages":
            return _told(HTTPStatus.OK, api.messages(query.get("queue", ""), query.get("state", "ready")))
        if parts.path == "/api/message":
            return _told(HTTPStatus.OK, api.message(query.get("queue", ""), query.get("id", "")))
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such question")

    def _post(self) -> tuple[HTTPStatus, str, bytes]:
        self._check_token()
        if urlsplit(self.path).path != "/api/act":
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such order")
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an order is application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= ORDER_BYTES):
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an order has at most {ORDER_BYTES} bytes")
        try:
            order = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"not JSON: {error}") from None
        return _told(HTTPStatus.OK, self.server.api.act(order))

    # --- who asks ------------------------------------------------------------------------------------------

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "")
        wanted = f"Bearer {self.server.token}"
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            text = "the token is missing or wrong: open the address that `dirqueue web` printed"
            raise Refused(HTTPStatus.UNAUTHORIZED, text)

    def _check_host(self) -> None:
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if self.server.loopback and host not in LOOPBACK_NAMES and not _is_loopback(host):
            raise Refused(HTTPStatus.FORBIDDEN, "this page answers to the names of this machine only")
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self.headers.get("Host", ""):
            raise Refused(HTTPStatus.FORBIDDEN, "another site asked")

    def log_message(self, *_: object) -> None:
        """Be quiet: the page asks every two seconds."""


def _told(status: HTTPStatus, value: Any) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", json.dumps(value).encode()
