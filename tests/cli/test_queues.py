"""The verbs for whole queues: create, delete, clear, flush, list, stat, shape, redrive, purge, mv."""

import json
import os
import time
from pathlib import Path

import pytest
from filelock import FileLock
from support.running import sentence

from dirqueue import Queue
from dirqueue.tools import delete

DAY = 86400


def test_create_covers_what_quetify_asks_for(dq, tmp_path):
    """Type, priority and retry limit, and any other setting."""
    path = tmp_path / "q"
    assert (
        dq(
            "create", path, "-t", "stack", "-p", "-r", "9", "--set", "margin=2.5", "--set", "keep_done=true"
        ).status
        == 0
    )
    settings = Queue(path).settings
    assert (settings.order, settings.priorities, settings.max_attempts) == ("lifo", True, 10)
    assert (settings.margin, settings.keep_done) == (2.5, True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("-t FIFO -r 10 -p true", ("fifo", True, 11)),
        ("-t Stack -p TRUE", ("lifo", True, 5)),
        ("-t LIFO --priorities False", ("lifo", False, 5)),
        ("-p --max-attempts 3", ("fifo", True, 3)),
        ("--retry-limit 0 -p", ("fifo", True, 1)),
    ],
)
@pytest.mark.parametrize("queue_first", [True, False])
def test_create_takes_types_in_any_case_and_counts_retries(dq, tmp_path, words, wanted, queue_first):
    """As Quetify writes them; the queue may stand before the options or after them."""
    path = tmp_path / "q"
    given = [path, *words.split()] if queue_first else [*words.split(), path]
    assert dq("create", *given).status == 0
    settings = Queue(path).settings
    assert (settings.order, settings.priorities, settings.max_attempts) == wanted


def test_a_retry_limit_is_so_many_retries(dq, tmp_path):
    """After N failures that were retried, the next one is the last."""
    dq("create", tmp_path / "q", "--retry-limit", "2", "--no-sync", "--set", "backoff=0")
    queue = Queue(tmp_path / "q")
    queue.put(b"")
    assert [lease.retry() for lease in queue.consume(timeout=0)] == [None] * 3
    assert queue.stats().dead == 1


@pytest.mark.parametrize("words", ["-p=maybe", "-r -1", "-r x", "-r 1 --max-attempts 2"])
def test_create_refuses_what_is_neither(dq, tmp_path, words):
    """Nothing is made."""
    done = dq("create", tmp_path / "q", *words.split())
    assert done.status == 2
    sentence(done)
    assert not (tmp_path / "q").exists()


def test_delete_of_what_is_absent(dq, tmp_path):
    """An error, unless --missing-ok says that it is none."""
    assert dq("delete", tmp_path / "q", "--yes").status == 1
    done = dq("delete", tmp_path / "q", "--yes", "--missing-ok")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_create_twice_is_fine_unless_it_differs(dq, tmp_path):
    """The same again changes nothing; something else is status 73."""
    assert dq("create", tmp_path / "q", "--lease", "2m").status == 0
    assert dq("create", tmp_path / "q", "--lease", "2m").status == 0
    done = dq("create", tmp_path / "q", "--lease", "3m")
    assert done.status == 73
    assert "was created with" in sentence(done)


@pytest.mark.parametrize("setting", ["lease=0", "nonsense=1", "lease", "order=sideways", "max_attempts=-1"])
def test_create_with_an_invalid_setting_makes_nothing(dq, tmp_path, setting):
    """One sentence, status 2, no directory."""
    done = dq("create", tmp_path / "q", "--set", setting)
    assert done.status == 2
    sentence(done)
    assert not (tmp_path / "q").exists()


def test_stack_delivers_the_last_first(dq, tmp_path):
    """A stack is created and used from the shell."""
    dq("create", tmp_path / "q", "--type", "stack")
    for body in "abc":
        dq("put", tmp_path / "q", body)
    assert dq("get", tmp_path / "q", "--all").lines == ["c", "b", "a"]


# --- delete --------------------------------------------------------------------------------------------------


def full_queue(path):
    """Return a queue with a message in every state and every kind of directory."""
    queue = Queue.create(path, keep_done=True, sync=False)
    queue.put_many([b"a", b"b", b"c", b"d"])
    queue.put(b"later", delay=1000)
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0).retry(delay=100, error="again")
    queue.get(timeout=0)
    (Path(path) / "1794906871655342609277882.new").write_text("unfinished")
    (Path(path) / "1794906871655342609277883.batch.new").mkdir()
    (Path(path) / "1794906871655342609277883.batch.new" / "1794906871655342609277884").write_text("staged")
    return queue


