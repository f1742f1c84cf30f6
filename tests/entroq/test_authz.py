"""Who may do what: the token, the shipped policy behind a stand-in for OPA, and what is refused when nobody judges."""

import asyncio
import contextlib
import time

import agent
import grpc
import httpx
import pytest
from clients import DOORS, later
from model import Model
from services import in_thread

from dirqueue.entroq.authz import Caller, Token, read_token
from dirqueue.entroq.opa import Opa
from dirqueue.entroq.serve import Options
from dirqueue.entroq.tasks import (
    Access,
    Change,
    ClaimQuery,
    DependencyError,
    Modification,
    PermissionDenied,
    QueuesQuery,
    TaskData,
    TaskId,
    TasksQuery,
    Unauthenticated,
)
from dirqueue.errors import QueueAccess, SettingsError

ALICE, BOB = "secret-of-alice-0123", "secret-of-bob-4567"
DATA = {
    "entroq": {
        "tokens": {ALICE: "alice", BOB: "bob"},
        "allowed": {
            "alice": [
                {"prefix": "/ns=alice/", "actions": ["*"]},
                {"exact": "inbox", "actions": ["INSERT"]},
            ],
            "bob": [{"prefix": "", "actions": ["*"]}],
            "*": [{"exact": "news", "actions": ["READ"]}],
        },
    }
}


@pytest.fixture
def opa():
    with agent.running(DATA) as running:
        yield running


@pytest.fixture
def judged(opa):
    with in_thread(Model(), authz="opahttp", opa_url=opa.url) as running:
        yield running


@pytest.fixture(params=list(DOORS))
def door(request, judged):
    with contextlib.ExitStack() as stack:

        def enter(token):
            return stack.enter_context(
                contextlib.closing(DOORS[request.param](judged.addresses, token=token))
            )

        yield enter


def insert(client, *queues):
    return client.modify(Modification("me", inserts=[TaskData(queue, b"1") for queue in queues])).inserted


def denied(call, *arguments):
    with pytest.raises(PermissionDenied) as denied:
        call(*arguments)
    return denied.value.failed


def test_what_is_allowed_goes_through_and_the_question_is_entroqs(door, opa):
    alice = door(ALICE)
    insert(alice, "/ns=alice/a", "inbox")
    path, header, question = opa.questions[-1]
    assert (path, header) == ("/v1/data/entroq/authz", f"Bearer {ALICE}")
    assert question == {
        "input": {
            "authz": {"type": "Bearer", "credentials": ALICE},
            "queues": [
                {"exact": "/ns=alice/a", "actions": ["INSERT"]},
                {"exact": "inbox", "actions": ["INSERT"]},
            ],
            "claimant_id": "me",
        }
    }
    got = alice.claim(ClaimQuery(["/ns=alice/a"], "me"))
    alice.modify(Modification("me", deletes=[got.key]))


def test_what_is_refused_is_named(door):
    alice, bob, nobody = door(ALICE), door(BOB), door(None)
    (task,) = insert(bob, "inbox")
    claim = ClaimQuery(["/ns=alice/a", "inbox", "other"], "me")
    assert sorted(denied(alice.claim, claim)) == [Access("inbox", ("CLAIM",)), Access("other", ("CLAIM",))]
    assert sorted(denied(alice.wait, claim)) == [Access("inbox", ("CLAIM",)), Access("other", ("CLAIM",))]
    assert denied(alice.modify, Modification("me", deletes=[task.key])) == [Access("inbox", ("DELETE",))]
    move = Change(task.key, TaskData("/ns=alice/a", b"2"))
    assert denied(alice.modify, Modification("me", changes=[move])) == [Access("inbox", ("DELETE",))]
    change = Change(task.key, TaskData("inbox", b"2"))
    assert denied(alice.modify, Modification("me", changes=[change])) == [Access("inbox", ("CHANGE",))]
    depend = Modification("me", depends=[task.key], inserts=[TaskData("inbox", b"1")])
    assert denied(alice.modify, depend) == [Access("inbox", ("READ",))]
    assert denied(lambda: list(alice.tasks(TasksQuery("inbox")))) == [Access("inbox", ("READ",))]
    assert denied(nobody.modify, Modification("me", inserts=[TaskData("news", b"1")])) == [
        Access("news", ("INSERT",))
    ]
    (left,) = bob.tasks(TasksQuery("inbox"))
    assert left == task


