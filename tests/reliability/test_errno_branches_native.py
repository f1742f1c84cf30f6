"""Every branch on an errno in the native layout, each reached by the fault that it is for."""

import contextlib
import errno
import os
import shutil
import stat
import time

import pytest
from support.checker import leftovers, messages, problems
from support.failing import FULL, HARD, before, failing, names, nothing_left_open, of
from support.kit import LONG, drain, replaced

from dirqueue import (
    Empty,
    LeaseLost,
    MessageNotFound,
    Purged,
    Queue,
    QueueAccess,
    QueueError,
    SettingsError,
)
from dirqueue.disk import fs, mount
from dirqueue.disk.directory import BALLAST
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native import claim, cursor, publish, supply


@pytest.fixture
def make(tmp_path):
    """Give a maker of clients of one directory."""

    def make(**settings):
        return Queue(
            tmp_path / "queue", **{"sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        )

    return make


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


def remote(queue):
    """Treat the directory as one on a network filesystem."""
    queue.layout.directory.make()
    queue.layout.directory.mount = mount.Mount("nfs4")
    return queue


def held_names(queue):
    """Return the names in the queue's directory that are messages."""
    return sorted(name for name in os.listdir(queue.path) if name[0].isdigit())


def steal(queue, other):
    """Let somebody else have what is leased; return the new lease."""
    (name,) = [each for each in os.listdir(queue.path) if each.count(".") == 3 and each[0].isdigit()]
    os.rename(os.path.join(queue.path, name), os.path.join(queue.path, name.partition(".")[0]))
    return other.get(timeout=0)


def is_directory(fd):
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def is_plain(fd):
    return stat.S_ISREG(os.fstat(fd).st_mode)


# --- putting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename_noreplace"])
def test_a_put_that_fails_says_so_and_leaves_nothing(make, call, code):
    """Whichever call fails: one error with its errno, and no trace."""
    queue = make(sync=True)
    queue.put(b"first")
    when = of(".new") if call in ("open", "rename_noreplace") else None
    with failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        queue.put(b"x")
    assert caught.value.errno == code
    assert list(messages(queue.path)[0].values()) == [b"first"]
    assert leftovers(queue.path) == []


def test_a_put_whose_names_cannot_be_made_durable_is_taken_back(make):
    """The flush of the directory fails: put raises, and the message is gone."""
    queue = make(sync=True)
    queue.put(b"first")
    with failing("fsync", errno.EIO, when=is_directory), pytest.raises(QueueAccess):
        queue.put(b"x")
    assert list(messages(queue.path)[0].values()) == [b"first"]


def test_a_put_flushes_the_file_before_it_is_shown_and_the_name_after(make):
    """In that order, flat and in a slice."""
    queue = make(sync=True)
    queue.put(b"first")
    told = []
    real = {name: getattr(fs, name) for name in ("fsync", "rename_noreplace")}

    def fsync(fd):
        told.append("names" if is_directory(fd) else "file")
        real["fsync"](fd)

    def show(*arguments):
        told.append("show")
        real["rename_noreplace"](*arguments)

    with replaced(fs, fsync=fsync, rename_noreplace=show):
        queue.put(b"flat")
    assert told == ["file", "show", "names"]
    told.clear()
    with replaced(publish, DEEP=-1), replaced(fs, fsync=fsync, rename_noreplace=show):
        queue.layout._publisher._look_in = 0
        queue.put(b"in a slice")
    assert told == ["names", "file", "show", "names"]


def test_a_new_file_that_is_there_already_is_left_to_purge(queue, monkeypatch):
    """Made, reply lost, asked again: the message gets another id."""
    with failing("open", errno.EEXIST, when=of(".new"), done=True) as fault:
        queue.put(b"two")
    assert fault.hits == 1
    assert drain(queue) == [b"one", b"two"]
    assert len(leftovers(queue.path)) == 1


def test_names_that_stay_taken_are_an_error_not_a_loop(queue, tmp_path):
    """For put, for put_many and for put_path."""
    (tmp_path / "file").write_bytes(b"x")
    with failing("rename_noreplace", errno.EEXIST, times=1000), pytest.raises(QueueError, match="taken"):
        queue.put(b"x")
    with failing("mkdir", errno.ENOENT, times=1000), pytest.raises(QueueError, match="removed as fast"):
        queue.put_many([b"x", b"y"])
    inside = lambda path, *_, **__: "batch.new/" in str(path)  # noqa: E731
    with failing("open", errno.EEXIST, when=inside, times=1000), pytest.raises(QueueError, match="taken"):
        queue.put_many([b"x", b"y"])
    with failing("rename_noreplace", errno.EEXIST, times=1000), pytest.raises(QueueError, match="taken"):
        queue.put_path(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x"
    assert list(messages(queue.path)[0].values()) == [b"one"]
    assert leftovers(queue.path) == []


def test_a_file_of_a_batch_that_was_made_and_told_to_exist_is_written(queue):
    """The empty file of the lost reply must not become a message."""
    inside = lambda path, *_, **__: "batch.new/" in str(path)  # noqa: E731
    with failing("open", errno.EEXIST, when=inside, done=True):
        queue.put_many([b"two", b"three"])
    assert drain(queue) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("which", ["bodies", "names"])
def test_a_batch_that_cannot_be_made_durable_is_not_shown(make, count, which):
    """The flush of its files fails, or that of its name after it was shown: nothing of it is left."""
    queue = make(sync=True)
    queue.put(b"first")
    call = "syncfs" if which == "bodies" and count > publish.FLUSH_ALL else "fsync"
    directory = queue.layout.directory
    when = None if call == "syncfs" else (lambda fd: fd == directory.fd) if which == "names" else is_plain
    with failing(call, errno.EIO, when=when), pytest.raises(QueueAccess):
        queue.put_many([b"%d" % number for number in range(count)])
    assert list(messages(queue.path)[0].values()) == [b"first"]
    assert leftovers(queue.path) == []


def test_a_batch_of_bodies_that_cannot_be_leaves_nothing(queue):
    """An exception of the caller's own iterator passes through."""

    def bodies():
        yield from (b"%d" % number for number in range(20))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        queue.put_many(bodies())
    assert list(messages(queue.path)[0].values()) == [b"one"]
    assert leftovers(queue.path) == []


def test_a_file_on_a_slow_server_is_waited_for(make, monkeypatch):
    """Its length is not yet the full one; if it never becomes that, the put failed."""
    queue = remote(make())
    sizes = iter([0, 0])
    real = fs.served_size
    with replaced(fs, served_size=lambda *arguments: next(sizes, None) or real(*arguments)):
        queue.put(b"slow")
    monkeypatch.setattr(publish, "SETTLE_SECONDS", 0.0)
    with replaced(fs, served_size=lambda *_: 0), pytest.raises(QueueAccess) as caught:
        queue.put(b"never")
    assert caught.value.errno == errno.EIO
    assert drain(queue) == [b"slow"]


def test_a_put_whose_reply_was_lost_and_that_was_claimed_at_once_is_put_once(make):
    """On a network filesystem: the unfinished name is gone because it was published."""
    queue = remote(make())

    def publish_and_claim(src, dst, **named):
        if not src.endswith(".new"):
            return real["rename"](src, dst, **named)
        os.unlink(os.path.join(queue.path, src))
        raise FileNotFoundError(errno.ENOENT, "no reply", src)

    def link(*arguments, **named):
        pytest.fail("a link that is asked for again, after the claim, would publish again")

    with replaced(fs, rename=publish_and_claim, link=link) as real:
        queue.put(b"x")
    assert held_names(queue) == []


def test_a_file_is_put_as_a_second_name(make, tmp_path):
    """The first one stays; durable where that is asked for."""
    (tmp_path / "file").write_bytes(b"x")
    queue = make(sync=True)
    queue.put_path(tmp_path / "file", link=True)
    assert os.stat(tmp_path / "file").st_nlink == 2
    assert drain(queue) == [b"x"]
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_cannot_be_put_stays_where_it_is(make, tmp_path, link):
    """A name that is taken is passed over; any other error is told, and the file is the caller's."""
    (tmp_path / "file").write_bytes(b"x")
    queue = make(sync=True)
    queue.put(b"first")
    call = "link" if link else "rename_noreplace"
    for code in (errno.EXDEV, errno.EACCES):
        with failing(call, code), pytest.raises(QueueAccess) as caught:
            queue.put_path(tmp_path / "file", link=link)
        assert caught.value.errno == code
    for failed in ("fsync", "open"):
        when = is_plain if failed == "fsync" else of("/file")
        with failing(failed, errno.EIO, when=when), pytest.raises(QueueAccess):
            queue.put_path(tmp_path / "file", link=link)
    assert (tmp_path / "file").read_bytes() == b"x"
    with failing(call, errno.EEXIST):
        queue.put_path(tmp_path / "file", link=link)
    assert drain(queue) == [b"first", b"x"]


def test_a_file_whose_new_name_is_not_durable_is_told(make, tmp_path):
    """It is moved in all the same: it was the caller's only copy."""
    (tmp_path / "file").write_bytes(b"x")
    queue = make(sync=True)
    queue.put(b"first")
    with failing("fsync", errno.EIO, when=is_directory), pytest.raises(QueueAccess, match="durable"):
        queue.put_path(tmp_path / "file")
    assert drain(queue) == [b"first", b"x"]


# --- claiming -----------------------------------------------------------------------------------------------


def test_a_claim_that_always_comes_too_late_gives_up(queue):
    """Every name that is seen is taken by somebody else: nothing for us, and no endless loop."""
    with failing("rename", errno.ENOENT, times=100_000) as fault, pytest.raises(Empty):
        queue.get(timeout=0)
    assert fault.hits < 1000
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_a_claim_that_comes_too_late_tries_the_next(queue, code):
    """Both errnos say that somebody was faster."""
    queue.put(b"two")
    with failing("rename", code):
        assert queue.get(timeout=0).message.body == b"two"
    assert queue.get(timeout=0).message.body == b"one"


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_a_claim_whose_reply_was_lost_is_ours(queue, code):
    """On a network filesystem: the name that only we can make is there."""
    remote(queue)
    with failing("rename", code, done=True):
        lease = queue.get(timeout=0)
    assert lease.message.body == b"one"
    lease.ack()
    assert held_names(queue) == []


@pytest.mark.parametrize("code", names(HARD))
def test_a_claim_that_fails_says_so(queue, code):
    """The message stays where it is."""
    with failing("rename", code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names(FULL))
def test_a_claim_on_a_full_disk_costs_the_ballast(queue, code):
    """Given up, and tried again; without one the disk is full, and that is said."""
    ballast = os.path.join(queue.path, BALLAST)
    with open(ballast, "wb") as file:
        file.write(b"reserve")
    with failing("rename", code), failing("syncfs", None):
        lease = queue.get(timeout=0)
    assert lease.message.body == b"one"
    assert not os.path.exists(ballast)
    lease.release()
    with failing("rename", code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code


@pytest.mark.parametrize("code", names(FULL))
def test_a_claim_on_a_disk_that_stays_full_says_so(queue, code):
    """The ballast did not help, or somebody else was faster meanwhile."""
    ballast = os.path.join(queue.path, BALLAST)
    with open(ballast, "wb"):
        pass
    with failing("rename", code, times=2), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    with open(ballast, "wb"):
        pass
    other = Queue(queue.path, sync=False)
    real = fs.rename
    codes = [code]

    def rename(*arguments, **named):
        if codes:
            fs.rename = real
            other.get(timeout=0)
            raise OSError(codes.pop(), "full")
        return real(*arguments, **named)

    with replaced(fs, rename=rename), pytest.raises(Empty):
        queue.get(timeout=0)


def test_a_hint_that_is_no_name_of_ours_is_passed_over(queue):
    """Whatever a snapshot holds, nothing that cannot be parsed reaches a path."""
    queue.layout._cursor.row = ("", ["../precious"])
    queue.layout._cursor.expires = 1 << 62
    assert drain(queue) == [b"one"]


def test_a_claim_that_is_stopped_again_and_again_is_renewed_so_often_and_no_more(queue):
    """Every rename takes most of the lease: the holder gets what there is."""
    renames = []

    def slow(*arguments, **named):
        real["rename"](*arguments, **named)
        renames.append(arguments)
        time.sleep(0.02)

    with replaced(fs, rename=slow) as real:
        lease = queue.get(timeout=0, lease=0.03)
    assert len(renames) == 1 + claim.RENEWALS
    assert held_names(queue) == [lease.handle]


def test_a_lease_is_left_alone_until_it_ends_and_for_the_margin_after_that(make):
    """However soon it ends; hosts whose clocks disagree need the margin."""
    holder, patient, hasty = make(lease=50.0), make(margin=LONG), make()
    holder.put(b"one")
    lease = holder.get(timeout=0)
    for other in (patient, hasty):
        with pytest.raises(Empty):
            other.get(timeout=0)
    lease.release()
    holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    with pytest.raises(Empty):
        patient.get(timeout=0)
    assert hasty.get(timeout=0).message.attempts == 2


def test_an_expired_lease_goes_to_its_next_holder_in_one_step(make):
    """Never back through its ready name, where the late holder or another consumer could meet it."""
    queue = make()
    id = queue.put(b"one")
    queue.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    seen = []

    def watched(call):
        def wrapped(*arguments, **named):
            result = call(*arguments, **named)
            seen.append(held_names(queue))
            return result

        return wrapped

    with replaced(fs, rename=watched(fs.rename), link=watched(fs.link), unlink=watched(fs.unlink)):
        lease = queue.get(timeout=0)
    assert lease.message.attempts == 2
    assert [names for names in seen if names != [lease.handle]] == []
    assert id not in seen[0]


def test_a_name_that_another_thread_takes_from_the_snapshot_is_passed_over(queue):
    """Between the look at the row and the pop."""

    class Row(list):
        def pop(self):
            self.clear()
            return super().pop()

    queue.layout._cursor.row = ("", Row(["1700000000000000000000001"]))
    queue.layout._cursor.expires = 1 << 62
    assert drain(queue) == [b"one"]


def test_a_claim_that_was_stopped_for_most_of_its_lease_is_renewed(queue):
    """Its holder gets the whole time; if somebody has taken the message meanwhile, it is theirs."""
    first = []

    def stop():
        first.extend(held_names(queue))
        time.sleep(0.02)

    with before("open", stop, when=lambda path, *_, **__: path.count(".") == 3):
        lease = queue.get(timeout=0, lease=0.03)
    assert first != [lease.handle]
    assert held_names(queue) == [lease.handle]
    lease.release()
    other, taken = Queue(queue.path, sync=False, margin=0), []

    def stop_and_steal():
        time.sleep(0.02)
        taken.append(steal(queue, other))

    real = fs.read

    def read(fd, size):
        data = real(fd, size)
        fs.read = real
        stop_and_steal()
        return data

    with replaced(fs, read=read), pytest.raises(Empty):
        queue.get(timeout=0, lease=0.03)
    taken[0].ack()
    assert held_names(queue) == []


@pytest.mark.parametrize("code", names(HARD))
def test_a_queue_that_cannot_be_listed_says_so(queue, code):
    """One clear error for a consumer and for who looks."""
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        list(queue.peek())
    assert caught.value.errno == code


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_a_queue_removed_between_two_listings_is_empty(queue, code):
    """Gone, made again, gone again."""
    with failing("open", code, when=lambda path, *_, **__: path == ".", times=2), pytest.raises(Empty):
        queue.get(timeout=0)
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_a_body_that_is_gone_when_it_is_opened_is_not_ours(queue, code):
    """Our lease was over before we came to read."""
    queue.put(b"two")
    with failing("open", code, when=lambda path, *_, **__: path.count(".") == 3):
        assert queue.get(timeout=0).message.body == b"two"


@pytest.mark.parametrize("code", names([errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]))
@pytest.mark.parametrize("call", ["open", "read"])
def test_a_body_that_we_cannot_read_just_now_is_given_back(queue, call, code):
    """Our trouble, not the message's: uncounted, and told."""
    when = (lambda path, *_, **__: path.count(".") == 3) if call == "open" else None
    with failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    lease = queue.get(timeout=0)
    assert (lease.message.body, lease.message.attempts) == (b"one", 1)


@pytest.mark.parametrize("code", names(HARD))
def test_a_body_that_cannot_be_read_counts_as_a_failure_and_dies(make, code):
    """It must not come back for ever: tried as often as any other, then dead with the reason."""
    queue = make(max_attempts=2)
    queue.put(b"bad")
    with failing("read", code, times=2) as fault:
        while fault.hits < 2:
            with pytest.raises(Empty):
                queue.get(timeout=0)
    (dead,) = queue.peek("dead")
    assert "cannot be read" in dead.error
    assert dead.attempts == 2


def test_a_claim_leaves_no_descriptor_open(make):
    """Nor does one that cannot read the body."""
    queue = make()
    for _ in range(20):
        queue.put(b"x")
    queue.get(timeout=0).ack()
    with nothing_left_open():
        for _ in range(8):
            queue.get(timeout=0).ack()
    for code in (errno.EIO, errno.EMFILE):
        with nothing_left_open(), failing("read", code), contextlib.suppress(QueueAccess):
            queue.get(timeout=0).ack()


def test_a_link_planted_after_the_listing_is_dead_at_once(queue):
    """ELOOP: it is no message, and never will be."""
    with failing("open", errno.ELOOP, when=lambda path, *_, **__: path.count(".") == 3), pytest.raises(Empty):
        queue.get(timeout=0)
    assert queue.stats().dead == 1


@pytest.mark.parametrize("code", names([errno.EMFILE, errno.EIO, errno.ELOOP]))
def test_a_body_that_cannot_be_read_and_was_taken_is_left_alone(queue, code):
    """Between the failure and our hand the lease went to somebody else: nothing is touched."""
    other = Queue(queue.path, sync=False, margin=0)
    taken = []

    def read(fd, size):
        fs.read = real["read"]
        taken.append(steal(queue, other))
        raise OSError(code, os.strerror(code))

    with replaced(fs, read=read) as real, pytest.raises(Empty):
        queue.get(timeout=0)
    taken[0].ack()
    assert held_names(queue) == []
    assert queue.stats().dead == 0


# --- ending -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_an_end_that_fails_says_so_and_changes_nothing(queue, verb, code):
    """The lease is still held, and can be ended later."""
    lease = queue.get(timeout=0)
    call = "unlink" if verb == "ack" else "rename"
    with failing(call, code, when=of(lease.handle)), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == code
    lease.ack()
    assert held_names(queue) == []


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_an_end_of_a_lease_that_is_gone_is_refused(queue, verb, code):
    """Both errnos mean that somebody else has it."""
    lease = queue.get(timeout=0)
    call = "unlink" if verb == "ack" else "rename"
    with failing(call, code, when=of(lease.handle)), pytest.raises(LeaseLost):
        getattr(lease, verb)()


@pytest.mark.parametrize("code", names(FULL))
@pytest.mark.parametrize("verb", ["renew", "retry", "release", "reject"])
def test_an_end_on_a_full_disk_costs_the_ballast(queue, verb, code):
    """With a reserve it works; without one it is told."""
    lease = queue.get(timeout=0)
    with failing("rename", code, when=of(lease.handle)), pytest.raises(QueueAccess):
        getattr(lease, verb)()
    with open(os.path.join(queue.path, BALLAST), "wb"):
        pass
    with failing("rename", code, when=of(lease.handle)), failing("syncfs", errno.EIO):
        getattr(lease, verb)()
    assert not os.path.exists(os.path.join(queue.path, BALLAST))


@pytest.mark.parametrize("code", names(FULL))
@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_a_place_for_ended_messages_on_a_full_disk_costs_the_ballast(make, verb, code):
    """done/ and dead/ are made when they are first needed."""
    queue = make(keep_done=True)
    queue.put(b"one")
    lease = queue.get(timeout=0)
    with failing("mkdir", code), pytest.raises(QueueAccess) as caught:
        getattr(lease, verb)()
    assert caught.value.errno == code
    with open(os.path.join(queue.path, BALLAST), "wb"):
        pass
    with failing("mkdir", code):
        getattr(lease, verb)()
    assert held_names(queue) == []


@pytest.mark.parametrize("verb", ["ack", "reject", "cancel", "redrive"])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_an_end_that_cannot_be_made_durable_is_told(make, verb, kept, first):
    """Whether dead/ and done/ are new or not: that the names will stay changed is not promised."""
    queue = make(sync=True, keep_done=kept)
    if not first:
        queue.put_many([b"a", b"b"])
        queue.get(timeout=0).ack()
        queue.get(timeout=0).reject("no")
    queue.put(b"one")
    lease = queue.get(timeout=0)
    act = lease.ack if verb == "ack" else lease.reject
    if verb == "cancel":
        lease.release()
        act = next(queue.peek()).cancel
    elif verb == "redrive":
        lease.reject("no")
        act = queue.redrive
    with failing("fsync", errno.EIO, when=is_directory), pytest.raises(QueueAccess) as caught:
        act()
    assert caught.value.errno == errno.EIO
    assert problems(queue.path) == []


@pytest.mark.parametrize("verb", ["ack", "reject"])
def test_a_batch_removed_before_its_last_end_is_flushed_is_no_error(make, verb):
    """The emptied directory is gone with its names."""
    queue = make(sync=True)
    queue.put_many([b"one", b"two"])
    first, last = queue.get_many(2, timeout=0)
    first.ack()
    directory = last.handle.partition("/")[0]
    with before("open", lambda: os.rmdir(os.path.join(queue.path, directory)), when=of(directory)):
        getattr(last, verb)()
    assert last.ended == ("acked" if verb == "ack" else "dead")


def test_an_ack_on_a_network_filesystem_survives_a_lost_reply(queue):
    """Renamed to a name of ours first: its presence is the proof. A lost lease is still told."""
    remote(queue)
    queue.put(b"two")
    lease, late = queue.get(timeout=0), queue.get(timeout=0)
    with failing("rename", errno.ENOENT, when=of(lease.handle), done=True):
        lease.ack()
    os.unlink(os.path.join(queue.path, late.handle))
    with pytest.raises(LeaseLost):
        late.ack()
    assert held_names(queue) == []


@pytest.mark.parametrize("verb", ["retry", "release", "reject"])
def test_an_end_whose_reply_was_lost_and_whose_message_was_claimed_at_once_is_good(queue, verb):
    """On a network filesystem: nobody else can have taken a lease that is live."""
    remote(queue)
    lease = queue.get(timeout=0)

    def vanish(src, dst, **named):
        if src != lease.handle:
            return real["rename"](src, dst, **named)
        os.unlink(os.path.join(queue.path, src))
        raise FileNotFoundError(errno.ENOENT, "no reply", src)

    with replaced(fs, rename=vanish) as real:
        getattr(lease, verb)()
    assert held_names(queue) == []


def test_a_renewal_whose_message_is_gone_is_refused_on_a_network_filesystem_too(queue):
    """Who renews goes on working, so there the doubt counts against it."""
    remote(queue)
    lease = queue.get(timeout=0)
    os.unlink(os.path.join(queue.path, lease.handle))
    with pytest.raises(LeaseLost):
        lease.renew()


def test_a_release_on_a_network_filesystem_has_a_name_of_its_own(queue):
    """The plain id is one that others can make, so its presence would prove nothing."""
    remote(queue)
    with failing("rename", errno.ENOENT, when=lambda src, dst, **_: src.count(".") == 3, done=True):
        queue.get(timeout=0).release()
    lease = queue.get(timeout=0)
    assert (lease.message.body, lease.message.attempts) == (b"one", 1)


def test_a_failure_whose_reason_cannot_be_kept_is_a_failure_all_the_same(queue):
    """A full disk must not keep a message from being given back."""
    lease = queue.get(timeout=0)
    with failing("write", errno.ENOSPC):
        lease.retry(0, error="why")
    (found,) = queue.peek()
    assert (found.attempts, found.error) == (1, None)
    lease = queue.get(timeout=0)
    with failing("stat", errno.EIO, when=of(lease.handle)):
        lease.retry(0, error="why")
    (found,) = queue.peek()
    assert (found.attempts, found.error) == (2, None)


@pytest.mark.parametrize("code", names([errno.ENOENT, *HARD]))
def test_a_message_out_of_attempts_that_cannot_be_buried(make, code):
    """Taken by somebody else, or in a directory of another user's: passed over. Any other error is reported."""
    queue = make(max_attempts=1)
    queue.put(b"one")
    lease = queue.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    told = Empty if code in (errno.ENOENT, errno.EACCES) else QueueAccess
    with failing("rename", code, when=of(lease.handle)), pytest.raises(told):
        queue.get(timeout=0)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert "never acknowledged" in next(queue.peek("dead")).error


def test_a_failed_message_out_of_attempts_takes_its_reason_along(make):
    """It waits for its next delivery when the limit is lowered: buried with why it failed last."""
    queue = make()
    queue.put(b"one")
    queue.get(timeout=0).retry(0, error="why")
    strict = make(max_attempts=1)
    with failing("rename", errno.EIO, when=of(".error")), pytest.raises(Empty):
        strict.get(timeout=0)
    queue.put(b"two")
    queue.get(timeout=0).retry(0, error="why")
    with pytest.raises(Empty):
        strict.get(timeout=0)
    assert [each.error for each in queue.peek("dead")] == [None, "why"]


# --- looking and changing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
def test_a_body_that_a_looker_cannot_read_is_told(queue, code):
    """Read whole, opened, or measured: one clear error; gone is gone."""
    (message,) = queue.peek()
    looks = {"open": [lambda: message.body, message.open], "stat": [lambda: message.size]}
    for call, each in looks.items():
        for look in each:
            with failing(call, code), pytest.raises(QueueAccess) as caught:
                look()
            assert caught.value.errno == code
            for gone in (errno.ENOENT, errno.ESTALE):
                with failing(call, gone), pytest.raises(MessageNotFound):
                    look()


def test_when_a_done_message_was_claimed(make):
    """The time of its file; none for one that was cancelled, or that is gone."""
    queue = make(keep_done=True)
    queue.put(b"one")
    queue.put(b"two")
    queue.get(timeout=0).ack()
    next(queue.peek()).cancel()
    claimed, cancelled = sorted(queue.peek("done"), key=lambda message: message.body)
    assert claimed.leased_at is not None
    assert cancelled.leased_at is None
    shutil.rmtree(os.path.join(queue.path, "done"))
    assert queue.layout.leased_at(claimed.entry) is None


@pytest.mark.parametrize("code", names(HARD))
def test_a_change_that_fails_says_so_and_changes_nothing(queue, code):
    """Cancel, change, redrive, remove."""
    (message,) = queue.peek()
    for act in (message.cancel, lambda: message.change(delay=LONG)):
        with failing("rename", code), pytest.raises(QueueAccess) as caught:
            act()
        assert caught.value.errno == code
    with failing("unlink", code, when=of(message.id)), pytest.raises(QueueAccess):
        queue.layout.remove(message.entry)
    queue.get(timeout=0).reject("no")
    with failing("rename_noreplace", code), pytest.raises(QueueAccess):
        queue.redrive()
    assert queue.stats().dead == 1
    assert queue.layout.remove(message.entry) is False


def test_a_handle_that_names_nothing_here(queue):
    """Not one of ours, or of a lease that is gone."""
    lease = queue.get(timeout=0)
    for wrong in (f"dead/{lease.handle}", f"a/b/c/{lease.handle}", lease.message.id):
        with pytest.raises(SettingsError):
            queue.lease(wrong)
    for code in (errno.ENOENT, errno.ENOTDIR):
        with failing("stat", code, when=of(lease.handle)), pytest.raises(LeaseLost):
            queue.lease(lease.handle)
    queue.lease(lease.handle).ack()


def test_a_queue_that_is_not_there_holds_nothing(make):
    """Nothing is found, nothing can be taken, nothing is purged."""
    layout = make().layout
    assert layout.find("1700000000000000000000001") is None
    assert layout.purge() == Purged()
    assert supply.claimable(layout.directory, layout.settings).take() is None
    layout.create()
    assert os.path.isdir(layout.directory.path)


def test_directories_deeper_than_messages_lie_are_not_entered(queue):
    """A part in a part in a batch is nobody's; notes and tombstones among the dead are no messages."""
    part = "1700000000000000000000001.part"
    deep = os.path.join(queue.path, "1700000000000000000000001.batch", part, part)
    os.makedirs(deep)
    with open(os.path.join(deep, "1700000000000000000000001"), "wb"):
        pass
    os.makedirs(os.path.join(queue.path, "dead"))
    for name in ("1700000000000000000000001.new", "1700000000000000000000001.error"):
        with open(os.path.join(queue.path, "dead", name), "wb"):
            pass
    assert [message.body for message in queue.peek()] == [b"one"]
    assert queue.stats().dead == 0


# --- cursors ------------------------------------------------------------------------------------------------


def test_what_is_known_of_directories_is_bounded(make, monkeypatch):
    """A thousand directories that hold nothing for us are remembered, not more."""
    monkeypatch.setattr(cursor, "TICK_NS", -(1 << 62))
    queue = make()
    queue.put_many([b"one", b"two"])
    queue.get_many(2, timeout=0)
    still = queue.layout._cursor._still
    still.update((str(number), (0, 0)) for number in range(1025))
    queue.layout._cursor.expires = 0
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert len(still) == 1


def test_the_times_of_a_network_filesystem_are_not_trusted(make):
    """Its attributes are cached: each look lists again."""
    queue = remote(make())
    other = make()
    for number in range(3):
        with pytest.raises(Empty):
            queue.get(timeout=0)
        other.put(b"%d" % number)
        assert drain(queue) == [b"%d" % number]


def test_a_directory_in_which_nothing_changed_is_not_listed_again(make, monkeypatch):
    """All of a batch is held: its time tells that there is nothing new; a time that cannot be read tells nothing."""
    monkeypatch.setattr(cursor, "TICK_NS", -(1 << 62))
    queue = make()
    queue.put_many([b"one", b"two"])
    queue.get_many(2, timeout=0)
    for _ in range(2):
        queue.layout._cursor.expires = 0
        with pytest.raises(Empty):
            queue.get(timeout=0)
    (batch,) = queue.layout._cursor._still
    with replaced(fs, open=refuse(fs.open, batch)):
        queue.layout._cursor.expires = 0
        with pytest.raises(Empty):
            queue.get(timeout=0)
    with failing("stat", errno.EIO):
        assert queue.layout._cursor._mtime(batch) == -1


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.ESTALE]))
def test_a_batch_that_goes_before_its_turn_is_passed_over(make, code):
    """Emptied and removed by another consumer since the queue was listed."""
    queue = make()
    queue.put_many([b"one", b"two"])
    queue.put(b"three")
    with failing("open", code, when=of(".batch/")):
        assert queue.get(timeout=0).message.body == b"three"
    assert drain(make()) == [b"one", b"two"]


def refuse(call, name):
    """Let no call touch that name."""

    def checked(path, *arguments, **named):
        assert path != name
        return call(path, *arguments, **named)

    return checked


def test_a_less_urgent_message_of_our_own_waits_for_its_turn(make):
    """Put while others are at hand: the more urgent ones come first."""
    queue = make(priorities=True)
    for body in (b"a", b"b", b"c"):
        queue.put(body, priority=2)
    assert queue.get(timeout=0).message.body == b"a"
    queue.put(b"late", priority=3)
    queue.put(b"urgent", priority=1)
    assert drain(queue) == [b"urgent", b"b", b"c", b"late"]


# --- purging ------------------------------------------------------------------------------------------------


def test_a_redrive_by_link_that_died_half_way_is_finished_by_purge(make):
    """One file with a live and a dead name: the dead one goes."""
    queue = make()
    queue.put(b"one")
    queue.put(b"two")
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0).reject("no")
    dead = next(queue.peek("dead"))
    os.link(os.path.join(queue.path, dead.entry.place), os.path.join(queue.path, dead.id))
    queue.put(b"three")
    queue.purge()
    assert queue.stats().dead == 1
    assert drain(queue) == [b"one", b"three"]
    assert problems(queue.path) == []