def pinned(queue, count):
    """Pin messages as a Spark driver does, and leave nothing else in the queue."""
    from dirqueue.layouts.native import pins, supply

    queue.put_many([b"m%d" % number for number in range(count)])
    owner = pins.Pins(queue.layout.directory, queue.settings, "driver")
    owner.register(600)
    owner.pin(0, supply.claimable(queue.layout.directory, queue.settings), pins.Limit())
    queue.purge()
    assert queue.stats()[:3] == (0, 0, count)


def test_delete_removes_everything(dq, tmp_path):
    """Messages in all states, unfinished ones, settings, the directory."""
    full_queue(tmp_path / "q")
    done = dq("delete", tmp_path / "q", "--yes")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert not (tmp_path / "q").exists()


def test_delete_without_a_terminal_needs_yes(dq, queue):
    """There is nobody to ask, so nothing is deleted."""
    queue.put(b"precious")
    done = dq("delete", queue.path)
    assert done.status == 2
    assert "--yes" in sentence(done)
    assert len(queue) == 1


@pytest.mark.parametrize("inside", ["report.txt", "1794906871655342609277882.slice/notes", "dead/readme"])
def test_delete_refuses_a_queue_with_other_files(dq, queue, inside):
    """Before anything is removed, wherever the stranger is."""
    queue.put(b"precious")
    stranger = Path(queue.path) / inside
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("mine")
    done = dq("delete", queue.path, "--yes")
    assert done.status == 1
    assert inside in sentence(done)
    assert len(queue) == 1
    assert dq("delete", queue.path, "--dry-run").status == 1
    assert stranger.exists()


def test_delete_refuses_what_is_not_a_queue(dq, tmp_path):
    """A directory of somebody's files stays."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    done = dq("delete", tmp_path / "home", "--yes")
    assert done.status == 1
    assert "is not a queue" in sentence(done)
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_delete_removes_messages_pinned_by_spark(dq, queue):
    """They are messages of the queue, also if there are no others; a file beside them is not dirqueue's."""
    pinned(queue, 3)
    (Path(queue.path) / ".spark" / "notes.txt").write_text("x")
    assert ".spark/notes.txt" in sentence(dq("delete", queue.path, "--yes"))
    assert queue.stats().leased == 3
    (Path(queue.path) / ".spark" / "notes.txt").unlink()
    assert "with 3 messages" in dq("delete", queue.path, "--dry-run").err
    assert delete.delete(queue.layout) == 3
    assert not os.path.exists(queue.path)


def test_delete_dry_run_deletes_nothing(dq, queue):
    """It only says what would be."""
    queue.put(b"")
    assert "would delete" in dq("delete", queue.path, "--dry-run").err
    assert len(queue) == 1


def test_delete_gives_up_when_somebody_keeps_putting(queue, monkeypatch):
    """A bounded number of tries, then one sentence."""
    from dirqueue.disk import fs
    from dirqueue.errors import QueueError

    queue.put(b"")
    rmdir = fs.rmdir

    def busy(path, **how):
        if path == queue.path:
            queue.put(b"again")
        rmdir(path, **how)

    monkeypatch.setattr(fs, "rmdir", busy)
    with pytest.raises(QueueError, match="does not become empty"):
        delete.delete(queue.layout)


def test_clear_and_flush(dq, tmp_path):
    """What is done goes by clear; flush removes all; both say how many; the queue stays."""
    queue = full_queue(tmp_path / "q")
    assert dq("clear", queue.path, "--dry-run").out == "1\n"
    assert dq("clear", queue.path).out == "1\n"
    assert dq("flush", queue.path, "--dry-run").out == "4\n"
    assert dq("flush", queue.path).status == 2
    assert dq("flush", queue.path, "-y").out == "4\n"
    assert queue.stats().total == 0
    assert queue.settings.keep_done


# --- list and counts -----------------------------------------------------------------------------------------


