"""Listing, counting and purging a dirq layout: every errno branch, reached by its fault."""

import errno
import os
import shutil
import time

import pytest
from support.dirq_queues import again, age, locked, relock, simply, tree
from support.failing import HARD, before, failing, names, of
from support.kit import replaced

from dirqueue import (
    InvalidId,
    LeaseLost,
    MessageNotFound,
    Purged,
    Queue,
    QueueAccess,
    QueueNotFound,
    SettingsError,
)
from dirqueue.disk import fs
from dirqueue.layouts.dirq.normal_store import NormalStore
from dirqueue.layouts.dirq.simple_store import SimpleStore


@pytest.mark.parametrize("code", names(HARD))
def test_inspection_that_fails_raises(queue, code):
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
def test_listing_that_fails_raises(queue, code):
    """With its errno and its path; one that is gone is gone."""
    told = QueueNotFound if code == errno.ENOENT else QueueAccess
    with failing("open", code, when=lambda path, *_, **__: path == "."), pytest.raises(told) as caught:
        list(queue.layout.entries())
    assert code in (errno.ENOENT, caught.value.errno)


def test_missing_queue_is_empty(make):
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


def test_entries_report_every_kind_of_name(queue):
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


def test_lock_that_is_renewed_while_it_is_purged_stays(queue):
    """Looked at again under a name that only the purger has."""
    name = locked(queue)
    queue.layout._honoured = 60_000_000

    with before("rename", lambda: relock(queue, name)):
        assert queue.layout.purge().released == 0


def test_staged_element_that_is_being_written_is_not_purged(normal):
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


def test_directory_that_goes_before_it_is_looked_at_is_not_removed(queue):
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
                assert store.lock(name)
                assert os.stat(os.path.join(path, "locked")).st_mode & 0o777 == 0o700
                assert store.renew(name, "other") is None
    finally:
        os.umask(before_)
