"""Locks that real dirq programs and ours take of one another: whose they are is never forgotten."""

import os
import time

import dirq.queue
import dirq.QueueBase
import dirq.QueueSimple
import pytest

from dirqueue import LeaseLost, Queue
from dirqueue.compat.dirq import queue as ours
from dirqueue.compat.dirq.Exceptions import QueueLockError
from dirqueue.compat.dirq.QueueBase import QueueBase
from dirqueue.compat.dirq.QueueSimple import QueueSimple

SCHEMA = {"body": "string"}
#: Older than an element that is put and claimed at once, younger than any usual limit of a purge.
AGE = 20


@pytest.fixture(params=["simple", "normal"])
def pair(request, tmp_path):
    """Give an object of ours, one of the real dirq, and the name of an element that is there."""
    path = str(tmp_path / "q")
    if request.param == "simple":
        mine, theirs = QueueSimple(path), dirq.QueueSimple.QueueSimple(path)
        return mine, theirs, mine.add(b"x")
    mine, theirs = ours.Queue(path, schema=SCHEMA), dirq.queue.Queue(path, schema=SCHEMA)
    return mine, theirs, mine.add({"body": "x"})


def grow_old(path, seconds=AGE):
    """Let an element be that old."""
    when = time.time() - seconds
    os.utime(path, (when, when))


def take_over(mine, theirs, name):
    """Let the peer have the lock: ours was purged, and it locked the element anew."""
    path = os.path.join(mine.path, name)
    theirs.unlock(name)
    if os.path.isdir(path):
        os.mkdir(os.path.join(path, "spacer"))  # so that the number of the next directory is another
    assert theirs.lock(name)
    if os.path.isdir(path):
        os.rmdir(os.path.join(path, "spacer"))


@pytest.mark.parametrize("seconds", [0, 1, AGE])
def test_lock_touches_the_element_whatever_its_age(tmp_path, seconds):
    """As dirq does: the time of the file is the time of the lock, for all who purge."""
    found = []
    for number, cls in enumerate((dirq.QueueSimple.QueueSimple, QueueSimple)):
        queue = cls(str(tmp_path / str(number)))
        name = queue.add(b"x")
        path = tmp_path / str(number) / name
        grow_old(path, seconds)
        before = path.stat().st_mtime_ns
        assert queue.lock(name)
        found.append(path.stat().st_mtime_ns > before)
    assert found == [True, True]


def test_lock_survives_the_purge_of_a_peer_with_a_short_limit(tmp_path):
    """The element is older than the limit; its lock is not."""
    mine, theirs = QueueSimple(str(tmp_path / "q")), dirq.QueueSimple.QueueSimple(str(tmp_path / "q"))
    name = mine.add(b"x")
    grow_old(tmp_path / "q" / name)
    assert mine.lock(name)
    theirs.purge(maxlock=AGE / 2)
    assert mine.get(name) == b"x"
    mine.remove(name)


def test_lease_survives_the_purge_of_a_peer_with_a_short_limit(tmp_path):
    """The same for the queue object, whose leases are honoured for longer."""
    queue = Queue(tmp_path / "q", layout="dirq-simple", sync=False)
    grow_old(tmp_path / "q" / queue.put(b"x"))
    lease = queue.get(timeout=0)
    dirq.QueueSimple.QueueSimple(str(tmp_path / "q")).purge(maxlock=AGE / 2)
    lease.ack()
    assert len(queue) == 0


def test_late_ack_leaves_the_element_to_the_next_holder(tmp_path):
    """Both locked it long after it was put: each has a time of its own."""
    late, other = (Queue(tmp_path / "q", layout="dirq-simple", sync=False) for _ in range(2))
    name = late.put(b"x")
    grow_old(tmp_path / "q" / name)
    lease = late.get(timeout=0)
    os.unlink(tmp_path / "q" / f"{name}.lck")
    theirs = other.get(timeout=0)
    with pytest.raises(LeaseLost):
        lease.ack()
    theirs.ack()
    assert len(other) == 0


def test_two_holders_of_a_young_element_are_told_apart(tmp_path):
    """Neither has the time at which it was put."""
    one, two = (QueueSimple(str(tmp_path / "q")) for _ in range(2))
    name = one.add(b"x")
    assert one.lock(name)
    os.unlink(tmp_path / "q" / f"{name}.lck")
    assert two.lock(name)
    with pytest.raises(QueueLockError):
        one.remove(name)
    assert two.get(name) == b"x"