def test_list_finds_the_queues_under_a_root(dq, tmp_path, monkeypatch):
    """At any depth, empty ones too; a queue is not looked into, other directories are no queues."""
    for name in ("a", "deep/er/b"):
        Queue(tmp_path / name, sync=False).put(b"x")
    dq("create", tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    Queue(tmp_path / "a", sync=False).get(timeout=0).reject("dead")
    monkeypatch.setenv("DIRQUEUE_DIR", str(tmp_path))
    rows = [line.split("\t") for line in dq("list").lines]
    assert [row[0] for row in rows] == [str(tmp_path / name) for name in ("a", "deep/er/b", "empty")]
    assert [row[5] for row in rows] == ["1", "0", "0"]
    assert [json.loads(line)["ready"] for line in dq("list", tmp_path / "deep", "--json").lines] == [1]


def test_list_of_a_root_without_queues_is_status_3(dq, tmp_path):
    """Nothing there; a root that is missing is an error."""
    assert dq("list", tmp_path).status == 3
    assert dq("list", tmp_path / "nope").status == 1


@pytest.mark.parametrize("text", ["{", "[" * 200_000, '{"lease": ' + "9" * 400 + "}"])
def test_list_gives_the_error_of_a_queue_that_cannot_be_opened_in_its_row(dq, tmp_path, text):
    """A damaged queue.json, however damaged, is status 1; the others are listed."""
    Queue(tmp_path / "good", sync=False).put(b"")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "queue.json").write_text(text)
    done = dq("list", tmp_path)
    assert (done.status, done.err) == (1, "")
    bad, good = (line.split("\t") for line in done.lines)
    assert bad[0] == str(tmp_path / "bad")
    assert bad[2] == ""
    assert bad[-1]
    assert good[2:] == ["1", "0", "0", "0", "0", ""]
    table = dq("list", tmp_path, "--table").lines
    assert table[0].split()[-1] == "ERROR"
    assert dq("list", tmp_path / "good", "--table").lines[0].split()[-1] == "DONE"


@pytest.mark.parametrize("text", ["[" * 200_000, '{"lease": ' + "9" * 400 + "}"])
def test_one_sick_queue_does_not_end_purge_monitor_or_metrics(dq, tmp_path, text):
    """Each reports it, and does its work on the others."""
    file = leftover(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "queue.json").write_text(text)
    assert dq("purge", "-r", tmp_path).status != 0
    assert not file.exists()
    bad, good = (json.loads(line) for line in dq("monitor", tmp_path, "--once", "--json").lines)
    assert (bool(bad["error"]), good["error"]) == (True, None)
    out = dq("metrics", tmp_path).out
    assert f'dirqueue_up{{queue="{tmp_path}/bad"}} 0' in out
    assert f'dirqueue_up{{queue="{tmp_path}/good"}} 1' in out


def test_stat_counts_states(dq, tmp_path):
    """The same numbers as Queue.stats, as columns and as JSON; `stats` is the same verb."""
    queue = full_queue(tmp_path / "q")
    (line,) = dq("stats", queue.path, "--json").lines
    counts = json.loads(line)
    assert {name: counts[name] for name in ("ready", "delayed", "leased", "dead", "done", "total", "new")} == {
        "ready": 0, "delayed": 2, "leased": 1, "dead": 1, "done": 1, "total": 3, "new": 2,
    }  # fmt: skip
    assert counts["queue"] == queue.path
    row = dq("stat", queue.path).out.rstrip("\n").split("\t")
    assert row[:7] == [queue.path, "native", "0", "2", "1", "0", "1"]
    assert "HELD BY" in dq("stat", queue.path, "--table").lines[0]


def aged(path, *ages):
    """Make messages put so many seconds ago."""
    Path(path).mkdir(exist_ok=True)
    for number, age in enumerate(ages):
        id = f"{int((time.time() - age) * 1e6)}{number:09d}"
        (Path(path) / id).write_text("")


def test_shape_counts_ages(dq, tmp_path):
    """Each message is in the first column whose bound is above its age; the last column has no bound."""
    aged(tmp_path / "q", 5, 90, 100, 200, 10 * DAY)
    total, ready = (line.split("\t") for line in dq("shape", tmp_path / "q", "--buckets", "3").lines)
    assert total == ["TOTAL", "5", "1", "2", "1", "1"]
    assert ready == ["ready", "5", "1", "2", "1", "1"]
    head = dq("shape", tmp_path / "q", "--buckets", "3", "--table").lines[0]
    assert head.split() == ["STATE", "TOTAL", "1m", "2m", "4m", "4m+"]


