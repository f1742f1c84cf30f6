"""What the page asks and orders: queues, messages, redrive, delete, reject."""

import json
import os
import threading
import time

import pytest
from support.kit import PATIENCE
from support.patience import until
from support.webclient import EVIL, Client, dead_ids

import dirqueue
from dirqueue import states
from dirqueue.disk import fs
from dirqueue.failure import Reason
from dirqueue.tools.monitor import Monitor
from dirqueue.web import api
from dirqueue.web.api import key_of

NOT_UTF8 = b"gr\xfcn \x1b[31m"


def test_queues_come_with_counts_and_series(client):
    """What the monitor knows, for every queue under the root; and the states that the page has tabs for."""
    status, answer = client.get("/api/queues")
    assert status == 200
    assert [(queue["name"], queue["ready"], queue["dead"]) for queue in answer["queues"]] == [
        ("orders", 1, 3),  # the sick first
        ("mail/out", 5, 0),
    ]
    series = answer["queues"][1]["series"]
    assert (series["depth"], len(series["at"])) == ([5], 1)
    assert (answer["found"], answer["totals"]["ready"], answer["totals"]["sick"]) == (2, 6, 1)
    assert client.get("/api/queue", queue="mail/out")[1]["queue"]["ready"] == 5
    assert client.get("/api/queue", queue="mail/out")[1]["states"] == [*states.VISIBLE]
    assert client.get("/api/queue", queue="nothing")[0] == 404


def test_messages_come_by_state_and_a_message_with_its_body(client, spool):
    """A list with errors, and bodies as text or as base64."""
    status, answer = client.get("/api/messages", queue="orders", state="dead")
    assert status == 200
    assert [message["error"] for message in answer["messages"]] == [f"cannot ship: {EVIL}"] * 3
    bodies = [client.get("/api/message", queue="orders", id=id)[1] for id in dead_ids(spool)]
    assert bodies[0]["body"] == EVIL
    assert bodies[1]["body_base64"] == "//4gYmluYXJ5"
    assert not bodies[2]["truncated"]


def test_a_long_body_is_cut(client, spool):
    """Megabytes stay on the server; a character cut in two does not make text binary."""
    id = dirqueue.Queue(spool / "orders").put("ä" * 1_000_000)
    _, answer = client.get("/api/message", queue="orders", id=id)
    assert answer["truncated"]
    assert set(answer["body"]) == {"ä"}
    assert len(answer["body"].encode()) <= 64 << 10


def test_redrive_delete_and_reject_change_the_messages_named(client, spool):
    """And count what they did."""
    queue = dirqueue.Queue(spool / "orders")
    first, second, third = dead_ids(spool)
    one = (200, {"done": 1, "failed": [], "more": False})
    assert client.act({"queue": "orders", "verb": "redrive", "ids": [first]}) == one
    assert client.act({"queue": "orders", "verb": "delete", "ids": [second]}) == one
    assert dead_ids(spool) == [third]
    assert queue.message(first).state == "ready"
    with pytest.raises(dirqueue.MessageNotFound):
        queue.message(second)
    assert client.act({"queue": "orders", "verb": "reject", "ids": [first]}) == one
    assert queue.message(first).error == "rejected by hand on the web page"


def test_what_is_deleted_stays_deleted_after_a_power_cut(client, spool, monkeypatch):
    """The directory that it was in is flushed."""
    queue = dirqueue.Queue(spool / "orders")
    dead = dead_ids(spool)
    bucket = os.stat(spool / "orders" / os.path.dirname(queue.message(dead[0]).entry.place)).st_ino
    flushed = []
    monkeypatch.setattr(fs, "fsync", lambda fd: flushed.append(os.fstat(fd).st_ino))
    assert client.act({"queue": "orders", "verb": "delete", "ids": dead})[1]["done"] == 3
    assert bucket in flushed