def test_a_move_into_a_queue_wants_insert_there(door):
    alice, bob = door(ALICE), door(BOB)
    (task,) = insert(alice, "/ns=alice/a")
    move = Modification("me", changes=[Change(task.key, TaskData("/ns=bob/a", b"2"))])
    assert denied(alice.modify, move) == [Access("/ns=bob/a", ("INSERT",))]
    assert bob.modify(move).changed[0].queue == "/ns=bob/a"


def test_the_queue_that_is_judged_is_the_one_the_task_is_in(door):
    alice, bob = door(ALICE), door(BOB)
    (task,) = insert(bob, "secrets")
    lie = task.key._replace(queue="/ns=alice/a")
    with pytest.raises(DependencyError) as refused:
        alice.modify(Modification("me", deletes=[lie]))
    assert refused.value.deletes == [lie]
    silence = task.key._replace(queue="")
    assert denied(alice.modify, Modification("me", deletes=[silence])) == []  # nor is its queue told
    assert denied(alice.modify, Modification("me", changes=[Change(silence, TaskData("inbox", b"2"))])) == []
    assert list(bob.tasks(TasksQuery("secrets"))) == [task]
    bob.modify(Modification("me", deletes=[silence]))


def test_a_task_of_nobody_knows_which_queue_is_missing(door):
    unknown = TaskId("unknown", 0)
    with pytest.raises(DependencyError) as refused:
        door(ALICE).modify(Modification("me", deletes=[unknown]))
    assert refused.value.deletes == [unknown]


def test_a_task_that_comes_after_it_was_looked_for_stays(judged, opa, monkeypatch):
    """RACE: between the look for its queue and the modification a task of that id is put, where it is forbidden."""
    bob, alice = (DOORS["http"](judged.addresses, token=token) for token in (BOB, ALICE))
    desk, look = judged.service.desk, judged.service.desk.tasks

    async def looked(query):
        found = await look(query)
        await desk.modify(Modification("bob", inserts=[TaskData("secrets", b"1", id="known")]))
        return found

    monkeypatch.setattr(desk, "tasks", looked)
    with contextlib.closing(bob), contextlib.closing(alice):
        with pytest.raises(DependencyError):
            alice.modify(Modification("me", deletes=[TaskId("known", 0)]))
        assert [task.id for task in bob.tasks(TasksQuery("secrets"))] == ["known"]


def test_listings_leave_out_what_may_not_be_read(door):
    alice, bob, nobody = door(ALICE), door(BOB), door("")
    tasks = insert(bob, "/ns=alice/a", "/ns=alice/b", "inbox", "news", "secrets")
    assert [stat.name for stat in bob.queues(QueuesQuery())] == sorted(task.queue for task in tasks)
    mine = ["/ns=alice/a", "/ns=alice/b", "news"]
    assert [stat.name for stat in alice.queues(QueuesQuery())] == mine
    assert [stat.name for stat in alice.queues(QueuesQuery(limit=2))] == mine[:2]
    assert [stat.name for stat in nobody.queues(QueuesQuery())] == ["news"]
    ids = [task.id for task in tasks]
    assert [task.queue for task in alice.tasks(TasksQuery(ids=ids))] == mine
    assert [task.queue for task in nobody.tasks(TasksQuery(ids=ids))] == ["news"]


def test_metrics_leave_them_out_too(judged):
    with contextlib.closing(DOORS["http"](judged.addresses, token=BOB)) as bob:
        insert(bob, "/ns=alice/a", "secrets")
        url = judged.addresses.http + "/metrics"
        text = httpx.get(url, headers={"authorization": f"Bearer {ALICE}"}).text
        assert 'entroq_queue_size{name="/ns=alice/a",type="total"} 1' in text
        assert "secrets" not in text
        assert "secrets" in httpx.get(url, headers={"authorization": f"Bearer {BOB}"}).text


def check(url, **how):
    """Ask an agent for one right."""

    async def ask():
        judge = Opa(url, **how)
        try:
            await judge.check(Caller("Bearer", BOB), [Access("q", ("READ",))])
        finally:
            await judge.close()

    asyncio.run(ask())