def test_shape_by_other_keys(dq, tmp_path):
    """By attempts, priority or queue; JSON has the bounds."""
    aged(tmp_path / "a", 5)
    aged(tmp_path / "b", 5, 6)
    rows = [
        json.loads(line)
        for line in dq(
            "shape", tmp_path / "a", tmp_path / "b", "--by", "queue", "--json", "--first", "10"
        ).lines
    ]
    assert [(os.path.basename(row["queue"]), row["total"]) for row in rows] == [
        ("TOTAL", 3),
        ("a", 1),
        ("b", 2),
    ]
    assert rows[0]["bounds"][:2] == [10, 20]
    for by in ("attempts", "priority"):
        assert dq("shape", tmp_path / "a", "--by", by).status == 0
    assert dq("shape", tmp_path / "a", "--buckets", "99").status == 2
    assert dq("shape", tmp_path / "nope").status == 1


# --- redrive, purge ------------------------------------------------------------------------------------------


@pytest.fixture
def dead(queue):
    """Return the ids of four dead messages, by error."""
    ids = []
    for error in ("timeout", "timeout", "bad input", "timeout"):
        ids.append(queue.put(error))
        queue.get(timeout=0).reject(error)
    return ids


def test_redrive_by_match_and_limit(dq, queue, dead):
    """Only those that match, the oldest first, and the ids are printed; a dry run changes nothing."""
    words = ("redrive", queue.path, "--match", "^time", "--limit", "2")
    assert dq(*words, "--dry-run").lines == dead[:2]
    assert queue.stats().dead == 4
    assert dq(*words).lines == dead[:2]
    assert queue.stats().dead == 2


def test_redrive_by_id_reports_missing_ones(dq, queue, dead):
    """What is there goes, what is not is said."""
    other = queue.put(b"alive")
    done = dq("redrive", queue.path, dead[2], other)
    assert (done.status, done.lines) == (1, [dead[2]])
    assert other in sentence(done)


def test_redrive_of_nothing_is_status_3(dq, queue):
    """No dead messages, nothing to do."""
    queue.put(b"")
    assert dq("redrive", queue.path).status == 3
    assert dq("redrive", queue.path, "--match", "(").status == 2


def leftover(path):
    """Plant an unfinished message of a producer that died long ago."""
    file = Path(path) / f"{int((time.time() - DAY) * 1e6)}000000001.new"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("half")
    os.utime(file, (time.time() - DAY,) * 2)
    return file


def test_purge_is_quiet_and_cleans(dq, queue):
    """No word on either stream."""
    file = leftover(queue.path)
    done = dq("purge", queue.path)
    assert (done.status, done.out, done.err) == (0, "", "")
    assert not file.exists()


def test_purge_many_queues_under_a_root(dq, tmp_path):
    """In parallel, one line each on request, JSON too; one that cannot be opened does not stop the others."""
    files = [leftover(tmp_path / "root" / name) for name in "abcdef"]
    (tmp_path / "root" / "bad").mkdir()
    (tmp_path / "root" / "bad" / "queue.json").write_text("[]")
    done = dq("purge", "-r", tmp_path / "root", "-j", "3", "--verbose")
    assert done.lines == [f"{tmp_path}/root/{name}\tnew=1" for name in "abcdef"]
    assert done.status == 1
    assert "queue.json" in sentence(done)
    assert not any(file.exists() for file in files)
    rows = [json.loads(line) for line in dq("purge", tmp_path / "root" / "a", "--json").lines]
    assert rows[0]["new"] == 0


def test_purge_beside_another_purger_is_status_0(dq, queue):
    """Somebody is at it: nothing to do, nothing wrong."""
    queue.put(b"")
    with FileLock(os.path.join(queue.path, ".purge.lock")):
        done = dq("purge", queue.path, "-v")
    assert done.status == 0
    assert "busy" in done.out


# --- mv ------------------------------------------------------------------------------------------------------


def test_mv_is_one_rename_between_native_queues(dq, queue, tmp_path):
    """The same file with the same id, and no word about copies."""
    id = queue.put(b"x")
    inode = os.stat(os.path.join(queue.path, id)).st_ino
    done = dq("mv", queue.path, tmp_path / "other")
    assert (done.status, done.lines, done.err) == (0, [id], "")
    assert os.stat(tmp_path / "other" / id).st_ino == inode
    assert len(queue) == 0