@pytest.mark.parametrize("verb", ["redrive", "delete"])
def test_an_order_skips_and_reports_what_is_not_dead_any_more(client, spool, verb):
    """It does what it can, with one message and with several."""
    first, second, third = dead_ids(spool)
    dirqueue.Queue(spool / "orders").redrive(second)
    status, answer = client.act({"queue": "orders", "verb": verb, "ids": [second]})
    assert (status, answer["done"], len(answer["failed"])) == (200, 0, 1)
    status, answer = client.act({"queue": "orders", "verb": verb, "ids": [first, second, third, first]})
    assert (status, answer["done"], len(answer["failed"])) == (200, 2, 1)
    assert second in answer["failed"][0]
    assert dirqueue.Queue(spool / "orders").message(second).state == "ready"


def test_reject_refuses_a_message_that_is_leased(client, spool):
    """Its holder decides."""
    queue = dirqueue.Queue(spool / "mail" / "out")
    lease = queue.get(timeout=0, lease=3600)
    order = {"queue": "mail/out", "verb": "reject", "ids": [lease.message.id]}
    assert "is not ready or delayed" in client.act(order)[1]["failed"][0]
    lease.ack()


@pytest.mark.parametrize("verb", ["redrive", "delete", "reject"])
def test_an_order_for_many_lists_the_queue_once(client, spool, monkeypatch, verb):
    """The number of listings does not grow with the number of ids."""
    queue = dirqueue.Queue(spool / "orders", sync=False)
    queue.put_many([b"x"] * 60)
    if verb != "reject":
        for lease in queue.consume(timeout=0):
            lease.reject("broken")
    ids = [message.id for message in queue.peek("ready" if verb == "reject" else "dead")]
    listings = []
    real = fs.scandir
    monkeypatch.setattr(fs, "scandir", lambda *words: listings.append(words) or real(*words))
    counted = []
    for some in (ids[:2], ids[2:52]):
        before = len(listings)
        status, answer = client.act({"queue": "orders", "verb": verb, "ids": some})
        assert (status, answer) == (200, {"done": len(some), "failed": [], "more": False})
        counted.append(len(listings) - before)
    assert counted[1] <= counted[0] + 5, counted


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
        {"queue": "orders", "verb": "redrive", "ids": None},
        {"queue": ["orders"], "verb": "redrive", "ids": ["1794907048573482329674477"]},
        {"queue": None, "verb": "redrive", "ids": ["1794907048573482329674477"]},
        *(
            {"queue": "orders", "verb": verb, "ids": [id]}
            for verb in ("redrive", "delete", "reject")
            for id in (None, 1, True, [], ["x"], "", "all", "1" * 5000)
        ),
    ],
    ids=lambda order: str(order)[:70],
)
def test_an_invalid_order_is_refused_and_changes_nothing(client, spool, order):
    """One sentence, status 400."""
    status, answer = client.act(order)
    assert (status, bool(answer["error"])) == (400, True)
    assert len(dead_ids(spool)) == 3
    assert dirqueue.Queue(spool / "orders").stats().ready == 1


def test_one_invalid_id_among_valid_ones_refuses_the_whole_order(client, spool):
    """Nothing is done by half."""
    for verb in ("redrive", "delete"):
        assert client.act({"queue": "orders", "verb": verb, "ids": [*dead_ids(spool), None]})[0] == 400
    assert len(dead_ids(spool)) == 3


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/messages", {"queue": "../orders"}, 404),
        ("/api/messages", {"queue": "/etc"}, 404),
        ("/api/messages", {"queue": ""}, 404),
        ("/api/messages", {"queue": "orders", "state": "new"}, 400),
        ("/api/message", {"queue": "orders", "id": "../queue.json"}, 400),
        ("/api/message", {"queue": "orders", "id": "1794907048573482329674477"}, 404),
        ("/api/nothing", {}, 404),
        ("/../../etc/passwd", {}, 404),
        ("/static/app.js", {}, 404),
    ],
)
def test_names_from_outside_never_become_paths(client, path, query, status):
    """A queue is one that was found, an id is digits, a file is one of a list."""
    found = client.get(path, **query)
    assert found[0] == status
    assert found[1]["error"]