def readable(url, queues, **how):
    """Ask an agent which queues may be read."""

    async def ask():
        judge = Opa(url, **how)
        try:
            return await judge.readable(Caller("Bearer", BOB), queues)
        finally:
            await judge.close()

    return asyncio.run(ask())


def answers(status, body):
    return lambda path, question: (status, body)


def slow(path, question):
    time.sleep(1)
    return 200, b'{"result": {"allow": true}}'


@pytest.mark.parametrize(
    "answer",
    [
        answers(500, b'{"result": {"allow": true}}'),
        answers(302, b'{"result": {"allow": true}}'),
        answers(200, b"{}"),
        answers(200, b""),
        answers(200, b"[1]"),
        answers(200, b'{"result": true}'),
        answers(200, b'{"result": {}}'),
        answers(200, b'{"result": {"allow": "true"}}'),
        answers(200, b'{"result": {"allow": 1}}'),
        answers(200, b'{"result": {"allow": true, "failed": 3}}'),
        answers(200, b"[" * 100_000),
        answers(200, b'{"result": {"allow": true}}' + b" " * (5 << 20)),
        slow,
    ],
)
def test_it_fails_closed(opa, answer):
    opa.answer = answer
    with pytest.raises(PermissionDenied):
        check(opa.url, seconds=0.4)
    with contextlib.suppress(PermissionDenied):
        assert readable(opa.url, ["q"], seconds=0.4) == set()


def test_it_fails_closed_when_nobody_answers():
    with pytest.raises(PermissionDenied, match="did not answer"):
        check("http://127.0.0.1:9", seconds=0.4)


def test_a_verdict_that_names_only_some_is_not_believed(opa):
    """An agent that names one refused queue of three does not allow the other two by that."""
    opa.answer = answers(
        200, b'{"result": {"allow": false, "failed": [{"exact": "a", "actions": ["READ"]}]}}'
    )
    assert readable(opa.url, ["a", "b", "c"]) == set()


def test_a_right_that_was_taken_away_is_gone(judged, opa):
    with contextlib.closing(DOORS["proto"](judged.addresses, token=ALICE)) as alice:
        insert(alice, "inbox")
        opa.answer = answers(200, b'{"result": {"allow": false, "errors": ["fired"]}}')
        with pytest.raises(PermissionDenied, match="fired"):
            insert(alice, "inbox")


def test_an_agent_that_was_restarted_is_asked_again(opa):
    """A connection that the agent has closed is no reason to refuse."""
    opa.answer = answers(200, b'{"result": {"allow": true}}')
    judge = Opa(opa.url)

    async def ask():
        await judge.check(Caller(), [Access("q", ("READ",))])
        judge._idle.queue[0].sock.shutdown(2)
        await judge.check(Caller(), [Access("q", ("READ",))])
        await judge.close()

    asyncio.run(ask())


@pytest.mark.parametrize("url", ["localhost:8181", "ftp://x", "http://", "http://x?y"])
def test_an_address_that_is_none(url):
    with pytest.raises(SettingsError, match="OPA"):
        Opa(url)


# --- the token ---------------------------------------------------------------------------------------------

SECRET = "0123456789abcdef-secret"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("door", list(DOORS))
def test_whoever_has_the_token_may_everything(token_file, door):
    with in_thread(Model(), authz="token", token_file=str(token_file)) as running:
        with contextlib.closing(DOORS[door](running.addresses, token=SECRET)) as client:
            insert(client, "q")
            assert client.time()
        for wrong in (None, SECRET + "x", SECRET[:-1], "ü"):
            if door != "http" and wrong == "ü":
                continue  # gRPC has no such header
            if wrong == "ü":
                answer = httpx.get(
                    running.addresses.http + "/api/v0/time", headers={"authorization": "Bearer ü".encode()}
                )
                assert answer.status_code == 401
                continue
            with contextlib.closing(DOORS[door](running.addresses, token=wrong)) as client:
                for call in (
                    client.time,
                    lambda client=client: insert(client, "q"),
                    lambda client=client: client.claim(ClaimQuery(["q"])),
                    lambda client=client: client.wait(ClaimQuery(["q"])),
                    lambda client=client: client.queues(QueuesQuery()),
                    lambda client=client: list(client.tasks(TasksQuery("q"))),
                ):
                    with pytest.raises(Unauthenticated, match="token"):
                        call()
        assert httpx.get(running.addresses.http + "/metrics").status_code == 401
        assert httpx.get(running.addresses.http + "/healthz").status_code == 200


