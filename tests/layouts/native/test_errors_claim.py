"""Errors of claiming: every branch on an errno, each reached by the fault that it is for."""

import contextlib
import errno
import os
import time

import pytest
from support.failing import FULL, HARD, before, failing, names, nothing_left_open
from support.kit import LONG, drain, files, replaced
from support.native import held_names, remote, steal

from dirqueue import (
    Empty,
    Queue,
    QueueAccess,
)
from dirqueue.disk import fs
from dirqueue.disk.ballast import NAME as BALLAST
from dirqueue.layouts.native import claim


def test_claim_that_always_comes_too_late_gives_up(queue):
    """Every name that is seen is taken by somebody else: nothing for us, and no endless loop."""
    with failing("rename", errno.ENOENT, times=100_000) as fault, pytest.raises(Empty):
        queue.get(timeout=0)
    assert fault.hits < 1000
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_claim_that_comes_too_late_tries_the_next(queue, code):
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
def test_claim_that_fails_says_so(queue, code):
    """The message stays where it is."""
    with failing("rename", code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names(FULL))
def test_claim_on_a_full_disk_costs_the_ballast(queue, code):
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
def test_claim_on_a_disk_that_stays_full_says_so(queue, code):
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


def test_hint_that_is_no_name_of_ours_is_passed_over(queue):
    """Whatever a snapshot holds, nothing that cannot be parsed reaches a path."""
    queue.layout._cursor.row = ("", ["../precious"], frozenset())
    queue.layout._cursor.snapshot.expires = 1 << 62
    assert drain(queue) == [b"one"]


def test_claim_that_is_stopped_again_and_again_is_renewed_so_often_and_no_more(queue):
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


def test_name_that_another_thread_takes_from_the_snapshot_is_passed_over(queue):
    """Between the look at the row and the pop."""

    class Row(list):
        def pop(self):
            self.clear()
            return super().pop()

    queue.layout._cursor.row = ("", Row(["1700000000000000000000001"]), frozenset())
    queue.layout._cursor.snapshot.expires = 1 << 62
    assert drain(queue) == [b"one"]


def test_claim_that_was_stopped_for_most_of_its_lease_is_renewed(queue):
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
def test_queue_that_cannot_be_listed_says_so(queue, code):
    """One clear error for a consumer and for who looks."""
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        list(queue.peek())
    assert caught.value.errno == code


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_queue_removed_between_two_listings_is_empty(queue, code):
    """Gone, made again, gone again."""
    with failing("open", code, when=lambda path, *_, **__: path == ".", times=2), pytest.raises(Empty):
        queue.get(timeout=0)
    assert drain(queue) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ESTALE]))
def test_body_that_is_gone_when_it_is_opened_is_not_ours(queue, code):
    """Our lease was over before we came to read."""
    queue.put(b"two")
    with failing("open", code, when=lambda path, *_, **__: path.count(".") == 3):
        assert queue.get(timeout=0).message.body == b"two"


@pytest.mark.parametrize("code", names([errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]))
@pytest.mark.parametrize("call", ["open", "read"])
def test_body_that_we_cannot_read_just_now_is_given_back(queue, call, code):
    """Our trouble, not the message's: uncounted, and told."""
    when = (lambda path, *_, **__: path.count(".") == 3) if call == "open" else None
    with failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        queue.get(timeout=0)
    assert caught.value.errno == code
    lease = queue.get(timeout=0)
    assert (lease.message.body, lease.message.attempts) == (b"one", 1)


@pytest.mark.parametrize("code", names(HARD))
def test_body_that_cannot_be_read_counts_as_a_failure_and_dies(make, code):
    """It must not come back without end: tried as often as any other, then dead with the reason."""
    queue = make(max_attempts=2)
    queue.put(b"bad")
    with failing("read", code, times=2) as fault:
        while fault.hits < 2:
            with pytest.raises(Empty):
                queue.get(timeout=0)
    (dead,) = queue.peek("dead")
    assert "cannot be read" in dead.error
    assert dead.attempts == 2


def test_body_of_another_user_is_read_without_a_flag_that_only_its_owner_may_use(queue, monkeypatch):
    """The kernel says EPERM once; from then on the flag is left out."""
    queue.put(b"two")
    opened = []

    def as_another(path, flags, *rest, **options):
        opened.append(flags)
        if flags == fs.READ_ONCE:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return os.open(path, flags, *rest, **options)

    queue.get(timeout=0).release()
    monkeypatch.setattr(fs, "open", as_another)
    assert drain(queue) == [b"one", b"two"]
    assert opened.count(fs.READ_ONCE) == 1
    assert opened.count(fs.READ) == 2


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


def test_link_planted_after_the_listing_is_dead_at_once(queue):
    """ELOOP, and its target is no body: it is no message, and never will be."""
    path = os.path.join(queue.path, next(queue.peek()).id)

    def plant():
        os.unlink(path)
        os.symlink("/etc/passwd", path)

    with before("rename", plant), pytest.raises(Empty):
        queue.get(timeout=0)
    (link,) = [name for name in files(queue.path) if os.path.islink(os.path.join(queue.path, name))]
    assert link.startswith("dead/")
    assert drain(queue) == []


@pytest.mark.parametrize("code", names([errno.EMFILE, errno.EIO, errno.ELOOP]))
def test_body_that_cannot_be_read_and_was_taken_is_left_alone(queue, code):
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
