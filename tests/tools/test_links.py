"""Every tool on a queue whose messages are symbolic links: what it shows, moves, converts and removes."""

import errno
import json
import os
import threading

import pytest
from support.failing import failing
from support.kit import drain
from support.webclient import TOKEN, Client

from dirqueue import Queue, Unsupported
from dirqueue.disk import fs
from dirqueue.tools import activity, check, doctor, metrics, shape
from dirqueue.tools.convert import convert
from dirqueue.tools.delete import delete
from dirqueue.tools.doctor import probes
from dirqueue.tools.monitor import Monitor
from dirqueue.tools.transfer import move
from dirqueue.web import make_server

ID = "1500000000000000000000001"
BODY = b"gr\xfcn\n"


@pytest.fixture
def spool(tmp_path):
    """Give a queue of links with one message in every state, and what lies beside it."""
    queue = Queue.create(tmp_path / "spool" / "q", sync=False, links=True, keep_done=True)
    queue.put(b"done")
    queue.get(timeout=0).ack()
    queue.put(b"dead")
    queue.get(timeout=0).reject("bad")
    queue.put(b"leased")
    queue.get(timeout=0)
    queue.put(b"delayed", delay=3600)
    queue.put(BODY)
    queue.put_many([b"one", b"two"])
    return queue


def forms(queue):
    """Return which places of messages are links."""
    places = [entry.place for entry in queue.layout.entries() if entry.id]
    return {os.path.islink(os.path.join(queue.path, place)) for place in places}


COUNTS = {"ready": 3, "delayed": 1, "leased": 1, "dead": 1, "done": 1}


def test_create_links_is_stored_and_put_honours_it(dq, tmp_path):
    """`create --links`, then a put by any process; the setting `links` can also be given with --set."""
    for name, words in (("a", ["--links"]), ("b", ["--set", "links=true"])):
        assert dq("create", tmp_path / name, *words).status == 0
        assert json.loads((tmp_path / name / "queue.json").read_text())["links"] is True
        (id,) = dq("put", tmp_path / name, "hello").lines
        assert os.readlink(tmp_path / name / id) == ":hello"


def test_commands_show_and_take_links_like_files(dq, spool):
    """Ls, cat, peek, stat, get: bodies byte for byte, sizes without the colon."""
    rows = [json.loads(line) for line in dq("ls", spool.path, "--json").lines]
    assert {row["state"] for row in rows} == {"ready", "delayed", "leased"}
    (row,) = [row for row in rows if row["size"] == len(BODY) and row["state"] == "ready"]
    assert dq("cat", spool.path, row["id"]).out.encode("utf-8", "surrogateescape") == BODY
    assert dq("peek", spool.path).out.encode("utf-8", "surrogateescape") == BODY
    (counted,) = [json.loads(line) for line in dq("stat", spool.path, "--json").lines]
    assert {state: counted[state] for state in COUNTS} == COUNTS
    assert dq("get", spool.path).out.encode("utf-8", "surrogateescape") == BODY
    assert dq("redrive", spool.path).status == 0
    assert dq("get", spool.path).out == "dead"
    handle = json.loads(dq("get", spool.path, "--hold", "--json").lines[0])["handle"]
    assert dq("retry", spool.path, handle, "--error", "no").status == 0
    assert forms(spool) == {True}
    assert dq("flush", spool.path, "--yes").status == 0
    assert spool.stats().total == 0


def test_check_finds_links_in_every_state_healthy(spool):
    """Also when every body is opened; a link with a second name is no danger, since nobody can change its target."""
    (name,) = [each for each in os.listdir(spool.path) if each.isdigit()]
    os.link(os.path.join(spool.path, name), f"{spool.path}.second", follow_symlinks=False)
    found = {finding.code for deep in (False, True) for finding in check.check(spool.path, deep=deep)}
    assert found == set()


