"""Foreign entries: ignored, counted, never opened, never deleted."""

import os
import socket
import stat

import pytest
from support.kit import drain

from dirqueue import Empty, MessageNotFound
from dirqueue.disk import fs

ID = "1500000000000000123456789"
ODD = [
    "README", ".hidden", "x.new", "123", "0" + ID[1:], ID + "0" * 10, ID + ".", ID + ".tmp", "²" * 25,
    "１" * 25, ID + ".1.2", ID + ".1600000000000000.x", ID + ".1600000000000000.1.a b", "-" + ID[1:],
    ID + ".NEW", ID + ".new.new", "nul\nline", "ü", ID + ".1600000000000000.01", "1_000", "a" * 255,
]  # fmt: skip


def plant(directory):
    """Put one of everything into a directory; return the paths."""
    made = []
    for n, name in enumerate(ODD):
        path = os.path.join(directory, name)
        if n % 2:
            os.mkdir(path)
        else:
            with open(path, "wb") as file:
                file.write(b"foreign")
        made.append(path)

    def named(n, suffix=""):
        path = os.path.join(directory, f"{int(ID) + n}{suffix}")
        made.append(path)
        return path

    os.mkfifo(named(1))
    os.mkfifo(named(2, ".1600000000000000.1.host-1-aa-1"))
    os.mkdir(named(3))
    os.symlink("/etc/passwd", named(4))
    os.symlink("nowhere", named(5, ".1600000000000000.1"))
    os.symlink("/tmp", named(6, ".slice"))
    os.mkfifo(named(7, ".batch"))
    os.mkdir(named(8, ".new"))
    os.mkfifo(named(9, ".error"))
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(directory)  # the path of a socket is short
        try:
            server.bind(os.path.basename(named(10)))
        finally:
            os.chdir(here)
    if os.geteuid() == 0:
        try:
            os.mknod(named(11), stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            made.pop()
    return made


def kinds(paths):
    return {path: stat.S_IFMT(os.lstat(path).st_mode) for path in paths}


def test_what_is_not_ours_is_left_alone(native, tmp_path):
    """Through every operation: counted, never delivered, never opened, never removed."""
    queue = native(stale=0, keep_dead_for=0.000001, keep_done=True, keep_done_for=0.000001)
    queue.put(b"mine")
    made = plant(tmp_path / "queue")
    before = kinds(made)
    opened = []

    def watch(path, *arguments, **named):
        opened.append(os.path.basename(str(path)))
        return real(path, *arguments, **named)

    real = fs.open
    fs.open = watch
    try:
        assert queue.stats().foreign == len(made)
        assert len(queue) == 1
        lease = queue.get(timeout=0)
        assert lease.message.body == b"mine"
        lease.reject("no")
        queue.redrive()
        assert drain(queue) == [b"mine"]
        queue.put_many([b"a", b"b"])
        for _ in range(2):
            queue.purge()
        assert queue.flush() >= 2
        queue.clear()
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert list(queue.peek()) == []
    finally:
        fs.open = real
    assert kinds(made) == before
    assert queue.stats().foreign == len(made)
    assert not set(opened) & {os.path.basename(path) for path in made}


def test_id_that_is_not_a_message_is_not_found(native, tmp_path):
    """A fifo, directory or link of a message's name cannot be read, cancelled or changed by that name."""
    queue = native()
    queue.put(b"x")
    made = plant(tmp_path / "queue")
    before = kinds(made)
    for n in (1, 3, 4, 5, 10):
        with pytest.raises(MessageNotFound):
            queue.message(f"{int(ID) + n}")
    assert kinds(made) == before


def test_foreign_entries_in_dead_and_batches_are_counted(native, tmp_path):
    """Wherever they lie."""
    queue = native()
    queue.put_many([b"a", b"b"])
    queue.get(timeout=0).reject("no")
    batch = next(name for name in os.listdir(queue.path) if name.endswith(".batch"))
    (tmp_path / "queue" / batch / "foreign").write_bytes(b"")
    (tmp_path / "queue" / "dead" / "foreign").write_bytes(b"")
    assert queue.stats().foreign == 2
    drain(queue)
    queue.purge()
    assert queue.stats().foreign == 2


def test_message_dropped_in_by_hand_is_delivered(native, tmp_path):
    """An id of digits and a rename is all the protocol asks; VSQS peers' shorter ids too; a hard link as well."""
    queue = native()
    queue.put(b"last")
    for name, body in ((ID, b"hand"), ("1500000000001", b"ms"), ("1500000000002000", b"us")):
        (tmp_path / "file").write_bytes(body)
        os.rename(tmp_path / "file", tmp_path / "queue" / name)
    (tmp_path / "kept").write_bytes(b"linked")
    os.link(tmp_path / "kept", tmp_path / "queue" / f"{int(ID) + 10**13}")
    assert drain(queue) == [b"hand", b"ms", b"us", b"linked", b"last"]
    assert (tmp_path / "kept").read_bytes() == b"linked"


def test_every_layout_ignores_what_it_does_not_know(make_queue, is_file, tmp_path):
    """Odd names are no messages in any format, and stay."""
    if is_file:
        pytest.skip("there are no names in a file; tests/layouts/text has odd lines")
    queue = make_queue()
    queue.put(b"x")
    (tmp_path / "queue" / "README").write_bytes(b"foreign")
    (tmp_path / "queue" / ".hidden").write_bytes(b"foreign")
    assert len(queue) == 1
    assert drain(queue) == [b"x"]
    queue.put(b"y")  # a directory that holds nothing of a queue is not purged at all
    queue.purge()
    assert (tmp_path / "queue" / "README").exists()
    assert (tmp_path / "queue" / ".hidden").exists()
