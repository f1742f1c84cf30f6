"""The HTTP door against what is malformed, hostile, slow or too much: one sentence for each, and it goes on."""

import asyncio
import contextlib
import json
import socket
import time

import httpx
import pytest
from clients import DOORS, Http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model import Model
from services import in_thread

from dirqueue.entroq import connections, http, serve
from dirqueue.entroq.tasks import (
    ClaimQuery,
    InvalidArgument,
    Modification,
    QueuesQuery,
    TaskData,
    Unimplemented,
)


@pytest.fixture(scope="module")
def running():
    with in_thread(Model()) as running:
        yield running


@pytest.fixture(scope="module")
def url(running):
    return running.addresses.http


@pytest.fixture(scope="module")
def client(running):
    with contextlib.closing(DOORS["http"](running.addresses)) as client:
        yield client


def post(url, path, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", "entroq-protocol": "2", **headers}
    return httpx.post(f"{url}/api/v0{path}", content=content, headers=headers, timeout=30)


def sentence(answer, status, *words):
    assert answer.status_code == status, answer.text
    assert answer.headers["entroq-protocol"] == "1,2"
    message = answer.json()["message"]
    assert all(word in message for word in words), message
    assert "\n" not in message
    return message


# --- what is malformed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"inserts": {}}', "list"),
        (b'{"inserts": [1]}', "object"),
        (b'{"inserts": [{"queue": 7}]}', "text"),
        (b'{"inserts": [{"queue": "q", "byMs": "soon"}]}', "number"),
        (b'{"inserts": [{"queue": "q", "byMs": true}]}', "number"),
        (b'{"inserts": [{"queue": "q", "byMs": 1.5}]}', "number"),
        (b'{"inserts": [{"queue": "q", "byMs": 9999999999999999999999}]}', "number"),
        (b'{"inserts": [{"queue": "q", "value": NaN}]}', "JSON"),
        (b'{"inserts": [{"queue": "q", "value": 1e999}]}', "JSON"),
        (b'{"inserts": [{"queue": "q", "value": "\\ud800"}]}', "JSON"),
        (b'{"inserts": [{"queue": "\\ud800"}]}', "half"),
        (b'{"inserts": [{"queue": "q", "priority": 1}]}', "priority"),
        (b'{"insert": []}', "insert"),
        (b'{"claimantId": "a", "claimant_id": "b"}', "twice"),
        (b'{"changes": [{"oldId": {"id": "x"}}]}', "newData"),
        (b'{"changes": [{"oldId": {"id": "x"}, "newData": {}, "mode": "MAGIC"}]}', "CHANGE_LEASE"),
        (b'{"inserts": [{"queue": "q", "atMs": "1"}]}', "byMs"),
        (b'{"inserts": []}', "empty"),
        (b'{"claimantId": "' + b"x" * 65 + b'", "inserts": [{"queue": "q"}]}', "64"),
        (b"[" * 200_000, "JSON"),
        (b'{"inserts": [{"queue": "q", "value": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", "JSON"),
        (b'{"inserts": [{"queue": "q", "value": ' + b"1" * 10_000 + b"}]}", "JSON"),
    ],
)
def test_a_malformed_modification(url, body, word):
    sentence(post(url, "/modify", body), 400, word)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "queue"),
        ({"queues": []}, "queue"),
        ({"queues": [""]}, "empty"),
        ({"queues": "q"}, "list"),
        ({"queues": ["q"] + [str(i) for i in range(1000)]}, "1,000"),
        ({"queues": ["q"], "durationMs": -5}, "24 hours"),
        ({"queues": ["q"], "durationMs": "86400001"}, "24 hours"),
        ({"queues": ["q"], "claimantId": "a\nb"}, "printable"),
    ],
)
@pytest.mark.parametrize("path", ["/claim", "/claim/wait"])
def test_a_malformed_claim(url, path, body, word):
    sentence(post(url, path, body), 400, word)


@pytest.mark.parametrize(
    "path",
    ["/tasks", "/tasks?queue=q&limit=x", "/tasks?queue=q&limit=-1", "/tasks?queue=q&magic=1", "/queues?limit=1e3",
     "/tasks?queue=q&omitValues=maybe", "/queues?prefix=x"],
)  # fmt: skip
def test_malformed_parameters(url, path):
    sentence(httpx.get(f"{url}/api/v0{path}"), 400)


