"""`dirqueue web`: who may ask, what is answered, and the page itself in a real browser."""

import http.client
import json
import signal
import threading
from urllib.parse import urlencode, urlsplit

import pytest
from support.commandline import dq, start
from support.patience import until

import dirqueue
from dirqueue.web import make_server
from dirqueue.web.handler import FILES

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def spool(tmp_path):
    """Give a root with two queues: one has three dead letters, one waits."""
    orders = dirqueue.Queue(tmp_path / "spool" / "orders", sync=False)
    for body in (EVIL.encode(), b"\xff\xfe binary", b"plain"):
        orders.put(body)
        orders.get(timeout=0).reject(f"cannot ship: {EVIL}")
    orders.put(b"waiting")
    dirqueue.Queue(tmp_path / "spool" / "mail" / "out", sync=False).put_many([b"x"] * 5)
    return tmp_path / "spool"


@pytest.fixture
def serve(spool):
    """Start servers on free ports of loopback; end them afterwards."""
    servers = []

    def start_one(**kwargs):
        server = make_server(str(spool), "127.0.0.1", 0, "the-token", **kwargs)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return server

    yield start_one
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


class Client:
    """Asks like a program, with or without the token."""

    def __init__(self, server, token="the-token"):
        self.address = server.server_address[:2]
        self.token = token

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection(*self.address, timeout=40)
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def get(self, path, **query):
        status, data, _ = self.ask("GET", f"{path}?{urlencode(query)}")
        return status, json.loads(data)

    def act(self, order, **headers):
        headers = {"Content-Type": "application/json"} | headers
        status, data, _ = self.ask("POST", "/api/act", json.dumps(order).encode(), **headers)
        return status, json.loads(data)


@pytest.fixture
def client(serve):
    """Give a client with the token."""
    return Client(serve())


def dead_ids(spool):
    return [message.id for message in dirqueue.Queue(spool / "orders").peek("dead")]


# --- answers -----------------------------------------------------------------------------------------------


def test_queues_come_with_counts_and_series(client):
    """What the monitor knows, for every queue under the root."""
    status, told = client.get("/api/queues")
    assert status == 200
    assert [(queue["name"], queue["ready"], queue["dead"]) for queue in told["queues"]] == [
        ("mail/out", 5, 0),
        ("orders", 1, 3),
    ]
    assert told["queues"][0]["series"]["depth"] == [5]


def test_messages_by_state_and_one_message_whole(client, spool):
    """A list with errors, and bodies as text or as base64."""
    status, told = client.get("/api/messages", queue="orders", state="dead")
    assert status == 200
    assert [message["error"] for message in told["messages"]] == [f"cannot ship: {EVIL}"] * 3
    bodies = [client.get("/api/message", queue="orders", id=id)[1] for id in dead_ids(spool)]
    assert bodies[0]["body"] == EVIL
    assert bodies[1]["body_base64"] == "//4gYmluYXJ5"
    assert not bodies[2]["truncated"]


def test_the_beginning_of_a_long_body_is_enough(client, spool):
    """Megabytes stay on the server; a character cut in two does not make text binary."""
    id = dirqueue.Queue(spool / "orders").put("ä" * 1_000_000)
    _, told = client.get("/api/message", queue="orders", id=id)
    assert told["truncated"]
    assert set(told["body"]) == {"ä"}
    assert len(told["body"].encode()) <= 64 << 10


def test_redrive_delete_and_reject(client, spool):
    """The three verbs change what they say, and count what they did."""
    queue = dirqueue.Queue(spool / "orders")
    first, second, third = dead_ids(spool)
    assert client.act({"queue": "orders", "verb": "redrive", "ids": [first]}) == (
        200,
        {"done": 1, "failed": []},
    )
    assert client.act({"queue": "orders", "verb": "delete", "ids": [second]}) == (
        200,
        {"done": 1, "failed": []},
    )
    assert dead_ids(spool) == [third]
    assert queue.message(first).state == "ready"
    with pytest.raises(dirqueue.MessageNotFound):
        queue.message(second)
    assert client.act({"queue": "orders", "verb": "reject", "ids": [first]})[1]["done"] == 1
    assert queue.message(first).error == "rejected by hand on the web page"


