"""Every branch on an errno in the two dirq layouts, each reached by the fault that it is for."""

import errno
import os
import shutil
import socket
import time

import pytest
from support.failing import FULL, HARD, before, failing, names, nothing_left_open, of
from support.kit import LONG, drain, replaced, wait_until

from dirqueue import (
    CodecError,
    Empty,
    InvalidId,
    LeaseLost,
    MessageNotFound,
    MessageTooLarge,
    Purged,
    Queue,
    QueueAccess,
    QueueError,
    QueueNotFound,
    SettingsError,
)
from dirqueue.disk import fs, mount
from dirqueue.layouts.dirq import cursor as dirq_cursor
from dirqueue.layouts.dirq import layout as dirq_layout
from dirqueue.layouts.dirq import names as dirq_names
from dirqueue.layouts.dirq import store as dirq_store
from dirqueue.layouts.dirq.normal_store import NormalStore
from dirqueue.layouts.dirq.schema import Schema, read_table, write_table
from dirqueue.layouts.dirq.simple_store import SimpleStore

LAYOUTS = ("dirq-simple", "dirq-normal")
HOUR = 3600


@pytest.fixture
def made(tmp_path):
    """Give a maker of clients of one directory, by layout."""

    def make(layout, **settings):
        given = {"layout": layout, "sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        return Queue(tmp_path / "queue", **given)

    return make


@pytest.fixture(params=LAYOUTS)
def make(request, made):
    """Give a maker of clients of one directory, of each layout in turn."""
    return lambda **settings: made(request.param, **settings)


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


@pytest.fixture
def simple(made):
    """Give a queue of dirq-simple with one message."""
    queue = made("dirq-simple")
    queue.put(b"one")
    return queue


@pytest.fixture
def normal(made):
    """Give a queue of dirq-normal with one message."""
    queue = made("dirq-normal")
    queue.put(b"one")
    return queue


def remote(queue):
    """Treat the directory as one on a network filesystem."""
    queue.layout.directory.mount = mount.Mount("nfs4")
    return queue


def simply(queue):
    return queue.layout.name == "dirq-simple"


def tree(queue):
    """Return every path in the queue."""
    found = []
    for top, directories, files in os.walk(queue.path):
        found += [os.path.relpath(os.path.join(top, name), queue.path) for name in directories + files]
    return sorted(found)


def age(queue, *paths, seconds=HOUR):
    """Make files or directories look old."""
    when = time.time() - seconds
    for path in paths:
        os.utime(os.path.join(queue.path, path), (when, when))


def again(queue):
    """Let the next claim look anew."""
    queue.layout._cursor.refresh()
    return queue


# --- putting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["open", "write", "fsync", "show"])
def test_a_put_that_fails_says_so_and_shows_nothing(make, call, code):
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


def test_a_put_whose_name_cannot_be_made_durable_is_told(make):
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


def test_a_queue_that_was_removed_is_made_again(queue, tmp_path):
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
def test_a_put_shows_at_once_in_any_order(make, order):
    """A stack gives the newest first."""
    queue = make(order=order)
    queue.put(b"one")
    queue.put(b"two")
    first = queue.get(timeout=0).message.body
    assert order == "random" or first == b"two"
    queue.put(b"three")
    assert order == "random" or queue.get(timeout=0).message.body == b"three"


def test_many_are_put_one_by_one(queue):
    """The format has no batches; and a queue object that was closed opens again."""
    assert len(queue.put_many([b"two", b"three"])) == 2
    messages = sorted(queue.peek(), key=lambda message: message.id)
    queue.close()
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    queue.close()
    assert messages[0].size == 3


def test_a_file_that_cannot_be_put_stays_where_it_is(make, tmp_path):
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


def test_a_link_whose_reply_was_lost_is_known_by_its_file(simple):
    """On a network filesystem: both names are one file. A name that is another's is passed over."""
    remote(simple)
    with failing("link", errno.EEXIST, done=True):
        simple.put(b"two")
    with failing("link", errno.EEXIST):
        simple.put(b"three")
    with failing("link", errno.EEXIST, done=True), failing("stat", errno.ENOENT):
        simple.put(b"four")
    assert sorted(set(drain(again(simple)))) == [b"four", b"one", b"three", b"two"]


def test_a_directory_purged_before_its_first_element_is_made_again(made, tmp_path):
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


def test_a_staged_element_that_others_purge_is_staged_again(normal):
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


def test_a_normal_directory_is_followed_by_the_next_when_it_is_full(made):
    """By what its links count, or its names; one that is purged meanwhile counts as full."""
    queue = made("dirq-normal", maxelts=2)
    store = queue.layout.store
    for number in range(5):
        store._room = 0
        queue.put(b"%d" % number)
    assert store.directories() == ["00000000", "00000001", "00000002"]
    assert store._entries("none") == 2
    assert drain(again(queue)) == [b"%d" % number for number in range(5)]


# --- claiming -----------------------------------------------------------------------------------------------


def test_a_claim_that_comes_too_late_tries_the_next(queue):
    """Somebody locked it first, or it is gone."""
    queue.put(b"two")
    for code in (errno.EEXIST, errno.ENOENT):
        with failing("link" if simply(queue) else "mkdir", code):
            lease = again(queue).get(timeout=0)
        assert lease.message.body == b"two"
        lease.release()


def test_a_claim_that_always_comes_too_late_gives_up(queue, monkeypatch):
    """Bounded, as every loop on an errno."""
    monkeypatch.setattr(dirq_layout, "LOOKS", 20)
    for number in range(30):
        queue.put(b"%d" % number)
    call = "link" if simply(queue) else "mkdir"
    with failing(call, errno.EEXIST, times=100_000) as fault, pytest.raises(Empty):
        again(queue).get(timeout=0)
    assert fault.hits <= 20


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("call", ["lock", "listdir", "read"])
def test_a_claim_that_fails_says_so(queue, call, code):
    """With its errno; the message is not lost, and nothing stays open."""
    again(queue).get(timeout=0).release()
    call = ("link" if simply(queue) else "mkdir") if call == "lock" else call
    with nothing_left_open(), failing(call, code), pytest.raises(QueueAccess) as caught:
        again(queue).get(timeout=0)
    assert caught.value.errno == code
    assert len(queue) == 1


@pytest.mark.parametrize("code", names([errno.ENOENT]))
def test_a_queue_that_goes_while_it_is_listed_is_empty(queue, code):
    """And is looked at anew the next time."""
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(Empty):
        again(queue).get(timeout=0)
    assert drain(again(queue)) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR]))
