"""Which directories are queues, what is found under a root, and what is left alone because it is none."""

import json
import os
from pathlib import Path

import pytest
from support.kit import files
from support.running import as_nobody, sentence

from dirqueue import Queue, QueueError
from dirqueue.disk import fs
from dirqueue.layouts import signs
from dirqueue.tools import check, discover

ID = "1500000000000000000000001"
#: A bucket.
HOUR = "1500000000000000"


def put(path, body=b"x", **settings):
    with Queue(path, sync=False, **settings) as queue:
        return queue.put(body)


def littered(path):
    """Leave what an earlier `purge ROOT` left in a directory of queues."""
    for name in (".ballast", ".purge.lock"):
        (path / name).write_text("")


def found(root):
    return [os.path.relpath(path, root) for path in discover.find(str(root))]


# --- what is no queue ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["purge", "check", "check --repair", "delete --yes"])
def test_a_directory_that_is_no_queue_is_refused_and_left_alone(dq, tmp_path, verb):
    """A root of queues, or somebody's files: one sentence, status 1, not one file more or less."""
    put(tmp_path / "root" / "a")
    (tmp_path / "root" / "hosts").write_text("127.0.0.1")
    before = files(tmp_path)
    verb, *options = verb.split()
    done = dq(verb, tmp_path / "root", *options)
    assert done.status == 1
    assert "is not a queue" in sentence(done)
    assert ("purge -r" in done.err) == (verb == "purge")
    assert files(tmp_path) == before
    assert found(tmp_path / "root") == ["a"]


def test_the_library_refuses_what_is_no_queue_too(tmp_path):
    """Queue.purge and check(repair=True) write nothing into such a directory."""
    put(tmp_path / "a")
    before = files(tmp_path)
    with Queue(tmp_path, create=False) as queue, pytest.raises(QueueError, match="is not a queue"):
        queue.purge()
    with pytest.raises(QueueError, match="is not a queue"):
        check.check(str(tmp_path), repair=True)
    assert files(tmp_path) == before


def test_a_littered_root_does_not_hide_its_queues(dq, tmp_path):
    """The reserve and the lock of a purge are no sign of a queue where directories lie beside them."""
    put(tmp_path / "a")
    put(tmp_path / "b")
    littered(tmp_path)
    assert found(tmp_path) == ["a", "b"]
    assert dq("purge", tmp_path).status == 1


def test_a_drained_queue_stays_a_queue(dq, tmp_path):
    """With nothing but what dirqueue keeps there, and with a file that is not dirqueue's beside it."""
    (tmp_path / "q").mkdir()
    littered(tmp_path / "q")
    assert found(tmp_path) == ["q"]
    (tmp_path / "q" / "README").write_text("")
    assert found(tmp_path) == ["q"]
    assert dq("purge", tmp_path / "q").status == 0


def test_a_stray_put_into_a_root_does_not_hide_the_queues_below(dq, tmp_path):
    """The root is a queue then, and is listed with the others."""
    put(tmp_path / "root" / "a")
    put(tmp_path / "root" / "deep" / "b")
    put(tmp_path / "root")
    assert found(tmp_path / "root") == [".", "a", "deep/b"]
    rows = [json.loads(line) for line in dq("monitor", tmp_path / "root", "--once", "--json").lines]
    assert [row["ready"] for row in rows] == [1, 1, 1]


def test_a_queue_below_is_not_taken_for_the_root_of_the_same_name(tmp_path):
    """Names are unique: by name the monitor finds the queue that is meant."""
    from dirqueue.tools.monitor import Monitor

    put(tmp_path / "a")
    put(tmp_path / "a" / "a")
    with Monitor(str(tmp_path / "a")) as monitor:
        assert [each.name for each in monitor.read()] == [".", "a"]
        assert monitor.queue("a").path == str(tmp_path / "a" / "a")


@pytest.mark.parametrize("layout", ["native", "dirq-simple", "dirq-normal"])
def test_queues_named_by_dates_are_queues_and_not_parts_of_one(tmp_path, layout):
    """Eight digits are a directory of dirq's only if an element is in one; an empty queue of that name is found too."""
    for number in range(5):
        put(tmp_path / f"2026111{number}")
    (tmp_path / "20261115").mkdir()
    assert found(tmp_path) == [f"2026111{number}" for number in range(6)]
    put(tmp_path / "q", layout=layout)
    assert "q" in found(tmp_path)