@pytest.mark.parametrize("room", ["", "leased/", "later/1500000000000000/", f"{ID}.batch/", "dead/"])
def test_check_reports_a_link_that_leads_elsewhere_and_repair_leaves_it(spool, room):
    """Named like a message, so it is of the wrong type; nobody follows, moves or removes it."""
    place = os.path.join(
        spool.path, room, f"{ID}{'' if room in ('', f'{ID}.batch/') else '.1500000000000000.1'}"
    )
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.symlink("/etc/hostname", place)
    for repair in (False, True):
        found = {
            (finding.code, finding.repaired) for finding in check.check(spool.path, repair=repair, deep=True)
        }
        assert found == {("Q03", False)}
    assert os.readlink(place) == "/etc/hostname"


@pytest.mark.parametrize("room", ["leased", "later", "dead", "done"])
def test_check_reports_a_room_that_is_a_link(tmp_path, room):
    """What goes there would leave the queue."""
    with Queue(tmp_path / "q", sync=False, links=True) as queue:
        queue.put(b"x")
    (tmp_path / "elsewhere").mkdir()
    if (tmp_path / "q" / room).exists():
        (tmp_path / "q" / room).rmdir()
    (tmp_path / "q" / room).symlink_to(tmp_path / "elsewhere")
    (found,) = check.check(str(tmp_path / "q"))
    assert (found.code, found.place, found.detail) == ("Q03", room, "a symbolic link")


def test_repair_removes_an_unfinished_link_of_a_network_filesystem(spool):
    """There a link passes through ID.new too."""
    new = os.path.join(spool.path, f"{ID}.new")
    os.symlink(":body", new)
    os.utime(new, (1, 1), follow_symlinks=False)
    (found,) = check.check(spool.path, repair=True)
    assert (found.code, found.repaired) == ("Q06", True)


def test_repair_removes_the_first_name_of_a_link_that_was_published_by_a_hard_link(spool):
    """The same link under two names is one message."""
    os.symlink(":body", os.path.join(spool.path, ID))
    os.link(os.path.join(spool.path, ID), os.path.join(spool.path, f"{ID}.new"), follow_symlinks=False)
    (found,) = check.check(spool.path, repair=True)
    assert (found.code, found.repaired) == ("Q04", True)
    assert spool.get(timeout=0).message.body == b"body"


def test_doctor_tries_symbolic_links(tmp_path, monkeypatch):
    """They pass here; where they are refused, or cannot be linked, a queue works nevertheless."""
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (probes.ROUNDS, 0, 0))

    def probe():
        report = doctor.examine(str(tmp_path))
        assert report.good_for("native")
        return next(each for each in report.probes if each.name == "symlinks")

    assert probe()[1:] == ("pass", "symbolic links hold 1,000 bytes")
    with failing("symlink", errno.EPERM):
        assert probe().result == "warn"
    with failing("link", errno.EPERM, when=lambda src, *_, **__: src == "claimed"):
        assert "cannot be hard-linked" in probe().detail
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("call", "lie"),
    [("symlink", lambda *_, **__: None), ("readlink", lambda *_, **__: b":other")],
    ids=["overwrites", "forgets"],
)
def test_doctor_fails_links_that_lie(tmp_path, monkeypatch, call, lie):
    """A name that is taken must be refused, and a target must stay."""
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (probes.ROUNDS, 0, 0))
    monkeypatch.setattr(fs, call, lie)
    probe = next(each for each in doctor.examine(str(tmp_path)).probes if each.name == "symlinks")
    assert probe.result == "fail"


def test_delete_removes_links_and_refuses_those_that_lead_elsewhere(spool):
    """In every state; a foreign link is somebody's, and so is what it leads to."""
    os.symlink("/etc/hostname", os.path.join(spool.path, ID))
    with pytest.raises(Exception, match=ID):
        delete(spool.layout)
    assert spool.stats().total == 5
    os.unlink(os.path.join(spool.path, ID))
    assert delete(spool.layout) == 7
    assert not os.path.exists(spool.path)


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_convert_of_links_and_back_keeps_every_body(tmp_path, layout):
    """To each layout and back into links: bodies of any bytes, in order, and nothing is left beside the queue."""
    bodies = [b"", b"hello", BODY, b"/etc/hostname", b":", b"x" * 1000, b"y" * 1001]
    with Queue.create(tmp_path / "q", layout="native", links=True, sync=False) as queue:
        for body in bodies[:3]:
            queue.put(body)
        queue.put_many(bodies[3:])
    assert convert(tmp_path / "q", layout=layout) == (7, "")
    assert convert(tmp_path / "q", layout="native", links=True) == (7, "")
    with Queue(tmp_path / "q") as queue:
        assert queue.settings.links
        assert drain(queue) == bodies
    assert os.listdir(tmp_path) == ["q"]


