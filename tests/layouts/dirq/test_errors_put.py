"""A put to a dirq layout: every errno branch, reached by its fault."""

import errno
import os
import shutil

import pytest
from support.dirq_queues import again, remote, simply, tree
from support.failing import FULL, HARD, before, failing, names, of
from support.kit import drain, wait_until

from dirqueue import (
    CodecError,
    Empty,
    MessageNotFound,
    MessageTooLarge,
    Queue,
    QueueAccess,
    QueueError,
    SettingsError,
)
from dirqueue.disk.directory import Directory
from dirqueue.layouts.dirq import store as dirq_store
from dirqueue.layouts.dirq.store import Store


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["open", "write", "fsync", "show"])
def test_put_that_fails_raises_and_shows_nothing(make, call, code):
    """Whichever call fails: one error with its errno, and no element."""
    queue = make(sync=True)
    queue.put(b"first")
    if call == "show":
        call = "link" if simply(queue) else "rename"
    with failing(call, code), pytest.raises(QueueAccess) as caught:
        queue.put(b"x")
    assert caught.value.errno == code
    assert drain(again(queue)) == [b"first"]
    assert [name for name in tree(queue) if "temporary/" in name or name.endswith(".tmp")] == []


def test_put_whose_flush_fails_raises(make):
    """The flush of the directory that it was shown in fails."""
    queue = make(sync=True)
    queue.put(b"first")

    def last(fd):
        return not os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).endswith((".tmp", "body")) and (
            "temporary" not in os.readlink(f"/proc/self/fd/{fd}")
        )

    with failing("fsync", errno.EIO, when=last), pytest.raises(QueueAccess):
        queue.put(b"x")
    assert b"first" in drain(again(queue))