def test_directories_named_by_dates_are_no_queue(dq, tmp_path):
    """Backups of days, an empty one among them: purge refuses, and removes none of them."""
    for day in ("20261116", "20261117"):
        (tmp_path / "backup" / day).mkdir(parents=True)
        (tmp_path / "backup" / day / "disk.img").write_text("")
    (tmp_path / "backup" / "20261118").mkdir()
    before = files(tmp_path)
    assert "is not a queue" in sentence(dq("purge", tmp_path / "backup"))
    assert files(tmp_path) == before


@pytest.mark.parametrize("layout", ["dirq-simple", "dirq-normal"])
def test_a_dirq_queue_is_found_full_and_drained(tmp_path, layout):
    """With elements, and with nothing but the directories that were made for them."""
    queue = Queue(tmp_path / "q", layout=layout, sync=False)
    queue.put(b"x")
    assert found(tmp_path) == ["q"]
    queue.get(timeout=0).ack()
    assert found(tmp_path) == ["q"]


def test_a_queue_of_pinned_messages_only_is_found(tmp_path, dq):
    """A Spark driver that died holds them all; a .spark of another program is no sign."""
    pins = tmp_path / "q" / ".spark" / "pins"
    pins.mkdir(parents=True)
    (tmp_path / "home" / ".spark").mkdir(parents=True)
    assert found(tmp_path) == ["q"]
    assert dq("purge", "-r", tmp_path, "-v").lines == [f"{tmp_path}/q\tclean"]


@pytest.mark.parametrize(
    "name",
    [
        ID,
        f"{ID}.slice/x",
        f"{ID}.batch.new/x",
        "queue.json",
        "dead/x",
        f"done/{ID}",
        f"dead/{HOUR}/{ID}.{HOUR}.1",
        f"leased/{ID}.{HOUR}.1.host-1-a-1",
        f"leased/{ID}.error",
        f"later/{HOUR}/{ID}.{HOUR}.0",
        f"later/{HOUR}/x",
        "leased/x",
        "later/x",
    ],
)
def test_one_name_of_dirqueues_makes_a_queue(tmp_path, name):
    """A message, settings or a directory of messages; only with the right type."""
    path = tmp_path / "q" / name
    path.parent.mkdir(parents=True)
    path.write_text("")
    (tmp_path / "q" / "other").mkdir()
    (tmp_path / "q" / "other" / "file").write_text("")
    assert (found(tmp_path) == ["q"]) == (name not in ("dead/x", "leased/x", "later/x"))


@pytest.mark.parametrize("name", ["leased", "later"])
@pytest.mark.parametrize("state", ["new", "ready", "leased", "delayed", "settings", "earlier"])
def test_a_queue_may_have_the_name_of_a_room(tmp_path, name, state):
    """What nobody does in a room shows that it is a queue; its root is none, and the others are found too."""
    put(tmp_path / "root" / "a")
    path = tmp_path / "root" / name
    if state == "earlier":
        path.mkdir()
        (path / ID).write_text("")
    else:
        with Queue.create(path, sync=False, **({"lease": 60.0} if state == "settings" else {})) as queue:
            if state in ("ready", "leased"):
                queue.put(b"x")
            elif state == "delayed":
                queue.put(b"x", delay=100)
            if state == "leased":
                queue.get(timeout=0)
    assert found(tmp_path / "root") == ["a", name]
    assert not signs.is_queue(str(tmp_path / "root"))


def test_a_message_that_is_a_link_is_a_sign(tmp_path, dq, monkeypatch):
    """Only with a colon; and delete removes it."""
    for name, target in (("a", ":body"), ("b", "/etc/hostname")):
        (tmp_path / name / "other").mkdir(parents=True)
        (tmp_path / name / "other" / "file").write_text("")
        (tmp_path / name / ID).symlink_to(target)
    assert found(tmp_path) == ["a"]
    monkeypatch.chdir(tmp_path)
    assert list(discover.find("a")) == ["a"]
    with Queue(tmp_path / "c", links=True, sync=False) as queue:
        queue.put(b"short")
        queue.put(b"later", delay=100)
    assert dq("delete", tmp_path / "c", "--yes").status == 0
    assert not (tmp_path / "c").exists()


def test_a_queue_that_was_used_up_is_found(tmp_path):
    """It holds an empty leased/, and so it stays one beside somebody's directories."""
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"x")
        queue.get(timeout=0).ack()
    assert found(tmp_path) == ["q"]
    (tmp_path / "q" / "other").mkdir()
    (tmp_path / "q" / "other" / "file").write_text("")
    assert found(tmp_path) == ["q"]