def test_a_directory_that_goes_before_its_turn_is_passed_over(queue, code):
    """Purged by somebody else."""
    where = queue.layout.store.directories()[0]
    with failing("open", code, when=of(where)), pytest.raises(Empty):
        again(queue).get(timeout=0)
    assert queue.layout.store.elements("none") == []
    assert drain(again(queue)) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ELOOP, errno.ENXIO]))
def test_a_planted_link_or_socket_is_no_element(simple, code):
    """Whatever has the name of one."""
    with failing("open", code, when=lambda path, *_, **__: len(path) == 23) as fault:
        again(simple).get(timeout=0).release()
    assert fault.hits == 1
    where = simple.layout.store.directories()[0]
    os.mkdir(os.path.join(simple.path, where, "5f00000000000a"))
    os.symlink("/etc/passwd", os.path.join(simple.path, where, "5f00000000000b"))
    with socket.socket(socket.AF_UNIX) as there:
        here = os.getcwd()
        os.chdir(os.path.join(simple.path, where))  # a socket's path is short
        try:
            there.bind("5f00000000000c")
        finally:
            os.chdir(here)
    assert drain(again(simple)) == [b"one"]


def test_a_claim_of_another_length_moves_the_time_of_the_lock(queue):
    """Where the file is not ours only "now" is allowed."""
    lease = again(queue).get(timeout=0, lease=LONG / 2)
    assert lease.until.timestamp() < time.time() + LONG * 3 / 4
    lease.release()
    with failing("utime", errno.EPERM):
        lease = again(queue).get(timeout=0, lease=LONG / 2)
    assert lease.until.timestamp() > time.time() + LONG / 4
    lease.ack()


def test_a_renewal_for_another_time_of_what_is_another_users(queue):
    """Only "now" is allowed there."""
    lease = again(queue).get(timeout=0)
    with failing("utime", errno.EPERM):
        lease.renew(LONG / 2)
    assert lease.until.timestamp() > time.time() + LONG / 2
    lease.ack()


def test_an_element_that_cannot_be_opened_is_told(simple):
    """Whatever is not a planted thing is an error."""
    with failing("open", errno.EIO, when=lambda path, *_, **__: len(path) == 23), pytest.raises(QueueAccess):
        again(simple).get(timeout=0)
    assert drain(again(simple)) == [b"one"]


def test_a_lease_of_another_process_is_taken_over_by_its_handle(queue):
    """It ends when that one would have ended."""
    lease = again(queue).get(timeout=0)
    same = queue.lease(lease.handle)
    assert abs((same.until - lease.until).total_seconds()) < 1
    same.ack()
    with pytest.raises(LeaseLost):
        queue.lease(lease.handle)


def test_a_lock_of_an_old_element_of_another_user(simple):
    """Its time can only be set to now: it is, before the link and after it."""
    (name,) = [name for name in tree(simple) if len(name) == 23]
    age(simple, name)
    with failing("utime", errno.EPERM) as fault:
        again(simple).get(timeout=0).ack()
    assert fault.hits == 1
    assert len(simple) == 0