def test_the_word_before_the_token_counts():
    judge = Token(SECRET)
    asyncio.run(judge.check(Caller.read(f"bearer  {SECRET}"), ()))
    for header in (SECRET, f"Basic {SECRET}", "Bearer", "", None):
        with pytest.raises(Unauthenticated):
            asyncio.run(judge.check(Caller.read(header), ()))


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        (SECRET, 0o640, "chmod"),
        (SECRET, 0o604, "chmod"),
        ("short", 0o600, "16"),
        ("two words are no good", 0o600, "one word"),
    ],
)
def test_a_token_that_is_none(token_file, text, mode, word):
    token_file.write_text(text)
    token_file.chmod(mode)
    with pytest.raises(SettingsError, match=word):
        read_token(str(token_file))
    with pytest.raises(QueueAccess):
        read_token(str(token_file) + "x")


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"http": "0.0.0.0:9100"}, "--plaintext"),
        ({"http": "0.0.0.0:9100", "plaintext": True}, "--open"),
        ({"grpc": "[::]:37706", "plaintext": True}, "--open"),
        ({"grpc": "192.0.2.1:37706", "open": True}, "--plaintext"),
        ({"http": "myhost.example:80", "tls_cert": "c", "tls_key": "k"}, "--open"),
        ({"http": None, "grpc": None}, "nothing to serve"),
        ({"authz": "magic"}, "none, token, opahttp"),
        ({"authz": "token"}, "token file"),
        ({"token_file": "x"}, "token file"),
        ({"tls_cert": "c"}, "key"),
        ({"tls_client_ca": "c"}, "certificate"),
        ({"max_size_mb": 0}, "1024"),
        ({"http": "localhost"}, "HOST:PORT"),
        ({"http": ":80"}, "HOST:PORT"),
        ({"http": "localhost:99999"}, "HOST:PORT"),
    ],
)
def test_what_is_not_safe_needs_a_word(options, word):
    with pytest.raises(SettingsError, match=word):
        Options(**options).check()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"http": "0.0.0.0:9100", "plaintext": True, "open": True},
        {"http": "localhost:1", "grpc": "[::1]:2"},
        {"grpc": "0.0.0.0:1", "tls_cert": "c", "tls_key": "k", "authz": "opahttp"},
    ],
)
def test_what_is_safe_or_was_said(options):
    Options(**options).check()


def test_an_address_that_is_taken_is_said():
    with in_thread(Model()) as running:
        taken = running.addresses.http.partition("://")[2]
        with pytest.raises(QueueAccess, match="listen on"), in_thread(Model(), http=taken):
            pass
        taken = running.addresses.grpc.partition("://")[2]
        with pytest.raises(SettingsError, match="listen on"), in_thread(Model(), grpc=taken):
            pass


def test_tls(tmp_path):
    cert, key = make_certificate(tmp_path)
    with in_thread(Model(), tls_cert=cert, tls_key=key) as running:
        assert running.addresses.http.startswith("https://")
        import ssl

        context = ssl.create_default_context(cafile=cert)
        with contextlib.closing(DOORS["http"](running.addresses, verify=context)) as client:
            insert(client, "q")
        with open(cert, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        with contextlib.closing(DOORS["api"](running.addresses, credentials=credentials)) as client:
            assert client.claim(ClaimQuery(["q"])).queue == "q"
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.addresses.http.replace("https", "http") + "/healthz")
    with pytest.raises(SettingsError, match="TLS"), in_thread(Model(), tls_cert=key, tls_key=cert):
        pass


def make_certificate(folder):
    """Return a certificate for 127.0.0.1 and its key."""
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_the_policy_is_asked_before_anything_waits(judged, opa):
    """A claim that may not is refused at once, not when a task comes."""
    with contextlib.closing(DOORS["http"](judged.addresses, token=ALICE)) as alice:
        with pytest.raises(PermissionDenied):
            later(alice.wait, ClaimQuery(["secrets"])).result(10)
        assert judged.service.desk.waiting == 0
