"""Requests: who may send them, what is malformed, and what slow or hostile clients cannot do."""

import contextlib
import json
import socket
import subprocess
import sys
import threading

import pytest
from support.commandline import clean_env
from support.patience import PATIENCE, until
from support.webclient import TOKEN, Client, answer_to, connect, dead_ids

from dirqueue.web import handler, server
from dirqueue.web.handler import FILES

BEARER = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"


# --- who may ask -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", "the-token2", "\xff"])
def test_a_client_without_the_token_gets_nothing_and_changes_nothing(serve, spool, token):
    """Neither counts nor bodies, and no order."""
    client = Client(serve(), token)
    before = dead_ids(spool)
    for path in ("/api/queues", "/api/messages", "/api/message"):
        assert client.get(path)[0] == 401
    status, answer = client.act({"queue": "orders", "verb": "delete", "ids": before})
    assert status == 401
    assert "token" in answer["error"]
    assert dead_ids(spool) == before


def test_public_opens_reading_but_not_changing(serve, spool):
    """An order still needs the token."""
    client = Client(serve(public=True), None)
    assert client.get("/api/queues")[0] == 200
    assert client.act({"queue": "orders", "verb": "delete", "ids": dead_ids(spool)})[0] == 401


def test_another_site_cannot_give_orders(client, spool):
    """A foreign Origin, a foreign Host or a form's content type is refused, even with the token."""
    order = {"queue": "orders", "verb": "delete", "ids": dead_ids(spool)}
    assert client.act(order, Origin="http://evil.example")[0] == 403
    assert client.act(order, Origin="null")[0] == 403
    assert client.act(order, Host="evil.example")[0] == 403
    assert client.act(order, **{"Content-Type": "text/plain"})[0] == 415
    assert len(dead_ids(spool)) == 3
    assert client.ask("GET", "/", Host="evil.example")[0] == 403


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1", "127.3.2.1:80", "[::1]:8425"])
def test_the_names_of_this_machine_are_answered(client, host):
    """With any port, since ssh -L may change it."""
    assert client.ask("GET", "/", Host=host)[0] == 200
    assert client.ask("GET", "/", Host=host, Origin=f"http://{host}")[0] == 200


def test_the_page_forbids_everything_foreign(client):
    """No inline script, no other host, no frame, no cache; and no word of another host in the files."""
    for path in FILES:
        status, data, headers = client.ask("GET", path)
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        text = data.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text


# --- malformed requests ------------------------------------------------------------------------------------


def get(head, path=b"/api/queues"):
    """Return a GET whose head holds these lines."""
    return b"GET " + path + b" HTTP/1.1\r\n" + BEARER + head + b"\r\n"


def post(head, body=b"{}"):
    """Return an order whose head holds these lines."""
    return b"POST /api/act HTTP/1.1\r\n" + BEARER + JSON + b"Host: localhost\r\n" + head + b"\r\n" + body