def test_a_queue_whose_name_is_not_utf8_is_shown_and_served(client, spool):
    """Its key addresses it; all answers are valid JSON in valid UTF-8."""
    path = os.fsencode(spool) + b"/" + NOT_UTF8
    queue = dirqueue.Queue(os.fsdecode(path), sync=False)
    id = queue.put(b"hello")
    status, data, _ = client.ask("GET", "/api/queues")
    assert status == 200
    assert "\\ud" not in data.decode()
    shown = {each["key"]: each for each in json.loads(data.decode())["queues"]}
    key = key_of(os.fsdecode(NOT_UTF8))
    assert key == "gr%FCn%20%1B%5B31m"
    assert shown[key]["name"] == "gr\\xfcn \x1b[31m"
    assert shown[key]["queue"].endswith("/gr\\xfcn \x1b[31m")
    assert len(shown) == 3
    assert client.get("/api/messages", queue=key)[1]["messages"][0]["id"] == id
    assert client.get("/api/message", queue=key, id=id)[1]["body"] == "hello"
    assert client.act({"queue": key, "verb": "reject", "ids": [id]})[1]["done"] == 1


@pytest.mark.parametrize(
    "stored", ["[" * 200_000, '{"lease": ' * 100_000, "[]", "{", '{"lease": 1e999}', "\xff"]
)
def test_one_broken_queue_leaves_the_others_on_the_page(client, spool, stored):
    """It is shown with an error; the others are shown and served."""
    dirqueue.Queue.create(spool / "broken", lease=30.0).put(b"x")
    (spool / "broken" / "queue.json").write_text(stored, encoding="latin-1")
    status, answer = client.get("/api/queues")
    assert status == 200
    assert {queue["name"]: bool(queue["error"]) for queue in answer["queues"]} == {
        "broken": True,
        "mail/out": False,
        "orders": False,
    }
    assert client.get("/api/messages", queue="orders", state="dead")[1]["seen"] == 3
    assert client.get("/api/messages", queue="broken")[0] in (404, 409)


def note_of(queue, id):
    """Return where the note of a dead message lies."""
    (found,) = (queue / "dead").glob(f"*/{id}.error")
    return found


@pytest.mark.parametrize(
    "note",
    ["[" * 200_000, "[]", "{", '{"error": "x", "at": 1e999}', '{"error": "x", "at": 1' + "0" * 40 + "}"],
)
def test_one_broken_note_leaves_the_other_messages_in_the_list(client, spool, note):
    """It is as if there were none."""
    id = dead_ids(spool)[1]
    note_of(spool / "orders", id).write_text(note)
    status, answer = client.get("/api/messages", queue="orders", state="dead")
    assert (status, len(answer["messages"])) == (200, 3)
    assert [message["id"] for message in answer["messages"] if message["error"] is None] == [id]
    assert client.get("/api/message", queue="orders", id=id)[0] == 200


def test_an_error_text_with_half_a_character_is_valid_json(client, spool):
    """A note that another program wrote may hold what UTF-8 cannot."""
    id = dead_ids(spool)[0]
    note_of(spool / "orders", id).write_text('{"error": "half \\ud800", "at": 1794907048573482}')
    status, data, _ = client.ask("GET", "/api/messages?queue=orders&state=dead")
    assert status == 200
    assert "half ?" in [message["error"] for message in json.loads(data.decode())["messages"]]


def test_a_defect_in_one_answer_is_one_sentence_and_the_server_goes_on(serve, spool, monkeypatch, capfd):
    """Status 500, no traceback."""
    server = serve()
    client = Client(server)
    monkeypatch.setattr(server.api, "messages", lambda *_: {}["no"])
    status, answer = client.get("/api/messages", queue="orders")
    assert status == 500
    assert "KeyError" in answer["error"]
    assert client.get("/api/queues")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


