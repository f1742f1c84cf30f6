"""dirq-normal: the directory of a removed element becomes the lock of the next one, and no other program can tell."""

import os

import pytest
from support.kit import drain, files

from dirqueue import Empty, Queue
from dirqueue.disk import fs


@pytest.fixture
def queue(tmp_path):
    """Give a queue of dirq-normal with three elements."""
    with Queue(tmp_path / "q", layout="dirq-normal", sync=False) as queue:
        for number in range(3):
            queue.put(b"%d" % number)
        yield queue


def taken(queue, number):
    lease = queue.get(timeout=0)
    assert lease.message.body == b"%d" % number
    return lease


def test_lock_is_an_empty_directory_as_dirq_makes_it(queue, tmp_path):
    """Made of the element before it: one directory less to remove, and one less to make."""
    if (tmp_path / "q" / "temporary").stat().st_nlink != 2:
        pytest.skip("links are not counted here, so that nobody can tell whether a directory is empty")
    taken(queue, 0).ack()
    (spare,) = os.listdir(tmp_path / "q" / "obsolete")
    inode = (tmp_path / "q" / "obsolete" / spare).stat().st_ino
    lease = taken(queue, 1)
    lock = tmp_path / "q" / lease.message.id / "locked"
    assert lock.stat().st_ino == inode
    assert os.listdir(lock) == []
    assert os.listdir(tmp_path / "q" / "obsolete") == []
    lease.ack()
    assert drain(queue) == [b"2"]


def test_time_of_the_lock_is_the_time_of_the_claim(queue, tmp_path):
    """Other programs judge a lock by the time of its element: an old element must not look long locked."""
    taken(queue, 0).ack()
    before = (tmp_path / "q" / "00000000").stat().st_mtime_ns  # what the filesystem's clock said a moment ago
    for each in (tmp_path / "q" / "00000000").iterdir():
        os.utime(each, (1e9, 1e9))
    lease = taken(queue, 1)
    assert (tmp_path / "q" / lease.message.id).stat().st_mtime_ns >= before


def test_lock_of_another_consumer_is_never_replaced(queue, tmp_path):
    """A plain rename would take the place of an empty directory, and two would hold one element."""
    taken(queue, 0).ack()
    names = sorted(os.listdir(tmp_path / "q" / "00000000"))
    theirs = tmp_path / "q" / "00000000" / names[0] / "locked"
    theirs.mkdir()
    inode = theirs.stat().st_ino
    lease = queue.get(timeout=0)
    assert lease.message.body == b"2"
    assert theirs.stat().st_ino == inode


@pytest.mark.parametrize("how", ["purged", "refused"])
def test_without_a_spare_the_lock_is_made(queue, tmp_path, monkeypatch, how):
    """Python's dirq removes what is in obsolete at any age, and not every kernel has the call."""
    taken(queue, 0).ack()
    if how == "purged":
        (spare,) = (tmp_path / "q" / "obsolete").iterdir()
        spare.rmdir()
    else:

        def refuse(*_):
            raise NotImplementedError

        monkeypatch.setattr(fs, "rename_noreplace", refuse)
    assert drain(queue) == [b"1", b"2"]
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert os.listdir(tmp_path / "q" / "obsolete") == []


@pytest.mark.parametrize("end", ["empty", "close", "forget", "last"])
def test_spares_are_kept_only_while_they_are_wanted(tmp_path, end):
    """When there is nothing to lock next, or nobody to do it, obsolete is empty."""
    queue = Queue(tmp_path / "q", layout="dirq-normal", sync=False)
    for _ in range(1 if end == "last" else 3):
        queue.put(b"x")
    queue.get(timeout=0).ack()
    if end == "empty":
        drain(queue)
    elif end == "close":
        queue.close()
    elif end == "forget":
        del queue
    assert [name for name in files(tmp_path / "q") if name.startswith("obsolete/")] == []


def test_lease_on_a_spare_is_known_by_its_own_lock(queue, tmp_path):
    """The same directory as a lock for the second time is another lock."""
    taken(queue, 0).ack()
    first = taken(queue, 1)
    handle = first.handle
    first.release()
    again = queue.get(timeout=0)
    assert again.message.body == b"1"
    assert again.handle != handle


def test_element_that_dirq_removes_under_the_same_name_becomes_no_lock(tmp_path):
    """What dirq removes is renamed onto our empty directory without a word: it stays there."""
    path = tmp_path / "queue"
    queue = Queue(path, layout="dirq-normal", sync=False)
    for number in range(5):
        queue.put(b"%d" % number)
    queue.get(timeout=0).ack()
    (spare,) = os.listdir(path / "obsolete")
    last = path / "00000000" / max(os.listdir(path / "00000000"))
    (last / "locked").mkdir()
    os.rename(last, path / "obsolete" / spare)
    lease = queue.get(timeout=0)
    assert os.listdir(path / lease.message.id / "locked") == []
    assert sorted(os.listdir(path / "obsolete" / spare)) == ["body", "locked"]
    lease.release()
    assert len(list(queue.consume(timeout=0))) == 3


@pytest.mark.parametrize("end", ["ack", "release"])
def test_lock_made_in_the_last_moment_does_no_harm(queue, tmp_path, end):
    """Another program was about to lock the element when it went: what holds a lock becomes none."""
    taken(queue, 0).ack()
    (spare,) = (tmp_path / "q" / "obsolete").iterdir()
    (spare / "locked").mkdir()
    lease = taken(queue, 1)
    assert os.listdir(tmp_path / "q" / lease.message.id / "locked") == []
    getattr(lease, end)()
    assert drain(queue) == ([b"2"] if end == "ack" else [b"1", b"2"])
    for each in (spare / "locked", spare):
        os.utime(each, (1e9, 1e9))
    assert queue.purge().new == 1
    assert os.listdir(tmp_path / "q" / "obsolete") == []
