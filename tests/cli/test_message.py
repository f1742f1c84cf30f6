"""The verbs for one message: show, change, rm; and bodies of any size."""

import errno
import io
import json
import os
import random
import subprocess
import threading

import pytest
from support.failing import failing
from support.running import command, environment, sentence
from support.terminal import on_a_terminal

from dirqueue import Queue, QueueError
from dirqueue.disk import fs, mount
from dirqueue.tools import removal, spool

#: A body that is far larger than what a command needs for itself.
LARGE = 128 << 20


# --- rm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["rm", "cancel"])
def test_rm_removes_what_waits_and_what_is_dead(dq, queue, verb):
    """Several at once, in different states; the others stay."""
    ready, later, dead, kept = (queue.put(b"ready"), queue.put(b"later", delay=60), queue.put(b"dead"), None)
    queue.message(ready).change(delay=30)
    queue.get(timeout=0).reject("no")
    kept = queue.put(b"kept")
    done = dq(verb, queue.path, ready, later, dead)
    assert (done.status, done.out, done.err) == (0, "", "")
    assert [message.id for message in queue.peek()] == [kept]
    assert queue.stats().to_dict() | {"oldest_ready": None} == {
        **queue.stats()._asdict(), "ready": 1, "delayed": 0, "dead": 0, "total": 1, "oldest_ready": None,
    }  # fmt: skip
    assert not any(files for *_, files in os.walk(os.path.join(queue.path, "dead")))


def test_rm_of_what_waits_is_history_where_that_is_kept(dq, tmp_path):
    """As a cancelled message; a second rm removes it from there."""
    queue = Queue.create(tmp_path / "q", keep_done=True, sync=False)
    id = queue.put(b"x")
    assert dq("rm", queue.path, id).status == 0
    assert queue.message(id).state == "done"
    assert dq("rm", queue.path, id).status == 0
    assert queue.stats().done == 0


def test_rm_leaves_what_is_held(dq, queue):
    """It names the holder, removes the others, and the lease can be ended."""
    held, other = queue.put(b"held"), queue.put(b"other")
    lease = queue.get(timeout=0)
    done = dq("rm", queue.path, held, other)
    assert done.status == 1
    assert lease.token in sentence(done)
    assert not list(queue.peek())
    lease.ack()


def test_rm_of_a_wrong_id_removes_nothing(dq, queue):
    """All ids are checked first; one that is right but unknown is reported."""
    id = queue.put(b"x")
    assert dq("rm", queue.path, id, "../x").status == 2
    done = dq("rm", queue.path, "1794966246891239219940876")
    assert (done.status, "there is no message" in sentence(done)) == (1, True)
    assert [message.id for message in queue.peek()] == [id]


def test_rm_of_many_lists_the_queue_once(dq, queue, monkeypatch):
    """Not once for each of them."""
    ids = queue.put_many([b"x"] * 50)
    looks = []
    monkeypatch.setattr(fs, "scandir", lambda fd, real=fs.scandir: looks.append(fd) or real(fd))
    assert dq("rm", queue.path, *ids).status == 0
    assert len(looks) < 25
    assert len(queue) == 0


