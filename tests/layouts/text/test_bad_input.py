"""What is no text queue, what the format cannot hold, and files that change under us: one typed error, nothing lost."""

import errno
import os
import stat
import subprocess
import sys

import pytest
from support.failing import failing
from support.kit import drain, in_child, wait_until

from dirqueue import (
    Empty,
    LayoutError,
    LeaseLost,
    MessageNotFound,
    Queue,
    QueueAccess,
    QueueError,
    QueueNotFound,
    SettingsError,
    Unsupported,
)
from dirqueue.disk import fs
from dirqueue.layouts.text import grammar, turn
from dirqueue.layouts.text.journal import Journal


def let_others_in(path):
    """Open the private directories above a test's own, and nothing else."""
    for each in (path, *path.parents):
        if stat.S_IMODE(each.stat().st_mode) == 0o700:
            each.chmod(0o755)


@pytest.mark.parametrize(
    "data", [b"", b"plain text\n", b"#!/bin/sh\necho\n", b"\x7fELF\0\0", b"  indented\n", b"{}\n"]
)
def test_file_that_is_no_text_queue_is_refused(path, data):
    """By `auto`; it stays as it is, and nothing is made beside it."""
    path.write_bytes(data)
    with pytest.raises(LayoutError, match=r"not a text queue|an empty file") as caught:
        Queue(path).put(b"x")
    assert caught.value.path == str(path)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(LayoutError, match=r"not a text queue|an empty file"):
        Queue.create(path, lease=5)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == [path.name]


def test_file_of_odd_lines_can_be_made_a_queue_by_name(path):
    """The layout is kept, so that whoever opens it later need not name it."""
    path.write_bytes(b"plain text\n")
    Queue.create(path, layout="text", sync=False).put(b"x")
    wait_until(lambda: drain(Queue(path)) == [b"x"])


def test_odd_lines_are_passed_over_where_the_layout_is_named(make, path):
    path.write_bytes(b"plain text\n-a\n continued\nmore\n-b\n")
    queue = make()
    wait_until(lambda: len(drain(queue)) == 2)
    assert queue.stats().foreign == 2