def test_names_as_others_write_them(url, client):
    """snake_case, numbers as numbers or text, absent and null fields, a tail after the media type."""
    body = {
        "claimant_id": "me",
        "inserts": [{"queue": "names", "value": 1, "by_ms": 0, "err": None}],
        "deletes": None,
    }
    answer = post(url, "/modify", body, **{"content-type": "Application/JSON; charset=utf-8"})
    assert answer.json()["inserted"][0]["claimantId"] == "me"
    assert post(url, "/claim", {"queues": ["names"], "duration_ms": 5000}).json()["task"]["value"] == 1
    found = httpx.get(f"{url}/api/v0/tasks?queue=names&omit_values=true").json()["tasks"]
    assert [task["value"] for task in found] == [None]


def test_protocol_1_and_2(url):
    soon = int(time.time() * 1000) + 60_000
    old = post(url, "/modify", {"inserts": [{"queue": "p1", "atMs": str(soon)}]}, **{"entroq-protocol": "1"})
    assert old.json()["inserted"][0]["atMs"] == str(soon)
    none = {"inserts": [{"queue": "p1", "atMs": "0"}]}
    task = post(url, "/modify", none, **{"entroq-protocol": "nonsense"}).json()["inserted"][0]
    assert task["atMs"] == task["modifiedMs"]
    new = post(url, "/modify", {"inserts": [{"queue": "p2", "byMs": 5000}]}).json()["inserted"][0]
    assert int(new["atMs"]) - int(new["modifiedMs"]) == 5000
    key = {"id": new["id"], "version": 0, "queue": "p2"}
    lease = {"changes": [{"oldId": key, "newData": {"byMs": "7000"}, "mode": "CHANGE_LEASE"}]}
    sentence(post(url, "/modify", lease, **{"entroq-protocol": "1"}), 400, "protocol 2")
    (held,) = post(url, "/modify", lease).json()["changed"]
    assert int(held["atMs"]) - int(held["modifiedMs"]) == 7000
    for extra in ({"value": 1}, {"attempt": 1}, {"err": "x"}, {"id": "x"}, {"queue": "other"}):
        bad = {"changes": [{"oldId": {**key, "version": 1}, "newData": extra, "mode": "CHANGE_LEASE"}]}
        sentence(post(url, "/modify", bad), 400)


def test_claims_are_counted_from_0_again(url):
    post(url, "/modify", {"inserts": [{"queue": "reset", "value": "x"}]})
    task = post(url, "/claim", {"queues": ["reset"], "claimantId": "me"}).json()["task"]
    key = {"id": task["id"], "version": 1, "queue": "reset"}
    change = {"oldId": key, "newData": {"value": "y", "queue": "reset"}, "mode": "CHANGE_RESET_CLAIMS"}
    (free,) = post(url, "/modify", {"claimantId": "me", "changes": [change]}).json()["changed"]
    assert (free["claims"], free["value"], free["version"], free["claimantId"]) == (0, "y", 2, "")


def test_documents_are_not_there(url, client):
    for answer in (
        httpx.get(f"{url}/api/v0/docs"),
        post(url, "/docs/claim", {}),
        httpx.get(f"{url}/api/v0/namespaces/stats"),
        post(url, "/modify", {"docInserts": [{"namespace": "n"}]}),
    ):
        sentence(answer, 501, "no documents")
    with pytest.raises(Unimplemented):
        client.ask("GET", "/docs")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["inserts", "changes", "deletes", "depends", "queue", "value", "id", "version", "oldId", "newData",
                 "mode", "atMs", "byMs", "queues", "claimantId", "durationMs", "docInserts", "attempt", "err"]
            ) | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=json_values, path=st.sampled_from(["/modify", "/claim"]), protocol=st.sampled_from(["1", "2"]))
def test_any_json_gets_an_answer(client, body, path, protocol):
    answer = client.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 409, 501), answer.text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=60))
def test_any_bytes_get_an_answer(client, body):
    answer = client.http.post("/modify", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 409, 501), answer.text


# --- what is hostile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:9100", "localhost.evil.example"]
)
def test_a_name_that_was_pointed_at_this_machine(url, host):
    sentence(httpx.get(f"{url}/api/v0/time", headers={"host": host}), 403, "this machine")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:9100", "127.8.8.8"])
def test_names_of_this_machine(url, host):
    assert httpx.get(f"{url}/api/v0/time", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "x"])
