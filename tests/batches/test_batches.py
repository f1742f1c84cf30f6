"""Batches of several writers: all or nothing, once for each identity."""

import os

import pytest
from batches.dying import every_death
from kit import drain, files
from patience import until

from dirqueue import Queue, QueueError, SettingsError, fs
from dirqueue.layouts.native import batch
from dirqueue.layouts.native.batch import Identity


def opened(path, **settings):
    queue = Queue(path, **settings)
    return queue, queue._layout.home, queue.settings


def write(home, settings, staging, bodies, **kwargs):
    writer = batch.Writer(home, settings, staging)
    writer.add(bodies, **kwargs)
    return writer.finish()


def test_what_several_writers_wrote_appears_at_once(queue_dir):
    """Nothing is visible before the commit, everything is after it, in the order of each writer."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"a1", b"a2"]) + write(home, settings, staging, [b"b1"])
    assert len(queue) == 0
    assert batch.commit(home, settings, staging, parts)
    assert drain(queue) == [b"a1", b"a2", b"b1"]


def test_only_the_parts_that_are_named_become_visible(queue_dir):
    """A part of an attempt that lost is never seen, and is gone after the commit."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    won = write(home, settings, staging, [b"won"])
    write(home, settings, staging, [b"lost"])
    batch.commit(home, settings, staging, won)
    assert drain(queue) == [b"won"]
    queue.purge()
    assert not [name for name in files(queue_dir) if "batch" in name]


def test_a_writer_that_goes_on_after_the_commit_reaches_nobody(queue_dir):
    """A late attempt fails or writes where nobody looks; the queue holds the batch alone."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    late = batch.Writer(home, settings, staging)
    late.add([b"late 1"])
    won = write(home, settings, staging, [b"won"])
    batch.commit(home, settings, staging, won)
    with pytest.raises(QueueError):
        late.add([b"late 2"] * 5000)
    assert drain(queue) == [b"won"]


def test_an_identity_is_written_once(queue_dir):
    """The same version again, or an older one, changes nothing and leaves nothing."""
    queue, home, settings = opened(queue_dir)
    for version, expected in ((3, True), (3, False), (2, False), (4, True)):
        staging = batch.begin(home)
        parts = write(home, settings, staging, [b"v%d" % version])
        assert batch.commit(home, settings, staging, parts, Identity("app", version)) is expected
        assert not os.path.exists(queue_dir / f"{staging}.batch.new")
    assert drain(queue) == [b"v3", b"v4"]
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"again"])
    assert not batch.commit(home, settings, staging, parts, Identity("app", 4)), "outlives the messages"
    assert batch.commit(home, settings, staging, [], Identity("another app/with: odd name", 4))


def test_an_identity_without_messages_is_remembered_too(queue_dir):
    """An empty version counts as written."""
    queue, home, settings = opened(queue_dir)
    assert batch.commit(home, settings, batch.begin(home), [], Identity("app", 1))
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"late"])
    assert not batch.commit(home, settings, staging, parts, Identity("app", 1))
    assert drain(queue) == []


def test_of_two_committers_of_one_version_one_wins(queue_dir, monkeypatch):
    """The other one, between its look and its record, finds the version taken and drops its batch."""
    queue, home, settings = opened(queue_dir)
    first, second = batch.begin(home), batch.begin(home)
    parts = {each: write(home, settings, each, [each.encode()]) for each in (first, second)}
    assemble = batch._assemble

    def overtaken(*arguments):
        monkeypatch.setattr(batch, "_assemble", assemble)
        assert batch.commit(home, settings, second, parts[second], Identity("app", 1))
        return assemble(*arguments)

    monkeypatch.setattr(batch, "_assemble", overtaken)
    assert not batch.commit(home, settings, first, parts[first], Identity("app", 1))
    assert drain(queue) == [second.encode()]


def test_old_versions_are_forgotten_and_still_count(queue_dir):
    """The newest versions are kept; those they imply are not written again."""
    _, home, settings = opened(queue_dir)
    for version in range(batch.KEEP + 5):
        batch.commit(home, settings, batch.begin(home), [], Identity("app", version))
    assert len(os.listdir(queue_dir / ".spark" / "txn" / "app")) == batch.KEEP
    assert not batch.commit(home, settings, batch.begin(home), [], Identity("app", 0))


def test_messages_of_several_priorities_go_to_parts_of_their_own(queue_dir):
    """The batch takes the place of its most urgent message, and inside it the urgent come first."""
    queue = Queue.create(queue_dir, priorities=True)
    home, settings = queue._layout.home, queue.settings
    queue.put(b"flat 5", priority=5)
    staging = batch.begin(home)
    writer = batch.Writer(home, settings, staging)
    writer.add([b"nine"], 9)
    writer.add([b"two"], 2)
    writer.add([b"nine again"], 9)
    batch.commit(home, settings, staging, writer.finish())
    assert drain(queue)[:1] == [b"two"]


def test_a_batch_may_be_delayed_message_by_message(queue_dir):
    """Each message has its own delay."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"now", b"later"], delays=[0, 3600])
    batch.commit(home, settings, staging, parts)
    assert (queue.stats().ready, queue.stats().delayed) == (1, 1)
    assert drain(queue) == [b"now"]


