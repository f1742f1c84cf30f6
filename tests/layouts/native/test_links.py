"""Short messages as symbolic links: when a body is a link, what is ours, and that nothing is ever followed."""

import errno
import os

import pytest
from support.failing import before, failing, of
from support.kit import LONG, drain
from support.native import Bench, remote
from support.users import as_user, import_all, open_to_all

from dirqueue import Empty, Queue, QueueError
from dirqueue.disk import fs
from dirqueue.layouts.native import cursor as cursors
from dirqueue.layouts.native import links

OLD = "1500000000000000123456789"


@pytest.fixture
def linked(make):
    """Give a queue whose producers write links."""
    return make(links=True)


def names_in(path):
    """Return the names at the top of a queue that are digits, and whether each is a link."""
    return {name: os.path.islink(os.path.join(path, name)) for name in os.listdir(path) if name[0].isdigit()}


def forms(queue):
    """Return whether each message in the queue is a link, in order, wherever it lies."""
    places = sorted((entry.id, entry.place) for entry in queue.layout.entries() if entry.id)
    return [os.path.islink(os.path.join(queue.path, place)) for _, place in places]


# --- when a link, when a file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "link"),
    [
        (b"", True),
        (b"hello", True),
        (b"\xff\xfe not text\n", True),
        (b"/etc/passwd", True),
        (b":", True),
        (b"x" * 999, True),
        (b"x" * 1000, True),
        (b"x" * 1001, False),
        (b"a\0b", False),
    ],
    ids=["empty", "text", "bytes", "path", "colon", "999", "1000", "1001", "NUL"],
)
@pytest.mark.parametrize("how", ["put", "put_many", "delayed", "staged"])
def test_body_is_a_link_if_it_is_short_and_has_no_nul(tmp_path, how, body, link):
    """Wherever it is written; and it comes back byte for byte."""
    queue = Queue(tmp_path / "queue", sync=False, links=True, lease=LONG)
    if how == "put":
        queue.put(body)
    elif how == "put_many":
        queue.put_many([body, body])
    elif how == "delayed":
        queue.put(body, delay=0.001)
    else:
        bench = Bench(tmp_path / "queue", links=True)
        bench.commit(bench.write(body))
    assert set(forms(queue)) == {link}
    message = next(iter(queue.peek("ready"))) if how != "delayed" else None
    if message is not None:
        assert (message.body, message.size) == (body, len(body))
        with message.open() as stream:
            assert stream.read() == body
    lease = queue.get(timeout=5)
    assert (lease.message.body, lease.message.size) == (body, len(body))
    with lease.message.open() as stream:
        assert stream.read() == body
    lease.ack()


def test_links_are_off_by_default(queue):
    """What people, cat and other programs expect is a file."""
    assert forms(queue) == [False]


def test_link_keeps_its_form_through_a_life(make):
    """Retry, release, reject, redrive, change, done: the same link under other names."""
    queue = make(links=True, keep_done=True, priorities=True)
    queue.put(b"body")
    queue.get(timeout=0).retry(0, error="no")
    assert forms(queue) == [True]
    lease = queue.get(timeout=0)
    assert lease.message.error == "no"
    lease.release()
    queue.get(timeout=0).reject("never")
    (dead,) = queue.peek("dead")
    assert (dead.body, dead.error) == (b"body", "never")
    queue.redrive()
    (message,) = queue.peek()
    message.change(priority=1)
    queue.get(timeout=0).ack()
    (done,) = queue.peek("done")
    assert (done.body, forms(queue)) == (b"body", [True])


def test_files_and_links_of_two_programs_are_one_queue(make):
    """Every reader understands both, whatever it writes itself."""
    plain, linked = make(), make(links=True)
    for number in range(6):
        (plain if number % 2 else linked).put(f"{number}")
    assert forms(plain) == [True, False] * 3
    half = drain(plain, limit=3)
    assert half + drain(linked) == [f"{number}".encode() for number in range(6)]


