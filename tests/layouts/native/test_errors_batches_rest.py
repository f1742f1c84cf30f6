"""Errors of batches, staged and pinned: branches on an errno that the other files of errors do not reach."""

import errno
import os
import shutil

import pytest
from support.checker import leftovers
from support.failing import FULL, HARD, before, failing, names, of
from support.kit import drain, replaced, wait_until
from support.native import held_names, remote

from dirqueue import Queue, QueueAccess, QueueError
from dirqueue.disk import fs
from dirqueue.layouts.native import pins, publish, staged
from dirqueue.tools import check

OLD = "1700000000000000000000001"


def staging(path):
    """Return the staging directories in a queue."""
    return [each for each in os.listdir(path) if each.endswith(".batch.new")]


def inside(path, *_, **__):
    return ".batch.new/" in path


def shown(src, dst, **_):
    return dst.endswith(".batch")


# --- batches -------------------------------------------------------------------------------------------------


def test_batch_that_is_removed_as_a_leftover_is_put_again(queue):
    """Before a file of it was written, or before it was shown: the caller's bodies are still at hand."""

    def purged():
        (name,) = staging(queue.path)
        shutil.rmtree(os.path.join(queue.path, name))

    with before("rename", purged, when=shown):
        queue.put_many([b"two", b"three"])

    def second(path, *_, **__):
        return inside(path) and os.listdir(os.path.join(queue.path, os.path.dirname(path)))

    with before("open", purged, when=second):
        queue.put_many([b"four", b"five"])
    assert drain(queue) == [b"one", b"two", b"three", b"four", b"five"]


def test_batch_whose_reply_was_lost_and_that_was_consumed_at_once_is_put_once(make):
    """On a network filesystem: its staging directory is gone because it was shown."""
    queue, other = remote(make()), make()
    got = []

    def lost(src, dst, **named):
        real["rename"](src, dst, **named)
        if shown(src, dst):
            fs.rename = real["rename"]
            got.extend(drain(other))
            raise FileNotFoundError(errno.ENOENT, "no reply", src)

    with replaced(fs, rename=lost) as real:
        assert len(queue.put_many([b"one", b"two"])) == 2
    assert got == [b"one", b"two"]
    assert drain(other) == []


def test_batch_that_is_removed_again_and_again_is_an_error_not_a_loop(queue):
    """Nothing of it is visible."""
    gone = failing("rename", errno.ENOENT, when=shown, times=1000)
    with gone as fault, pytest.raises(QueueError, match="removed as fast as it is made"):
        queue.put_many([b"two", b"three"])
    assert fault.hits == publish.TRIES
    assert drain(queue) == [b"one"]
    assert leftovers(queue.path) == []


@pytest.mark.parametrize("call", ["open", "rename"])
def test_long_batch_that_is_removed_as_a_leftover_says_what_to_do(queue, monkeypatch, call):
    """What its iterator gave is not kept, so only the caller can put it again."""
    monkeypatch.setattr(publish, "AHEAD_BYTES", 1)
    when = shown if call == "rename" else inside
    with failing(call, errno.ENOENT, when=when), pytest.raises(QueueError, match="put it again"):
        queue.put_many([b"two", b"three", b"four"])
    assert drain(queue) == [b"one"]
    assert leftovers(queue.path) == []


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
def test_batch_that_cannot_be_shown_says_so_and_leaves_nothing(queue, code):
    """With its errno."""
    with failing("rename", code, when=shown), pytest.raises(QueueAccess) as caught:
        queue.put_many([b"two", b"three"])
    assert caught.value.errno == code
    assert drain(queue) == [b"one"]
    assert leftovers(queue.path) == []


def test_batch_whose_queue_is_closed_and_cannot_be_opened_again_says_so(queue, monkeypatch):
    """Closed by the caller's own iterator: the error is that of opening, told once."""
    monkeypatch.setattr(publish, "AHEAD_BYTES", 1)

    def bodies():
        yield from (b"two", b"three")
        queue.layout.directory.close()
        yield b"four"

    with failing("open", errno.EACCES, when=of(str(queue.path))), pytest.raises(QueueAccess) as caught:
        queue.put_many(bodies())
    assert "cannot open the queue" in str(caught.value)
    assert str(caught.value).count("cannot") == 1
    assert drain(queue) == [b"one"]
    assert leftovers(queue.path) == []


def test_sign_of_life_that_fails_does_not_fail_the_batch(make, monkeypatch):
    """The writer's next file tells whether the directory is still there."""
    monkeypatch.setattr(publish, "AHEAD_BYTES", 1)
    queue = make(stale=0.04)
    with failing("utime", errno.EIO, when=of(".batch.new")) as fault:

        def bodies():
            yield from (b"one", b"two")
            wait_until(lambda: fault.hits, "a sign of life")
            yield b"three"

        queue.put_many(bodies())
    assert drain(queue) == [b"one", b"two", b"three"]


def test_batch_whose_mode_cannot_be_set_is_put_all_the_same(queue):
    """A filesystem may refuse: the mode is that of the umask then."""
    os.chmod(queue.path, 0o770)
    with failing("chmod", errno.EPERM):
        queue.put_many([b"two", b"three"])
    assert drain(queue) == [b"one", b"two", b"three"]


# --- pinned lots ---------------------------------------------------------------------------------------------