def test_staging_that_goes_while_it_is_purged_is_no_error(make):
    """Shown, or removed by another purger, between the look and the hand."""
    queue = make(stale=0)
    queue.put(b"one")
    staging = os.path.join(queue.path, "1700000000000000000000001.batch.new")
    for call, path in (("open", ".batch.new"), ("rename", ".batch.new")):
        os.mkdir(staging)
        os.utime(staging, (0, 0))
        with before(call, lambda: os.rmdir(staging), when=of(path)):
            queue.purge()
    os.mkdir(staging)
    os.utime(staging, (0, 0))
    with before("stat", lambda: os.rmdir(staging), when=of(".batch.new")):
        assert queue.purge().new == 0
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.ESTALE]))
def test_a_batch_that_goes_while_it_is_purged_is_no_error(make, code):
    """A consumer emptied and removed it."""
    queue = make()
    queue.put_many([b"one", b"two"])
    with failing("open", code, when=of(".batch/")):
        assert queue.purge().directories == 0
    assert drain(queue) == [b"one", b"two"]


def test_an_emptied_part_goes_with_its_batch(make):
    """Purge removes the part, and then the batch that it leaves empty; not a slice that producers may append to."""
    queue = make()
    queue.put(b"one")
    name = "1700000000000000000000001"
    os.makedirs(os.path.join(queue.path, f"{name}.batch", f"{name}.part"))
    young = f"{new_id()}.slice"
    os.makedirs(os.path.join(queue.path, young))
    assert queue.purge().directories == 2
    assert held_names(queue) == sorted([next(queue.peek()).id, young])