def test_directory_is_refused(make, tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(LayoutError, match="is a directory"):
        make(tmp_path / "d").put(b"x")
    assert os.listdir(tmp_path / "d") == []


@pytest.mark.parametrize("layout", ["text", "auto"])
def test_fifo_is_refused_and_blocks_nobody(tmp_path, layout):
    os.mkfifo(tmp_path / "f")
    with pytest.raises(LayoutError, match="fifo"):
        Queue(tmp_path / "f", layout=layout).put(b"x")


@pytest.mark.parametrize("layout", ["text", "auto"])
def test_symbolic_link_is_refused(make, path, tmp_path, layout):
    make().put(b"x")
    os.symlink(path, tmp_path / "link")
    with pytest.raises(LayoutError, match="symbolic link"):
        Queue(tmp_path / "link", layout=layout).put(b"x")
    assert os.path.islink(tmp_path / "link")


def test_file_of_another_layout_is_refused(path):
    path.write_bytes(b"-a\n")
    with pytest.raises(QueueAccess, match="not a directory"):
        Queue(path, layout="native").put(b"x")


@pytest.mark.root
def test_file_without_permission(make, path, tmp_path):
    make().put(b"x")
    path.chmod(0o600)
    let_others_in(tmp_path)

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for use in (
            lambda: Queue(path, layout="text").put(b"y"),
            lambda: Queue(path, layout="text").get(timeout=0),
            lambda: len(Queue(path, layout="text")),
            lambda: Queue(path),
        ):
            with pytest.raises(QueueAccess, match="no permission"):
                use()
        return "told"

    assert in_child(other) == "told"
    assert drain(make()) == [b"x"]


@pytest.mark.root
def test_file_that_may_only_be_read_can_be_looked_at(make, path, tmp_path):
    make().put(b"x")
    path.chmod(0o644)
    let_others_in(tmp_path)
    (tmp_path / ".jobs.tq.dirqueue").chmod(0o755)

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with Queue(path) as queue:
            seen = [message.body for message in queue.peek()], len(queue), queue.stats().ready
            with pytest.raises(QueueAccess, match="no permission"):
                queue.get(timeout=0)
        return seen

    assert in_child(other) == ([b"x"], 1, 1)


@pytest.mark.parametrize(
    "body", [b"\r", b"a\r\nb", b"\xff\xfe", b"\0", "\udcff".encode("utf-8", "surrogatepass")]
)
def test_body_that_the_format_cannot_hold_is_carried_as_base64(make, path, body):
    queue = make()
    id = queue.put(body)
    assert queue.message(id).body == body
    assert queue.message(id).size == len(body)
    assert drain(queue) == [body]
    assert b"\\encoding=base64\n" in path.read_bytes()
    path.read_bytes().decode()


def test_settings_that_the_format_cannot_express_are_refused(path):
    for settings, capability in (
        ({"priorities": True}, "priority"),
        ({"order": "lifo"}, "lifo"),
        ({"order": "random"}, "random"),
    ):
        with pytest.raises(Unsupported) as caught:
            Queue(path, layout="text", **settings)
        assert caught.value.capability == capability
    assert not path.exists()


def test_requests_that_the_format_cannot_express_are_refused(make, path, tmp_path):
    queue = make()
    id = queue.put(b"x")
    (tmp_path / "file").write_bytes(b"y")
    for ask, capability in (
        (lambda: queue.put(b"y", priority=1), "priority"),
        (lambda: queue.put_path(tmp_path / "file", link=True), "link"),
        (lambda: queue.message(id).change(priority=1), "priority"),
        (lambda: queue.dead, "apart"),
        (lambda: queue.done, "apart"),
    ):
        with pytest.raises(Unsupported) as caught:
            ask()
        assert caught.value.capability == capability
    assert drain(queue) == [b"x"]


def test_settings_are_kept_beside_the_file(path):
    with Queue.create(path, layout="text", lease=7.0, max_size=10):
        pass
    with Queue(path) as queue:
        assert (queue.settings.lease, queue.layout.name) == (7.0, "text")
        with pytest.raises(ValueError, match="max_size"):
            queue.put(b"x" * 11)
    with pytest.raises(SettingsError):
        Queue(path, lease=8.0)
    assert path.read_bytes().startswith(b"# dirqueue:")


def test_no_settings_for_a_file_in_use(path):
    path.write_bytes(b"-a\n")
    with pytest.raises(QueueError, match="in use"):
        Queue.create(path, layout="text", lease=7.0)


def test_missing_file_is_not_made_by_a_look(make, path):
    queue = make()
    assert (len(queue), queue.stats().total, list(queue.peek())) == (0, 0, [])
    with pytest.raises(Empty, match="no such queue"):
        queue.get(timeout=0)
    with pytest.raises(MessageNotFound):
        queue.message("000000000142-be603ad82b17")
    assert queue.flush() == queue.clear() == 0
    with pytest.raises(QueueNotFound):
        make(create=False)
    assert os.listdir(path.parent) == []


def test_look_at_a_file_makes_nothing_beside_it(make, path):
    path.write_bytes(b"-a\n")
    queue = make()
    assert (len(queue), queue.stats().ready, [message.body for message in queue.peek()]) == (1, 1, [b"a"])
    assert os.listdir(path.parent) == [path.name]


def test_file_that_vanishes_while_a_message_is_held(make, path):
    queue = make()
    queue.put(b"x")
    lease = queue.get(timeout=0)
    path.unlink()
    with pytest.raises((QueueNotFound, LeaseLost)):
        lease.ack()


@pytest.mark.usefixtures("impatient")
def test_file_that_shrinks(make, path):
    queue = make()
    queue.put_many([b"one", b"two", b"three"])
    lease = queue.get(timeout=0)
    os.truncate(path, path.read_bytes().index(b"-two"))
    lease.ack()
    assert drain(queue) == []
    queue.put(b"four")
    assert drain(queue) == [b"four"]


def test_directory_beside_that_was_removed(make, path):
    """Leases are forgotten, messages are not."""
    queue, other = make(), make()
    queue.put_many([b"one", b"two"])
    lease = queue.get(timeout=0)
    assert subprocess.run(["rm", "-r", queue.layout.directory.side], check=True).returncode == 0
    got = []
    wait_until(lambda: got.extend(drain(other)) or len(got) == 2)
    assert got == [b"one", b"two"]
    with pytest.raises(LeaseLost):
        lease.ack()
    queue.put(b"three")
    assert drain(other) == [b"three"]


@pytest.mark.parametrize("cut", [0, 10, 60, 200, -1, -20])
def test_journal_that_was_cut_anywhere(make, path, cut):
    queue = make()
    queue.put_many([b"one", b"two"])
    drain(queue, 1)
    queue.put(b"three")
    (part,) = (each for each in os.listdir(queue.layout.directory.side) if each.startswith("journal."))
    where = os.path.join(queue.layout.directory.side, part)
    os.truncate(where, cut if cut >= 0 else os.path.getsize(where) + cut)
    queue.close()
    fresh = make()
    got = []
    wait_until(lambda: got.extend(drain(fresh)) or len(got) >= 2)
    assert sorted(got) == [b"three", b"two"]


@pytest.mark.parametrize("lock", [b"", b"rubbish", b"1 2 3\n" * 100])
def test_lock_file_that_was_damaged(make, path, lock):
    queue = make()
    queue.put_many([b"one", b"two"])
    with open(os.path.join(queue.layout.directory.side, "lock"), "r+b") as file:
        file.truncate(0)
        file.write(lock)
    got = []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 2)
    assert got == [b"one", b"two"]