def test_another_site(url, origin):
    sentence(httpx.get(f"{url}/api/v0/time", headers={"origin": origin}), 403, "another site")
    answer = httpx.options(f"{url}/api/v0/modify", headers={"origin": origin})
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send(url, kind):
    headers = {"content-type": kind} if kind else {}
    answer = httpx.post(f"{url}/api/v0/modify", content=b'{"inserts":[{"queue":"form"}]}', headers=headers)
    sentence(answer, 415, "application/json")
    assert httpx.get(f"{url}/api/v0/queues?matchExact=form").json() == {"queues": []}


def test_no_such_page_no_such_method(url):
    sentence(httpx.get(f"{url}/api/v0/nothing"), 404)
    sentence(httpx.get(f"{url}/"), 404)
    sentence(httpx.delete(f"{url}/api/v0/modify"), 405)
    sentence(httpx.get(f"{url}/api/v0/modify"), 405)


# --- what is too much --------------------------------------------------------------------------------------


def test_a_request_that_is_too_long(monkeypatch):
    with in_thread(Model(), max_size_mb=1) as running:
        url = running.addresses.http
        big = b'{"inserts": [{"queue": "q", "value": "' + b"x" * (1 << 20) + b'"}]}'
        sentence(post(url, "/modify", big), 413, "1048576")
        for door in ("proto", "api"):
            with (
                contextlib.closing(DOORS[door](running.addresses)) as client,
                pytest.raises(Exception, match=r"larger|RESOURCE"),
            ):
                client.modify(Modification("me", inserts=[TaskData("q", b'"' + b"x" * (1 << 20) + b'"')]))
        with contextlib.closing(Http(url)) as client:
            assert client.queues(QueuesQuery()) == []
            client.modify(Modification("me", inserts=[TaskData("q", b'"' + b"x" * 900_000 + b'"')]))


def test_too_many_operations(url):
    body = {"inserts": [{"queue": "many"}] * 10_001}
    sentence(post(url, "/modify", body), 400, "10,001")
    ids = "&".join(f"taskId={i}" for i in range(2))
    assert httpx.get(f"{url}/api/v0/tasks?{ids}").json() == {"tasks": []}