def test_a_lock_of_an_old_element_on_a_network_filesystem_tells_the_time(simple):
    """The time that the server gave is the server's clock."""
    remote(simple)
    (name,) = [name for name in tree(simple) if len(name) == 23]
    age(simple, name)
    again(simple).get(timeout=0).ack()
    assert len(simple) == 0


def test_an_element_that_is_removed_while_it_is_claimed_is_not_ours(normal):
    """A late holder took it away with its lock; and one whose renewal fails as well."""
    where = normal.layout.store.directories()[0]

    def vanish():
        (name,) = os.listdir(os.path.join(normal.path, where))
        shutil.rmtree(os.path.join(normal.path, where, name))

    with before("open", vanish, when=of("/body")), pytest.raises(Empty):
        again(normal).get(timeout=0)
    normal.put(b"two")
    with before("utime", vanish), pytest.raises(Empty):
        again(normal).get(timeout=0, lease=LONG / 2)


def test_an_element_without_its_piece_is_told_and_left_alone(made):
    """It does not fit the schema; the next one comes."""
    for settings in ({}, {"schema": {"body": "binary", "header": "table?"}, "codec": "json"}):
        queue = made("dirq-normal", max_backoff=LONG, **settings)
        queue.put({"body": "eA=="} if settings else b"x")
        (name,) = [name for name in tree(queue) if name.endswith("/body")]
        os.unlink(os.path.join(queue.path, name))
        with pytest.raises(CodecError):
            again(queue).get(timeout=0)
        with pytest.raises(Empty):
            queue.get(timeout=0)
        shutil.rmtree(queue.path)


def test_an_element_of_many_pieces_that_goes_while_it_is_read_is_not_ours(made):
    """What was read is not all of it."""
    queue = made("dirq-normal", schema={"body": "binary", "header": "table?"}, codec="json")
    queue.put({"body": "eA==", "header": {"a": "b"}})
    (name,) = [name for name in tree(queue) if len(name) == 23]
    gone = before("open", lambda: shutil.rmtree(os.path.join(queue.path, name)), when=of("/header"))
    with gone, pytest.raises(Empty):
        again(queue).get(timeout=0)


# --- stale locks --------------------------------------------------------------------------------------------


def locked(queue):
    """Lock the one message as a consumer that died; return its name."""
    lease = again(queue).get(timeout=0)
    name = lease.message.id
    age(queue, f"{name}.lck" if simply(queue) else name)
    return name


def relock(queue, name):
    """Let another consumer have the lock: a new time, or another directory."""
    if simply(queue):
        os.utime(os.path.join(queue.path, f"{name}.lck"))
    else:
        os.rmdir(os.path.join(queue.path, name, "locked"))
        os.mkdir(os.path.join(queue.path, name, "spacer"))  # so that the number is another, too
        os.mkdir(os.path.join(queue.path, name, "locked"))


def test_a_stale_lock_is_taken_over(queue):
    """Its holder never came back."""
    locked(queue)
    other = Queue(queue.path, layout=queue.layout.name, sync=False, margin=0, lease=60.0)
    lease = other.get(timeout=0)
    assert lease.message.body == b"one"
    lease.ack()
    assert len(queue) == 0