@pytest.mark.parametrize("verb", ["remove", "get", "unlock"])
def test_lost_lock_is_refused_and_stays_lost(pair, verb):
    """Whatever was refused first: an unlock after that does not free the lock of the peer."""
    mine, theirs, name = pair
    assert mine.lock(name)
    take_over(mine, theirs, name)
    with pytest.raises(QueueLockError):
        getattr(mine, verb)(name)
    assert mine.unlock(name, permissive=True) is False
    with pytest.raises(QueueLockError):
        mine.remove(name)
    assert not mine.lock(name)
    theirs.get(name)
    theirs.remove(name)
    assert mine.count() == 0


def test_lost_lock_is_not_touched(tmp_path):
    """A touch would give the lock of the next holder a time that it does not know."""
    late, other = (QueueSimple(str(tmp_path / "q")) for _ in range(2))
    name = late.add(b"x")
    assert late.lock(name)
    os.unlink(tmp_path / "q" / f"{name}.lck")
    assert other.lock(name)
    with pytest.raises(QueueLockError):
        late.touch(name)
    other.touch(name)
    other.remove(name)
    assert other.count() == 0


def test_lock_that_was_lost_can_be_taken_again(pair):
    """When the peer has unlocked the element it is anybody's."""
    mine, theirs, name = pair
    assert mine.lock(name)
    take_over(mine, theirs, name)
    assert mine.unlock(name, permissive=True) is False
    theirs.unlock(name)
    assert mine.lock(name)
    mine.remove(name)
    assert theirs.count() == 0


def test_get_of_an_unlocked_element_is_a_lock_error(pair):
    """And so it is when the lock goes after it was looked at."""
    mine, _, name = pair
    with pytest.raises(QueueLockError):
        mine.get(name)
    assert mine.lock(name)
    assert mine.unlock(name)
    with pytest.raises(QueueLockError):
        mine.get(name)


def test_element_that_another_object_locked_can_be_handed_over(pair):
    """As in dirq: a program locks it, another one removes it."""
    mine, theirs, name = pair
    assert theirs.lock(name)
    mine.remove(name)
    assert theirs.count() == 0


def test_get_of_an_element_that_another_object_locked_is_a_lock_error(tmp_path):
    """Two programs that go through one queue never work on the same element; what was handed over has a path."""
    mine, theirs = (QueueSimple(str(tmp_path / "q"), sync=False) for _ in range(2))
    name = mine.add(b"x")
    assert theirs.lock(name)
    with pytest.raises(QueueLockError, match="not locked by this object"):
        mine.get(name)
    assert (theirs.get(name), theirs.get_ref(name)) == (b"x", b"x")
    with open(mine.get_path(name), "rb") as file:
        assert file.read() == b"x"


def test_copy_has_the_locks_of_its_original(tmp_path):
    """A copy goes on where the original was: it reads and removes what that had locked."""
    queue = QueueSimple(str(tmp_path / "q"), sync=False)
    name = queue.add(b"x")
    assert queue.lock(name)
    other = queue.copy()
    assert other.get(name) == b"x"
    other.remove(name)
    with pytest.raises(QueueLockError):
        queue.get(name)


def test_number_of_remembered_locks_is_bounded(tmp_path, monkeypatch):
    """A program that only ever locks does not grow without end."""
    monkeypatch.setattr("dirqueue.compat.dirq.QueueBase.REMEMBERED", 3)
    queue = QueueSimple(str(tmp_path / "q"), sync=False)
    names = [queue.add(b"x") for _ in range(5)]
    assert all(queue.lock(name) for name in names)
    assert list(queue._tokens) == names[2:]


def test_base_makes_its_directory(tmp_path):
    """With what is missing above it, as dirq's does; and knows it by the same id."""
    for number, cls in enumerate((dirq.QueueBase.QueueBase, QueueBase)):
        queue = cls(str(tmp_path / str(number) / "a" / "b"))
        facts = (tmp_path / str(number) / "a" / "b").stat()
        assert queue.id == f"{facts.st_dev}:{facts.st_ino}"