def test_mv_by_id_state_and_limit(dq, queue, tmp_path):
    """Delayed ones keep delay, attempts and error; dead ones start anew."""
    other = Queue(tmp_path / "other", sync=False)
    first, second = queue.put(b"1"), queue.put(b"2")
    assert dq("mv", queue.path, other.path, second).lines == [second]
    queue.get(timeout=0).retry(delay=1000, error="flaky")
    assert dq("mv", queue.path, other.path, "--state", "delayed").lines == [first]
    (moved,) = other.peek("delayed")
    assert (moved.attempts, moved.error) == (1, "flaky")
    queue.put(b"3")
    queue.get(timeout=0).reject("bad")
    assert dq("mv", queue.path, other.path, "--state", "dead", "--limit", "5").status == 0
    assert sorted(message.data for message in other.peek()) == [b"2", b"3"]
    assert dq("mv", queue.path, other.path).status == 3


def test_mv_dry_run_moves_nothing(dq, queue, tmp_path):
    """It only prints."""
    id = queue.put(b"")
    assert dq("mv", queue.path, tmp_path / "other", "--dry-run").lines == [id]
    assert len(queue) == 1
    assert not (tmp_path / "other").exists()


def test_mv_gives_and_takes_priorities(dq, queue, tmp_path):
    """A queue with priorities gives its default one, a queue without takes it away."""
    other = Queue.create(tmp_path / "p", priorities=True, default_priority=7, sync=False)
    id = queue.put(b"x")
    assert dq("mv", queue.path, other.path).lines == [f"7{id}"]
    assert dq("mv", other.path, queue.path).lines == [id]


def test_mv_to_another_filesystem_reports_that_it_copies(dq, queue, tmp_path, monkeypatch):
    """Then it is claimed, put and acknowledged, and stderr says so."""
    import errno

    from dirqueue.disk import fs

    def cannot(src, dst, dir_fd):
        raise OSError(errno.EXDEV, "cross-device", src)

    queue.put_many([b"a", b"b"])
    real_rename = fs.rename_noreplace
    monkeypatch.setattr(
        fs,
        "rename_noreplace",
        lambda src, dst, fd: cannot(src, dst, fd) if src.startswith("/") else real_rename(src, dst, fd),
    )
    done = dq("mv", queue.path, tmp_path / "other")
    assert (done.status, len(done.lines)) == (0, 2)
    assert "one by one" in sentence(done)
    assert [lease.message.data for lease in Queue(tmp_path / "other").consume(timeout=0)] == [b"a", b"b"]
    assert len(queue) == 0
    id = queue.put(b"c")
    assert dq("mv", queue.path, tmp_path / "other", id).status == 1
    queue.get(timeout=0).reject("dead")
    assert dq("mv", queue.path, tmp_path / "other", "--state", "dead").status == 0
    assert queue.stats().dead == 0


def test_mv_keeps_the_limits_of_the_target(dq, queue, tmp_path):
    """Too many is status 75, too large is status 1, and what does not fit stays."""
    Queue.create(tmp_path / "small", max_messages=1, sync=False)
    Queue.create(tmp_path / "thin", max_size=2, sync=False)
    queue.put(b"one")
    queue.put(b"two")
    assert dq("mv", queue.path, tmp_path / "small").status == 75
    assert len(queue) == 1
    assert dq("mv", queue.path, tmp_path / "thin").status == 1
    assert len(queue) == 1


def test_mv_to_itself_is_refused(dq, queue):
    """Also by another spelling of the path."""
    queue.put(b"")
    assert dq("mv", queue.path, queue.path + "/../q").status == 2


# --- other layouts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_the_verbs_work_with_every_layout(dq, tmp_path, layout):
    """Made, filled, looked at, drained, purged and deleted from the shell."""
    path = tmp_path / "q"
    assert dq("create", path, "--layout", layout).status == 0
    ids = dq("put", path, "a", "b", "c").lines
    assert [line.split("\t")[0] for line in dq("ls", path).lines] == ids
    assert dq("cat", path, ids[1]).out == "b"
    assert [line.split("\t")[1] for line in dq("list", tmp_path).lines] == [layout]
    assert sorted(dq("get", path, "-n", "2").lines) == ["a", "b"]
    assert dq("purge", path).status == 0
    done = dq("mv", path, tmp_path / "native")
    assert (done.status, len(done.lines)) == (0, 1)
    assert dq("get", tmp_path / "native").out == "c"
    dq("put", path, "d")
    assert dq("delete", path, "--yes").status == 0
    assert not path.exists()