def test_a_stale_lock_that_is_not_stale_any_more_is_put_back(queue):
    """Between the look and the hand its holder unlocked and another locked anew."""
    name = locked(queue)
    store = queue.layout.store
    limit = (time.time_ns() // 10**9 - 60) * 10**9

    with before("rename", lambda: relock(queue, name)):
        assert not store.break_lock(name, limit)
    assert queue.layout.find(name).state == "leased"


def test_a_stale_lock_that_goes_first_is_somebody_elses(queue):
    """Renamed away by another, or its new name is taken."""
    name = locked(queue)
    store = queue.layout.store
    limit = time.time_ns() - 60 * 10**9
    with failing("rename", errno.ENOENT):
        assert not store.break_lock(name, limit)
    if not simply(queue):
        with failing("rename", errno.ENOTEMPTY):
            assert not store.break_lock(name, limit)
        assert not store.break_lock(f"{name[:9]}{'0' * 14}", limit)
        assert not store.older(f"{name[:9]}{'0' * 14}", limit)
    with failing("rename", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.break_lock(name, limit)
    assert store.break_lock(name, limit)


@pytest.mark.parametrize("code", [errno.EEXIST, None])
def test_a_live_lock_that_cannot_be_put_back_is_given_up(normal, code):
    """There is another lock already, or no such call: the renamed one goes."""
    name = locked(normal)
    with before("rename", lambda: relock(normal, name)), failing("rename_noreplace", code):
        assert not normal.layout.store.break_lock(name, time.time_ns() - 60 * 10**9)
    assert os.listdir(os.path.join(normal.path, "temporary")) == []


def test_a_takeover_that_comes_too_late(simple):
    """The element is gone, another locked it between the two names, or the disk fails: nothing of ours is left."""
    store = simple.layout.store
    limit = time.time_ns() - 60 * 10**9
    name = locked(simple)
    with before("open", lambda: os.unlink(os.path.join(simple.path, name)), when=of(name)):
        assert store.steal(name, limit) is None
    simple.put(b"two")
    name = locked(simple)
    assert store.steal(name, 0) is None
    age(simple, f"{name}.lck")
    with failing("link", errno.EEXIST):
        assert store.steal(name, limit) is None
    again(simple).get(timeout=0)
    age(simple, f"{name}.lck")
    with failing("utime", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.steal(name, limit)
    assert [each for each in tree(simple) if each.endswith(".tmp")] == []


def test_a_lock_that_ended_between_two_looks_is_tried_again(normal):
    """It was there when we tried, and gone when we asked since when."""
    other = Queue(normal.path, layout="dirq-normal", sync=False)
    lease = other.get(timeout=0)
    with before("stat", lease.release, when=of("/locked")):
        again(normal).get(timeout=0).ack()
    store = normal.layout.store
    normal.put(b"two")
    name = again(normal).get(timeout=0).message.id
    with failing("stat", errno.ENOENT, when=lambda path, **_: path == name):
        assert store.locked_at(name) is None


def test_a_lock_that_goes_the_moment_it_is_made_is_not_ours(normal):
    """Broken by somebody whose clock is wrong."""
    with failing("stat", errno.ENOENT, when=of("/locked"), times=3), pytest.raises(Empty):
        again(normal).get(timeout=0)


# --- ending -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_an_end_that_fails_says_so(queue, verb, code):
    """The lease is still held, and can be ended later."""
    lease = again(queue).get(timeout=0)
    call = {
        "ack": "unlink" if simply(queue) else "rename",
        "renew": "utime",
        "retry": "unlink" if simply(queue) else "rmdir",
    }.get(verb, "unlink" if simply(queue) else "rmdir")
    with failing(call, code), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == code
    lease.ack()
    assert len(queue) == 0


@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_an_end_of_a_lease_that_is_gone_is_refused(queue, verb):
    """Before our look, and between our look and our hand."""
    lease = again(queue).get(timeout=0)
    simple = simply(queue)
    call = {"ack": "unlink" if simple else "rename", "renew": "open" if simple else "utime"}.get(
        verb, "unlink" if simple else "rmdir"
    )
    with failing(call, errno.ENOENT), pytest.raises(LeaseLost):
        getattr(lease, verb)()
    shutil.rmtree(os.path.join(queue.path, lease.message.id[:8]))
    late = queue.layout
    for act in (late.ack, late.release, lambda held: late.renew(held, 1.0)):
        with pytest.raises(LeaseLost):
            act(lease._claim)


@pytest.mark.parametrize("verb", ["ack", "renew", "release"])
def test_a_late_end_is_refused(queue, verb):
    """The lock went stale and somebody else has it now: the message is theirs."""
    lease = again(queue).get(timeout=0)
    name = lease.message.id
    age(queue, f"{name}.lck" if simply(queue) else name)
    other = Queue(queue.path, layout=queue.layout.name, sync=False, margin=0, lease=60.0)
    theirs = other.get(timeout=0)
    assert theirs.token != lease.token
    with pytest.raises(LeaseLost):
        getattr(lease, verb)()
    theirs.ack()
    assert len(queue) == 0


def test_a_lock_that_is_taken_away_while_it_is_renewed_is_lost(queue):
    """The touch was of a lock that is nobody's."""
    lease = again(queue).get(timeout=0)
    path = os.path.join(queue.path, lease.message.id)
    remove = (lambda: os.unlink(path + ".lck")) if simply(queue) else (lambda: os.rmdir(path + "/locked"))
    with before("utime", remove), pytest.raises(LeaseLost):
        lease.renew()


@pytest.mark.parametrize("kind", ["ack", "cancel"])
def test_an_end_that_cannot_be_made_durable_is_told(make, kind):
    """A directory that went with its last name is no error."""
    queue = make(sync=True)
    for code in (errno.EIO, errno.ENOENT):
        queue.put(b"one")
        act = again(queue).get(timeout=0).ack if kind == "ack" else next(queue.peek()).cancel
        where = queue.layout.store.directories()[-1]
        if code == errno.EIO:
            with failing("fsync", code), pytest.raises(QueueAccess):
                act()
        else:
            with failing("open", code, when=of(where)):
                act()
    assert len(queue) == 0


def test_a_lock_that_cannot_be_removed_after_its_element_is_left_to_purge(simple):
    """The ack is done."""
    lease = again(simple).get(timeout=0)
    with failing("unlink", errno.EIO, when=of(".lck")):
        lease.ack()
    assert lease.ended == "acked"
    assert len(simple) == 0


def test_a_lease_ends_through_a_closed_queue_object(queue):
    """The layout itself opens the directory again."""
    lease = again(queue).get(timeout=0)
    queue.close()
    queue.layout.ack(lease._claim)
    assert len(queue) == 0


def test_a_retry_is_left_alone_for_its_delay(queue):
    """By us; others may take it at once."""
    again(queue).get(timeout=0).retry(LONG)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert 0 < queue.layout.wakes_in() <= LONG
    assert Queue(queue.path, layout=queue.layout.name, sync=False).get(timeout=0).message.body == b"one"


def test_an_element_whose_place_for_removal_is_missing(normal):
    """obsolete/ is made again; a name there that is taken is passed over, so often and no more."""
    store = normal.layout.store
    os.rmdir(os.path.join(normal.path, "obsolete"))
    again(normal).get(timeout=0).ack()
    normal.put(b"two")
    lease = again(normal).get(timeout=0)
    with failing("rename", errno.ENOTEMPTY, times=100_000) as fault, pytest.raises(QueueAccess):
        lease.ack()
    assert fault.hits == dirq_store.TRIES
    with failing("rename", errno.ENOTEMPTY):
        lease.ack()
    with failing("rename", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.removed("00000000/5f00000000000a")
    assert store.removed("00000000/5f00000000000a") is None


def test_what_is_left_of_a_removed_element_is_left_to_purge(normal):
    """A file of somebody else in it, an error of the disk, or another remover."""
    store = normal.layout.store
    name = again(normal).get(timeout=0).message.id
    with open(os.path.join(normal.path, name, "not-a-key"), "wb"):
        pass
    left = store.removed(name)
    assert left.startswith("obsolete/")
    assert tree(normal)[-4:] != []
    with failing("rmdir", errno.EIO, times=2):
        assert not store.discard(left)
    with failing("rmdir", errno.ENOENT, times=2), failing("rmdir", errno.ENOTEMPTY, times=3):
        assert not store.discard(left)
    shutil.rmtree(os.path.join(normal.path, left))
    assert store.discard(left)
    os.mkdir(os.path.join(normal.path, left))
    gone = before("listdir", lambda: os.rmdir(os.path.join(normal.path, left)))
    with failing("rmdir", errno.ENOTEMPTY, times=4), gone:
        assert store.discard(left)
    with failing("open", errno.ENOENT), failing("rmdir", errno.ENOTEMPTY, times=4):
        os.mkdir(os.path.join(normal.path, left))
        assert store.discard(left)


# --- looking, counting, cleaning ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
def test_a_looker_is_told_what_fails(queue, code):
    """Reading, opening, measuring, finding, removing, cancelling; gone is gone."""
    (message,) = queue.peek()
    remove = "unlink" if simply(queue) else "rename"
    acts = [
        ("open", lambda: message.body),
        ("open", message.open),
        ("stat", lambda: message.size),
        ("stat", lambda: queue.layout.find(message.id)),
        (remove, lambda: queue.layout.remove(message.entry)),
        ("link" if simply(queue) else "mkdir", message.cancel),
    ]
    for call, act in acts:
        with failing(call, code), pytest.raises(QueueAccess) as caught:
            act()
        assert caught.value.errno == code
    with message.open() as stream:
        assert stream.read() == b"one"
    shutil.rmtree(os.path.join(queue.path, message.id[:8]))
    for act in (lambda: message.body, message.open, lambda: message.size, message.cancel):
        with pytest.raises(MessageNotFound):
            act()
    assert not queue.layout.remove(message.entry)


@pytest.mark.parametrize("code", names((errno.ENOENT, *HARD)))
def test_a_queue_that_cannot_be_listed_is_told(queue, code):
    """With its errno and its path; one that is gone is gone."""
    told = QueueNotFound if code == errno.ENOENT else QueueAccess
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(told) as caught:
        list(queue.layout.entries())
    assert code in (errno.ENOENT, caught.value.errno)


def test_nothing_of_a_queue_that_is_not_there(make):
    """Neither found nor counted nor purged nor taken over."""
    queue = make()
    layout = queue.layout
    assert list(layout.entries()) == []
    assert layout.find("00000000/5f00000000000a") is None
    assert (layout.count(), layout.claim(1.0), layout.wakes_in(), layout.purge()) == (0, None, None, Purged())
    with pytest.raises(LeaseLost):
        queue.lease("00000000/5f00000000000a@1")
    for wrong in ("00000000/5f00000000000a", "../x@1", "00000000/5f00000000000a@x"):
        with pytest.raises(SettingsError):
            queue.lease(wrong)
    for wrong in ("../x", "x" * 100, None):
        with pytest.raises(InvalidId):
            layout.check_id(wrong)
    assert layout.check_id("00000000/5f00000000000a")
    layout.create()
    assert os.path.isdir(queue.path)
    assert Queue(queue.path).layout.name == layout.name


def test_every_kind_of_entry_is_told_apart(queue):
    """Elements, unfinished ones, locks, and what is not dirq's; what goes meanwhile is left out."""
    layout = queue.layout
    where = layout.store.directories()[-1]
    queue.put(b"two")
    again(queue).get(timeout=0)
    inside = [("5f00000000000a.tmp", False), ("5f00000000000b.odd", False), ("note", False)]
    if not simply(queue):
        inside = [("note", False), ("5f00000000000c", False)]
        os.mkdir(os.path.join(queue.path, "temporary", "5f00000000000d"))
        os.mkdir(os.path.join(queue.path, "obsolete", "5f00000000000e"))
    for name, _ in inside:
        with open(os.path.join(queue.path, where, name), "wb"):
            pass
    with open(os.path.join(queue.path, "note"), "wb"):
        pass
    with open(os.path.join(queue.path, "5f000000"), "wb"):
        pass
    found = sorted(entry.state for entry in layout.entries())
    assert found == sorted(["new", "ready", "leased", *["foreign"] * 4])
    assert list(layout.entries(("dead",))) == []
    with failing("open", errno.ENOENT, when=of(where)):
        assert "leased" not in {entry.state for entry in layout.entries()}
    assert len(queue) == 2


def test_purge_takes_what_is_stale_by_age_alone(make):
    """Unfinished elements, locks of consumers that died, emptied directories; what goes meanwhile is no error."""
    queue = make(lease=60.0, stale=60.0, granularity=1)
    queue.put(b"one")
    store = queue.layout.store
    if simply(queue):
        old, young = "5f000000/5f00000000000a.tmp", "5f000000/5f00000000000b.tmp"
        os.mkdir(os.path.join(queue.path, "5f000000"))
        for name in (old, young, "5f000000/5f00000000000c.tmp", "5f000000/note"):
            with open(os.path.join(queue.path, name), "wb"):
                pass
    else:
        old, young = "temporary/5f00000000000a", "temporary/5f00000000000b"
        for name in (old, young, "temporary/5f00000000000c"):
            os.mkdir(os.path.join(queue.path, name))
    age(queue, old)
    locked(queue)
    os.mkdir(os.path.join(queue.path, "5e000000"))
    os.mkdir(os.path.join(queue.path, "5e000001"))
    age(queue, "5e000000")
    told = []
    done = queue.layout.purge(lambda: told.append(1))
    assert (done.new, done.released, done.directories) == (1, 1, 1)
    assert told == [1]
    assert young in tree(queue)
    assert make().get(timeout=0).message.body == b"one"
    with failing("stat", errno.ENOENT, times=10):
        queue.layout.purge()
    with failing("open", errno.ENOENT, when=lambda path, *_, **__: len(path) == 8, times=10):
        queue.layout.purge()
    assert store.purge(0, 0)[:2] == (0, 0)


def test_a_lock_that_is_renewed_while_it_is_purged_stays(queue):
    """Looked at again under a name that only the purger has."""
    name = locked(queue)
    queue.layout._honoured = 60_000_000

    with before("rename", lambda: relock(queue, name)):
        assert queue.layout.purge().released == 0


def test_a_staged_element_that_is_being_written_is_not_purged(normal):
    """A long write changes the time of the file alone; what goes while it is looked at is no error."""
    path = os.path.join(normal.path, "temporary/5f00000000000a")
    os.mkdir(path)
    with open(f"{path}/body", "wb"):
        pass
    age(normal, "temporary/5f00000000000a")
    limit = time.time_ns() - 60 * 10**9
    assert normal.layout.store.purge(limit, 0) == (0, 0, 0)
    with before("open", lambda: shutil.rmtree(path), when=of("5f00000000000a")):
        assert normal.layout.store.purge(limit, 0) == (0, 0, 0)


def test_a_directory_that_goes_before_it_is_looked_at_is_not_removed(queue):
    """By another purger."""
    assert not queue.layout.store.remove_if_empty("5f000000")


def test_counting_where_links_count_nothing(normal):
    """Some filesystems do not count sub-directories in the links of a directory: then the names are counted."""
    normal.put(b"two")
    assert len(normal) == 2
    normal.layout.store._links = False
    assert len(normal) == 2
    with replaced(fs, stat=lambda *_, **__: os.stat_result((0o40755, 0, 0, 1, 0, 0, 0, 0, 0, 0))):
        normal.layout.store._links = True
        assert normal.layout.store.count() == 2
    assert normal.layout.store._entries("temporary") == 0


def test_elements_get_the_mode_that_was_asked_for(tmp_path):
    """A umask of the queue's own, whatever the process has."""
    before_ = os.umask(0o022)
    try:
        for cls, more in ((SimpleStore, {"granularity": 60}), (NormalStore, {"maxelts": 10})):
            directory = Queue(tmp_path / cls.__name__, layout="dirq-simple").layout.directory
            store = cls(directory, sync=False, umask=0o077, **more)
            store.make()
            store.make()
            name = store.add(b"x" if cls is SimpleStore else {"body": b"x"})
            path = os.path.join(directory.path, name)
            assert os.stat(directory.path).st_mode & 0o777 == 0o700
            assert os.stat(path).st_mode & 0o077 == 0
            if cls is NormalStore:
                assert store.take(name)
                assert os.stat(os.path.join(path, "locked")).st_mode & 0o777 == 0o700
                assert store.renew(name, "other") is None
    finally:
        os.umask(before_)


# --- cursors ------------------------------------------------------------------------------------------------


def test_what_is_known_is_bounded(queue, monkeypatch):
    """Locks, pauses and directories are remembered, but not for ever."""
    monkeypatch.setattr(dirq_cursor, "REMEMBERED", 3)
    cursor = queue.layout._cursor
    for number in range(5):
        cursor.not_before(f"x/{number}", 1 << 61)
        cursor._lock_ends[f"x/{number}"] = 1
        cursor._still[f"x{number}"] = (0, 0)
    assert drain(again(queue)) == [b"one"]
    assert (len(cursor._not_before), len(cursor._lock_ends)) == (0, 0)
    for number in range(9):
        cursor._still[f"x{number}"] = (0, 0)
    cursor.fill(1 << 60)
    assert len(cursor._still) <= 4


def test_names_that_were_jumped_over_are_looked_at_again(queue, monkeypatch):
    """Another consumer works through here: on a little further, and back at the end."""
    monkeypatch.setattr(dirq_cursor, "JUMP", 10_000)
    for number in range(9):
        queue.put(b"%d" % number)
    call = "link" if simply(queue) else "mkdir"
    monkeypatch.setattr("random.random", lambda: 0.5)
    with failing(call, errno.EEXIST, times=dirq_cursor.PATIENCE + 1):
        lease = again(queue).get(timeout=0)
    lease.release()
    assert len(drain(queue)) == 10


def test_the_times_of_a_network_filesystem_are_not_trusted(queue):
    """Nor those that cannot be read."""
    cursor = queue.layout._cursor
    where = queue.layout.store.directories()[0]
    assert cursor._mtime(where) > 0
    with failing("stat", errno.EIO):
        assert cursor._mtime(where) == -1
    remote(queue)
    assert cursor._mtime(where) == -1


class Gone(list):
    """A list from which another thread takes the last item just before us."""

    def pop(self):
        self.clear()
        return super().pop()


def test_a_name_that_another_thread_takes_first_is_passed_over(queue, monkeypatch):
    """After a look, or without one; so often and no more."""
    cursor = queue.layout._cursor
    cursor.run, cursor.expires = Gone(["x"]), 1 << 62
    assert queue.get(timeout=0).message.body == b"one"
    monkeypatch.setattr(dirq_layout, "LOOKS", 5)
    looks = []

    def fill(now):
        looks.append(now)
        cursor.run = Gone(["x"])
        return True

    monkeypatch.setattr(cursor, "fill", fill)
    cursor.run = []
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert len(looks) == 5


def test_names_that_were_jumped_over_and_are_gone(queue):
    """The directory is looked at again, and then all of them."""
    cursor = queue.layout._cursor
    again(queue).get(timeout=0)
    cursor.run, cursor._directories, cursor._skipped, cursor.expires = [], [], "5f000000", 1 << 62
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert cursor._skipped == ""


# --- emptied elements as locks ------------------------------------------------------------------------------


@pytest.fixture
def spared(made):
    """Give a queue of dirq-normal that keeps an emptied element for the next lock."""
    queue = made("dirq-normal")
    for number in range(6):
        queue.put(b"%d" % number)
    again(queue).get(timeout=0).ack()
    assert len(queue.layout._spares._names) == 1
    return queue


def test_an_emptied_element_becomes_the_next_lock(spared):
    """One rename that replaces nothing; none is left when the queue is drained or closed."""
    with replaced(fs, mkdir=lambda *_, **__: pytest.fail("made anew")):
        again(spared).get(timeout=0).ack()
    assert len(drain(spared)) == 4
    assert os.listdir(os.path.join(spared.path, "obsolete")) == []


def test_an_emptied_element_cannot_become_a_lock_that_is_there(spared):
    """Somebody has that element: the next one is tried, with the same directory."""
    with failing("rename_noreplace", errno.EEXIST):
        assert again(spared).get(timeout=0).message.body == b"2"
    assert spared.layout._spares._names == []


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EIO, None])
def test_an_emptied_element_that_cannot_be_renamed_goes(spared, code):
    """Purged by Python's dirq, a disk in trouble, or no such call: the lock is made the plain way."""
    with failing("rename_noreplace", code):
        assert again(spared).get(timeout=0).message.body == b"1"
    assert os.listdir(os.path.join(spared.path, "obsolete")) == []


def test_a_lock_that_cannot_be_looked_at_is_given_back(spared):
    """The disk is in trouble right after the rename: the error is told, and the element is nobody's."""
    with failing("stat", errno.EIO, when=of("/locked")), pytest.raises(QueueAccess):
        again(spared).get(timeout=0)
    assert again(spared).get(timeout=0).message.body == b"1"


def test_emptied_elements_that_another_thread_takes_are_not_dropped_twice(spared):
    """Between the look at the list and the pop; and an error leaves the directory to purge."""
    spares = spared.layout._spares
    kept, spares._names = spares._names, Gone(["obsolete/5f00000000000a"])
    spares.drop()
    spares._names = kept
    with failing("rmdir", errno.EIO):
        spares.drop()
    assert len(os.listdir(os.path.join(spared.path, "obsolete"))) == 1


# --- names and pieces ---------------------------------------------------------------------------------------


def test_names_never_go_back(monkeypatch):
    """Whatever the clock does; and litter of the same length is told apart."""
    first = dirq_names.element("a")
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    assert dirq_names.element("a") > first
    assert dirq_names.elements([first, "x" * 14]) == [first]
    assert int(dirq_names.folder(1), 16) % 1 == 0
    assert int(dirq_names.folder(60), 16) % 60 == 0
    before_ = dirq_names._state
    dirq_names._after_fork()
    assert dirq_names._state is not before_, "a lock that a thread of the parent held is free in a child"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"locked": "binary"},
        {"a b": "binary"},
        {1: "binary"},
        {"a": "number"},
        {"a": 1},
        {"a": "binary?"},
    ],
)
def test_a_schema_that_cannot_be_is_refused(wrong, tmp_path):
    """With what is wrong about it."""
    with pytest.raises(ValueError, match="invalid schema"):
        Schema(wrong)
    if wrong:
        with pytest.raises(SettingsError):
            Queue(tmp_path / "queue", layout="dirq-normal", schema=wrong).put(b"x")