def test_lock_that_is_never_given_back_is_an_error(make, path, monkeypatch):
    monkeypatch.setattr(turn, "PATIENCE", 0.2)
    queue = make()
    queue.put(b"x")
    lock = os.path.join(queue.layout.directory.side, "lock")
    code = (
        f"import fcntl, sys; file = open({lock!r}); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(QueueError, match="has held its lock"):
            queue.put(b"y")
        other.stdin.close()
        other.wait()
    queue.put(b"y")
    assert drain(queue) == [b"x", b"y"]


CALLS = ("flock", "open", "fstat", "pread", "pwrite", "pwritev", "close")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("call", CALLS)
def test_call_that_fails_is_a_typed_error_and_loses_nothing(make, path, call, code):
    """At the first, the second and later such calls of put, get and ack."""
    queue = make()
    queue.put(b"first")
    for nth in range(6):
        left = [nth]

        def later(*_, left=left, **__):
            left[0] -= 1
            return left[0] < 0

        def put():
            queue.put(b"put")

        def get_and_ack():
            queue.get(timeout=0).ack()

        for act in (put, get_and_ack):
            try:
                with failing(call, code, when=later, done=call == "close"):  # the kernel closes it anyway
                    act()
            except (QueueAccess, QueueError, Empty, LeaseLost):
                pass
            except AssertionError as error:
                assert "was never called that way" in str(error)
    for message in queue.peek("leased"):
        queue.lease(message.entry.place).release()
    wait_until(lambda: drain(queue) or queue.stats().total == 0)
    items = [item for item in grammar.items(path.read_bytes()) if item.control != "#"]
    assert not [item for item in items if item.foreign or item.text not in (b"first", b"put")]
    assert [item.text for item in items].count(b"first") == 1


def test_put_that_is_cut_short_by_a_full_disk_leaves_nothing(make, path, monkeypatch):
    queue = make()
    queue.put(b"first")
    before = path.read_bytes()
    real = fs.pwritev
    calls = []

    def short(fd, data, offset, flags):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, [data[0][:100]], offset, flags)

    monkeypatch.setattr(fs, "pwritev", short)
    with pytest.raises(QueueAccess, match="disk is full"):
        queue.put(b"x" * 3000)
    monkeypatch.setattr(fs, "pwritev", real)
    assert path.read_bytes() == before
    assert drain(queue) == [b"first"]


def test_journal_on_a_full_disk_makes_room_from_its_history(make, path, monkeypatch):
    from dirqueue.layouts.text import journal

    monkeypatch.setattr(journal, "PART", 200)
    queue = make()
    queue.put_many([b"%d" % n for n in range(8)])
    drain(queue, 4)
    assert len(Journal(queue.layout.directory).parts()) > 1
    real, left = fs.pwrite, [1]

    def full(fd, data, offset):
        if left[0] and b" hold " in data:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(fs, "pwrite", full)
    assert drain(queue) == [b"4", b"5", b"6", b"7"]


def test_failed_fsync_of_a_put_takes_the_message_back(path):
    with Queue(path, layout="text", sync=True, margin=0) as queue:
        queue.put(b"first")
        with failing("fsync", errno.EIO), pytest.raises(QueueAccess):
            queue.put(b"second")
        assert drain(queue) == [b"first"]


def test_handles_and_ids_that_are_none(make, path):
    queue = make()
    queue.put(b"x")
    for handle in ("", "x", "000000000142-be603ad82b17", "000000000142-be603ad82b17@", None, 5):
        with pytest.raises(SettingsError):
            queue.lease(handle)
    with pytest.raises(LeaseLost):
        queue.lease("000000000142-be603ad82b17@host-1-aa-1")