def test_too_many_connections(monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS", 8)
    with in_thread(Model()) as running, contextlib.ExitStack() as stack:
        host, port = running.addresses.http.removeprefix("http://").split(":")
        for _ in range(8):
            stack.enter_context(socket.create_connection((host, int(port))))
        time.sleep(0.2)
        last = stack.enter_context(socket.create_connection((host, int(port))))
        last.settimeout(10)
        answer = b""
        while chunk := last.recv(4096):
            answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 429 " in head
        assert f"Content-Length: {len(body)}".encode() in head
        assert "too many connections" in json.loads(body)["message"]


# --- what is slow or broken --------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch):
    """A service that waits half a second for slow clients."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http, "BODY_SECONDS", 0.5)
    with in_thread(Model()) as running:
        host, port = running.addresses.http.removeprefix("http://").split(":")

        def connect(data):
            connection = socket.create_connection((host, int(port)))
            connection.settimeout(10)
            connection.sendall(data)
            return connection

        yield running, connect


def read_all(connection):
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            data += chunk
    return data


HEAD = b"POST /api/v0/modify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "data", [b"", b"GET /api/v0/time", HEAD, b"GET /api/v0/time HTTP/1.1\r\nHost: localhost\r\n\r\nGE"]
)
def test_a_head_that_never_ends(hasty, data):
    _, connect = hasty
    with contextlib.closing(connect(data)) as connection:
        began = time.monotonic()
        read_all(connection)
        assert time.monotonic() - began < 8


def test_a_body_that_never_ends(hasty):
    _, connect = hasty
    with contextlib.closing(connect(HEAD + b"Content-Length: 1000\r\n\r\n{")) as connection:
        assert b" 408 " in read_all(connection)


def test_a_body_that_drips(hasty):
    _, connect = hasty
    with contextlib.closing(connect(HEAD + b"Content-Length: 1000\r\n\r\n")) as connection:
        with contextlib.suppress(OSError):
            for _ in range(40):
                connection.sendall(b"{")
                time.sleep(0.05)
        assert b" 408 " in read_all(connection)


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"\0" * 100, b"GET / HTTP/9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
     b"GET /" + b"a" * 100_000, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
     HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
     HEAD + b"Content-Length: -1\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_what_is_not_http(hasty, data):
    running, connect = hasty
    with contextlib.closing(connect(data)) as connection:
        answer = read_all(connection)
        assert not answer or answer.split(b" ")[1] in (b"400", b"408", b"413", b"403"), answer[:200]
    with contextlib.closing(Http(running.addresses.http)) as client:
        assert client.time()


def test_a_client_that_goes_away_in_the_middle(hasty):
    running, connect = hasty
    body = b'{"inserts":[{"queue":"broken","value":1}]}'
    for cut in (0, 1, len(body) // 2, len(body) - 1):
        connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:cut]).close()
    connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body).close()  # whole: it is carried out
    with contextlib.closing(Http(running.addresses.http)) as client:
        deadline = time.monotonic() + 10
        while not client.queues(QueuesQuery()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [stat.size for stat in client.queues(QueuesQuery())] == [1]


def test_a_waiting_client_that_is_gone_takes_nothing(hasty):
    running, connect = hasty
    wait = json.dumps({"queues": ["gone"], "claimantId": "gone"}).encode()
    head = HEAD.replace(b"/modify", b"/claim/wait") + b"Content-Length: %d\r\n\r\n" % len(wait)
    waiting = [connect(head + wait) for _ in range(20)]
    desk = running.service.desk
    with contextlib.closing(Http(running.addresses.http)) as client:
        deadline = time.monotonic() + 10
        while desk.waiting < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert desk.waiting == 20
        for connection in waiting:
            connection.close()
        while desk.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        assert desk.waiting == 0
        client.modify(Modification("me", inserts=[TaskData("gone", b"1")]))
        assert client.claim(ClaimQuery(["gone"], "me")).claims == 1


def test_stopping_ends_waiting_claims_and_finishes_the_rest():
    async def scenario(running):
        async with httpx.AsyncClient(base_url=running.addresses.http + "/api/v0", timeout=20) as client:
            waits = [
                asyncio.create_task(client.post("/claim/wait", json={"queues": ["q"]})) for _ in range(5)
            ]
            while running.service.desk.waiting < 5:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.01)
            running.service.desk.refuse()
            return [answer.status_code for answer in await asyncio.gather(*waits)], (
                await client.get(running.addresses.http + "/healthz")
            ).status_code

    with in_thread(Model()) as running:
        statuses, health = asyncio.run(scenario(running))
        assert statuses == [503] * 5
        assert health == 503


def test_what_breaks_inside_is_said_without_the_path(capsys):
    class Broken(Model):
        def queues(self, query):
            raise PermissionError(13, "Permission denied", "/secret/path")

        def tasks(self, query):
            raise ZeroDivisionError

    with in_thread(Broken()) as running:
        url = running.addresses.http
        message = sentence(httpx.get(f"{url}/api/v0/queues"), 500, "Permission denied")
        assert "/secret" not in message
        assert "/secret/path" in capsys.readouterr().err
        sentence(httpx.get(f"{url}/api/v0/tasks?queue=q"), 500, "defect")
        assert httpx.get(f"{url}/api/v0/time").status_code == 200
        with (
            contextlib.closing(DOORS["proto"](running.addresses)) as client,
            pytest.raises(AssertionError, match="INTERNAL"),
        ):
            client.queues(QueuesQuery())


def test_streams_are_lines(url, client):
    client.modify(Modification("me", inserts=[TaskData("lines", b"%d" % i) for i in range(250)]))
    lines = httpx.get(f"{url}/api/v0/tasks/stream?queue=lines").text.splitlines()
    assert sorted(json.loads(line)["tasks"][0]["value"] for line in lines) == list(range(250))
    sentence(httpx.get(f"{url}/api/v0/tasks/stream"), 400)


def test_metrics_of_requests(url, client):
    with pytest.raises(InvalidArgument):
        client.modify(Modification("me"))
    client.modify(Modification("me", inserts=[TaskData("measured", b"1")]))
    text = httpx.get(f"{url}/metrics").text
    assert 'dirqueue_entroq_requests_total{door="http",method="Modify",code="400"}' in text
    assert 'dirqueue_entroq_request_seconds_bucket{door="http",method="Modify",le="+Inf"}' in text
    assert "dirqueue_entroq_waiting_claims 0" in text
    assert "# TYPE entroq_queue_size gauge" in text


def test_answers_are_sent_at_once():
    """Cost: asyncio turns Nagle off only where the socket names its protocol; else a request takes 44 ms."""
    with contextlib.closing(serve._listen("127.0.0.1", 0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
