"""Batches of several writers: all or nothing, once for each identity."""

import os

import pytest
from support.dying import every_death
from support.kit import drain, files
from support.patience import until

from dirqueue import Queue, QueueError, SettingsError
from dirqueue.disk import fs
from dirqueue.layouts.native import attempt, staged
from dirqueue.layouts.native.staged import Identity


def opened(path, **settings):
    queue = Queue(path, **settings)
    return queue, queue.layout.directory, queue.settings


def write(directory, settings, staging, bodies, **kwargs):
    writer = attempt.Writer(directory, settings, staging)
    writer.add(bodies, **kwargs)
    return writer.finish()


def test_what_several_writers_wrote_appears_at_once(queue_dir):
    """Nothing is visible before the commit, everything is after it, in the order of each writer."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"a1", b"a2"]) + write(directory, settings, staging, [b"b1"])
    assert len(queue) == 0
    assert staged.commit(directory, settings, staging, parts)
    assert drain(queue) == [b"a1", b"a2", b"b1"]


def test_only_the_parts_that_are_named_become_visible(queue_dir):
    """A part of an attempt that lost is never seen, and is gone after the commit."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    won = write(directory, settings, staging, [b"won"])
    write(directory, settings, staging, [b"lost"])
    staged.commit(directory, settings, staging, won)
    assert drain(queue) == [b"won"]
    queue.purge()
    assert not [name for name in files(queue_dir) if "batch" in name]


def test_writer_that_goes_on_after_the_commit_reaches_nobody(queue_dir):
    """A late attempt fails or writes where nobody looks; the queue holds the batch alone."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    late = attempt.Writer(directory, settings, staging)
    late.add([b"late 1"])
    won = write(directory, settings, staging, [b"won"])
    staged.commit(directory, settings, staging, won)
    with pytest.raises(QueueError):
        late.add([b"late 2"] * 5000)
    assert drain(queue) == [b"won"]


def test_identity_is_written_once(queue_dir):
    """The same version again, or an older one, changes nothing and leaves nothing."""
    queue, directory, settings = opened(queue_dir)
    for version, expected in ((3, True), (3, False), (2, False), (4, True)):
        staging = staged.begin(directory)
        parts = write(directory, settings, staging, [b"v%d" % version])
        assert staged.commit(directory, settings, staging, parts, Identity("app", version)) is expected
        assert not os.path.exists(queue_dir / f"{staging}.batch.new")
    assert drain(queue) == [b"v3", b"v4"]
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"again"])
    assert not staged.commit(directory, settings, staging, parts, Identity("app", 4)), "outlives the messages"
    assert staged.commit(directory, settings, staging, [], Identity("another app/with: odd name", 4))


def test_identity_without_messages_is_remembered_too(queue_dir):
    """An empty version counts as written."""
    queue, directory, settings = opened(queue_dir)
    assert staged.commit(directory, settings, staged.begin(directory), [], Identity("app", 1))
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"late"])
    assert not staged.commit(directory, settings, staging, parts, Identity("app", 1))
    assert drain(queue) == []


def test_of_two_committers_of_one_version_one_wins(queue_dir, monkeypatch):
    """The other one, between its look and its record, finds the version taken and drops its batch."""
    queue, directory, settings = opened(queue_dir)
    first, second = staged.begin(directory), staged.begin(directory)
    parts = {each: write(directory, settings, each, [each.encode()]) for each in (first, second)}
    assemble = staged._assemble

    def overtaken(*arguments, **options):
        monkeypatch.setattr(staged, "_assemble", assemble)
        assert staged.commit(directory, settings, second, parts[second], Identity("app", 1))
        return assemble(*arguments, **options)

    monkeypatch.setattr(staged, "_assemble", overtaken)
    assert not staged.commit(directory, settings, first, parts[first], Identity("app", 1))
    assert drain(queue) == [second.encode()]


def test_old_versions_are_forgotten_and_still_count(queue_dir):
    """The newest versions are kept; those they imply are not written again."""
    _, directory, settings = opened(queue_dir)
    for version in range(staged.KEEP + 5):
        staged.commit(directory, settings, staged.begin(directory), [], Identity("app", version))
    assert len(os.listdir(queue_dir / ".spark" / "txn" / "app")) == staged.KEEP
    assert not staged.commit(directory, settings, staged.begin(directory), [], Identity("app", 0))


def test_messages_of_several_priorities_go_to_parts_of_their_own(queue_dir):
    """The batch takes the place of its most urgent message, and inside it the urgent come first."""
    queue = Queue.create(queue_dir, priorities=True)
    directory, settings = queue.layout.directory, queue.settings
    queue.put(b"flat 5", priority=5)
    staging = staged.begin(directory)
    writer = attempt.Writer(directory, settings, staging)
    writer.add([b"nine"], 9)
    writer.add([b"two"], 2)
    writer.add([b"nine again"], 9)
    staged.commit(directory, settings, staging, writer.finish())
    assert drain(queue)[:1] == [b"two"]


def test_batch_may_be_delayed_message_by_message(queue_dir):
    """Each message has its own delay."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"now", b"later"], delays=[0, 3600])
    staged.commit(directory, settings, staging, parts)
    assert (queue.stats().ready, queue.stats().delayed) == (1, 1)
    assert drain(queue) == [b"now"]