@pytest.fixture
def flushed(monkeypatch):
    """Give the directories that are flushed from now on, by their inodes."""
    seen = set()

    def fsync(fd, real=fs.fsync):
        seen.add(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(fs, "fsync", fsync)
    return seen


@pytest.mark.parametrize("many", [1, 2])
def test_rm_of_the_dead_is_durable(dq, tmp_path, flushed, many):
    """The bucket that it was in is flushed: that of the queue itself says nothing of it."""
    queue = Queue(tmp_path / "q")
    ids = queue.put_many([b"x"] * many)
    for lease in queue.consume(timeout=0):
        lease.reject("no")
    places = [next(queue.peek("dead")).entry.place]
    buckets = {os.stat(tmp_path / "q" / os.path.dirname(place)).st_ino for place in places}
    flushed.clear()
    assert dq("rm", queue.path, *ids).status == 0
    assert buckets <= flushed


def test_rm_of_the_dead_beside_a_purge_is_durable(tmp_path, flushed, monkeypatch):
    """The bucket was empty and is gone before it is flushed: the room is, which remembers that."""
    queue = Queue(tmp_path / "q")
    id = queue.put(b"x")
    queue.get(timeout=0).reject("no")
    place = queue.message(id).entry.place
    remove = queue.layout.remove
    bucket = tmp_path / "q" / os.path.dirname(place)
    monkeypatch.setattr(queue.layout, "remove", lambda entry: (remove(entry), os.rmdir(bucket))[0])
    flushed.clear()
    assert removal.remove(queue, [id]).ids == [id]
    assert os.stat(tmp_path / "q" / "dead").st_ino in flushed


# --- change ----------------------------------------------------------------------------------------------------


def test_change_gives_another_delay_and_priority(dq, tmp_path):
    """The id that is printed is the one that counts from then on."""
    queue = Queue.create(tmp_path / "q", priorities=True, sync=False)
    first, second = queue.put(b"a", priority=5, delay=60), queue.put(b"b", priority=2)
    (changed,) = dq("change", queue.path, first, "--delay", "0", "-p", "1").lines
    assert queue.message(changed).state == "ready"
    assert [queue.message(id).data for id in (changed, second)] == [b"a", b"b"]
    assert dq("get", queue.path).out == "a"
    assert len(dq("change", queue.path, second, "--delay", "1h").lines) == 1
    assert queue.stats().delayed == 1


def test_change_of_nothing_and_of_what_is_held(dq, queue):
    """Says what is missing; changes the ones it can."""
    queue.put(b"held")
    lease = queue.get(timeout=0)
    id = queue.put(b"waits")
    assert dq("change", queue.path, id).status == 2
    done = dq("change", queue.path, lease.message.id, id, "--delay", "5m")
    assert (done.status, done.lines) == (1, [id])
    assert "is leased" in sentence(done)
    assert queue.message(id).state == "delayed"
    assert dq("change", queue.path, id, "--priority", "1").status == 2


# --- show ------------------------------------------------------------------------------------------------------


def test_show_tells_everything_on_one_screen(dq, queue):
    """Also of a dead letter: attempts, times, the whole error, where the file is, how the body begins."""
    id = queue.put("\n".join(f"line {number}" for number in range(1000)))
    queue.get(timeout=0).reject("first line\nsecond line")
    done = dq("show", queue.path, id)
    assert done.status == 0
    facts = dict(line.split(None, 1) for line in done.lines if line[:1].strip() and " " in line)
    assert facts["id"] == id
    assert facts["state"] == "dead"
    assert facts["attempts"] == "1 of 5"
    assert os.path.isfile(facts["file"])
    assert {"put", "failed", "ended", "size", "last"} <= facts.keys()
    assert "  second line" in done.lines
    assert "  line 15" in done.lines
    assert "  line 16" not in done.lines
    assert f"dirqueue cat {queue.path} {id}" in done.out
    assert len(done.lines) < 40


def test_show_of_a_lease_gives_its_handle_and_when_it_was_claimed(dq, queue):
    """By its id or by the handle; JSON has the same."""
    id = queue.put(b"x")
    lease = queue.get(timeout=0)
    told = json.loads(dq("show", queue.path, lease.handle, "--json").out)
    assert (told["id"], told["handle"], told["body"]) == (id, lease.handle, "x")
    assert told["path"] == os.path.join(queue.path, lease.handle)
    assert told["enqueued_at"] <= told["leased_at"] < told["until"]
    assert f"handle       {lease.handle}" in dq("show", queue.path, id).lines


def test_show_of_what_is_gone(dq, queue):
    """One sentence."""
    queue.put(b"")
    assert "there is no message" in sentence(dq("show", queue.path, "1794966246891239219940876"))


@pytest.mark.parametrize("words", ["show q {id}", "cat q {id}", "peek q", "get q"])
def test_a_long_body_is_escaped_on_a_terminal_across_its_pieces(queue, tmp_path, monkeypatch, words):
    """A character that two reads share stays one; an escape sequence does not reach the terminal."""
    monkeypatch.chdir(tmp_path)
    id = queue.put(b"x" * 65535 + "é\x1b[31m".encode() + b"\xff" + b"y" * 70_000 + b"end")
    status, shown = on_a_terminal(*words.format(id=id).split(), NO_COLOR="1")
    assert status == 0
    assert "\x1b" not in shown
    if not words.startswith("show"):
        assert "xé\\x1b[31m\\xffyy" in shown
        assert shown.endswith("end")


# --- wrong paths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["stat", "get", "get --wait", "purge", "peek", "ls", "clear", "flush --yes", "shape", "redrive",
     "work --until-empty {} -- true", "mv {} other", "mv {}/a {}", "put {} x", "put --existing {} x",
     "show {} 1794966246891239219940876"],
)  # fmt: skip
def test_a_directory_of_queues_is_not_taken_for_one(dq, tmp_path, words):
    """The sentence counts the queues below and names some; nothing is written into the directory."""
    for name in ("a", "deep/b", "c", "d"):
        Queue(tmp_path / "root" / name, sync=False).put(b"x")
    before = sorted(os.listdir(tmp_path / "root"))
    root = str(tmp_path / "root")
    done = dq(*[word.format(root) for word in words.split()], *([] if "{}" in words else [root]))
    assert done.status == 1
    assert "is not a queue" in sentence(done)
    assert "there are 4 queues below it: a, c, d, ..." in done.err
    assert sorted(os.listdir(tmp_path / "root")) == before