def test_put_path_stays_a_file(linked, tmp_path):
    """Nothing is copied."""
    (tmp_path / "file").write_bytes(b"short")
    linked.put_path(tmp_path / "file")
    assert forms(linked) == [False]


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_filesystem_without_links_gets_files(linked, code):
    """It is tried once for each mount."""
    with failing("symlink", code) as fault:
        linked.put(b"one")
        linked.put(b"two")
    assert (fault.hits, forms(linked)) == (1, [False, False])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ])
def test_body_that_the_filesystem_refuses_is_a_file(linked, code):
    """The next one is tried again."""
    with failing("symlink", code):
        linked.put(b"one")
    linked.put(b"two")
    assert forms(linked) == [False, True]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMLINK])
def test_put_of_a_link_that_fails_leaves_nothing(linked, code):
    """No second way hides a real error."""
    linked.put(b"first")
    with failing("symlink", code), pytest.raises(QueueError) as caught:
        linked.put(b"one")
    assert caught.value.errno == code
    assert drain(linked) == [b"first"]


def test_name_that_is_taken_is_followed_by_the_next(linked):
    """EEXIST is not an error."""
    linked.put(b"first")
    with failing("symlink", errno.EEXIST):
        linked.put(b"one")
    assert drain(linked) == [b"first", b"one"]


def test_bucket_of_a_delayed_link_is_made_when_it_is_missing(linked):
    """As often as others remove it."""
    linked.put(b"first")
    with failing("symlink", errno.ENOENT, times=3):
        linked.put(b"one", delay=0.001)
    assert sorted([linked.get(timeout=5).message.body, linked.get(timeout=5).message.body]) == [
        b"first",
        b"one",
    ]


def test_unreadable_link_is_an_error(linked):
    """EIO of readlink is not "nothing there"."""
    linked.put(b"one")
    with failing("readlink", errno.EIO), pytest.raises(QueueError):
        linked.get(timeout=0)
    assert drain(linked) == [b"one"]


# --- network filesystems ---------------------------------------------------------------------------------------


def test_link_on_a_network_filesystem_is_renamed_into_view(linked):
    """A repeated create after a lost reply and a claim would publish twice."""
    made = []
    remote(linked).put(b"first")
    with before("symlink", lambda: None, when=lambda target, name, **_: made.append(name) or True):
        linked.put(b"one")
    assert [name.endswith(".new") for name in made] == [True]
    assert forms(linked) == [True, True]


@pytest.mark.parametrize("call", ["symlink", "rename"])
def test_lost_reply_of_a_link_loses_and_doubles_nothing(linked, call):
    """Done, and the repeated call fails."""
    remote(linked).put(b"first")
    code = errno.EEXIST if call == "symlink" else errno.ENOENT
    with failing(call, code, done=True):
        linked.put(b"one")
    linked.layout.directory.mount.attributes_are_cached = False
    assert drain(linked) == [b"first", b"one"]


# --- privacy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "umask", "link"),
    [
        (0o755, 0o022, True),
        (0o755, 0o027, False),
        (0o750, 0o027, True),
        (0o750, 0o077, False),
        (0o700, 0o077, True),
        (0o711, 0o022, True),
        (0o711, 0o077, False),
        (0o2770, 0o002, True),
        (0o2770, 0o077, False),
    ],
)
def test_body_that_the_umask_hides_from_somebody_is_a_file(tmp_path, mode, umask, link):
    """A link can be read by everybody who can search the directory, whatever the umask."""
    (tmp_path / "queue").mkdir()
    os.chmod(tmp_path / "queue", mode)
    os.umask(umask)
    queue = Queue(tmp_path / "queue", sync=False, links=True)
    queue.put(b"secret")
    queue.put_many([b"secret", b"secret"])
    assert set(forms(queue)) == {link}