def test_large_batch_is_cut_into_directories_of_bounded_size(queue_dir):
    """No directory of a batch holds more than a slice does."""
    queue, directory, settings = opened(queue_dir, sync=False)
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"x"] * 10_000)
    assert len(parts) == 3
    staged.commit(directory, settings, staging, parts)
    assert len(queue) == 10_000


def test_attempt_that_gives_up_leaves_nothing(queue_dir):
    """discard() removes what was written, and nothing else; the place for it goes with the job."""
    _, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    kept = write(directory, settings, staging, [b"kept"])
    writer = attempt.Writer(directory, settings, staging)
    writer.add([b"x"] * 10)
    writer.discard()
    assert os.listdir(queue_dir / f"{staging}.batch.new") == kept
    staged.abort(directory, staging)
    assert not [name for name in files(queue_dir) if "batch" in name]


@pytest.mark.parametrize("open_part", [False, True], ids=["that begins late", "with a part open"])
def test_writer_of_a_job_that_was_aborted_brings_nothing_back(queue_dir, open_part):
    """It finds the place gone and says so, whether it had begun or not."""
    _, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    writer = attempt.Writer(directory, settings, staging)
    if open_part:
        writer.add([b"x"])
    staged.abort(directory, staging)
    with pytest.raises(QueueError, match="is gone"):
        writer.add([b"late"])
    assert not [name for name in files(queue_dir) if "batch" in name]


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_what_a_writer_adds_while_its_part_is_removed_is_removed_too(queue_dir, monkeypatch, end):
    """RACE: it has the part open and is faster than the removal, for as long as the part has room."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    won = write(directory, settings, staging, [b"won"])
    late = attempt.Writer(directory, settings, staging)
    late.add([b"late"])
    real, left = fs.rmdir, [7]

    def rmdir(name, **kwargs):
        if name.endswith(".part") and left[0]:
            left[0] -= 1
            late.add([b"later"])
        real(name, **kwargs)

    monkeypatch.setattr(fs, "rmdir", rmdir)
    if end == "abort":
        staged.abort(directory, staging)
    else:
        staged.commit(directory, settings, staging, won)
    assert left == [0]
    assert not [name for name in files(queue_dir) if "batch.new" in name]
    assert drain(queue) == ([] if end == "abort" else [b"won"])


def test_what_cannot_be_removed_is_left_to_purge(queue_dir, monkeypatch):
    """An abort on a filesystem that refuses ends, and purge removes the rest when it can."""
    queue, directory, settings = opened(queue_dir, stale=0.0)
    staging = staged.begin(directory)
    write(directory, settings, staging, [b"x"])

    def unlink(*_, **__):
        raise PermissionError(13, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "unlink", unlink)
        staged.abort(directory, staging)
    assert [name for name in files(queue_dir) if "batch.new" in name]
    until(lambda: queue.purge() and not [n for n in files(queue_dir) if "batch.new" in n], "the rest gone")


def test_abort_never_undoes_a_commit(queue_dir):
    """Spark calls abort after a commit that raised: what is visible stays."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"x"])
    staged.commit(directory, settings, staging, parts)
    staged.abort(directory, staging)
    assert drain(queue) == [b"x"]


def test_purged_staging_is_an_error_and_not_a_smaller_batch(queue_dir):
    """A commit that finds a part missing shows nothing and says so."""
    queue, directory, settings = opened(queue_dir)
    staging = staged.begin(directory)
    kept = write(directory, settings, staging, [b"kept"])
    gone = write(directory, settings, staging, [b"gone"])
    fs.remove_tree(f"{staging}.batch.new/{gone[0]}", directory.fd)
    with pytest.raises(QueueError, match="is gone"):
        staged.commit(directory, settings, staging, kept + gone)
    assert drain(queue) == []


@pytest.mark.parametrize(("app", "version"), [("", 1), ("a", -1), ("a", 2**63), ("a", True), ("a", 1.5)])
def test_what_cannot_be_an_identity_is_refused(queue_dir, app, version):
    """One sentence, before anything is touched."""
    _, directory, settings = opened(queue_dir)
    with pytest.raises(SettingsError):
        staged.commit(directory, settings, staged.begin(directory), [], Identity(app, version))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead close nothing
@pytest.mark.parametrize("identity", [None, Identity("app", 7)])
def test_committer_may_die_anywhere(tmp_path, identity):
    """Dead at any call: all of the batch is visible or nothing; written again, it is there exactly once."""
    for at in every_death(lambda at: story(tmp_path / str(at), identity)):
        path = tmp_path / str(at)
        if not path.exists():
            continue
        queue, directory, settings = opened(path, stale=0.0, sync=False)
        seen = sorted(message.data for message in queue.peek())
        assert seen in ([], [b"a", b"b"]), at
        queue.purge()
        after = sorted(message.data for message in queue.peek())
        assert after in ([], [b"a", b"b"]), at
        assert len(after) >= len(seen)
        if identity is not None:
            staging = staged.begin(directory)
            parts = write(directory, settings, staging, [b"a"]) + write(directory, settings, staging, [b"b"])
            staged.commit(directory, settings, staging, parts, identity)
            assert sorted(drain(queue)) == [b"a", b"b"], at
    assert at > 20


def story(path, identity):
    """Two writers and a commit."""
    _, directory, settings = opened(path, sync=False)
    staging = staged.begin(directory)
    parts = write(directory, settings, staging, [b"a"]) + write(directory, settings, staging, [b"b"])
    staged.commit(directory, settings, staging, parts, identity)