def test_convert_keeps_the_messages_and_the_path(dq, tmp_path):
    """From VSQS's layout to the native one, in order."""
    pytest.importorskip("dirqueue.tools.convert")
    path = tmp_path / "q"
    dq("create", path, "--layout", "vsqs")
    dq("put", path, "a", "b", "c")
    done = dq("convert", path, "--to", "native")
    assert (done.status, done.out, done.err) == (0, "3\n", "")
    assert dq("list", tmp_path).out.split("\t")[1] == "native"
    assert dq("get", path, "--all").lines == ["a", "b", "c"]
    assert dq("convert", tmp_path / "nope", "--to", "native").status == 1


# --- what a power cut would leave ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_mv_flushes_the_target_before_it_prints_an_id(dq, tmp_path, monkeypatch, batch):
    """CRASH: the directory that has the new names is flushed after the last rename, then each one that had the old."""
    from dirqueue.disk import fs

    source, target = Queue(tmp_path / "from"), Queue(tmp_path / "to")
    bodies = [b"a", b"b"]
    ids = source.put_many(bodies) if batch else [source.put(body) for body in bodies]
    target.layout.directory.make()
    before = {path: os.stat(path).st_ino for path in (source.path, target.path)}
    left = before[source.path]
    if batch:
        (folder,) = [each for each in os.scandir(source.path) if each.name.endswith(".batch")]
        left = folder.inode()
    seen = []
    fsync, rename = fs.fsync, fs.rename_noreplace
    monkeypatch.setattr(fs, "fsync", lambda fd: (seen.append(os.fstat(fd).st_ino), fsync(fd)))
    monkeypatch.setattr(fs, "rename_noreplace", lambda *how: (seen.append("rename"), rename(*how)))
    assert sorted(dq("mv", source.path, target.path).lines) == sorted(ids)
    assert seen == ["rename", "rename", before[target.path], left]


