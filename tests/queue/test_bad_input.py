"""Bad input: one typed error each, naming the thing and the way out; nothing created, nothing lost."""

import os
import stat
import subprocess

import pytest
from support.kit import drain, files, in_child, put_all

from dirqueue import DirQueueError, InvalidId, Queue, QueueAccess, QueueNotFound, SettingsError

BAD_IDS = [
    "../x", "/etc/passwd", "1\0", "1\n", "1500000000000000123456789\n", "9" * 10_000, "1_000", "²", "１" * 25,
    "-1500000000000000123456789", "+150000000000000012345678", " 1500000000000000123456789", "1e25", "0" * 25,
    "", ".", "..", "dead", "1500000000000000123456789.new", 1500000000000000123456789, 1.5, None, b"1", True,
]  # fmt: skip


def one_sentence(error):
    """Errors are for people: one line, not endless."""
    text = str(error)
    assert "\n" not in text
    assert len(text) < 400
    return True


@pytest.mark.parametrize("id", BAD_IDS, ids=lambda each: repr(each)[:30])
def test_id_that_is_invalid_is_refused(native, tmp_path, id):
    """In message and redrive: refused before a path is built."""
    queue = native()
    queue.put(b"x")
    before = files(tmp_path)
    for use in (queue.message, lambda each: queue.redrive([each])):
        with pytest.raises(InvalidId) as caught:
            use(id)
        assert one_sentence(caught.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("handle", ["../x", "", "x", "/etc/passwd", "dead/../x", "1\0", None, 5, "a/b/c/d"])
def test_handle_that_is_invalid_is_refused(native, handle):
    """A lease by handle is parsed and rebuilt."""
    queue = native()
    queue.put(b"x")
    with pytest.raises(SettingsError, match="handle") as caught:
        queue.lease(handle)
    assert one_sentence(caught.value)


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), "1", None, True, 1e300, [], ""])
def test_delay_that_is_invalid_is_refused(queue, tmp_path, delay):
    """Nothing is put, nothing is made."""

    def many(body, delay):
        if "batch" in queue.layout.lacks:
            return queue.put(body, delay=delay)
        return queue.put_many([body, body], delay=delay)

    for put in (queue.put, many):
        with pytest.raises(SettingsError, match="delay") as caught:
            put(b"x", delay=delay)
        assert one_sentence(caught.value)
    assert not (tmp_path / "queue").exists()


@pytest.mark.parametrize("path", ["", "a\0b", b"bytes", 5, None])
def test_path_that_is_invalid_is_refused(path):
    """Not text, empty, or with a NUL."""
    with pytest.raises(SettingsError, match="path") as caught:
        Queue(path)
    assert one_sentence(caught.value)


def test_path_that_is_a_file(tmp_path, given, is_file):
    """The file stays as it is."""
    if is_file:
        pytest.skip("a queue of this layout is a file; tests/layouts/text has what is no queue")
    path = tmp_path / "file"
    path.write_bytes(b"content")
    for where in (path, path / "below"):
        with pytest.raises(OSError, match="not a directory") as caught:
            Queue(where, **given).put(b"x")
        assert isinstance(caught.value, QueueAccess)
        assert caught.value.path == str(where)
        assert one_sentence(caught.value)
    assert path.read_bytes() == b"content"


def test_path_that_is_a_dangling_link(tmp_path, given):
    """Typed, and the link stays."""
    os.symlink("nowhere", tmp_path / "link")
    with pytest.raises(DirQueueError):
        Queue(tmp_path / "link", **given).put(b"x")
    assert os.readlink(tmp_path / "link") == "nowhere"


def test_path_that_is_too_long(tmp_path, given):
    """Typed, naming the reason."""
    with pytest.raises(QueueAccess, match="too long"):
        Queue(tmp_path / ("x" * 300), **given).put(b"x")


def test_missing_queue_that_must_exist(tmp_path, given):
    """The error says how to make one."""
    with pytest.raises(QueueNotFound, match="put"):
        Queue(tmp_path / "none", create=False, **given)


@pytest.mark.parametrize("source", ["missing", "directory", "fifo", "link", "hard link", "nul"])
def test_put_path_refuses_a_file_that_it_cannot_move(native, tmp_path, source):
    """put_path takes plain files with one name; what it refuses stays where it is."""
    queue = native()
    path = tmp_path / "source"
    if source == "directory":
        path.mkdir()
    elif source == "fifo":
        os.mkfifo(path)
    elif source == "link":
        path.symlink_to("/etc/hostname")
    elif source == "hard link":
        path.write_bytes(b"x")
        os.link(path, tmp_path / "other")
    with pytest.raises(DirQueueError) as caught:
        queue.put_path("a\0b" if source == "nul" else path)
    assert one_sentence(caught.value)
    assert len(queue) == 0
    assert os.path.lexists(path) == (source not in ("missing", "nul"))