def test_a_large_batch_is_cut_into_directories_of_bounded_size(queue_dir):
    """No directory of a batch holds more than a slice does."""
    queue, home, settings = opened(queue_dir, sync=False)
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"x"] * 10_000)
    assert len(parts) == 3
    batch.commit(home, settings, staging, parts)
    assert len(queue) == 10_000


def test_an_attempt_that_gives_up_leaves_nothing(queue_dir):
    """discard() removes what was written, and nothing else; the place for it goes with the job."""
    _, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    kept = write(home, settings, staging, [b"kept"])
    writer = batch.Writer(home, settings, staging)
    writer.add([b"x"] * 10)
    writer.discard()
    assert os.listdir(queue_dir / f"{staging}.batch.new") == kept
    batch.abort(home, staging)
    assert not [name for name in files(queue_dir) if "batch" in name]


@pytest.mark.parametrize("open_part", [False, True], ids=["that begins late", "with a part open"])
def test_a_writer_of_a_job_that_was_aborted_brings_nothing_back(queue_dir, open_part):
    """It finds the place gone and says so, whether it had begun or not."""
    _, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    writer = batch.Writer(home, settings, staging)
    if open_part:
        writer.add([b"x"])
    batch.abort(home, staging)
    with pytest.raises(QueueError, match="not there any more"):
        writer.add([b"late"])
    assert not [name for name in files(queue_dir) if "batch" in name]


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_what_a_writer_adds_while_its_part_is_removed_is_removed_too(queue_dir, monkeypatch, end):
    """RACE: it has the part open and is faster than the removal, for as long as the part has room."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    won = write(home, settings, staging, [b"won"])
    late = batch.Writer(home, settings, staging)
    late.add([b"late"])
    real, left = fs.rmdir, [7]

    def rmdir(name, **kwargs):
        if name.endswith(".part") and left[0]:
            left[0] -= 1
            late.add([b"later"])
        real(name, **kwargs)

    monkeypatch.setattr(fs, "rmdir", rmdir)
    if end == "abort":
        batch.abort(home, staging)
    else:
        batch.commit(home, settings, staging, won)
    assert left == [0]
    assert not [name for name in files(queue_dir) if "batch.new" in name]
    assert drain(queue) == ([] if end == "abort" else [b"won"])


def test_what_cannot_be_removed_is_left_to_purge(queue_dir, monkeypatch):
    """An abort on a filesystem that refuses ends, and purge removes the rest when it can."""
    queue, home, settings = opened(queue_dir, stale=0.0)
    staging = batch.begin(home)
    write(home, settings, staging, [b"x"])

    def unlink(*_, **__):
        raise PermissionError(13, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(fs, "unlink", unlink)
        batch.abort(home, staging)
    assert [name for name in files(queue_dir) if "batch.new" in name]
    until(lambda: queue.purge() and not [n for n in files(queue_dir) if "batch.new" in n], "the rest gone")


def test_an_abort_never_undoes_a_commit(queue_dir):
    """Spark calls abort after a commit that raised: what is visible stays."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"x"])
    batch.commit(home, settings, staging, parts)
    batch.abort(home, staging)
    assert drain(queue) == [b"x"]


def test_a_purged_staging_is_an_error_and_not_a_smaller_batch(queue_dir):
    """A commit that finds a part missing shows nothing and says so."""
    queue, home, settings = opened(queue_dir)
    staging = batch.begin(home)
    kept = write(home, settings, staging, [b"kept"])
    gone = write(home, settings, staging, [b"gone"])
    batch.remove_tree(f"{staging}.batch.new/{gone[0]}", home.fd)
    with pytest.raises(QueueError, match="not there any more"):
        batch.commit(home, settings, staging, kept + gone)
    assert drain(queue) == []


@pytest.mark.parametrize(("app", "version"), [("", 1), ("a", -1), ("a", 2**63), ("a", True), ("a", 1.5)])
def test_what_cannot_be_an_identity_is_refused(queue_dir, app, version):
    """One sentence, before anything is touched."""
    _, home, settings = opened(queue_dir)
    with pytest.raises(SettingsError):
        batch.commit(home, settings, batch.begin(home), [], Identity(app, version))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead close nothing
@pytest.mark.parametrize("identity", [None, Identity("app", 7)])
def test_a_committer_may_die_anywhere(tmp_path, identity):
    """Dead at any call: all of the batch is visible or nothing; written again, it is there exactly once."""
    for at in every_death(lambda at: story(tmp_path / str(at), identity)):
        path = tmp_path / str(at)
        if not path.exists():
            continue
        queue, home, settings = opened(path, stale=0.0, sync=False)
        seen = sorted(message.data for message in queue.peek())
        assert seen in ([], [b"a", b"b"]), at
        queue.purge()
        after = sorted(message.data for message in queue.peek())
        assert after in ([], [b"a", b"b"]), at
        assert len(after) >= len(seen)
        if identity is not None:
            staging = batch.begin(home)
            parts = write(home, settings, staging, [b"a"]) + write(home, settings, staging, [b"b"])
            batch.commit(home, settings, staging, parts, identity)
            assert sorted(drain(queue)) == [b"a", b"b"], at
    assert at > 20


def story(path, identity):
    """Two writers and a commit."""
    _, home, settings = opened(path, sync=False)
    staging = batch.begin(home)
    parts = write(home, settings, staging, [b"a"]) + write(home, settings, staging, [b"b"])
    batch.commit(home, settings, staging, parts, identity)