@pytest.mark.parametrize("how", ["put", "put_many"])
def test_link_that_cannot_be_written_is_an_error_of_the_put(linked, how):
    """A disk that fails says nothing about whether it should be a file."""
    linked.put(b"first")
    with failing("symlink", errno.EIO), pytest.raises(QueueError):
        linked.put(b"x") if how == "put" else linked.put_many([b"x", b"y"])
    assert forms(linked) == [True]


def test_umask_that_changes_is_noticed_within_a_second(linked, monkeypatch):
    """It is looked at once a second, not for every message."""
    linked.put(b"one")
    os.umask(0o077)
    monkeypatch.setattr(links, "TRUSTED", 0)
    linked.layout._publisher._linker._until = ""
    linked.put(b"two")
    assert forms(linked) == [True, False]


def test_unknown_umask_counts_as_the_strictest(linked):
    """Where there is no /proc."""
    with failing("open", errno.ENOENT, when=of("/proc/self/status")):
        linked.put(b"one")
    assert forms(linked) == [False]


# --- what is not ours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/etc/passwd", "nowhere", OLD, "..", "x:y"])
@pytest.mark.parametrize("name", [OLD, f"{OLD}.1600000000000000.1", f"{OLD}.1600000000000000.1.host-1-aa-1"])
@pytest.mark.parametrize("room", ["", "leased", "later/1600000000000000", f"{OLD}.batch"])
def test_link_that_does_not_begin_with_a_colon_is_never_touched(make, room, name, target):
    """Not claimed, not counted, not found, not followed; and it is read once, not by every look."""
    queue = make(links=True, layout="native")
    queue.put(b"ours")
    os.makedirs(os.path.join(queue.path, room), exist_ok=True)
    planted = os.path.join(queue.path, room, name)
    os.symlink(target, planted)
    assert drain(queue) == [b"ours"]
    with pytest.raises(Empty):
        queue.get(timeout=0)
    queue.purge()
    stats = queue.stats()
    assert (stats.total, stats.foreign) == (0, 1)
    assert [entry for entry in queue.layout.entries() if entry.id == OLD] == []
    assert os.readlink(planted) == target


def test_link_with_a_colon_that_a_shell_made_is_a_message(queue):
    """`ln -s :hello QUEUE/ID` is a put."""
    os.symlink(":hello", os.path.join(queue.path, OLD))
    assert drain(queue) == [b"hello", b"one"]


def test_file_that_becomes_a_foreign_link_before_the_claim_goes_to_dead(queue):
    """It is claimed by then, but never followed."""
    (name,) = names_in(queue.path)

    def swap():
        os.unlink(os.path.join(queue.path, name))
        os.symlink("/etc/passwd", os.path.join(queue.path, name))

    with before("rename", swap, when=of(name)), pytest.raises(Empty):
        queue.get(timeout=0)
    assert queue.stats().total == 0


def test_link_that_becomes_a_file_before_it_is_read_is_claimed_as_one(linked):
    """The listing was a hint."""
    linked.put(b"one")
    (name,) = names_in(linked.path)

    def swap():
        os.unlink(os.path.join(linked.path, name))
        with open(os.path.join(linked.path, name), "wb") as file:
            file.write(b"two")

    with before("readlink", swap):
        assert drain(linked) == [b"two"]


def test_link_that_another_consumer_takes_before_it_is_read_is_a_lost_race(make):
    """The next one is taken instead."""
    one, other = make(links=True), make(links=True)
    one.put_many([b"a", b"b"])
    held = []
    with before("readlink", lambda: held.append(other.get(timeout=0))):
        assert one.get(timeout=0).message.body == b"b"
    assert held[0].message.body == b"a"