def test_file_of_an_undecodable_name_is_moved_in(native, tmp_path):
    """A name from a listing is a name, whatever its bytes."""
    queue = native()
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    with open(path, "wb") as file:
        file.write(b"x")
    queue.put_path(path)
    assert drain(queue) == [b"x"]


# --- filesystems that refuse -----------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path):
    """Give a function that mounts a small tmpfs at a path, undone after the test."""
    points = []

    def mount(options):
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", point], check=True)
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.root
@pytest.mark.needs("mount")
def test_read_only_filesystem(mounted, given, is_file):
    """Looking works; putting, getting and ending say what is wrong, and nothing is lost."""
    point = mounted("size=1m")
    queue = Queue(point / "queue", sync=False, **given)
    queue.put(b"a")
    queue.put(b"b")
    lease = queue.get(timeout=0)
    before = files(point)
    if is_file:
        queue.close()  # its journal is open for writing, and the kernel refuses to remount below that
    subprocess.run(["mount", "-o", "remount,ro", point], check=True)
    fresh = Queue(point / "queue", sync=False, **given)
    assert len(fresh) == 2
    assert [message.body for message in fresh.peek()] == [b"b"]
    for act in (
        lambda: fresh.put(b"x"),
        lambda: put_all(fresh, [b"x", b"y"]),
        lambda: fresh.get(timeout=0),
        lease.ack,
        lambda: Queue(point / "other", **given).put(b"x"),
    ):
        with pytest.raises(OSError, match="read-only") as caught:
            act()
        assert isinstance(caught.value, QueueAccess)
        assert one_sentence(caught.value)
    assert files(point) == before
    subprocess.run(["mount", "-o", "remount,rw", point], check=True)
    lease.ack()
    assert drain(fresh) == [b"b"]


@pytest.mark.root
@pytest.mark.needs("mount")
@pytest.mark.parametrize("options", ["size=256k", "size=1m,nr_inodes=40"], ids=["blocks", "inodes"])
def test_full_filesystem(mounted, given, options):
    """A put that does not fit leaves nothing; consumers still drain the queue."""
    point = mounted(options)
    queue = Queue(point / "queue", sync=False, **given)
    put = []
    with pytest.raises(OSError, match="disk is full") as caught:
        for n in range(1000):
            body = f"{n}-".encode() + b"x" * 8000
            queue.put(body)
            put.append(body)
    assert isinstance(caught.value, QueueAccess)
    assert one_sentence(caught.value)
    with pytest.raises(QueueAccess):
        put_all(queue, [b"x" * 100_000] * 50)
    assert queue.stats().new == 0
    assert len(queue) == len(put)
    assert sorted(drain(Queue(point / "queue", sync=False, **given))) == sorted(put)


def let_others_in(path):
    """Open the private directories above a test's own, and nothing else."""
    for each in (path, *path.parents):
        if stat.S_IMODE(each.stat().st_mode) == 0o700:
            each.chmod(0o755)


@pytest.mark.root
def test_no_permission(tmp_path, given, is_file):
    """Another user may neither look nor put, and gets an error."""
    path = tmp_path / "queue"
    queue = Queue(path, sync=False, **given)
    queue.put(b"x")
    os.chmod(path, 0o700)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for use in (
            lambda: Queue(path, **given).put(b"y"),
            lambda: len(Queue(path, **given)),
            lambda: Queue(closed / "new", **given).put(b"y"),
            lambda: Queue(closed / "newer" if is_file else closed, **given).put(b"y"),
        ):
            with pytest.raises(OSError, match="no permission") as caught:
                use()
            assert isinstance(caught.value, QueueAccess)
            assert one_sentence(caught.value)
        return "told"

    let_others_in(tmp_path)
    assert in_child(other) == "told"
    assert drain(queue) == [b"x"]
    assert os.listdir(closed) == []


@pytest.mark.root
def test_message_that_only_its_owner_may_read(native, tmp_path):
    """In a shared directory an unreadable message goes to dead with the reason, and the others are delivered."""
    path = tmp_path / "queue"
    queue = native(max_attempts=1)
    queue.put(b"secret")
    queue.put(b"open")
    secret = next(message.id for message in queue.peek())
    os.chmod(path / secret, 0o600)
    for each in (path, path / "leased"):
        os.chmod(each, 0o777)
    let_others_in(tmp_path)

    def other():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        mine = Queue(path, sync=False, max_attempts=1)
        return [lease.message.body for lease in mine.consume(timeout=0)]

    assert in_child(other) == [b"open"]
    (dead,) = queue.peek("dead")
    assert "cannot be read" in dead.error
    assert dead.body == b"secret"