def test_a_queue_with_queues_below_it_takes_messages(dq, tmp_path):
    """It has had a message: put and mv go on."""
    Queue(tmp_path / "jobs", sync=False).put(b"x")
    Queue(tmp_path / "jobs" / "urgent", sync=False).put(b"x")
    assert dq("get", tmp_path / "jobs").status == 0
    assert dq("put", tmp_path / "jobs", "x").status == 0


def test_a_put_into_somebodys_directory_makes_it_a_queue(dq, tmp_path):
    """Empty directories in it are no queues yet, nor is what cannot be entered."""
    (tmp_path / "home" / "empty").mkdir(parents=True)
    (tmp_path / "home" / "notes.txt").write_text("x")
    assert dq("put", tmp_path / "home", "x").status == 0
    Queue(tmp_path / "files" / "a.tq", layout="text", sync=False).put(b"x")
    done = dq("put", tmp_path / "files", "x")
    assert "there is one queue below it: a.tq" in sentence(done)


def test_a_link_that_leads_nowhere_is_named(dq, tmp_path):
    """What helps is said: put and create make no directory where the link leads."""
    (tmp_path / "q").symlink_to(tmp_path / "nowhere")
    for verb in (["put", tmp_path / "q", "x"], ["create", tmp_path / "q"]):
        done = dq(*verb)
        assert (done.status, "is a symbolic link that leads nowhere" in sentence(done)) == (1, True)
    assert os.listdir(tmp_path) == ["q"]


def test_a_directory_without_queues_says_so(dq, tmp_path):
    """Somebody else's files."""
    (tmp_path / "notes.txt").write_text("x")
    assert "no queue is below it either" in sentence(dq("stat", tmp_path))


@pytest.mark.parametrize("url", ["redis://localhost/0", "amqp+ssl://host/vhost", "file:///var/spool/q"])
def test_a_url_is_refused_by_name(dq, tmp_path, monkeypatch, url):
    """Instead of a directory called `redis:`; file: says which path was meant."""
    monkeypatch.chdir(tmp_path)
    done = dq("put", url, "x")
    assert done.status == 2
    assert "is a URL" in sentence(done)
    assert ("/var/spool/q" in done.err) == url.startswith("file")
    assert os.listdir(tmp_path) == []


def test_put_existing_makes_no_queue(dq, tmp_path):
    """A misspelt name is an error, not a new queue."""
    assert "there is no queue" in sentence(dq("put", tmp_path / "q", "--existing", "x"))
    assert not (tmp_path / "q").exists()
    Queue.create(tmp_path / "q")
    assert dq("put", tmp_path / "q", "--existing", "x").status == 0


def test_work_says_that_there_is_no_queue_yet(dq, tmp_path):
    """At a misspelt path it would wait without end and report nothing."""
    done = dq("work", tmp_path / "q", "--until-empty", "--", "true")
    assert done.status == 3
    assert "there is no queue at" in sentence(done)


# --- bodies of any size ----------------------------------------------------------------------------------------


def peak(*words, **streams):
    """Run the command and return the most memory that it had, in bytes."""
    process = subprocess.Popen(command(*words), env=environment(), **streams)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss << 10


@pytest.fixture
def large(tmp_path):
    """Give a sparse file."""
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(LARGE)
        file.write(b"begin")
    return path


@pytest.mark.parametrize("words", ["put {q} --file {file}", "put {q}", "cat {q} {id}", "get {q}", "peek {q}"])
def test_a_large_body_takes_no_more_memory_than_a_small_one(queue, large, tmp_path, words):
    """Written to the queue, and read from it."""

    def measured(file):
        for message in queue.peek():
            message.cancel()
        id = "" if words.startswith("put") else queue.put_path(file, link=True)
        given = words.format(q=queue.path, file=file, id=id).split()
        with open(file, "rb") as stdin, open(tmp_path / "out", "wb") as out:
            used = peak(*given, stdin=stdin, stdout=out)
        if words.startswith("put"):
            assert next(queue.peek()).size == file.stat().st_size
        else:
            assert os.stat(tmp_path / "out").st_size == file.stat().st_size
        return used

    (tmp_path / "small").write_bytes(b"x")
    assert measured(large) < measured(tmp_path / "small") + LARGE / 8


