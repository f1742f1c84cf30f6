"""`dirqueue entroq`: the words of eqc, on a directory, and on a service through each door."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from model import Model
from services import in_thread

from dirqueue import Queue
from dirqueue.cli import entroq as command
from dirqueue.cli import entroq_service, main
from dirqueue.entroq import remote
from dirqueue.entroq.local import LocalStore
from dirqueue.entroq.tasks import ClaimQuery, Modification, TaskData, TasksQuery

ROOT = Path(__file__).parents[2]


class Source(Model):
    """A model whose listing is whole before it is read page by page, by several threads."""

    def tasks(self, query):
        return iter(list(super().tasks(query)))


@pytest.fixture(params=["directory", "http", "grpc"])
def where(request, tmp_path):
    """The -s of a store."""
    if request.param == "directory":
        pytest.importorskip("dirqueue.entroq.store")
        yield str(tmp_path / "space")
        return
    with in_thread(Source()) as running:
        yield getattr(running.addresses, request.param)


def open_store(where):
    return remote.connect(where) if remote.is_address(where) else LocalStore(where)


@pytest.fixture
def eqc(where, capfd):
    """Run a command; return its lines as values, the status must be as given."""

    def eqc(verb, *words, status=0):
        assert main.run(["entroq", verb, "-s", where, *words]) == status, capfd.readouterr()
        written = capfd.readouterr()
        eqc.errors = written.err
        return [json.loads(line) for line in written.out.splitlines()]

    return eqc


def test_address_may_stand_before_the_verb(eqc, where, capfd):
    """As eqc has it; and one after the verb wins."""
    eqc("ins", "-q", "in", "-v", "1")
    for words in (
        ["-s", where, "-j", "ts"],
        ["-j", "ts", "-s", where],
        ["-s", "nowhere", "-j", "ts", "-s", where],
    ):
        assert main.run(["entroq", *words, "-q", "in"]) == 0
        assert json.loads(capfd.readouterr().out)["value"] == 1


def test_what_is_no_space_is_refused_in_one_sentence(tmp_path, capfd):
    """A slip of the pen was an empty space, an address of no kind a directory, and a queue a space."""
    Queue(tmp_path / "space/in").put(b"1")
    for place, verb, sentence in (
        (tmp_path / "none", ["qs"], "there is no directory"),
        (tmp_path / "none", ["ts", "-q", "in"], "there is no directory"),
        (tmp_path / "none", ["time"], "there is no directory"),
        ("ftp://127.0.0.1", ["ins", "-q", "in"], "is not an address"),
        (tmp_path / "space/in", ["qs"], "is a queue, not a directory of queues"),
        (tmp_path / "space/in", ["ins", "-q", "x"], "is a queue, not a directory of queues"),
    ):
        assert main.run(["entroq", *verb, "-s", str(place)]) == 1
        written = capfd.readouterr()
        assert sentence in written.err
        assert (written.out, written.err.count("\n")) == ("", 1)
    assert main.run(["entroq", "serve", str(tmp_path / "space/in")]) == 1
    assert "is a queue, not a directory of queues" in capfd.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["space"]


def test_inserted_tasks_are_listed_claimed_and_removed(eqc):
    first, second = eqc("ins", "-j", "-q", "in", "-v", '{"n": 1}', "-v", "2")
    assert (first["value"], second["value"], first["version"], first["queue"]) == ({"n": 1}, 2, 0, "in")
    assert eqc("qs") == [{"name": "in", "size": 2, "claimed": 0, "available": 2, "future": 0, "maxClaims": 0}]
    assert {task["id"] for task in eqc("ts", "-q", "in")} == {first["id"], second["id"]}
    assert [task["value"] for task in eqc("ts", "-t", second["id"], "-V")] == [""]
    assert len(eqc("ts", "-q", "in", "-n", "1")) == 1
    [held] = eqc("claim", "-q", "in", "-q", "other", "-d", "60")
    assert (held["version"], held["claims"]) == (1, 1)
    [gone] = eqc("rm", "-t", ({first["id"], second["id"]} - {held["id"]}).pop())
    assert gone["version"] == 0
    assert eqc("claim", "--try", "-q", "in") == []
    assert "no task" in eqc.errors
    [changed] = eqc("mod", "-t", held["id"], "-Q", "out", "-v", "[3]", "-f", "-j")
    assert (changed["queue"], changed["value"], changed["version"]) == ("out", [3], 2)
    assert [queue["name"] for queue in eqc("qs", "-p", "o", "-q", "nothing")] == ["out"]


def test_value_that_is_no_json_is_base64(eqc):
    [task] = eqc("ins", "-q", "in", "-v", "cat.jpg")
    assert task["value"] == "Y2F0LmpwZw=="
    [empty] = eqc("ins", "-q", "in")
    assert empty["value"] == ""


def test_task_of_another_claimant_needs_force(eqc, monkeypatch):
    monkeypatch.setattr(command, "PAUSE", 0.001)
    eqc("ins", "-q", "in", "-v", "1", "--id", "one")
    eqc("claim", "-q", "in", "-d", "60")
    assert eqc("rm", "-t", "one", "-r", "2", status=1) == []
    assert "held by another claimant; tried again, 1 times at most" in eqc.errors
    assert eqc("mod", "-t", "one", "-v", "2", status=1) == []
    assert eqc("clear", "-q", "in", status=1) == []
    assert "1 are held" in eqc.errors
    assert eqc("rm", "-t", "one", "--force")[0]["id"] == "one"
    assert eqc("rm", "-t", "one", status=1) == []
    assert "there is no task 'one'" in eqc.errors


def test_clear_removes_what_can_be_claimed_and_force_the_rest(eqc):
    eqc("ins", "-q", "in", "-v", "1", "-v", "2")
    eqc("ins", "-q", "in", "-v", "3", "--in", "1h")
    eqc("ins", "-q", "other", "-v", "4")
    assert eqc("clear", "-q", "in", status=1) == []
    assert [task["value"] for task in eqc("ts", "-q", "in", "-j")] == [3]
    assert eqc("clear", "-q", "in", "-f") == []
    assert [queue["name"] for queue in eqc("qs")] == ["other"]


def test_failed_task_goes_back_into_service(eqc, where):
    """With mod -r -Q: that is how a person repairs what is in an error queue."""
    eqc("ins", "-q", "in/err", "-v", "1", "--id", "bad")
    [task] = eqc("mod", "-t", "bad", "-r", "-Q", "in")
    assert (task["queue"], task["attempt"], task["err"]) == ("in", 0, "")


def test_waiting_claim_gets_what_comes(eqc, where):
    def later():
        time.sleep(0.3)
        # Not by another run of the command: the two would share the pending output of one process.
        target = open_store(where)
        target.modify(Modification("other", inserts=[TaskData("in", b"7")]))
        target.close()

    thread = threading.Thread(target=later)
    thread.start()
    found = eqc("claim", "-q", "in", "-j")
    thread.join()
    assert 7 in [task["value"] for task in found]


def test_time_is_the_stores(eqc, where, capfd):
    eqc("ins", "-q", "in")
    assert abs(eqc("time", "-m")[0] / 1000 - time.time()) < 60
    for option in ([], ["-l"]):
        assert main.run(["entroq", "time", "-s", where, *option]) == 0
        assert capfd.readouterr().out.startswith("20")


def test_bad_requests_are_one_sentence(eqc, capfd, monkeypatch):
    eqc("ins", "-q", "in", "-v", "1", "-v", "2", "--id", "x", status=2)
    assert "--id names one task" in eqc.errors
    eqc("ts", status=1)
    assert "names a queue or ids" in eqc.errors
    eqc("ins", "-q", "in", "--id", "x")
    eqc("ins", "-q", "in", "--id", "x", status=1)
    assert "x" in eqc.errors
    assert len(eqc.errors.splitlines()) == 1
    monkeypatch.delenv("DIRQUEUE_DIR", raising=False)
    assert main.run(["entroq", "qs"]) == 2
    assert "-s SPACE" in capfd.readouterr().err


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_service_that_does_not_answer_is_one_sentence(scheme, capfd):
    assert main.run(["entroq", "qs", "-s", f"{scheme}://127.0.0.1:1"]) == 1
    assert "127.0.0.1:1 does not answer" in capfd.readouterr().err
    assert main.run(["entroq", "qs", "-s", f"{scheme}://:x"]) == 1
    assert "is not an address" in capfd.readouterr().err


def test_space_may_be_in_the_environment(tmp_path, monkeypatch, capfd):
    pytest.importorskip("dirqueue.entroq.store")
    monkeypatch.setenv("DIRQUEUE_DIR", str(tmp_path / "space"))
    assert main.run(["entroq", "ins", "-q", "in"]) == 0
    assert main.run(["entroq", "qs"]) == 0
    assert '"name": "in"' in capfd.readouterr().out


# --- copying -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_copy_brings_tasks_over_and_can_be_run_again(door, where, capfd):
    """Ids, values, attempts, errors and arrivals; what is there already is skipped."""
    source = Source()
    later = source.time() + 3_600_000
    data = [TaskData("a", b"%d" % number, attempt=number % 3, err="bad") for number in range(230)]
    source.modify(Modification("x", inserts=[*data, TaskData("b", b'"v"', id="own", at=later)]))
    with in_thread(source) as running:
        address = getattr(running.addresses, door)
        address = address.removeprefix("grpc://")

        def copy(*words):
            assert main.run(["entroq", "copy", "-s", where, "--from", address, *words]) == 0, (
                capfd.readouterr()
            )
            return json.loads(capfd.readouterr().out)

        assert copy("-q", "b") == {"queues": 1, "tasks": 1, "skipped": 0}
        assert copy() == {"queues": 2, "tasks": 230, "skipped": 1}
        assert copy() == {"queues": 2, "tasks": 0, "skipped": 231}
    target = open_store(where)
    try:
        found = {task.id: task for task in target.tasks(TasksQuery("a"))}
        wanted = {task.id: task for task in source.by_id.values() if task.queue == "a"}
        assert {id: (t.value, t.attempt, t.err) for id, t in found.items()} == {
            id: (t.value, t.attempt, t.err) for id, t in wanted.items()
        }
        [own] = target.tasks(TasksQuery("b"))
        assert (own.id, own.value) == ("own", b'"v"')
        assert abs(own.at - later) < 10_000
        assert target.claim(ClaimQuery(["b"])) is None
    finally:
        target.close()


# --- serving -------------------------------------------------------------------------------------------------


def test_serve_answers_until_a_signal(tmp_path, capfd):
    pytest.importorskip("dirqueue.entroq.store")
    words = ["entroq", "serve", str(tmp_path / "space"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    service = subprocess.Popen(
        [sys.executable, "-m", "dirqueue", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        addresses = [service.stderr.readline().split()[-1] for _ in range(2)]
        assert main.run(["entroq", "ins", "-s", addresses[0], "-q", "in", "-v", "1", "--id", "one"]) == 0
        assert main.run(["entroq", "ts", "-s", addresses[1], "-q", "in"]) == 0
        assert main.run(["entroq", "ts", "-s", str(tmp_path / "space"), "-q", "in"]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert {json.loads(line)["id"] for line in lines} == {"one"}
        assert len(lines) == 3
        service.send_signal(signal.SIGTERM)
        assert service.wait(20) == 0
    finally:
        service.kill()
        service.wait()
        service.stderr.close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--http", "0.0.0.0:0"], "--plaintext"),
        (["--http", "0.0.0.0:0", "--plaintext"], "--open"),
        (["--authz", "token"], "token file"),
        (["--no-http", "--no-grpc"], "nothing to serve"),
        (["--tls-cert", "x"], "key"),
    ],
)
def test_serve_refuses_what_is_not_safe(tmp_path, capfd, words, sentence):
    assert main.run(["entroq", "serve", str(tmp_path), *words]) == 2
    assert sentence in capfd.readouterr().err


def test_serve_without_its_packages_says_which(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(entroq_service, "NEEDED", ("no_such_package",))
    assert main.run(["entroq", "serve", str(tmp_path)]) == 69
    assert "pip install 'dirqueue[entroq]'" in capfd.readouterr().err