#: Runs the command and writes the order of its calls that make durable, or remove, to stderr.
RECORDED = """
import os, stat, sys
from dirqueue.disk import fs
from dirqueue.__main__ import main
fsync, unlink, rename = fs.fsync, fs.unlink, fs.rename
def say(*what):
    os.write(2, (" ".join(what) + "\\n").encode())
def flushed(fd):
    fsync(fd)
    say("fsync", "file" if fd == 1 else "other", str(os.fstat(fd).st_size))
def removed(path, **how):
    if os.path.basename(path)[0].isdigit():  # not a probe of the clock
        say("unlink", os.path.basename(path))
    unlink(path, **how)
fs.fsync, fs.unlink = flushed, removed
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("options", "count"), [([], 1), (["--all"], 2), (["--json"], 1)])
def test_get_into_a_file_acknowledges_after_the_file_is_on_disk(tmp_path, options, count):
    """CRASH: `get > file` flushes the body before it removes the message; each of several."""
    import subprocess
    import sys

    from support.running import environment

    with Queue(tmp_path / "q") as queue:
        queue.put(b"first")
        queue.put(b"second")
    with open(tmp_path / "file", "wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", RECORDED, "get", tmp_path / "q", *options],
            env=environment(), stdout=file, stderr=subprocess.PIPE, text=True, check=True, timeout=50,
        )  # fmt: skip
    calls = [line.split() for line in done.stderr.splitlines()]
    order = [call[0] for call in calls if call[:2] == ["fsync", "file"] or call[0] == "unlink"]
    assert order == ["fsync", "unlink"] * count
    sizes = [int(call[2]) for call in calls if call[:2] == ["fsync", "file"]]
    assert sizes[-1] == (tmp_path / "file").stat().st_size


# --- many at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cat", "mv"])
def test_many_ids_are_found_by_one_pass(dq, tmp_path, monkeypatch, verb):
    """In a batch every search for one id reads all names: the passes do not grow with the ids."""
    from dirqueue.layouts.native import inspect

    queue = Queue(tmp_path / "q", sync=False)
    ids = queue.put_many([b"%d" % number for number in range(50)])
    passes = []
    entries = inspect.entries
    monkeypatch.setattr(inspect, "entries", lambda *how: (passes.append(1), entries(*how))[1])
    words = [tmp_path / "other"] if verb == "mv" else []
    assert dq(verb, queue.path, *words, *ids).status == 0
    assert len(passes) <= 2


@pytest.mark.parametrize("verb", ["stat", "check"])
def test_several_queues_are_all_shown_if_one_is_missing(dq, tmp_path, verb):
    """The status is that of the missing one."""
    for name in "ac":
        Queue(tmp_path / name, sync=False).put(b"")
        (tmp_path / name / "foreign").write_text("")
    done = dq(verb, tmp_path / "a", tmp_path / "b", tmp_path / "c", "--json")
    assert [json.loads(line)["queue"] for line in done.lines] == [str(tmp_path / name) for name in "ac"]
    assert (done.status, "there is no queue" in sentence(done)) == (1, True)


def test_pause_and_resume(dq, tmp_path):
    """A paused queue is empty to `get`, and `stat` says why; twice is as good as once."""
    path = tmp_path / "q"
    dq("put", path, "body")
    assert [dq("pause", path).status for _ in range(2)] == [0, 0]
    done = dq("get", path)
    assert (done.status, "it is paused" in done.err) == (3, True)
    assert json.loads(dq("stat", path, "--json").out)["paused"] is True
    assert "(paused)" in dq("stat", path, "--table").out
    assert [dq("resume", path).status for _ in range(2)] == [0, 0]
    assert dq("get", path).status == 0
    assert dq("pause", tmp_path / "none").status == 1


def test_wait_until_empty_and_for_one_message(dq, tmp_path):
    """Status 0 when all is done, 75 when the time is over, 1 when a message is dead."""
    path = tmp_path / "q"
    first, second = dq("put", path, "one", "two").lines
    done = dq("wait", path, "--timeout", "0")
    assert (done.status, "2 messages" in done.err) == (75, True)
    (handle,) = dq("get", path, "--hold").lines
    dq("ack", path, handle)
    assert dq("wait", path, first, "--timeout", "0").status == 0
    assert dq("wait", path, second, "--timeout", "0").status == 75
    Queue(path).get(timeout=0).reject("no good")
    done = dq("wait", path, first, second)
    assert (done.status, "no good" in sentence(done)) == (1, True)
    assert dq("wait", path).status == 0


def test_purge_by_age(dq, tmp_path):
    """Old messages are dead letters then."""
    path = tmp_path / "q"
    dq("put", path, "one", "two")
    assert json.loads(dq("purge", path, "--older-than", "1h", "--json").out)["expired"] == 0
    assert json.loads(dq("purge", path, "--older-than", "0", "--json").out)["expired"] == 2
    assert len(dq("redrive", path).lines) == 2


def test_put_for_an_instant(dq, tmp_path):
    """With a zone or in local time; what is none is a usage error."""
    path = tmp_path / "q"
    assert dq("put", path, "--at", "2099-01-01T06:00Z", "later").status == 0
    assert dq("put", path, "--at", "2099-01-01", "later").status == 0
    assert Queue(path).stats().delayed == 2
    assert "is not an instant" in sentence(dq("put", path, "--at", "tomorrow", "x"))


def test_put_with_attributes_and_a_time_to_live(dq, tmp_path):
    """Each message has them, and JSON shows them."""
    path = tmp_path / "q"
    assert (
        dq("put", path, "one", "two", "-a", "colour=blue=green", "--attribute", "n=", "--ttl", "1h").status
        == 0
    )
    found = [json.loads(line) for line in dq("ls", path, "--json").lines]
    assert [each["attributes"] for each in found] == [{"colour": "blue=green", "n": ""}] * 2
    assert all(each["expires_at"] for each in found)
    assert "is not NAME=VALUE" in sentence(dq("put", path, "-a", "colour", "x"))


@pytest.mark.parametrize("how", [("one", "two"), ("--lines",), ("--file", "F"), ("--file", "F", "--move")])
def test_every_way_to_put_takes_attributes(dq, tmp_path, how):
    """Several bodies are one batch, which has them; a file keeps them with its bytes."""
    path, file = tmp_path / "q", tmp_path / "file"
    file.write_bytes(b"one")
    how = [str(file) if each == "F" else each for each in how]
    assert dq("put", path, *how, "-a", "colour=blue", "--ttl", "1h", stdin=b"one\ntwo\n").status == 0
    found = list(Queue(path).peek())
    assert [message.data for message in found] == [b"one", b"two"][: len(found)]
    assert [message.attributes for message in found] == [{"colour": "blue"}] * (
        1 if file in map(Path, how) else 2
    )
    assert len(found) == 1 or list(path.glob("*.batch"))
