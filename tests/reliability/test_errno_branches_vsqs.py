"""Every branch on an errno in the vsqs and null layouts and in telling formats apart, each reached by its fault."""

import errno
import os
import shutil
import time

import pytest
from support.failing import FULL, HARD, before, failing, names, nothing_left_open, of
from support.kit import LONG, drain, replaced

from dirqueue import (
    Empty,
    LayoutError,
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
from dirqueue.layouts import layout_class, peer
from dirqueue.layouts.vsqs import layout


@pytest.fixture
def make(tmp_path):
    """Give a maker of clients of one directory."""

    def make(**settings):
        given = {"layout": "vsqs", "sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        return Queue(tmp_path / "queue", **given)

    return make


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


def listed(queue):
    return sorted(os.listdir(queue.path))


# --- putting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename_noreplace"])
def test_a_put_that_fails_says_so_and_shows_nothing(make, call, code):
    """Whichever call fails: one error with its errno, and no message."""
    queue = make(sync=True)
    queue.put(b"first")
    with failing(call, code), pytest.raises(QueueAccess) as caught:
        queue.put(b"x")
    assert caught.value.errno == code
    assert drain(queue) == [b"first"]


def test_a_put_whose_name_cannot_be_made_durable_is_taken_back(make):
    """The flush of the directory fails."""
    queue = make(sync=True)
    queue.put(b"first")
    directory = queue.layout.directory
    with failing("fsync", errno.EIO, when=lambda fd: fd == directory.fd), pytest.raises(QueueAccess):
        queue.put(b"x")
    assert drain(queue) == [b"first"]


def test_an_id_that_is_taken_is_passed_over(queue, monkeypatch):
    """As a file being written, as a message in flight, or by whoever was faster; so often and no more."""
    with failing("open", errno.EEXIST, when=of(".new")) as fault:
        queue.put(b"two")
    assert fault.hits == 1
    for code in (errno.EEXIST, errno.ENOENT):
        with failing("rename_noreplace", code):
            queue.put(b"three")
    used = iter([False])
    real = queue.layout._unused
    monkeypatch.setattr(queue.layout, "_unused", lambda each: next(used, None) is None and real(each))
    queue.put(b"four")
    assert drain(queue) == [b"one", b"two", b"three", b"three", b"four"]
    assert [name for name in listed(queue) if name.endswith(".new")] == []
    monkeypatch.setattr(layout, "TRIES", 3)
    monkeypatch.setattr(queue.layout, "_unused", lambda each: False)
    with pytest.raises(QueueError, match="every id"):
        queue.put(b"x")
    assert listed(queue) == []


def test_an_id_in_flight_is_found_where_time_alone_cannot_tell(make):
    """Milliseconds, or a slow server: another message of the same time may be in flight."""
    queue = make(milliseconds=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    (name,) = listed(queue)
    assert not queue.layout._unused(name.partition(".")[0])
    assert queue.layout._unused("1700000000000")
    lease.ack()


def test_a_clock_that_was_set_back_makes_no_id_twice(queue):
    """A step of seconds is counted on from; one of a moment is waited for."""
    layout = queue.layout
    layout._last = time.time_ns() // 1000 + 60_000_000
    assert int(layout._id()) == layout._last
    assert int(layout._id()) == layout._last
    layout._last = time.time_ns() // 1000 + 500
    last = layout._last
    assert int(layout._id()) > last


def test_a_queue_that_was_removed_is_made_again(queue):
    """Under a put, and under a consumer."""
    shutil.rmtree(queue.path)
    queue.put(b"again")
    assert drain(queue) == [b"again"]
    other = Queue(queue.path, layout="vsqs", sync=False)
    shutil.rmtree(queue.path)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    other.put(b"new")
    assert queue.get(timeout=0).message.body == b"new"


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


def test_a_file_that_cannot_be_put(make, tmp_path, monkeypatch):
    """It stays where it is; ids that are taken are passed over, so often and no more."""
    queue = make(sync=True, max_size=10)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for code in (errno.EXDEV, errno.EIO):
        with failing("rename_noreplace", code), pytest.raises(QueueAccess):
            queue.put_path(path)
    with failing("fsync", errno.EIO), pytest.raises(QueueAccess):
        queue.put_path(path)
    assert path.read_bytes() == b"x"
    used = iter([False])
    with failing("rename_noreplace", errno.EEXIST):
        monkeypatch.setattr(queue.layout, "_unused", lambda each: next(used, True))
        queue.put_path(path)
    path.write_bytes(b"too large for it")
    with pytest.raises(MessageTooLarge):
        queue.put_path(path)
    path.write_bytes(b"x")
    monkeypatch.setattr(layout, "TRIES", 3)
    monkeypatch.setattr(queue.layout, "_unused", lambda each: False)
    with pytest.raises(QueueError, match="every id"):
        queue.put_path(path)
    assert path.read_bytes() == b"x"
    os.link(path, tmp_path / "second")
    for wrong, error in ((path, SettingsError), (tmp_path, SettingsError), (tmp_path / "none", QueueAccess)):
        with pytest.raises(error):
            queue.put_path(wrong)


# --- claiming and ending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_a_claim_that_comes_too_late_tries_the_next(queue, code):
    """Somebody was faster: at the rename, or at the opening."""
    queue.put(b"two")
    with failing("rename", code):
        assert queue.get(timeout=0).message.body == b"two"
    queue.put(b"three")
    with failing("open", errno.ENOENT, when=lambda path, *_, **__: path.count(".") == 1 and path != "."):
        assert queue.get(timeout=0).message.body == b"three"


def test_a_claim_that_always_comes_too_late_gives_up(queue, monkeypatch):
    """Bounded, as every loop on an errno."""
    monkeypatch.setattr(layout, "LOOKS", 20)
    with failing("rename", errno.ENOENT, times=1000) as fault, pytest.raises(Empty):
        queue.get(timeout=0)
    assert fault.hits == 20


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("call", ["rename", "scandir"])
def test_a_claim_that_fails_says_so(queue, call, code):
    """With its errno; the message is where it was."""
    with failing(call, code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names((*HARD, errno.EMFILE)))
@pytest.mark.parametrize("call", ["open", "read"])
def test_a_body_that_cannot_be_read_is_left_alone_for_a_lease(make, call, code):
    """There is no place to count failures: it is told, others come through, and it comes again; nothing stays open."""
    queue = make()
    queue.put(b"bad")
    queue.put(b"good")
    queue.get(timeout=0).release()
    when = (lambda path, *_, **__: path.count(".") == 1 and path != ".") if call == "open" else None
    with nothing_left_open(), failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert queue.get(timeout=0).message.body == b"good"
    assert queue.stats().leased == 2


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_a_queue_that_goes_while_it_is_listed_is_empty(queue, code):
    """And is looked at anew the next time."""
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(Empty):
        queue.get(timeout=0)
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names((errno.ENOENT, *HARD)))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release"])
def test_an_end_that_fails_says_why(queue, verb, code):
    """Gone is a lost lease; anything else is an error, and the lease is still held."""
    lease = queue.get(timeout=0)
    call = {"ack": "unlink", "release": "rename_noreplace", "retry": "rename", "renew": "rename"}[verb]
    arguments = (5.0,) if verb == "retry" else ()
    with failing(call, code), pytest.raises(LeaseLost if code == errno.ENOENT else QueueAccess):
        getattr(lease, verb)(*arguments)
    if code != errno.ENOENT:
        lease.ack()
        assert listed(queue) == []


@pytest.mark.parametrize("verb", ["ack", "renew", "release"])
def test_a_late_end_is_refused(queue, verb):
    """The lease ran out and somebody else has the message now."""
    lease = queue.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    other = Queue(queue.path, layout="vsqs", sync=False, margin=0)
    theirs = other.get(timeout=0, lease=LONG)
    with pytest.raises(LeaseLost):
        getattr(lease, verb)()
    theirs.ack()
    assert listed(queue) == []


def test_a_retry_waits_and_a_retry_at_once_does_not(queue):
    """A delay is a time in flight; without one it is ready."""
    queue.get(timeout=0).retry(LONG)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert 0 < queue.layout.wakes_in() <= LONG
    queue.put(b"two")
    queue.get(timeout=0).retry(0)
    assert queue.get(timeout=0).message.body == b"two"


def test_a_release_onto_an_id_that_another_has_overwrites_nothing(queue):
    """Another program made a message of the same id: ours waits as one that is over, and both come."""
    lease = queue.get(timeout=0)
    with open(os.path.join(queue.path, lease.message.id), "wb") as file:
        file.write(b"another")
    lease.release()
    other = Queue(queue.path, layout="vsqs", sync=False, margin=0)
    assert sorted(drain(other)) == [b"another", b"one"]


def test_a_renewal_within_one_millisecond_keeps_its_name(make):
    """In milliseconds the next end may be the same: then there is nothing to rename."""
    queue = make(milliseconds=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    handle = lease.handle
    with replaced(fs, move=lambda *_: pytest.fail("renamed onto itself")):
        queue.layout._put_off(lease._claim, lease._claim.ends, "renew")
    assert lease.handle == handle
    lease.ack()


def test_a_handle_of_another_process(queue):
    """By its exact name; gone is lost, anything else is refused."""
    lease = queue.get(timeout=0)
    with pytest.raises(SettingsError):
        queue.lease(lease.message.id)
    queue.lease(lease.handle).ack()
    with pytest.raises(LeaseLost):
        queue.lease(lease.handle)


def test_durable_ends(make):
    """Ack flushes the directory; if that fails it is told."""
    queue = make(sync=True)
    queue.put(b"one")
    queue.put(b"two")
    queue.get(timeout=0).ack()
    lease = queue.get(timeout=0)
    with failing("fsync", errno.EIO), pytest.raises(QueueAccess):
        lease.ack()


# --- looking, changing, cleaning ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
def test_a_looker_is_told_what_fails(queue, code):
    """Reading, opening, measuring, removing; gone is gone."""
    (message,) = queue.peek()
    acts = {
        "open": [lambda: message.body, message.open],
        "stat": [lambda: message.size],
        "unlink": [lambda: queue.layout.remove(message.entry)],
    }
    for call, each in acts.items():
        for act in each:
            with failing(call, code), pytest.raises(QueueAccess) as caught:
                act()
            assert caught.value.errno == code
    for gone in (errno.ENOENT, errno.ESTALE):
        with failing("open", gone), pytest.raises(MessageNotFound):
            _ = message.body
    with open(os.path.join(queue.path, "queue.json"), "wb") as file:
        file.write(b"{}")
    assert [each.state for each in queue.layout.entries()] == ["ready"]
    with message.open() as stream:
        assert stream.read() == b"one"
    assert message.size == 3
    assert queue.layout.remove(message.entry)
    assert not queue.layout.remove(message.entry)
    with pytest.raises(MessageNotFound):
        message.cancel()


@pytest.mark.parametrize("code", names((errno.ENOENT, *HARD)))
def test_a_queue_that_cannot_be_listed_is_told(queue, code):
    """With its errno and its path; one that is gone is gone."""
    told = QueueNotFound if code == errno.ENOENT else QueueAccess
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(told) as caught:
        list(queue.layout.entries())
    assert code in (errno.ENOENT, caught.value.errno)


def test_nothing_of_a_queue_that_is_not_there(make):
    """Neither found nor counted nor purged; a closed queue opens again."""
    queue = make()
    layout = queue.layout
    assert list(layout.entries()) == []
    assert layout.find("1700000000000000") is None
    assert layout.count() == 0
    assert layout.claim(1.0) is None
    assert layout.wakes_in() is None
    assert layout.purge() == Purged()
    with pytest.raises(LeaseLost):
        queue.lease("1700000000000000.1700000000000001")
    layout.create()
    queue.put_many([b"one", b"two"])
    messages = list(queue.peek())
    queue.close()
    assert [message.body for message in messages] == [b"one", b"two"]


def test_purge_takes_unfinished_messages_by_age_alone(make):
    """Those that go meanwhile are no error; who watches is told of each."""
    queue = make(stale=60.0)
    queue.put(b"one")
    old, young, gone = "1700000000000000.new", f"{time.time_ns() // 1000}.new", "1700000000000001.new"
    for name in (old, young, gone):
        with open(os.path.join(queue.path, name), "wb"):
            pass
    os.utime(os.path.join(queue.path, old), (0, 0))
    told = []
    with before("stat", lambda: os.unlink(os.path.join(queue.path, gone)), when=of(gone)):
        assert queue.layout.purge(lambda: told.append(1)) == Purged(new=1)
    assert len(told) == 2
    assert young in listed(queue)
    assert queue.layout.purge() == Purged()


def test_what_the_format_has_no_place_for_is_refused(queue, make):
    """Each with the reason."""
    lease = queue.get(timeout=0)
    (entry,) = queue.layout.entries(("leased",))
    for act in (
        lambda: lease.reject("no"),
        lambda: queue.layout.change(entry, priority=None, delay=1.0),
        lambda: queue.layout.redrive(entry),
        lambda: make(priorities=True),
        lambda: make(keep_done=True),
    ):
        with pytest.raises(QueueError, match="the vsqs layout cannot"):
            act()
    with pytest.raises(MessageNotFound, match="only an unclaimed"):
        queue.layout.cancel(entry)
    assert queue.layout.leased_at(entry) is None
    assert queue.layout.failure(entry) is None


# --- the null layout ----------------------------------------------------------------------------------------


def test_the_null_layout_keeps_nothing(tmp_path):
    """What is put is gone, nothing is ever found, and every end of a lease is refused."""
    queue = Queue(tmp_path / "queue", layout="null")
    layout = queue.layout
    layout.create()
    assert queue.put(b"x") != queue.put(b"x")
    assert len(queue.put_many([b"x", b"y"])) == 2
    (tmp_path / "file").write_bytes(b"x")
    id = queue.put_path(tmp_path / "file")
    assert not (tmp_path / "file").exists()
    with pytest.raises(QueueAccess):
        queue.put_path(tmp_path / "file")
    assert (len(queue), layout.wakes_in(), layout.find(id), layout.purge()) == (0, None, None, Purged())
    with pytest.raises(Empty):
        queue.get(timeout=0)
    held = peer.Claim(id, id, 0, 0, 1, "")
    for act in (
        lambda: layout.ack(held),
        lambda: layout.renew(held, 1.0),
        lambda: layout.retry(held, 1.0, None),
        lambda: layout.release(held),
        lambda: queue.lease("anything"),
    ):
        with pytest.raises(LeaseLost):
            act()
    entry = layout.entry(held)
    for act in (
        lambda: layout.load(id),
        lambda: layout.stream(id),
        lambda: layout.size(id),
        lambda: layout.cancel(entry),
        lambda: queue.message(id),
    ):
        with pytest.raises(MessageNotFound):
            act()
    assert layout.check_id(id) == id
    assert not layout.remove(entry)
    assert list(layout.entries()) == []
    assert not (tmp_path / "queue").exists()


# --- telling formats apart ----------------------------------------------------------------------------------


def test_a_layout_that_there_is_not():
    """The error names those that there are."""
    with pytest.raises(SettingsError, match="native, vsqs"):
        layout_class("sqlite")


@pytest.mark.parametrize("code", names(HARD))
def test_a_directory_that_cannot_be_looked_into(queue, code):
    """Its format cannot be told, and that is said."""
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        Queue(queue.path).put(b"x")
    assert caught.value.errno == code


def test_a_format_is_told_by_the_first_names(queue, monkeypatch):
    """However many there are; two formats side by side are refused."""
    monkeypatch.setattr("dirqueue.layouts.ENOUGH", 2)
    for _ in range(5):
        queue.put(b"x")
    assert Queue(queue.path).layout.name == "vsqs"
    monkeypatch.undo()
    os.mkdir(os.path.join(queue.path, "5f000000"))
    with pytest.raises(LayoutError, match="mixture"):
        Queue(queue.path).put(b"x")


def test_only_what_was_purged_can_be_added_up():
    """Anything else is a mistake of the caller."""
    assert Purged(new=1) + Purged(new=2) == Purged(new=3)
    assert Purged().__add__((1,)) is NotImplemented


def test_a_server_that_is_slow_is_not_trusted_by_time(make):
    """On a network filesystem an id is looked for among those in flight."""
    queue = make()
    queue.put(b"one")
    queue.layout.directory.mount = mount.Mount("nfs4")
    queue.put(b"two")
    assert drain(queue) == [b"one", b"two"]