def test_an_element_that_does_not_fit_its_schema_is_refused():
    """Each piece by its type; what is optional may be missing."""
    schema = Schema({"body": "binary", "text": "string?", "header": "table?*"})
    for wrong in (
        [],
        {},
        {"body": "text"},
        {"body": b"x", "text": b"x"},
        {"body": b"x", "header": "x"},
        {"body": b"x", "odd": b"x"},
        {"body": b"x", "text": "\ud800"},
        {"body": b"x", "header": {1: "x"}},
    ):
        with pytest.raises(ValueError, match=r"element|missing|unexpected|table|UTF-8"):
            schema.files(wrong)
    whole = {"body": b"x", "text": "é", "header": {"a\t": "b\\\n"}}
    assert schema.element(schema.files(whole)) == whole
    assert schema.decode(schema.encode(whole)) == whole
    assert schema.element({"body": b"x"}) == {"body": b"x"}
    with pytest.raises(ValueError, match="missing data file"):
        schema.element({})
    for wrong in (b"[]", b'{"body": 1}', b'{"body": "not base64"}', b"no json"):
        with pytest.raises(ValueError, match=r"JSON|base64|Expecting"):
            schema.split(wrong)
    plain = Schema({"text": "string"})
    with pytest.raises(ValueError, match="utf-8"):
        plain.split(b"\xff")
    with pytest.raises(ValueError, match="missing data file"):
        plain.join({})
    assert plain.decode(plain.encode({"text": "x"})) == {"text": "x"}


def test_a_table_is_lines_of_two():
    """Blank lines around it are forgiven, anything else is not."""
    assert read_table("") == {}
    assert read_table("\na\tb\n\n") == {"a": "b"}
    assert read_table(write_table({"a": "1", "b\n": "\\t"})) == {"a": "1", "b\n": "\\t"}
    with pytest.raises(ValueError, match="unexpected line"):
        read_table("a")


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