# --- many queues, many messages ----------------------------------------------------------------------------------


@pytest.fixture
def crowd(spool):
    """Return a queue with 250 dead letters of three kinds, beside 120 small queues."""
    queue = dirqueue.Queue(spool / "crowd", sync=False)
    queue.put_many([b"body %d" % number for number in range(250)])
    for number, lease in enumerate(queue.consume(timeout=0)):
        lease.reject(f"kind {number % 3}\nat line {number}")
    for number in range(120):
        dirqueue.Queue(spool / f"many/q{number:03}", sync=False).put(b"x")
    return queue


def test_queues_come_in_pages_sorted_and_filtered(client, crowd):
    """The sick first; a page has fifty, and beyond the last one is the last one."""
    first = client.get("/api/queues")[1]
    assert [queue["name"] for queue in first["queues"][:2]] == ["crowd", "orders"]
    assert first["queues"][0]["complaints"] == ["250 dead"]
    assert (len(first["queues"]), first["found"], first["limit"]) == (50, 123, 50)
    last = client.get("/api/queues", offset="9999")[1]
    assert (last["offset"], len(last["queues"])) == (100, 23)
    names = [queue["name"] for queue in client.get("/api/queues", sort="name", order="desc")[1]["queues"]]
    assert names[:2] == ["orders", "many/q119"]
    found = client.get("/api/queues", search="Q01")[1]
    assert (found["found"], found["totals"]["queues"]) == (10, 123)


def test_messages_come_in_pages_newest_first(client, crowd):
    """By what a name tells; the pages together are all of them, once each."""
    ids = sorted(message.id for message in crowd.peek("dead"))
    pages = [
        client.get("/api/messages", queue="crowd", state="dead", order="desc", offset=str(offset))[1]
        for offset in (0, 100, 200)
    ]
    assert [message["id"] for page in pages for message in page["messages"]] == ids[::-1]
    assert [page["found"] for page in pages] == [250] * 3
    ended = client.get("/api/messages", queue="crowd", state="dead", sort="until")[1]["messages"]
    assert [message["until"] for message in ended] == sorted(message["until"] for message in ended)


@pytest.mark.parametrize(
    ("search", "found"), [("BODY 24", 11), ("kind 1", 83), ("at line 7\n", 0), ("line 249", 1)]
)
def test_a_search_looks_into_errors_and_bodies(client, crowd, search, found):
    """In whatever case."""
    answer = client.get("/api/messages", queue="crowd", state="dead", search=search)[1]
    assert (answer["found"], answer["seen"], answer["searched"]) == (found, 250, 250)


def test_a_search_is_bounded(client, crowd, monkeypatch):
    """It says how far it looked."""
    monkeypatch.setattr(api, "SEARCH_LIMIT", 10)
    answer = client.get("/api/messages", queue="crowd", state="dead", search="body")[1]
    assert (answer["found"], answer["seen"], answer["searched"]) == (10, 250, 10)


def test_errors_are_counted_by_their_first_line(client, crowd):
    """The most frequent first."""
    answer = client.get("/api/errors", queue="crowd")[1]
    counted = {each["error"]: each["count"] for each in answer["errors"]}
    assert counted == {"kind 0": 84, "kind 1": 83, "kind 2": 83}
    assert next(iter(counted)) == "kind 0"
    assert (answer["kinds"], answer["looked"], answer["sampled"]) == (3, 250, False)


def test_an_order_for_all_of_an_error_leaves_the_others(client, crowd):
    """Redrive, then delete."""
    order = {"queue": "crowd", "verb": "redrive", "error": "kind 1"}
    assert client.act(order) == (200, {"done": 83, "failed": [], "more": False})
    assert (crowd.stats().ready, crowd.stats().dead) == (83, 167)
    assert client.act(order | {"verb": "delete", "error": "kind 2"})[1]["done"] == 83
    assert {message.error.splitlines()[0] for message in crowd.peek("dead")} == {"kind 0"}


