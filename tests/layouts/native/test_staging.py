"""Staging directories: what a record names is shown, what a live writer fills stays, what is stale goes."""

import errno
import itertools
import os
import time

import pytest
from support.failing import before, failing, of
from support.kit import drain, replaced, wait_until
from support.stopping import killed_before, stopped_before

from dirqueue import Queue, QueueError
from dirqueue.disk import fs
from dirqueue.layouts.native import attempt, staged
from dirqueue.layouts.native.staged import Identity

BODIES = [b"1", b"2", b"3"]


def shown(src, dst, **_):
    return dst.endswith(".batch")


def stagings(path):
    return [name for name in os.listdir(path) if name.endswith(".batch.new")]


def commit(path, version=1, **settings):
    """Write and commit one batch with an identity, as a job does."""
    queue = Queue(path, **settings)
    directory = queue.layout.directory
    staging = staged.begin(directory)
    writer = attempt.Writer(directory, queue.settings, staging)
    writer.add(BODIES)
    return staged.commit(directory, queue.settings, staging, writer.finish(), Identity("app", version))


def age(path):
    """Make a staging directory and its parts look untouched for an hour."""
    old = time.time() - 3600
    for name, _, _ in os.walk(path):
        os.utime(name, (old, old))


@pytest.fixture
def committed(queue_dir):
    """Give a queue whose committer was killed after the record, before the rename that shows the batch."""
    Queue(queue_dir).layout.create()
    killed_before("rename", lambda: commit(queue_dir), when=shown)
    assert len(stagings(queue_dir)) == 2, "what the writers staged, and the batch"
    return queue_dir


def test_a_committed_batch_is_shown_by_a_consumer(committed):
    """Its get comes upon a stale staging directory that a record names."""
    queue = Queue(committed, stale=0.0)
    got = []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 3, "the committed messages")
    assert got == BODIES
    assert commit(committed) is False, "written before"


def test_committed_batch_is_shown_by_purge(committed):
    """Nothing of it is removed."""
    queue = Queue(committed, stale=0.0)
    queue.purge()
    assert drain(queue) == BODIES


def test_a_committed_batch_is_shown_by_a_repeated_write(committed):
    """The job comes again, learns that it was written, and the batch is there."""
    assert commit(committed) is False
    assert drain(Queue(committed)) == BODIES


def test_committed_batch_is_not_stale(committed):
    """However old it is: whoever wants to remove it has to ask this."""
    queue = Queue(committed, stale=0.0)
    queue.layout.directory.need()
    (batch,) = [name for name in stagings(committed) if not staged_by_writers(committed / name)]
    for name in stagings(committed):
        age(committed / name)
        wanted = name != batch
        assert staged.stale_staging(queue.layout.directory, queue.settings, name) is wanted
    assert staged.remove_staging(queue.layout.directory, queue.settings, batch) is False
    assert drain(queue) == BODIES


def staged_by_writers(path):
    """Return whether the parts were moved out of it."""
    return not os.listdir(path)


def test_a_committer_stopped_for_longer_than_stale_before_its_record_fails(queue_dir):
    """Its batch was removed meanwhile: no record is left, so that the job can write it again."""
    queue = Queue(queue_dir, stale=0.0)
    queue.layout.create()
    with stopped_before("link", lambda: commit(queue_dir)) as go_on:
        wait_until(lambda: drain(queue) == [] and not stagings(queue_dir), "the staging directories going")
        assert isinstance(go_on(), QueueError)
    assert len(queue) == 0
    assert commit(queue_dir) is True
    assert drain(queue) == BODIES


def test_committer_stopped_for_longer_than_stale_after_its_record_succeeds(queue_dir):
    """Consumers show and consume the batch meanwhile."""
    queue = Queue(queue_dir, stale=0.0)
    queue.layout.create()
    got = []
    with stopped_before("rename", lambda: commit(queue_dir), when=shown) as go_on:
        wait_until(lambda: got.extend(drain(queue)) or len(got) == 3, "the committed messages")
        assert go_on() is True
    assert got == BODIES
    assert drain(queue) == []


def test_record_published_while_its_batch_is_removed_is_honoured(queue_dir):
    """The remover has looked for records and is about to rename the directory away: it is shown after all."""
    Queue(queue_dir).layout.create()
    with stopped_before("link", lambda: commit(queue_dir, sync=False)) as go_on:
        queue = Queue(queue_dir, stale=0.0)
        directory, settings = queue.layout.directory, queue.settings
        directory.need()
        (batch,) = [name for name in stagings(queue_dir) if not staged_by_writers(queue_dir / name)]
        age(queue_dir / batch)
        taken = lambda src, dst, **_: src == batch and dst.endswith(".new")  # noqa: E731
        results = []
        with before("rename", lambda: results.append(go_on()), when=taken):
            # The committer publishes its record and shows the batch, or the remover does.
            assert staged.remove_staging(directory, settings, batch) is False
        assert results == [True]
    assert drain(queue) == BODIES


def test_record_published_just_before_its_batch_is_renamed_away_is_honoured(queue_dir):
    """The committer is stopped again before it shows the batch: the remover does."""
    Queue(queue_dir).layout.create()
    with stopped_before("rename", lambda: commit(queue_dir), when=shown) as go_on:
        queue = Queue(queue_dir, stale=0.0)
        directory, settings = queue.layout.directory, queue.settings
        directory.need()
        (batch,) = [name for name in stagings(queue_dir) if not staged_by_writers(queue_dir / name)]
        age(queue_dir / batch)
        record = queue_dir / ".spark" / "txn" / "app" / "1"
        os.rename(record, queue_dir / "hidden")  # as it was when the remover looked
        back = lambda: os.rename(queue_dir / "hidden", record)  # noqa: E731
        with before("rename", back, when=of(batch)):
            assert staged.remove_staging(directory, settings, batch) is False
        assert go_on() is True
    assert drain(queue) == BODIES


