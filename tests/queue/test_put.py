"""Putting: what is accepted is there, once, whole, for everybody."""

import os
import stat

import pytest
from support.kit import drain, put_all

from dirqueue import CodecError, SettingsError


def test_message_comes_back_as_it_was_put(queue):
    """The body is opaque bytes."""
    body = bytes(range(256)) * 3
    queue.put(body)
    assert queue.get(timeout=0).message.body == body


def test_text_is_put_as_utf8(queue):
    """A str body is its UTF-8."""
    queue.put("grüße ☃")
    assert queue.get(timeout=0).message.body == "grüße ☃".encode()


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 3_000_000], ids=str)
def test_bodies_of_any_length_are_whole(queue, size):
    """No length is special: not nothing, not a buffer's, not many buffers'."""
    body = os.urandom(size)
    queue.put(body)
    message = queue.get(timeout=0).message
    assert message.body == body
    assert message.size == size
    with message.open() as stream:
        assert stream.read() == body


def test_directory_is_made_by_the_first_put(make_queue, is_file, tmp_path):
    """A queue needs no set-up, parents included."""
    queue = make_queue("a/b/c")
    assert not (tmp_path / "a").exists()
    queue.put(b"x")
    assert (tmp_path / "a/b/c").is_dir() != is_file
    assert len(queue) == 1


def test_ids_are_different_and_increase(queue):
    """Put returns ids in the order of the puts."""
    ids = [queue.put(b"x") for _ in range(50)]
    assert len(set(ids)) == 50
    assert ids == sorted(ids)


def test_every_id_finds_its_message(queue):
    """The id that put returned is the message's name for life."""
    ids = {queue.put(f"{n}".encode()): n for n in range(5)}
    for id, n in ids.items():
        assert queue.message(id).body == f"{n}".encode()
        assert queue.message(id).id == id


def test_put_is_visible_to_other_clients_at_once(make_queue):
    """Nothing is kept in the putting object."""
    make_queue().put(b"x")
    assert drain(make_queue()) == [b"x"]


def test_durable_put_is_the_same(make_queue):
    """Sync changes when it is safe, not what is there."""
    queue = make_queue(sync=True)
    put_all(queue, [b"a"])
    put_all(queue, [b"b", b"c"])
    assert sorted(drain(queue)) == [b"a", b"b", b"c"]


def test_put_many_returns_an_id_for_each(queue, needs):
    """Every message of a batch has its own id, in order."""
    needs("batch")
    ids = queue.put_many([b"a", b"b", b"c"])
    assert len(set(ids)) == 3
    assert [queue.message(id).body for id in ids] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("bodies", [[], [b"one"]], ids=["none", "one"])
def test_put_many_takes_few(queue, needs, bodies):
    """No messages make no files; one is like put."""
    needs("batch")
    assert len(queue.put_many(bodies)) == len(bodies)
    assert drain(queue) == bodies


def test_put_many_takes_any_iterable(queue, needs):
    """Bodies may come from a generator."""
    needs("batch")
    queue.put_many(f"{n}" for n in range(10))
    assert sorted(drain(queue)) == sorted(f"{n}".encode() for n in range(10))


def test_put_many_refuses_one_text(queue):
    """A str is not a list of bodies, though Python would iterate it."""
    for wrong in ("abc", b"abc"):
        with pytest.raises((SettingsError, CodecError)):
            queue.put_many(wrong)
    assert len(queue) == 0


def test_put_path_moves_a_file_in(queue, layout, is_file, tmp_path):
    """The file itself becomes the message: it is gone from where it was."""
    queue.put(b"first")
    file = tmp_path / "job.txt"
    file.write_bytes(b"content")
    inode = file.stat().st_ino
    id = queue.put_path(file)
    assert not file.exists()
    message = queue.message(id)
    assert message.body == b"content"
    # An element of dirq-normal is a directory, and open() gives its one field; in one file it is lines.
    if layout != "dirq-normal" and not is_file:
        with message.open() as stream:
            assert os.fstat(stream.fileno()).st_ino == inode


def test_delayed_message_waits(queue, needs):
    """A delay keeps the message from everybody until it is over."""
    needs("delay")
    id = queue.put(b"later", delay=600)
    queue.put(b"now")
    assert drain(queue) == [b"now"]
    assert queue.message(id).state == "delayed"
    assert queue.message(id).until > queue.message(id).enqueued_at


def test_delayed_message_comes(queue, needs):
    """A waiting get wakes when a delay comes due."""
    needs("delay")
    queue.put(b"soon", delay=0.05)
    assert queue.get(timeout=30).message.body == b"soon"


def test_delayed_batch_waits(queue, needs):
    """The delay of put_many holds for all of them."""
    needs("delay", "batch")
    queue.put_many([b"a", b"b"], delay=600)
    assert drain(queue) == []
    assert queue.stats().delayed == 2


def test_files_are_readable_by_those_the_umask_allows(queue, tmp_path):
    """Modes follow the umask, so that groups can share a queue."""
    before = os.umask(0o002)
    try:
        queue.put(b"x" * 2000)  # no link, which has no mode
        for each in (tmp_path / "queue").rglob("*"):
            mode = stat.S_IMODE(each.stat().st_mode)
            assert mode == (0o775 if each.is_dir() else 0o664)
    finally:
        os.umask(before)