def test_link_that_no_listing_told_of_is_read_after_the_claim(linked):
    """A name that ended a wait is tried without a listing."""
    linked.put(b"one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors.Cursor, "_linked", lambda self, strange, prefix: ([], strange))
        linked.layout.arrived(next(iter(names_in(linked.path))))
        assert linked.get(timeout=0).message.body == b"one"


def test_links_that_are_not_ours_are_remembered_up_to_a_limit(linked, monkeypatch):
    """A directory full of them needs no memory without end."""
    monkeypatch.setattr(cursors, "FOREIGN", 4)
    linked.put(b"ours")
    for number in range(10):
        os.symlink("elsewhere", os.path.join(linked.path, f"{int(OLD) + number}"))
    assert drain(linked) == [b"ours"]
    assert len(linked.layout._cursor._foreign) <= 4


def test_hard_linked_link_is_a_message_whose_times_are_not_ours(make, tmp_path):
    """keep_done does not change what another name shows."""
    queue = make(links=True, keep_done=True)
    queue.put(b"one")
    (name,) = names_in(queue.path)
    os.link(os.path.join(queue.path, name), tmp_path / "second", follow_symlinks=False)
    os.utime(tmp_path / "second", (1, 1), follow_symlinks=False)
    queue.get(timeout=0).ack()
    assert os.lstat(tmp_path / "second").st_mtime == 1


@pytest.mark.root
def test_link_of_another_user_is_claimed_and_acknowledged(tmp_path):
    """In a directory that both may write to, as with files."""
    path = open_to_all(tmp_path) / "queue"
    import_all(path)
    drain(Queue(path, sync=False))
    os.chmod(path, 0o777)
    os.chmod(path / "leased", 0o777)
    as_user(61001, lambda: Queue(path, sync=False, links=True).put(b"theirs"))
    assert as_user(61002, lambda: drain(Queue(path, sync=False))) == [b"theirs"]


def test_pinned_links_are_read_given_back_and_kept(tmp_path):
    """Spark's lots: the same link in the lot, back in the queue, and in done/."""
    bench = Bench(tmp_path / "queue", links=True)
    queue = bench.queue
    queue.put_many([b"one", b"two"])
    queue.put(b"three")
    os.symlink("/etc/hostname", os.path.join(queue.path, OLD))
    mine = bench.consumer()
    assert bench.pin(mine, 1, messages=9) == 3
    assert sorted(message.data for message in queue.peek("leased")) == [b"one", b"three", b"two"]
    mine.release(1)
    assert sorted(message.data for message in queue.peek()) == [b"one", b"three", b"two"]
    assert bench.pin(mine, 2, messages=9) == 3
    mine.ack(2, keep=True)
    assert sorted(message.data for message in queue.peek("done")) == [b"one", b"three", b"two"]
    places = [entry.place for entry in queue.layout.entries(["done"])]
    assert [os.path.islink(os.path.join(queue.path, place)) for place in places] == [True] * 3
    assert os.readlink(os.path.join(queue.path, OLD)) == "/etc/hostname"


# --- durable ---------------------------------------------------------------------------------------------------


def test_durable_put_of_a_link_flushes_the_directory_once(make):
    """One fsync where a file needs two."""
    queue = make(links=True, sync=True)
    queue.put(b"first")
    flushed = []
    real = fs.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "fsync", lambda fd: flushed.append(fd) or real(fd))
        queue.put(b"one")
    assert flushed == [queue.layout.directory.fd]


def test_link_whose_flush_fails_is_gone(make):
    """The put failed, so nobody may get it."""
    queue = make(links=True, sync=True)
    queue.put(b"first")
    with failing("fsync", errno.EIO), pytest.raises(QueueError):
        queue.put(b"one")
    assert drain(queue) == [b"first"]


def test_durable_delayed_link_makes_the_bucket_of_another_process_durable(make):
    """Whoever made it may not have flushed the directories above it yet."""
    one, other = make(links=True, sync=False), make(links=True, sync=True)
    one.put(b"one", delay=600)
    flushed = []
    other.put(b"warm")
    real = other.layout.directory.sync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            other.layout.directory, "sync", lambda *names: flushed.extend(names or ".") or real(*names)
        )
        other.put(b"two", delay=600)
    assert {".", "later"} < set(flushed)
