"""Errors of staged batches: every branch on an errno, each reached by the fault that it is for."""

import errno
import os
import shutil

import pytest
from support.checker import leftovers
from support.failing import FULL, HARD, before, failing, names, nothing_left_open
from support.kit import LONG, drain, replaced

from dirqueue import Queue, QueueAccess, QueueError, QueueNotFound, SettingsError
from dirqueue.disk import fs, mount
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native import staged, staging


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["mkdir", "open", "write"])
def test_writer_that_fails_takes_its_part_away(bench, call, code):
    """Whichever call fails: one error with its errno, nothing left, no descriptor open."""
    writer = bench.writer()
    # The mode of a new part may fail to be set: that is no error.
    when = (lambda path, flags, *_, **__: not flags & os.O_NOFOLLOW) if call == "open" else None
    with nothing_left_open(), failing(call, code, when=when), pytest.raises(QueueAccess) as caught:
        writer.add([b"x"])
    assert caught.value.errno == code
    assert bench.staged() == []
    bench.commit(bench.write(b"good"))
    assert drain(bench.queue) == [b"good"]


@pytest.mark.parametrize("whole", [True, False])
def test_writer_that_cannot_flush_takes_its_parts_away(durable, whole):
    """By one call for the whole filesystem, or file by file."""
    durable.directory.mount.syncfs = whole
    writer = durable.writer()
    writer.add([b"x"])
    with failing("syncfs" if whole else "fsync", errno.EIO), pytest.raises(QueueAccess):
        writer.finish()
    assert durable.staged() == []


def test_writer_whose_job_is_over_says_so(durable):
    """Aborted before it wrote, or before it was done: never made again, nothing left."""
    writer = durable.writer()
    staged.abort(durable.directory, durable.staging)
    with nothing_left_open(), pytest.raises(QueueError, match="job is over"):
        writer.add([b"x"])
    durable.directory.mount.syncfs = False
    writer = durable.writer()
    writer.add([b"x"])
    staged.abort(durable.directory, durable.staging)
    with pytest.raises(QueueError, match="job is over"):
        writer.finish()
    assert leftovers(durable.path) == []


def test_writer_whose_queue_is_gone_says_so(bench):
    """The queue is not made again by a writer, but by who begins a job."""
    writer = bench.writer()
    shutil.rmtree(bench.path)
    with pytest.raises(QueueNotFound):
        writer.add([b"x"])
    bench.staging = staged.begin(bench.directory)
    bench.commit(bench.write(b"y"))
    assert drain(bench.queue) == [b"y"]


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
def test_job_that_cannot_begin_says_so(bench, code):
    """With its errno."""
    with failing("mkdir", code), pytest.raises(QueueAccess) as caught:
        staged.begin(bench.directory)
    assert caught.value.errno == code


def test_abort_that_cannot_remove_all_leaves_it_to_purge(bench):
    """Tried so often as there is something to remove, and once more."""
    bench.write(b"x")
    with failing("unlink", errno.EIO, times=1000) as fault:
        staged.abort(bench.directory, bench.staging)
    assert fault.hits < 10
    assert bench.staged() != []
    assert len(bench.queue) == 0


def test_abort_beside_a_writer_that_never_stops_ends(bench, monkeypatch):
    """It removes as often as a part has room, and leaves the rest to purge."""
    monkeypatch.setattr(staged, "SLICE_SIZE", 3)
    bench.write(b"x")
    removed = []

    def remove(name, dir_fd):
        removed.append(name)
        return 1

    with replaced(fs, remove_tree=remove):
        staged.abort(bench.directory, bench.staging)
    assert len(removed) == 3


def test_writer_on_a_slow_server_waits_for_the_length(bench, monkeypatch):
    """If it is never reached the attempt failed, and nothing is left."""
    bench.directory.mount = mount.Mount("nfs4")
    monkeypatch.setattr(staging, "SETTLE_SECONDS", 0.0)
    with replaced(fs, served_size=lambda *_: 0), pytest.raises(QueueAccess) as caught:
        bench.write(b"x")
    assert caught.value.errno == errno.EIO
    assert bench.staged() == []
    monkeypatch.setattr(staging, "SETTLE_SECONDS", LONG)
    sizes = iter([0, 0])
    real = fs.served_size
    with replaced(fs, served_size=lambda *arguments: next(sizes, None) or real(*arguments)):
        bench.commit(bench.write(b"x"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
def test_commit_that_fails_shows_nothing(bench, code):
    """The parts cannot be moved: told with its errno; what was staged goes with the next purge."""
    parts = bench.write(b"x")
    with failing("rename", code), pytest.raises(QueueAccess) as caught:
        bench.commit(parts)
    assert caught.value.errno == code
    assert len(bench.queue) == 0


def test_commit_whose_staging_is_gone_says_what_to_do(bench):
    """A purge took it: before the parts were moved, or before the batch was shown."""
    parts = bench.write(b"x")
    gone = before("rename", lambda: shutil.rmtree(bench.path / f"{bench.staging}.batch.new"))
    with gone, pytest.raises(QueueError, match="write it again"):
        bench.commit(parts)
    parts = bench.write(b"x")
    shown = lambda src, dst, **_: dst.endswith(".batch")  # noqa: E731
    with failing("rename", errno.ENOENT, when=shown), pytest.raises(QueueError, match="write it again"):
        bench.commit(parts)
    assert len(bench.queue) == 0


def test_commit_that_somebody_else_finished_is_good(bench):
    """With an identity it is committed by the record: who rolls it forward shows it, and it may be consumed by now."""
    shown = lambda src, dst, **_: dst.endswith(".batch")  # noqa: E731
    with before("rename", bench.queue.purge, when=shown):
        assert bench.commit(bench.write(b"x"), version=1)
    assert drain(bench.queue) == [b"x"]
    got = []

    def finish():
        bench.queue.purge()
        got.extend(drain(bench.queue))

    with before("rename", finish, when=shown):
        assert bench.commit(bench.write(b"y"), version=2)
    assert got == [b"y"]
    assert len(bench.queue) == 0


def test_what_is_no_part_is_refused(bench):
    """Nothing of it reaches a path."""
    bench.write(b"x")
    for wrong in ("../x", "1700000000000000000000001.slice"):
        with pytest.raises(SettingsError):
            bench.commit([wrong])
    staged.abort(Queue(bench.path / "none", sync=False).layout.directory, new_id())


@pytest.mark.parametrize(
    "code", names([errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL])
)
def test_record_is_written_where_there_are_no_hard_links(bench, code):
    """Once by a rename; the same version again is refused by a look."""
    with failing("link", code):
        assert bench.commit(bench.write(b"x"), version=1)
    with replaced(staged, newest=lambda *_: -1), failing("link", code):
        assert not bench.commit(bench.write(b"again"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names([errno.EEXIST, errno.EIO]))
def test_record_that_somebody_else_wrote_first_is_believed(bench, code):
    """EEXIST, and EIO on HDFS if it is there: the batch is theirs."""
    assert bench.commit(bench.write(b"x"), version=1)
    bench.directory.mount.may_not_replace = True
    with replaced(staged, newest=lambda *_: -1), failing("link", code):
        assert not bench.commit(bench.write(b"again"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names(HARD))
def test_record_that_cannot_be_written_is_no_commit(bench, code):
    """Nothing is shown, then or later."""
    with failing("link", code), pytest.raises(QueueAccess) as caught:
        bench.commit(bench.write(b"x"), version=1)
    assert caught.value.errno == code
    bench.queue.purge()
    assert len(bench.queue) == 0