def test_what_vanished_is_skipped_and_told(client, spool):
    """A bulk order does what it can."""
    first, second, third = dead_ids(spool)
    dirqueue.Queue(spool / "orders").redrive(second)
    status, told = client.act({"queue": "orders", "verb": "delete", "ids": [first, second, third]})
    assert (status, told["done"], len(told["failed"])) == (200, 2, 1)
    assert dirqueue.Queue(spool / "orders").message(second).state == "ready"


def test_a_message_that_is_held_cannot_be_rejected(client, spool):
    """Its holder decides."""
    queue = dirqueue.Queue(spool / "mail" / "out")
    lease = queue.get(timeout=0, lease=3600)
    order = {"queue": "mail/out", "verb": "reject", "ids": [lease.message.id]}
    assert "is not ready or delayed" in client.act(order)[1]["failed"][0]
    lease.ack()


# --- who may ask -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", "the-token2"])
def test_without_the_token_nothing_is_told_and_nothing_is_done(serve, spool, token):
    """Neither counts nor bodies, and no order."""
    client = Client(serve(), token)
    before = dead_ids(spool)
    for path in ("/api/queues", "/api/messages", "/api/message"):
        assert client.get(path)[0] == 401
    status, told = client.act({"queue": "orders", "verb": "delete", "ids": before})
    assert status == 401
    assert "token" in told["error"]
    assert dead_ids(spool) == before


def test_public_reading_still_needs_the_token_to_change(serve, spool):
    """--public opens looking, not doing."""
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


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/messages", {"queue": "../orders"}, 404),
        ("/api/messages", {"queue": "/etc"}, 404),
        ("/api/messages", {"queue": "orders", "state": "new"}, 400),
        ("/api/message", {"queue": "orders", "id": "../queue.json"}, 400),
        ("/api/message", {"queue": "orders", "id": "1794907048573482329674477"}, 404),
        ("/api/nothing", {}, 404),
        ("/../../etc/passwd", {}, 404),
        ("/static/app.js", {}, 404),
    ],
)
def test_names_from_outside_never_become_paths(client, path, query, status):
    """A queue is one that was found, an id is digits, a file is one of four."""
    told = client.get(path, **query)
    assert told[0] == status
    assert told[1]["error"]


@pytest.mark.parametrize(
    "order",
    [
        [],
        {},
        {"queue": "orders", "verb": "flush", "ids": ["1"]},
        {"queue": "orders", "verb": ["delete"], "ids": ["1"]},
        {"queue": "orders", "verb": "delete", "ids": []},
        {"queue": "orders", "verb": "delete", "ids": "all"},
        {"queue": "orders", "verb": "delete", "ids": [{"a": 1}]},
        {"queue": "orders", "verb": "delete", "ids": ["../../x"]},
        {"queue": "orders", "verb": "delete", "ids": ["1"] * 1001},
    ],
)
def test_orders_that_cannot_be_are_refused(client, spool, order):
    """One sentence, status 400, nothing changed."""
    status, told = client.act(order)
    assert (status, bool(told["error"])) == (400, True)
    assert len(dead_ids(spool)) == 3


def test_requests_that_cannot_be_are_refused(client):
    """Not JSON, no length, too long: an answer, and the server goes on."""
    kind = {"Content-Type": "application/json"}
    assert client.ask("POST", "/api/act", b"{", **kind)[0] == 400
    assert client.ask("POST", "/api/act", b"x", **kind, **{"Content-Length": "99999999"})[0] == 413
    assert client.ask("POST", "/api/else", b"{}", **kind)[0] == 404
    assert client.ask("DELETE", "/api/act")[0] == 501
    assert client.get("/api/queues")[0] == 200


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_prints_the_address_with_a_fresh_token(spool, tmp_path):
    """The printed address holds the token in its fragment; Ctrl-C ends the server with status 0."""
    process = start("web", "spool", "--port", "0", cwd=tmp_path)
    try:
        said = until(lambda: b"\n" in (tmp_path / "said").read_bytes() and (tmp_path / "said").read_text())
        parts = urlsplit(said.split()[-1])
        assert parts.hostname == "127.0.0.1"
        token = parts.fragment.removeprefix("token=")
        assert len(token) >= 20
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=40)
        connection.request("GET", "/api/queues", headers={"Authorization": f"Bearer {token}"})
        assert len(json.loads(connection.getresponse().read())["queues"]) == 2
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere"], 1, "no directory"),
        (["spool", "--port", "99999"], 2, "--port"),
        (["spool", "--host", "192.0.2.1"], 1, "cannot listen on '192.0.2.1:8425'"),
    ],
)
def test_bad_words_are_one_sentence(spool, tmp_path, words, status, said):
    """A root that is not there, a port or an address that cannot be."""
    done = dq("web", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, b"")
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