def test_names_that_stay_taken_are_an_error_not_a_loop(make, monkeypatch, tmp_path):
    """Passed over once; always taken, it is said."""
    queue = make()
    queue.put(b"first")
    (tmp_path / "file").write_bytes(b"x")
    steps = (("open", of(".tmp")), ("link", None)) if simply(queue) else (("mkdir", None), ("rename", None))
    for number, (call, when) in enumerate(steps):
        with failing(call, errno.EEXIST, when=when):
            queue.put(b"%d" % number)
        with failing(call, errno.EEXIST, when=when, times=100_000) as fault, pytest.raises(QueueError):
            queue.put(b"never")
        assert fault.hits == dirq_store.TRIES
    call = steps[1][0]
    with failing(call, errno.EEXIST, times=100_000), pytest.raises(QueueError):
        queue.put_path(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x"
    assert sorted(drain(again(queue))) == [b"0", b"1", b"first"]


def test_queue_that_was_removed_is_made_again(queue, tmp_path):
    """Under a put, a put of a file, and a consumer."""
    shutil.rmtree(queue.path)
    queue.put(b"again")
    assert drain(again(queue)) == [b"again"]
    shutil.rmtree(queue.path)
    (tmp_path / "file").write_bytes(b"file")
    queue.put_path(tmp_path / "file")
    assert drain(again(queue)) == [b"file"]
    other = Queue(queue.path, layout=queue.layout.name, sync=False)
    shutil.rmtree(queue.path)
    with pytest.raises(Empty):
        again(queue).get(timeout=0)
    other.put(b"new")
    assert again(queue).get(timeout=0).message.body == b"new"


@pytest.mark.parametrize("order", ["lifo", "random"])
def test_put_shows_at_once_in_any_order(make, order):
    """A stack gives the newest first."""
    queue = make(order=order)
    queue.put(b"one")
    queue.put(b"two")
    first = queue.get(timeout=0).message.body
    assert order == "random" or first == b"two"
    queue.put(b"three")
    assert order == "random" or queue.get(timeout=0).message.body == b"three"


def test_put_many_puts_one_by_one(queue):
    """The format has no batches; and a queue object that was closed opens again."""
    assert len(queue.put_many([b"two", b"three"])) == 2
    messages = sorted(queue.peek(), key=lambda message: message.id)
    queue.close()
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    queue.close()
    assert messages[0].size == 3


def test_put_path_that_fails_leaves_the_file(make, tmp_path):
    """Not a plain file, too large, not there, another filesystem, a disk that cannot flush."""
    queue = make(sync=True, max_size=10)
    queue.put(b"one")
    path = tmp_path / "file"
    path.write_bytes(b"too large for it")
    with pytest.raises(MessageTooLarge):
        queue.put_path(path)
    path.write_bytes(b"x")
    with failing("link", errno.EXDEV), pytest.raises(QueueAccess):
        queue.put_path(path)
    with failing("fsync", errno.EIO), pytest.raises(QueueAccess):
        queue.put_path(path)
    with pytest.raises(SettingsError):
        queue.put_path(tmp_path)
    with pytest.raises(QueueAccess):
        queue.put_path(tmp_path / "none")
    os.link(path, tmp_path / "second")
    with pytest.raises(SettingsError):
        queue.put_path(path)
    os.unlink(tmp_path / "second")
    queue.put_path(path)
    assert sorted(drain(again(queue))) == [b"one", b"x"]


def test_link_whose_reply_was_lost_is_known_by_its_file(simple):
    """On a network filesystem: both names are one file. A name that is another's is passed over."""
    remote(simple)
    with failing("link", errno.EEXIST, done=True):
        simple.put(b"two")
    with failing("link", errno.EEXIST):
        simple.put(b"three")
    with failing("link", errno.EEXIST, done=True), failing("stat", errno.ENOENT):
        simple.put(b"four")
    assert sorted(set(drain(again(simple)))) == [b"four", b"one", b"three", b"two"]


def test_directory_purged_before_its_first_element_is_made_again(made, tmp_path):
    """Between its making and the link of a file; if the file itself is gone, that is said."""
    queue = made("dirq-simple")
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def purge():
        for name in os.listdir(queue.path):
            os.rmdir(os.path.join(queue.path, name))

    with before("link", purge):
        queue.put_path(path)
    assert drain(again(queue)) == [b"x"]
    path.write_bytes(b"x")
    with before("link", path.unlink), pytest.raises(QueueAccess):
        queue.put_path(path)
    path.write_bytes(b"x")
    with failing("link", errno.ENOENT, times=100_000) as fault, pytest.raises(QueueError):
        queue.put_path(path)
    assert fault.hits == dirq_store.TRIES


def test_staged_element_that_others_purge_is_staged_again(normal):
    """Python's dirq removes what is empty at any age: before the file is written, and before it is shown."""
    with failing("open", errno.ENOENT, when=lambda path, *_, **__: "temporary/" in path):
        normal.put(b"two")

    def purge():
        shutil.rmtree(os.path.join(normal.path, "temporary"))
        os.mkdir(os.path.join(normal.path, "temporary"))

    with before("rename", purge):
        normal.put(b"three")
    with before("rename", lambda: os.rename(f"{normal.path}/00000000", f"{normal.path}/00000000x")):
        normal.put(b"four")
    assert [body for body in drain(again(normal)) if body == b"four"] == [b"four"]


def test_normal_directory_is_followed_by_the_next_when_it_is_full(made):
    """By what its links count, or its names; one that is purged meanwhile counts as full."""
    queue = made("dirq-normal", maxelts=2)
    store = queue.layout.store
    for number in range(5):
        store._room = 0
        queue.put(b"%d" % number)
    assert store.directories() == ["00000000", "00000001", "00000002"]
    assert store._entries("none") == 2
    assert drain(again(queue)) == [b"%d" % number for number in range(5)]


def test_bodies_of_many_pieces(made, tmp_path):
    """Put, streamed, measured, put from a file; what does not fit is refused before anything is written."""
    queue = made("dirq-normal", schema={"body": "binary", "text": "string?"}, codec="json")
    with pytest.raises(CodecError):
        queue.put({"text": "x"})
    queue.put({"body": "eA=="})
    (tmp_path / "file").write_bytes(b'{"body":"eQ=="}')
    queue.put_path(tmp_path / "file")
    messages = sorted(queue.peek(), key=lambda message: message.id)
    assert [message.size for message in messages] == [15, 15]
    with messages[0].open() as stream:
        assert stream.read() == b'{"body":"eA=="}'
    with pytest.raises(MessageNotFound):
        queue.layout.load("00000000/5f00000000000a")
    assert [lease.message.body for lease in queue.get_many(2, timeout=0)] == [
        {"body": "eA=="},
        {"body": "eQ=="},
    ]
    wait_until(lambda: len(queue) == 2)


def test_put_whose_unfinished_file_is_purged_is_written_again(simple):
    """As often as that may be chance, and no more."""
    with failing("link", errno.ENOENT, times=2):
        simple.put(b"two")
    with failing("link", errno.ENOENT, times=10_000), pytest.raises(QueueAccess):
        simple.put(b"three")
    assert drain(again(simple)) == [b"one", b"two"]


def test_store_without_a_format_has_no_elements(tmp_path):
    """What an element is, only the two formats know."""
    store = Store(Directory(str(tmp_path / "q")), sync=False)
    for act in (
        store.count,
        lambda: store.token("x"),
        lambda: store.ours("x", "1"),
        lambda: store.unlock("x"),
        lambda: store.purge(0, 0),
    ):
        with pytest.raises(NotImplementedError):
            act()
