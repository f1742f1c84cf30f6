"""A claim from a dirq layout: every errno branch, reached by its fault."""

import errno
import os
import shutil
import socket
import time

import pytest
from support.dirq_queues import again, age, remote, simply, tree
from support.failing import HARD, before, failing, names, nothing_left_open, of
from support.kit import LONG, drain

from dirqueue import (
    CodecError,
    Empty,
    LeaseLost,
    QueueAccess,
)
from dirqueue.layouts.dirq import layout as dirq_layout


def test_claim_that_comes_too_late_tries_the_next(queue):
    """Somebody locked it first, or it is gone."""
    queue.put(b"two")
    for code in (errno.EEXIST, errno.ENOENT):
        with failing("link" if simply(queue) else "mkdir", code):
            lease = again(queue).get(timeout=0)
        assert lease.message.body == b"two"
        lease.release()


def test_claim_that_always_comes_too_late_gives_up(queue, monkeypatch):
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
def test_claim_that_fails_raises(queue, call, code):
    """With its errno; the message is not lost, and nothing stays open."""
    again(queue).get(timeout=0).release()
    call = ("link" if simply(queue) else "mkdir") if call == "lock" else call
    with nothing_left_open(), failing(call, code), pytest.raises(QueueAccess) as caught:
        again(queue).get(timeout=0)
    assert caught.value.errno == code
    assert len(queue) == 1


@pytest.mark.parametrize("code", names([errno.ENOENT]))
def test_queue_that_goes_while_it_is_listed_is_empty(queue, code):
    """And is looked at anew the next time."""
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(Empty):
        again(queue).get(timeout=0)
    assert drain(again(queue)) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR]))
def test_directory_that_goes_before_its_turn_is_passed_over(queue, code):
    """Purged by somebody else."""
    where = queue.layout.store.directories()[0]
    with failing("open", code, when=of(where)), pytest.raises(Empty):
        again(queue).get(timeout=0)
    assert queue.layout.store.elements("none") == []
    assert drain(again(queue)) == [b"one"]


@pytest.mark.parametrize("code", names([errno.ELOOP, errno.ENXIO]))
def test_planted_link_or_socket_is_no_element(simple, code):
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


def test_claim_of_another_length_moves_the_time_of_the_lock(queue):
    """Where the file is not ours only "now" is allowed."""
    lease = again(queue).get(timeout=0, lease=LONG / 2)
    assert lease.until.timestamp() < time.time() + LONG * 3 / 4
    lease.release()
    with failing("utime", errno.EPERM):
        lease = again(queue).get(timeout=0, lease=LONG / 2)
    assert lease.until.timestamp() > time.time() + LONG / 4
    lease.ack()


def test_renewal_for_another_time_of_what_is_another_users(queue):
    """Only "now" is allowed there."""
    lease = again(queue).get(timeout=0)
    with failing("utime", errno.EPERM):
        lease.renew(LONG / 2)
    assert lease.until.timestamp() > time.time() + LONG / 2
    lease.ack()


def test_element_that_fails_to_open_raises(simple):
    """Whatever is not a planted thing is an error."""
    with failing("open", errno.EIO, when=lambda path, *_, **__: len(path) == 23), pytest.raises(QueueAccess):
        again(simple).get(timeout=0)
    assert drain(again(simple)) == [b"one"]


def test_lease_of_another_process_is_taken_over_by_its_handle(queue):
    """It ends when that one would have ended."""
    lease = again(queue).get(timeout=0)
    same = queue.lease(lease.handle)
    assert abs((same.until - lease.until).total_seconds()) < 1
    same.ack()
    with pytest.raises(LeaseLost):
        queue.lease(lease.handle)


def test_lock_of_an_old_element_of_another_user(simple):
    """Its time can only be set to now: it is, before the link and after it."""
    (name,) = [name for name in tree(simple) if len(name) == 23]
    age(simple, name)
    with failing("utime", errno.EPERM) as fault:
        again(simple).get(timeout=0).ack()
    assert fault.hits == 1
    assert len(simple) == 0


def test_lock_of_an_old_element_on_a_network_filesystem_corrects_the_clock(simple):
    """The time that the server gave is the server's clock."""
    remote(simple)
    (name,) = [name for name in tree(simple) if len(name) == 23]
    age(simple, name)
    again(simple).get(timeout=0).ack()
    assert len(simple) == 0


def test_element_that_is_removed_while_it_is_claimed_is_not_ours(normal):
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


def test_element_without_its_piece_raises_and_is_left_alone(made):
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


def test_element_of_many_pieces_that_goes_while_it_is_read_is_not_ours(made):
    """What was read is not all of it."""
    queue = made("dirq-normal", schema={"body": "binary", "header": "table?"}, codec="json")
    queue.put({"body": "eA==", "header": {"a": "b"}})
    (name,) = [name for name in tree(queue) if len(name) == 23]
    gone = before("open", lambda: shutil.rmtree(os.path.join(queue.path, name)), when=of("/header"))
    with gone, pytest.raises(Empty):
        again(queue).get(timeout=0)


def test_claim_of_an_old_element_that_is_removed_meanwhile_finds_nothing(simple):
    """Between the look at its age and the touch that comes before the lock."""
    (name,) = [name for name in tree(simple) if len(name) == 23]
    age(simple, name)
    with before("utime", lambda: os.unlink(os.path.join(simple.path, name))), pytest.raises(Empty):
        again(simple).get(timeout=0)
    assert [each for each in tree(simple) if "." in each] == []


@pytest.mark.parametrize("code", names(HARD))
def test_claim_whose_touch_fails_gives_the_lock_back(simple, code):
    """A lock with a wrong time would be purged under us, so it is not kept."""
    (name,) = [name for name in tree(simple) if len(name) == 23]
    when = of(f"{name}.lck")
    with failing("utime", code, when=when, times=2), pytest.raises(QueueAccess) as caught:
        again(simple).get(timeout=0, lease=LONG / 2)
    assert caught.value.errno == code
    assert not os.path.exists(os.path.join(simple.path, f"{name}.lck"))


def test_claim_whose_lock_is_taken_away_before_its_touch_finds_nothing(simple):
    """A purge with a clock of its own came between the two."""
    (name,) = [name for name in tree(simple) if len(name) == 23]
    lock = os.path.join(simple.path, f"{name}.lck")
    with before("utime", lambda: os.unlink(lock), when=of(".lck")):
        assert simple.layout.store.lock(name) is None
    assert simple.layout.store.lock(name) is not None


def test_claim_steps_over_a_directory_that_may_not_be_listed(made, monkeypatch):
    """What is in the next one is delivered; the error comes when nothing else is there."""
    queue = made("dirq-simple", granularity=1)
    for second in range(2):
        monkeypatch.setattr("time.time", lambda now=1_700_000_000.0 + second: now)
        queue.put(b"%d" % second)
    first = queue.layout.store.directories()[0]
    with failing("open", errno.EACCES, when=of(first), times=9):
        assert again(queue).get(timeout=0).message.body == b"1"
        with pytest.raises(QueueAccess):
            again(queue).get(timeout=0)
    assert drain(again(queue)) == [b"0"]