def test_a_staging_directory_with_a_part_that_is_being_written_stays(queue_dir):
    """Its own time is old, that of its part is not."""
    queue = Queue(queue_dir, stale=600.0)
    queue.layout.create()
    staging = "1700000000000000000000001.batch.new"
    os.makedirs(queue_dir / staging / "1700000000000000000000002.part")
    os.utime(queue_dir / staging, (0, 0))
    assert not staged.stale_staging(queue.layout.directory, queue.settings, staging)
    assert not staged.remove_staging(queue.layout.directory, queue.settings, staging)
    age(queue_dir / staging)
    assert staged.stale_staging(queue.layout.directory, queue.settings, staging)
    assert staged.remove_staging(queue.layout.directory, queue.settings, staging)
    assert stagings(queue_dir) == []


def test_a_staging_directory_is_renamed_away_before_its_files_go(queue_dir):
    """A slow writer that shows it at that moment fails, and writes it again; it never shows a part of its messages."""
    queue = Queue(queue_dir, stale=0.0)
    with stopped_before("rename", lambda: queue.put_many(BODIES), when=shown) as go_on:
        results, files = [], itertools.count()
        second = lambda path, **_: ".batch.new/" in path and next(files) == 1  # noqa: E731
        with before("unlink", lambda: results.append(go_on()), when=second):
            wait_until(lambda: queue.purge() and not stagings(queue_dir), "the staging directory going")
        assert len(results[0]) == len(BODIES)
    assert drain(queue) == BODIES


def test_staging_directory_that_is_touched_stays(queue_dir):
    """For a job whose first row comes late; one that is gone is an error."""
    queue = Queue(queue_dir, stale=600.0)
    directory = queue.layout.directory
    staging = staged.begin(directory, "1700000000000000000000001")
    age(queue_dir / f"{staging}.batch.new")
    staged.touch(directory, staging)
    assert queue.purge().new == 0
    age(queue_dir / f"{staging}.batch.new")
    assert queue.purge().new == 1
    with pytest.raises(QueueError, match="write it again"):
        staged.touch(directory, staging)


@pytest.mark.parametrize("refused", [False, True])
def test_a_staging_directory_can_be_touched_ahead(queue_dir, refused):
    """For a job none of whose tasks runs for long; where no time can be set ahead it is touched."""
    queue = Queue(queue_dir)
    staging = staged.begin(queue.layout.directory, "1700000000000000000000001")
    place = queue_dir / f"{staging}.batch.new"
    age(place)
    now = time.time()
    if refused:
        with failing("utime", errno.EPERM, when=lambda *_, ns=None, **__: ns is not None):
            staged.touch(queue.layout.directory, staging, ahead=3600)
    else:
        staged.touch(queue.layout.directory, staging, ahead=3600)
    assert abs(place.stat().st_mtime - now - 3600 * (not refused)) < 1800
    assert queue.purge().new == 0


def test_a_committed_batch_is_shown_before_its_record_is_forgotten(committed):
    """Newer versions imply the old one, whose record goes; the batch that only it names becomes visible first."""
    queue = Queue(committed)
    directory, settings = queue.layout.directory, queue.settings
    for version in range(2, staged.KEEP + 5):
        staged.commit(directory, settings, staged.begin(directory), [], Identity("app", version))
    assert not (committed / ".spark" / "txn" / "app" / "1").exists()
    assert drain(queue) == BODIES


def test_a_record_is_flushed_before_its_batch_is_shown(queue_dir):
    """Its text before its name is published, its name before the rename: also where the queue itself is not durable."""
    calls = []
    real = {name: getattr(fs, name) for name in ("fsync", "link", "rename")}

    def fsync(fd):
        calls.append(("fsync", os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), queue_dir)))
        real["fsync"](fd)

    def link(src, dst, **named):
        calls.append(("link", src, dst))
        real["link"](src, dst, **named)

    def rename(src, dst, **named):
        calls.append(("rename", src, dst))
        real["rename"](src, dst, **named)

    with replaced(fs, fsync=fsync, link=link, rename=rename):
        assert commit(queue_dir, sync=False)
    (published,) = [number for number, call in enumerate(calls) if call[0] == "link"]
    (visible,) = [number for number, call in enumerate(calls) if call[0] == "rename" and shown(*call[1:])]
    assert ("fsync", calls[published][1]) in calls[:published]
    assert ("fsync", ".spark/txn/app") in calls[published:visible]


@pytest.mark.parametrize(
    ("one", "other"),
    [("my app", "my_app"), ("my app", "my/app"), ("a" * 101, "a" * 102), ("é", "è"), ("x", "X"), ("x.", "x")],
)
def test_two_applications_of_similar_names_have_records_of_their_own(queue_dir, one, other):
    """The same version of both is written."""
    queue = Queue(queue_dir)
    directory, settings = queue.layout.directory, queue.settings
    for app in (one, other):
        assert staged.commit(directory, settings, staged.begin(directory), [], Identity(app, 1))
        assert staged.newest(directory, app) == 1
    assert len(os.listdir(queue_dir / ".spark" / "txn")) == 2