def test_a_name_of_the_wrong_type_is_no_sign(tmp_path):
    """A directory named like a message, a file named like a batch, a fifo named queue.json, a link to nowhere."""
    root = tmp_path / "q"
    root.mkdir()
    (root / ID).mkdir()
    (root / ID / "file").write_text("")
    (root / f"{ID}.batch").write_text("")
    os.mkfifo(root / "queue.json")
    (root / "link").symlink_to(root / "nowhere")
    assert signs.contents(str(root)) == (signs.OTHER, [ID], [])
    assert not signs.is_queue(str(root / "missing"))


def test_a_huge_directory_is_recognised_by_a_part_of_its_names(tmp_path, monkeypatch):
    """The cost is bounded."""
    for number in range(20):
        (tmp_path / f"file{number}").write_text("")
    monkeypatch.setattr(signs, "ENOUGH", 5)
    assert signs.contents(str(tmp_path)).kind == signs.OTHER


# --- what cannot be read -------------------------------------------------------------------------------------


@pytest.mark.root
def test_an_unreadable_queue_is_listed_and_down(tmp_path):
    """As another user: list and monitor give the error, metrics dirqueue_up 0, purge says why; the others are read."""
    put(tmp_path / "root" / "good")
    put(tmp_path / "root" / "secret")
    (tmp_path / "root" / "secret").chmod(0o700)
    (tmp_path / "root" / "lost+found").mkdir(mode=0o700)
    root, secret = tmp_path / "root", f"{tmp_path}/root/secret"
    done = as_nobody(root, "list", root, "--json")
    good, bad = (json.loads(line) for line in done.lines)
    assert (done.status, good["ready"], bad["queue"]) == (1, 1, secret)
    assert "EACCES" in bad["error"]
    good, bad = (json.loads(line) for line in as_nobody(root, "monitor", root, "--once", "--json").lines)
    assert (good["error"], "EACCES" in bad["error"]) == (None, True)
    assert f'dirqueue_up{{queue="{secret}"}} 0' in as_nobody(root, "metrics", root).lines
    assert "secret" in as_nobody(root, "purge", "-r", root).err


@pytest.mark.root
def test_a_queue_with_a_directory_that_may_not_be_entered_stays_a_queue(tmp_path):
    """dead/ or .spark/ of another user: the queue is found, and check names the directory."""
    for name, inner in (("a", "dead"), ("b", ".spark")):
        (tmp_path / "root" / name / inner).mkdir(parents=True)
        (tmp_path / "root" / name / "README").write_text("")
        (tmp_path / "root" / name / inner).chmod(0o700)
    (tmp_path / "root" / "a" / "far").symlink_to(tmp_path / "root" / "a" / "dead" / "x")
    root = tmp_path / "root"
    assert [Path(line.split("\t")[0]).name for line in as_nobody(root, "list", root).lines] == ["a", "b"]
    codes = [line.split("\t")[:4] for line in as_nobody(root, "check", root / "a").lines]
    assert ["Q21", "problem", "unreadable", "dead"] in codes


@pytest.mark.parametrize("name", ["dead", "leased", "later", ".spark", "20261117"])
def test_an_inner_directory_that_fails_is_taken_for_what_it_is_named(tmp_path, monkeypatch, name):
    """Else the whole queue would vanish from list and metrics."""
    (tmp_path / "q" / name).mkdir(parents=True)
    (tmp_path / "q" / "loop").symlink_to("loop")
    assert found(tmp_path) == ([] if name == ".spark" else ["q"])
    scandir = fs.scandir

    def failing(path):
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(fs, "scandir", failing)
    assert found(tmp_path) == ["q"]


def test_a_null_queue_is_purged_wherever_it_is(tmp_path):
    """It has no directory of its own."""
    (tmp_path / "file").write_text("")
    assert not any(Queue(tmp_path, layout="null").purge())
    assert files(tmp_path) == ["file"]


def test_a_directory_that_fails_is_found_so_that_its_error_is_seen(tmp_path, monkeypatch):
    """EIO of one directory hides neither it nor the others; one that is gone meanwhile is left out."""
    for name in ("a", "b", "c"):
        put(tmp_path / name)
    scandir = fs.scandir

    def failing(path):
        if str(path).endswith("/a"):
            raise OSError(5, "Input/output error")
        if str(path).endswith("/b"):
            raise FileNotFoundError(2, "gone")
        return scandir(path)

    monkeypatch.setattr(fs, "scandir", failing)
    assert found(tmp_path) == ["a", "c"]
    with pytest.raises(QueueError, match="EIO"):
        signs.is_queue(str(tmp_path / "a"))
    with pytest.raises(QueueError, match="EIO"):
        found(tmp_path / "a")