@pytest.mark.parametrize(("one", "two"), [(True, False), (False, True), (True, True)])
def test_move_renames_links_whatever_the_other_queue_writes(tmp_path, one, two):
    """Ready, delayed and dead ones; with their ids."""
    source = Queue(tmp_path / "one", sync=False, links=one)
    target = Queue(tmp_path / "two", sync=False, links=two)
    ready, delayed = source.put(b"ready"), source.put(b"delayed", delay=3600)
    dead = source.put(b"dead")
    source.get(timeout=0).release()
    assert move(source, target, [dead]) == ([dead], True)
    assert move(source, target, [ready]) == ([ready], True)
    assert move(source, target, state="delayed") == ([delayed], True)
    assert forms(target) == {one}
    target.get(timeout=0).reject("bad")
    assert move(target, source, state="dead") == ([ready], True)
    assert sorted(drain(source) + drain(target)) == [b"dead", b"ready"]


def test_move_to_a_queue_that_lets_in_more_people_hides_what_the_umask_hides(tmp_path):
    """A link has no mode: in a directory that others can search they could read it, so there it becomes a file."""
    os.umask(0o077)
    source = Queue(tmp_path / "mine", sync=False, links=True)
    ids = [source.put(b"secret"), source.put(b"secret too", delay=3600)]
    assert forms(source) == {True}
    (tmp_path / "ours").mkdir()
    os.chmod(tmp_path / "ours", 0o755)
    target = Queue(tmp_path / "ours", sync=False, links=True)
    for how in ({"ids": ids[:1]}, {"state": "delayed"}):
        with pytest.raises(Unsupported, match="lets in nobody more"):
            move(source, target, **how)
    moved, atomic = move(source, target)
    assert (len(moved), atomic) == (1, False)
    assert os.lstat(tmp_path / "ours" / moved[0]).st_mode & 0o777 == 0o600
    assert drain(target) == [b"secret"]


def test_monitor_metrics_and_shape_count_links(spool):
    """By names alone, as for files."""
    root = os.path.dirname(spool.path)
    monitor = Monitor(root)
    (reading,) = monitor.read()
    monitor.close()
    assert {state: reading.to_dict()[state] for state in COUNTS} == COUNTS
    text = metrics.text(metrics.measure([spool.path]))
    for state, count in COUNTS.items():
        assert f'state="{state}"}} {count}' in text
    assert "foreign_files" in text
    assert shape.measure([("q", spool)]).rows()[0]["total"] == 6  # without the one in done/


def test_activity_counts_links(tmp_path):
    """They are created in place, not renamed into it."""
    queue = Queue(tmp_path / "q", sync=False, links=True, keep_done=False)
    queue.put(b"before")
    queue.get(timeout=0).release()
    events = activity.watch(queue.layout)
    assert events is not None
    for number in range(50):
        queue.put(b"x", delay=3600 if number % 10 == 9 else 0)
    queue.put_many([b"x"] * 20)
    assert events.read() == (70, 0, 0)
    for _ in range(60):
        queue.get(timeout=0).ack()
    assert events.read() == (0, 60, 0)
    events.close()


def test_web_shows_and_redrives_links(spool):
    """Bodies and sizes in the list and on the page of a message."""
    server = make_server(os.path.dirname(spool.path), "127.0.0.1", 0, TOKEN)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        client = Client(server)
        (dead,) = client.get("/api/messages", queue="q", state="dead")[1]["messages"]
        assert client.get("/api/message", queue="q", id=dead["id"])[1]["body"] == "dead"
        assert client.act({"queue": "q", "verb": "redrive", "ids": [dead["id"]]})[1]["done"] == 1
        ready = client.get("/api/messages", queue="q", state="ready")[1]["messages"]
        assert [each["size"] for each in ready] == [4, 5, 3, 3]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