LOCAL = b"Host: localhost\r\n"
MALFORMED = {
    "empty line": b"\r\n",
    "one word": b"GET\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "four words": b"GET / x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "not a version": b"GET / HTTP/one\r\nHost: localhost\r\n\r\n",
    "huge version": b"GET / HTTP/1." + b"1" * 5000 + b"\r\nHost: localhost\r\n\r\n",
    "noise": bytes(range(128, 256)) * 3 + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
    "no host": get(b""),
    "two hosts": get(LOCAL + b"Host: evil.example\r\n"),
    "open bracket in host": get(b"Host: [::1\r\n"),
    "host is no address": get(b"Host: [x]:y\r\n"),
    "host with a user": get(b"Host: localhost@evil.example\r\n"),
    "host with a path": get(b"Host: localhost/x\r\n"),
    "empty host": get(b"Host:\r\n"),
    "open bracket in origin": get(LOCAL + b"Origin: http://[::1\r\n"),
    "origin without a scheme": get(LOCAL + b"Origin: localhost\r\n"),
    "empty origin": get(LOCAL + b"Origin: \r\n"),
    "origin with NUL": get(LOCAL + b"Origin: http://local\x00host\r\n"),
    "relative path": get(LOCAL, b"api/queues"),
    "absolute address": get(LOCAL, b"http://localhost/api/queues"),
    "absolute bracket": get(LOCAL, b"http://[x/api/queues"),
    "star": get(LOCAL, b"*"),
    "path with raw bytes": get(LOCAL, b"/api/\xc3\xa4"),
    "path with NUL": get(LOCAL, b"/api/\x00"),
    "header without a colon": get(LOCAL + b"Authorization\r\n"),
    "space before the colon": get(LOCAL + b"Content-Length : 0\r\n"),
    "empty header name": get(LOCAL + b": x\r\n"),
    "folded header": get(LOCAL + b"X-One: a\r\n b\r\n"),
    "carriage return in a header": get(LOCAL + b"X-One: a\rb\r\n"),
    "negative length": post(b"Content-Length: -1\r\n"),
    "signed length": post(b"Content-Length: +2\r\n"),
    "hexadecimal length": post(b"Content-Length: 0x2\r\n"),
    "two lengths in one": post(b"Content-Length: 2, 2\r\n"),
    "two lengths": post(b"Content-Length: 2\r\nContent-Length: 2\r\n"),
    "length of five thousand digits": post(b"Content-Length: " + b"9" * 5000 + b"\r\n"),
    "length in other digits": post("Content-Length: ²\r\n".encode("latin-1")),
    "empty length": post(b"Content-Length:\r\n"),
    "length and chunks": post(
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"
    ),
    "chunks": post(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
    "obscured chunks": post(b"Content-Length: 2\r\nTransfer-Encoding: xchunked\r\n"),
    "deep JSON": post(b"Content-Length: 200000\r\n", b"[" * 200_000),
    "deep object": post(b"Content-Length: 500000\r\n", b'{"a":' * 100_000),
    "not JSON": post(b"Content-Length: 1\r\n", b"{"),
    "not UTF-8": post(b"Content-Length: 3\r\n", b'"\xff"'),
    "a number of 100,000 digits": post(b"Content-Length: 100000\r\n", b"1" * 100_000),
    "get with a body": get(LOCAL + b"Content-Length: 5\r\n") + b"hello",
    "get with chunks": get(LOCAL + b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_answered_with_400(serve, spool, capfd, case):
    """One answer in the form of all others, no traceback, and the server goes on."""
    server = serve()
    head, _, body = answer_to(server, MALFORMED[case]).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 400 "), head
    assert b"default-src 'none'" in head
    assert json.loads(body)["error"]
    assert len(dead_ids(spool)) == 3
    assert Client(server).get("/api/queues")[0] == 200
    assert capfd.readouterr().err == ""


def test_an_order_that_ends_early_is_refused(serve, spool):
    """A client that dies while it sends has ordered nothing, even if what came is valid JSON."""
    order = json.dumps({"queue": "orders", "verb": "delete", "ids": dead_ids(spool)}).encode()
    with connect(serve()) as connection:
        connection.sendall(post(b"Content-Length: %d\r\n" % (len(order) + 1), order))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.0 400 ")
    assert len(dead_ids(spool)) == 3


def test_refused_requests_have_their_own_status(client):
    """Too long, no length, unknown path or method: an answer, and the server goes on."""
    kind = {"Content-Type": "application/json"}
    assert client.ask("POST", "/api/act", b"x", **kind, **{"Content-Length": "99999999"})[0] == 413
    assert client.ask("POST", "/api/act", **kind)[0] in (400, 411)
    assert client.ask("POST", "/api/else", b"{}", **kind)[0] == 404
    assert client.ask("DELETE", "/api/act")[0] == 501
    assert client.ask("GET", "/" + "x" * 70_000)[0] == 414
    assert client.ask("GET", "/", **{f"X-{n}": "x" for n in range(150)})[0] == 431
    assert client.ask("GET", "/", **{f"X-{n}": "x" * 30_000 for n in range(50)})[0] == 431
    assert client.get("/api/queues")[0] == 200


def test_the_answer_to_a_request_that_is_not_read_in_full_arrives(serve, monkeypatch):
    """Closing a connection with unread bytes would reset it, and the client would see that instead."""
    monkeypatch.setattr(handler, "CLOSE_SECONDS", PATIENCE)  # the client is quicker
    body = b"x" * (32 << 20)
    request = b"POST /api/act HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert answer_to(serve(), request + body).startswith(b"HTTP/1.0 401 ")


# --- two requests in one -----------------------------------------------------------------------------------


def smuggled(spool):
    """Return an order that a client hides behind another request."""
    order = json.dumps({"queue": "orders", "verb": "delete", "ids": dead_ids(spool)}).encode()
    return post(b"Content-Length: %d\r\n" % len(order), order)


@pytest.mark.parametrize(
    "cover",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /api/act HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n",
        b"\r\n",
    ],
    ids=["length", "pipelined", "kept alive", "chunks", "order", "both", "head", "blank line"],
)
def test_a_connection_carries_one_request(serve, spool, cover):
    """Whatever follows is never read as a request, even if it comes later."""
    hidden = smuggled(spool)
    cover = cover.replace(b"%d", str(len(hidden)).encode())
    received = answer_to(serve(), cover + hidden)
    assert received.count(b"HTTP/1.") == 1, received[:2000]
    assert len(dead_ids(spool)) == 3


def test_a_second_request_sent_after_the_first_answer_is_not_read(serve, spool):
    """The connection is closed, not kept."""
    with connect(serve()) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
        until(lambda: b"</html>" in connection.recv(1 << 16, socket.MSG_PEEK), "the first answer")
        connection.sendall(smuggled(spool))
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                received += data
    assert received.count(b"HTTP/1.") <= 1
    assert len(dead_ids(spool)) == 3


# --- slow and many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "half", [b"", b"GET", b"GET / HTTP/1.1\r\nX: ", post(b"Content-Length: 9\r\n", b"{")]
)
def test_a_request_that_does_not_arrive_in_time_is_given_up(serve, monkeypatch, half):
    """A byte now and then does not prolong it: the time is for the whole request."""
    monkeypatch.setattr(handler, "REQUEST_SECONDS", 0.5)
    with connect(serve()) as connection:
        connection.sendall(half)
        connection.settimeout(0.05)
        received = b""
        for _ in range(200):
            try:
                received += (data := connection.recv(1 << 16))
                if not data:
                    break
            except TimeoutError:
                with contextlib.suppress(OSError):
                    connection.send(b"x")
            except ConnectionError:
                break
        else:
            pytest.fail("the connection is still open")
    assert b" 200 " not in received


def test_a_client_that_does_not_read_its_answer_is_given_up(serve, spool, monkeypatch):
    """The thread and its place come free."""
    monkeypatch.setattr(handler, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(handler, "CLOSE_SECONDS", 0.2)
    one = serve()
    monkeypatch.setattr(one.api, "queues", lambda: "x" * (64 << 20))
    before = threading.active_count()
    with connect(one) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(get(LOCAL))
        until(lambda: threading.active_count() > before, "the answer to begin")
        until(lambda: threading.active_count() == before, "the answer to be given up")


def test_a_hundred_slow_clients_do_not_keep_others_out(serve, monkeypatch):
    """Connections are bounded, and the slowest makes room for the next."""
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    monkeypatch.setattr(handler, "REQUEST_SECONDS", 10 * PATIENCE)  # time alone frees no place here
    one = serve()
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        for n in range(100):
            stack.enter_context(connect(one)).sendall(b"GET / HTTP/1.1\r\nX: ")
            if n % 10 == 0:
                assert threading.active_count() <= before + 9
        for _ in range(10):
            assert Client(one).get("/api/queues")[0] == 200
    until(lambda: threading.active_count() == before, "all threads to end")


def test_a_client_is_refused_when_all_others_are_being_answered(serve, monkeypatch):
    """Status 503, not one more thread; later it is served."""
    monkeypatch.setattr(server, "CONNECTIONS", 2)
    monkeypatch.setattr(server, "PLACE_SECONDS", 0.05)
    one = serve()
    go = threading.Event()
    busy = threading.Semaphore(0)
    real = one.api.queues

    def queues(words):
        busy.release()
        go.wait(PATIENCE)
        return real(words)

    monkeypatch.setattr(one.api, "queues", queues)
    with connect(one) as first, connect(one) as second:
        for connection in (first, second):
            connection.sendall(get(LOCAL))
            assert busy.acquire(timeout=PATIENCE)
        head, _, body = answer_to(one, b"").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 503 ")
        assert json.loads(body)["error"]
        go.set()
        for connection in (first, second):
            assert connection.recv(12) == b"HTTP/1.0 200"
    assert Client(one).get("/api/queues")[0] == 200


def test_an_order_whose_connection_was_dropped_is_not_carried_out(serve, spool, monkeypatch):
    """Its client sees a broken connection, and so nothing may have happened."""
    one = serve()
    real = one.is_read

    def is_read(connection):
        one._drop_slowest()  # the race: just when the order is complete
        return real(connection)

    monkeypatch.setattr(one, "is_read", is_read)
    before = threading.active_count()
    assert b" 200 " not in answer_to(one, smuggled(spool))
    until(lambda: threading.active_count() <= before, "the thread to end")
    assert len(dead_ids(spool)) == 3


EXHAUSTED = """
import os, resource, sys, threading, time
from dirqueue.web import api, server
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
accepts = 0
class Counting(server.Server):
    def get_request(self):
        global accepts
        accepts += 1
        return super().get_request()
one = Counting(api.Api(sys.argv[1]), "127.0.0.1", 0, "the-token", public=True)
threading.Thread(target=one.serve_forever, daemon=True).start()
api.Api(sys.argv[1]).queues({})  # everything is imported
print(one.server_address[1], flush=True)
sys.stdin.readline()
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
print("full", flush=True)
sys.stdin.readline()
start, before = time.monotonic(), accepts
time.sleep(1)
print((accepts - before) / (time.monotonic() - start), flush=True)
for fd in taken:
    os.close(fd)
sys.stdin.readline()
"""


def test_a_server_without_descriptors_pauses_and_then_serves_again(spool):
    """Accepting fails at once and again and again: it must not be tried as fast as the machine can."""
    child = subprocess.Popen(
        [sys.executable, "-c", EXHAUSTED, str(spool)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=clean_env(),
    )  # fmt: skip
    try:
        address = ("127.0.0.1", int(child.stdout.readline()))
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == "full\n"
        with socket.create_connection(address, timeout=PATIENCE) as waiting:
            waiting.sendall(b"GET /api/queues HTTP/1.1\r\nHost: localhost\r\n\r\n")
            print(file=child.stdin, flush=True)
            accepts_per_second = float(child.stdout.readline())
            assert 0 < accepts_per_second <= 50
            assert waiting.recv(12) == b"HTTP/1.0 200"
    finally:
        child.kill()
        child.communicate()