def test_an_order_for_what_a_search_finds(client, crowd):
    """Only the dead, only those."""
    assert client.act({"queue": "crowd", "verb": "redrive", "search": "body 24"})[1]["done"] == 11
    assert crowd.stats().ready == 11


def test_an_order_for_all_goes_on_until_none_is_left(client, crowd, monkeypatch):
    """Each deals with so many, and says whether there are more."""
    monkeypatch.setattr(api, "WHOLE_LIMIT", 100)
    order = {"queue": "crowd", "verb": "redrive", "all": True}
    answers = [client.act(order)[1] for _ in range(4)]
    assert [(answer["done"], answer["more"]) for answer in answers] == [
        (100, True),
        (100, True),
        (50, False),
        (0, False),
    ]
    assert crowd.stats().ready == 250


@pytest.mark.parametrize(
    "order",
    [{"all": False}, {"all": 1}, {"error": None}, {"search": ""}, {"search": ["x"]}, {"all": True, "ids": ["1"]}, {},
     {"verb": "reject", "all": True}],
)  # fmt: skip
def test_an_order_for_nothing_clear_is_refused(client, crowd, order):
    """Nothing is changed."""
    status, answer = client.act({"queue": "crowd", "verb": "redrive"} | order)
    assert status == 400
    assert answer["error"]
    assert crowd.stats().dead == 250


@pytest.mark.parametrize("words", [{"offset": "-1"}, {"offset": "x"}, {"sort": "size"}, {"state": "new"}])
def test_a_question_that_cannot_be_is_refused(client, words):
    """With the reason."""
    assert client.get("/api/messages", queue="orders", **words)[0] == 400
    if "state" not in words:
        assert client.get("/api/queues", **words)[0] == 400


def test_workers_come_with_what_they_hold(client, spool):
    """By host and process, of one queue or of all; how long, and how many leases are late."""
    queue = dirqueue.Queue(spool / "mail" / "out")
    held = [queue.get(timeout=0, lease=3600), queue.get(timeout=0, lease=3600)]
    dirqueue.Queue(spool / "orders").get(timeout=0, lease=0.001)
    answer = client.get("/api/workers")[1]
    assert answer["found"] == 2
    by_queue = {worker["queue"]: worker for worker in answer["workers"]}
    mine = f"{held[0].token.rsplit('-', 2)[0]}"
    assert by_queue["mail/out"]["holder"] == by_queue["orders"]["holder"] == mine
    assert by_queue["mail/out"]["ids"] == [lease.message.id for lease in held]
    assert (by_queue["mail/out"]["late"], by_queue["orders"]["late"]) == (0, 1)
    assert by_queue["mail/out"]["since"] <= by_queue["mail/out"]["until"]
    assert client.get("/api/workers", queue="orders")[1]["found"] == 1


def test_one_message_has_the_trace_of_its_failure_and_the_list_has_not(client, spool):
    """The list would carry a hundred tracebacks."""
    queue = dirqueue.Queue(spool / "orders")
    id = queue.put(b"traced")
    for lease in queue.get_many(100, timeout=0):
        if lease.message.id == id:
            lease.reject(Reason("ValueError: bad", "  File x"))
        else:
            lease.release()
    assert client.get("/api/message", queue="orders", id=id)[1]["trace"] == "  File x"
    rows = client.get("/api/messages", queue="orders", state="dead")[1]["messages"]
    assert "ValueError: bad" in [row["error"] for row in rows]
    assert not any("trace" in row for row in rows)