def test_mv_to_another_filesystem_copies_in_pieces(tmp_path, large, monkeypatch):
    """No piece is a body."""
    source, target = Queue(tmp_path / "a", sync=False), Queue(tmp_path / "b", layout="native", sync=False)
    source.put_path(large)
    source.put(b"small")
    monkeypatch.setattr(fs, "rename_noreplace", _refuse_between(source.path, fs.rename_noreplace))
    pieces = []
    monkeypatch.setattr(
        fs, "write", lambda fd, data, real=fs.write: pieces.append(len(data)) or real(fd, data)
    )
    from dirqueue.tools.transfer import move

    moved = move(source, target)
    assert not moved.atomic
    assert len(source) == 0
    assert sorted(message.size for message in target.peek()) == [5, LARGE]
    assert max(pieces) <= 2 << 20
    with next(target.peek()).open() as body:
        assert body.read(5) == b"begin"


def _refuse_between(path, real):
    def rename(src, dst, dir_fd):
        if src.startswith(path):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(src, dst, dir_fd)

    return rename


def test_a_put_that_is_cut_short_leaves_nothing(queue, dq):
    """An unreadable input, a body beyond max_size: no message, no leftover."""

    class Broken:
        def __init__(self):
            self.left = 3

        def read(self, size=-1):
            self.left -= 1
            if not self.left:
                raise ValueError("the network is gone")
            return b"x" * spool.AT_ONCE

    with pytest.raises(ValueError, match="network"):
        spool.put_stream(queue, Broken())
    bounded = Queue.create(queue.path + "-bounded", max_size=3 << 20, sync=False)
    done = dq("put", bounded.path, stdin=b"x" * (5 << 20))
    assert done.status == 1
    assert "max_size" in sentence(done)
    for each in (queue, bounded):
        assert each.stats().total == each.stats().new == 0


@pytest.mark.parametrize("call", ["write", "close"])
def test_a_long_put_on_a_failing_disk_leaves_nothing(queue, call):
    """As every other put."""
    queue.put(b"the directory is there")
    with failing(call, errno.EIO), pytest.raises(QueueError, match="cannot write a message to"):
        spool.put_stream(queue, io.BytesIO(b"x" * (2 << 20)))
    assert [queue.stats().total, queue.stats().new] == [1, 0]


def test_put_reads_a_pipe_to_its_end(dq, queue, tmp_path):
    """A body that comes in pieces is one message."""
    os.mkfifo(tmp_path / "pipe")

    def write():
        with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
            pipe.writelines((b"one", b"two", b"three"))

    writer = threading.Thread(target=write)
    writer.start()
    assert dq("put", queue.path, "--file", tmp_path / "pipe").status == 0
    writer.join()
    assert next(queue.peek()).data == b"onetwothree"


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple"])
def test_other_layouts_take_a_long_body_too(tmp_path, layout):
    """From memory."""
    queue = Queue(tmp_path / "q", layout=layout, sync=False)
    spool.put_stream(queue, io.BytesIO(b"x" * (2 << 20)))
    assert [len(lease.message.body) for lease in queue.consume(timeout=0)] == [2 << 20]


class Purged(io.BytesIO):
    """A source that is silent for longer than `stale` before its end: a purge takes the unfinished file."""

    def __init__(self, data, path):
        super().__init__(data)
        self.path = path

    def read(self, size=-1):
        data = super().read(size)
        if not data:
            for name in os.listdir(self.path):
                if name.endswith(".new"):
                    os.unlink(os.path.join(self.path, name))
        return data


def test_a_long_put_whose_file_was_purged_meanwhile_is_whole(queue):
    """Nobody can read a pipe again: what was written is copied."""
    body = random.randbytes(3 << 20)
    id = spool.put_stream(queue, Purged(body, queue.path))
    assert queue.message(id).data == body
    assert [queue.stats().total, queue.stats().new] == [1, 0]
    assert [name for name in os.listdir(queue.path) if name.endswith(".new")] == []


def test_a_long_put_whose_file_was_purged_on_a_network_filesystem_fails(queue):
    """Where nobody reads what is being written: an error, and no message that is only half there."""
    queue.layout.directory.make()
    queue.layout.directory.mount = mount.Mount("fuse.fuse_dfs")
    with pytest.raises(QueueError, match="put the file"):
        spool.put_stream(queue, Purged(b"x" * (3 << 20), queue.path))
    assert queue.stats().total == queue.stats().new == 0


def test_change_of_the_priority_where_there_are_none_says_what_to_type(dq, tmp_path):
    """In the words of the shell."""
    id = Queue(tmp_path / "q", sync=False).put(b"a")
    done = dq("change", tmp_path / "q", id, "--priority", "1")
    assert done.status == 2
    assert "dirqueue create QUEUE --priorities" in sentence(done)