def test_lot_that_another_process_is_filling_is_left_to_it(bench):
    """Two processes speak for one consumer: the later one is told, and takes nothing."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    new = f"{mine.base}/1.new"
    with (
        before("mkdir", lambda: os.mkdir(bench.path / new), when=of(new)),
        pytest.raises(QueueAccess) as caught,
    ):
        bench.pin(mine, 1)
    assert caught.value.errno == errno.EEXIST
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names([errno.EACCES, errno.EPERM]))
def test_batch_of_another_user_is_not_pinned(bench, code):
    """It may not be renamed: others are pinned, and it stays in the queue."""
    bench.queue.put_many([b"1", b"2"])
    bench.queue.put(b"3")
    mine = bench.consumer()
    with failing("rename", code, when=lambda src, *_, **__: ".batch" in src, times=3):
        assert bench.pin(mine, 1) == 1
    assert [message.data for message in bench.queue.peek("leased")] == [b"3"]
    assert drain(bench.queue) == [b"1", b"2"]


def test_consumer_that_leaves_while_it_is_looked_at_is_no_error(bench):
    """Its note goes, and then its directory: there is nothing to give back."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    os.unlink(bench.path / mine.base / pins.OWNER)
    looks = []

    def second(path, **_):
        looks.extend([path] * (path == mine.base))
        return len(looks) == 2

    with before("stat", lambda: os.rmdir(bench.path / mine.base), when=second):
        assert bench.queue.purge().released == 0
    assert drain(bench.queue) == [b"x"]


def test_lots_of_another_user_are_shown_as_foreign(bench):
    """They may not be listed: what is in them is not known, and nothing else is hidden."""
    bench.queue.put(b"x")
    bench.queue.put(b"y")
    mine = bench.consumer()
    bench.pin(mine, 1, messages=1)
    with failing("open", errno.EACCES, when=of(mine.base)):
        stats = bench.queue.stats()
    assert (stats.ready, stats.leased, stats.foreign) == (1, 0, 1)
    assert bench.queue.stats().leased == 1


def test_lots_of_a_lost_consumer_of_another_user_are_left(bench):
    """Its directory may not be listed: a purge does the rest of its work, and any other error is told."""
    bench.queue.put(b"x")
    mine = bench.consumer(timeout=0.0)
    bench.pin(mine, 1)
    with failing("open", errno.EACCES, when=of(mine.base)):
        assert bench.queue.purge().released == 0
    assert mine.lots() == [1]


def test_lots_of_a_lost_consumer_on_a_bad_disk_are_told(bench):
    """With its errno; nothing of them is lost."""
    bench.queue.put(b"x")
    mine = bench.consumer(timeout=0.0)
    bench.pin(mine, 1)
    with failing("open", errno.EIO, when=of(mine.base)), pytest.raises(QueueAccess) as caught:
        bench.queue.purge()
    assert caught.value.errno == errno.EIO
    assert mine.lots() == [1]


# --- staged batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
def test_job_whose_sign_of_life_fails_is_told(bench, code):
    """With its errno; what is staged stays."""
    parts = bench.write(b"x")
    with failing("utime", code), pytest.raises(QueueAccess) as caught:
        staged.touch(bench.directory, bench.staging)
    assert caught.value.errno == code
    bench.commit(parts)
    assert drain(bench.queue) == [b"x"]


def test_commit_whose_batch_goes_before_its_record_is_not_committed(bench):
    """Stopped for so long that a purge took it: the same version can be written again, and is seen once."""

    def purged():
        for name in staging(bench.path):
            shutil.rmtree(bench.path / name)

    parts = bench.write(b"lost")
    with before("link", purged), pytest.raises(QueueError, match="write it again"):
        bench.commit(parts, version=1)
    assert staged.newest(bench.directory, "app") == -1
    assert held_names(bench.queue) == []
    assert bench.commit(bench.write(b"x"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.EACCES]))
def test_staging_directory_that_cannot_be_listed_is_not_called_stale(bench, code):
    """Shown or removed meanwhile, or another user's: check reports only what a purge would remove."""
    place = bench.path / f"{OLD}.batch.new"
    place.mkdir()
    os.utime(place, (0, 0))
    with failing("open", code, when=of(place.name)):
        assert "Q07" not in found(bench.path)
    assert "Q07" in found(bench.path)


def found(path):
    return [each.code for each in check.check(str(path))]


def test_unfinished_record_goes_when_it_is_old(bench):
    """Its committer died. One that may be of a commit in progress stays."""
    bench.commit([], version=1)
    folder = bench.path / staged.RECORDS / "app"
    young = f"{OLD[:-1]}2.new"
    for name in (f"{OLD}.new", young):
        (folder / name).write_bytes(b"{")
    os.utime(folder / f"{OLD}.new", (0, 0))
    assert bench.queue.purge().other == 1
    assert sorted(os.listdir(folder)) == ["1", young]


def test_records_that_go_while_they_are_cleaned_are_no_error(bench):
    """Somebody removes an application by hand: the purge ends well, and messages are as before."""
    bench.queue.put(b"x")
    bench.commit([], version=1)
    folder = f"{staged.RECORDS}/app"
    looks = []

    def second(path, *_, **__):
        looks.extend([path] * (path == folder))
        return len(looks) == 2

    with before("open", lambda: shutil.rmtree(bench.path / folder), when=second):
        assert bench.queue.purge().other == 0
    assert drain(bench.queue) == [b"x"]


def test_purge_passes_over_a_file_among_the_records(queue_dir):
    """A stray file where directories of applications lie stops nothing, and stays."""
    queue = Queue(queue_dir, sync=False)
    queue.put(b"x")
    (queue_dir / ".spark" / "txn").mkdir(parents=True)
    (queue_dir / ".spark" / "txn" / "stray").write_bytes(b"")
    assert queue.purge().busy == 0
    assert (queue_dir / ".spark" / "txn" / "stray").exists()
    assert queue.get(timeout=0).message.body == b"x"