def test_a_queue_in_one_file_is_shown_and_changed_as_a_directory_is(client, spool):
    """Counts, messages, bodies, redrive, delete, reject."""
    queue = dirqueue.Queue(spool / "jobs.tq", layout="text", sync=False)
    first, second, third = queue.put_many([b"one", b"two", b"three"])
    queue.get(timeout=0).reject("broken")
    _, answer = client.get("/api/queues")
    assert ("jobs.tq", 2, 1) in [(each["name"], each["ready"], each["dead"]) for each in answer["queues"]]
    _, answer = client.get("/api/messages", queue="jobs.tq", state="dead")
    assert [(message["id"], message["error"]) for message in answer["messages"]] == [(first, "broken")]
    assert client.get("/api/message", queue="jobs.tq", id=second)[1]["body"] == "two"
    one = (200, {"done": 1, "failed": [], "more": False})
    assert client.act({"queue": "jobs.tq", "verb": "redrive", "ids": [first]}) == one
    assert client.act({"queue": "jobs.tq", "verb": "reject", "ids": [second]}) == one
    assert client.act({"queue": "jobs.tq", "verb": "delete", "ids": [second]}) == one
    assert [message.body for message in queue.peek()] == [b"one", b"three"]
    assert queue.message(third).state == "ready"


def test_queue_is_paused_and_resumed(client, spool):
    """Once each; what is no queue, or no verb, is refused."""
    queue = dirqueue.Queue(spool / "orders")
    for verb, now in (("pause", True), ("resume", False)):
        assert client.act({"queue": "orders", "verb": verb})[1]["done"] == 1
        assert client.act({"queue": "orders", "verb": verb})[1]["done"] == 0
        assert queue.paused is now
        assert client.get("/api/queue", queue="orders")[1]["queue"]["paused"] is now
    assert client.act({"queue": "none", "verb": "pause"})[0] == 404
    assert client.act({"queue": "orders", "verb": "stop"})[0] == 400


def test_attributes_are_shown_and_found(client, spool):
    """In the list and with the message; a search looks into them."""
    id = dirqueue.Queue(spool / "orders").put(b"noted", attributes={"Trace": "4bf92f"}, ttl=3600)
    _, found = client.get("/api/messages", queue="orders", state="ready", search="trace=4BF")
    assert [(each["id"], each["attributes"]) for each in found["messages"]] == [(id, {"Trace": "4bf92f"})]
    assert client.get("/api/message", queue="orders", id=id)[1]["expires_at"]


def test_filesystem_that_hangs_does_not_hold_up_the_page(client, spool, monkeypatch):
    """What was known is answered, with its age; other queues can be looked into and changed."""
    assert client.get("/api/queues")[0] == 200
    over = threading.Event()
    real = Monitor.read

    def hanging(self):
        over.wait(PATIENCE)
        return real(self)

    monkeypatch.setattr(api, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(api, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(Monitor, "read", hanging)
    try:
        time.sleep(1.1)  # the first look is old by then
        status, answer = client.get("/api/queues")
        assert (status, answer["found"]) == (200, 2)
        assert answer["age"] > 1
        assert len(client.get("/api/messages", queue="orders", state="dead")[1]["messages"]) == 3
        assert client.act({"queue": "orders", "verb": "redrive", "all": True})[1]["done"] == 3
        assert client.get("/api/queue", queue="orders")[1]["queue"]["dead"] == 3, "as it was known"
    finally:
        over.set()
    monkeypatch.setattr(api, "LOOK_SECONDS", PATIENCE)
    until(lambda: client.get("/api/queue", queue="orders")[1]["queue"]["dead"] == 0)


def test_first_look_that_hangs_is_an_error(spool, monkeypatch):
    """There is nothing else to show."""
    over = threading.Event()
    monkeypatch.setattr(api, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(Monitor, "read", lambda _self: over.wait(PATIENCE) and [])
    asked = api.Api(str(spool))
    with pytest.raises(dirqueue.DirQueueError, match="does not answer"):
        asked.queues({})
    over.set()
    asked.close()