# --- the page ----------------------------------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path):
    """Start a browser without a window."""
    from support.browser import Browser

    (tmp_path / "profile").mkdir()
    with Browser(str(tmp_path / "profile")) as one:
        yield one


@pytest.mark.needs("chromium")
def test_the_page_in_a_real_browser(serve, spool, browser, tmp_path):
    """Overview, dead letters, body and error as text, delete and redrive with confirmation; light, dark, narrow."""
    server = serve()
    queue = dirqueue.Queue(spool / "orders")
    browser.open(server.url)
    browser.until("document.querySelectorAll('.card svg').length === 4")
    assert "3 dead" in browser.js("document.querySelector('[data-key=orders]').innerText")
    assert browser.js("location.hash") == "#/", "the token does not stay in the address"

    browser.js("document.querySelector('[data-key=orders] h2 a').click()")
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    browser.js("document.querySelector('tbody a').click()")
    browser.until("document.querySelector('#body')")
    assert browser.js("document.querySelector('#body').textContent") == EVIL
    assert browser.js("document.querySelector('#error').textContent") == f"cannot ship: {EVIL}"
    assert browser.js("document.querySelectorAll('main img, main script').length") == 0
    assert browser.js("document.title") == "orders · dirqueue"

    # Saying no changes nothing; saying yes deletes this one.
    _, second, third = dead_ids(spool)
    for answer, left in (("no", 3), ("yes", 2)):
        browser.until("document.querySelector('[data-verb=delete]')")
        browser.js("document.querySelector('[data-verb=delete]').click()")
        browser.until("document.querySelector('dialog').open")
        browser.js(f"document.querySelector('dialog button[value={answer}]').click()")
        browser.until("!document.querySelector('dialog').open")
        until(lambda left=left: len(dead_ids(spool)) == left, f"{left} dead letters")
    assert dead_ids(spool) == [second, third]

    # Back in the list: choose all, redrive.
    browser.until("document.querySelectorAll('tbody tr').length === 2")
    browser.js("document.querySelector('thead input').click()")
    browser.until("!document.querySelector('[data-verb=redrive]').disabled")
    browser.js("document.querySelector('[data-verb=redrive]').click()")
    browser.until("document.querySelector('dialog').open")
    assert "2 messages" in browser.js("document.querySelector('#question').textContent")
    browser.js("document.querySelector('#sure').click()")
    until(lambda: not dead_ids(spool), "the dead to be driven")
    browser.until("document.querySelector('main').innerText.includes('Nothing is dead')")
    assert queue.stats().ready == 3

    # A put is seen without a reload, and no width scrolls sideways.
    browser.js("location.hash = '#/'")
    queue.put(b"one more")
    browser.until("document.querySelector('[data-key=orders]')?.innerText.includes('4 ready')")
    for width in (390, 1200):
        for dark in (False, True):
            browser.look(tmp_path / "look.png", width, 800, dark=dark)
            assert browser.js("document.documentElement.scrollWidth") <= width
            assert (tmp_path / "look.png").stat().st_size > 5000
    assert browser.complaints == []


@pytest.mark.needs("chromium")
def test_a_page_without_the_token_shows_why(serve, browser):
    """Whoever opens the bare address is told what to open instead."""
    browser.open(serve().url.partition("#")[0])
    browser.until("document.querySelector('#problem')?.textContent.includes('token is missing')")


@pytest.mark.needs("chromium")
def test_a_server_that_goes_away_is_said(spool, browser, tmp_path):
    """The page says that nobody answers, and keeps what it showed."""
    process = start("web", "spool", "--port", "0", cwd=tmp_path)
    try:
        said = until(lambda: b"\n" in (tmp_path / "said").read_bytes() and (tmp_path / "said").read_text())
        browser.open(said.split()[-1])
        browser.until("document.querySelector('#live').className === 'on'")
    finally:
        process.kill()
        process.wait()
    browser.until("document.querySelector('#live').className === 'off'")
    assert browser.js("document.querySelectorAll('.card').length") == 2
