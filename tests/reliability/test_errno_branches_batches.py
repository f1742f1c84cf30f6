"""Every branch on an errno in batches and pinned lots, each reached by the fault that it is for."""

import errno
import os
import shutil

import pytest
from support.checker import leftovers
from support.failing import FULL, HARD, before, failing, names, nothing_left_open, of
from support.kit import LONG, drain, replaced

from dirqueue import LeaseLost, Queue, QueueAccess, QueueError, QueueNotFound, SettingsError
from dirqueue.disk import fs, mount
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native import pins, publish, staged
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.staged import Identity
from dirqueue.layouts.native.supply import claimable


class Bench:
    """A queue, and what writers and consumers of many messages need of it."""

    def __init__(self, path, **settings):
        self.queue = Queue(path, **{"sync": False, "margin": 0, "lease": LONG, **settings})
        self.path = path
        self.directory, self.settings = self.queue.layout.directory, self.queue.settings
        self.staging = staged.begin(self.directory)

    def writer(self):
        staged.begin(self.directory, self.staging)
        return staged.Writer(self.directory, self.settings, self.staging)

    def staged(self):
        """Return what writers have left in staging directories."""
        return [name for each in leftovers(self.path) for name in os.listdir(each)]

    def write(self, *bodies):
        writer = self.writer()
        writer.add(bodies)
        return writer.finish()

    def commit(self, parts, version=None):
        identity = None if version is None else Identity("app", version)
        return staged.commit(self.directory, self.settings, self.staging, parts, identity)

    def consumer(self, timeout=LONG):
        mine = Pins(self.directory, self.settings, "c")
        mine.register(timeout)
        return mine

    def supply(self):
        return claimable(self.directory, self.settings)

    def pin(self, mine, lot, **limit):
        return mine.pin(lot, self.supply(), Limit(**limit))


@pytest.fixture
def bench(queue_dir):
    return Bench(queue_dir)


@pytest.fixture
def durable(queue_dir):
    return Bench(queue_dir, sync=True)


# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
@pytest.mark.parametrize("call", ["mkdir", "open", "write"])
def test_a_writer_that_fails_takes_its_part_away(bench, call, code):
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
def test_a_writer_that_cannot_flush_takes_its_parts_away(durable, whole):
    """By one call for the whole filesystem, or file by file."""
    durable.directory.mount.syncfs = whole
    writer = durable.writer()
    writer.add([b"x"])
    with failing("syncfs" if whole else "fsync", errno.EIO), pytest.raises(QueueAccess):
        writer.finish()
    assert durable.staged() == []


def test_a_writer_whose_job_is_over_says_so(durable):
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


def test_a_writer_whose_queue_is_gone_says_so(bench):
    """The queue is not made again by a writer, but by who begins a job."""
    writer = bench.writer()
    shutil.rmtree(bench.path)
    with pytest.raises(QueueNotFound):
        writer.add([b"x"])
    bench.staging = staged.begin(bench.directory)
    bench.commit(bench.write(b"y"))
    assert drain(bench.queue) == [b"y"]


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
def test_a_job_that_cannot_begin_says_so(bench, code):
    """With its errno."""
    with failing("mkdir", code), pytest.raises(QueueAccess) as caught:
        staged.begin(bench.directory)
    assert caught.value.errno == code


def test_an_abort_that_cannot_remove_all_leaves_it_to_purge(bench):
    """Tried so often as there is something to remove, and once more."""
    bench.write(b"x")
    with failing("unlink", errno.EIO, times=1000) as fault:
        staged.abort(bench.directory, bench.staging)
    assert fault.hits < 10
    assert bench.staged() != []
    assert len(bench.queue) == 0


def test_an_abort_beside_a_writer_that_never_stops_ends(bench, monkeypatch):
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


def test_a_writer_on_a_slow_server_waits_for_the_length(bench, monkeypatch):
    """If it is never reached the attempt failed, and nothing is left."""
    bench.directory.mount = mount.Mount("nfs4")
    monkeypatch.setattr(publish, "SETTLE_SECONDS", 0.0)
    with replaced(fs, served_size=lambda *_: 0), pytest.raises(QueueAccess) as caught:
        bench.write(b"x")
    assert caught.value.errno == errno.EIO
    assert bench.staged() == []
    monkeypatch.setattr(publish, "SETTLE_SECONDS", LONG)
    sizes = iter([0, 0])
    real = fs.served_size
    with replaced(fs, served_size=lambda *arguments: next(sizes, None) or real(*arguments)):
        bench.commit(bench.write(b"x"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names((*HARD, *FULL)))
def test_a_commit_that_fails_shows_nothing(bench, code):
    """The parts cannot be moved: told with its errno; what was staged goes with the next purge."""
    parts = bench.write(b"x")
    with failing("rename", code), pytest.raises(QueueAccess) as caught:
        bench.commit(parts)
    assert caught.value.errno == code
    assert len(bench.queue) == 0


def test_a_commit_whose_staging_is_gone_says_what_to_do(bench):
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


def test_a_commit_that_somebody_else_finished_is_good(bench):
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
def test_a_record_is_written_where_there_are_no_hard_links(bench, code):
    """Once by a rename; the same version again is refused by a look."""
    with failing("link", code):
        assert bench.commit(bench.write(b"x"), version=1)
    with replaced(staged, newest=lambda *_: -1), failing("link", code):
        assert not bench.commit(bench.write(b"again"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names([errno.EEXIST, errno.EIO]))
def test_a_record_that_somebody_else_wrote_first_is_believed(bench, code):
    """EEXIST, and EIO on HDFS if it is there: the batch is theirs."""
    assert bench.commit(bench.write(b"x"), version=1)
    with replaced(staged, newest=lambda *_: -1), failing("link", code):
        assert not bench.commit(bench.write(b"again"), version=1)
    assert drain(bench.queue) == [b"x"]


@pytest.mark.parametrize("code", names(HARD))
def test_a_record_that_cannot_be_written_is_no_commit(bench, code):
    """Nothing is shown, then or later."""
    with failing("link", code), pytest.raises(QueueAccess) as caught:
        bench.commit(bench.write(b"x"), version=1)
    assert caught.value.errno == code
    bench.queue.purge()
    assert len(bench.queue) == 0


# --- lots ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", names(HARD))
def test_a_consumer_of_lots_is_told_what_fails(bench, code):
    """Registering, a sign of life, pinning, acknowledging, giving back: each says its errno and loses nothing."""
    bench.queue.put(b"x")
    with failing("mkdir", code), pytest.raises(QueueAccess):
        bench.consumer()
    mine = bench.consumer()
    with failing("utime", code), pytest.raises(QueueAccess):
        mine.beat()
    for call in ("mkdir", "rename", "scandir"):
        supply = bench.supply()
        with failing(call, code), pytest.raises(QueueAccess) as caught:
            mine.pin(1, supply, Limit())
        assert caught.value.errno == code
    assert bench.pin(mine, 1) == 1
    with failing("rename", code), pytest.raises(QueueAccess):
        mine.ack(1)
    with failing("rename", code), pytest.raises(QueueAccess):
        mine.release(1)
    assert mine.ack(1) == 1


def test_a_consumer_that_was_given_up_learns_it(bench):
    """Its directory is gone: pinning and giving a sign of life say so, looking finds nothing."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    shutil.rmtree(bench.path / mine.base)
    assert mine.names() == []
    with pytest.raises(LeaseLost):
        mine.beat()
    with pytest.raises(LeaseLost):
        bench.pin(mine, 1)
    assert pins.owner(bench.directory, "c") is None
    assert drain(bench.queue) == [b"x"]


def test_a_consumer_leaves_only_when_it_holds_nothing(bench):
    """With a lot it stays on the list."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    bench.pin(mine, 1)
    mine.forget()
    assert mine.known()
    mine.ack(1)
    mine.forget()
    assert not mine.known()
    assert pins.consumers(bench.directory) == []


def test_a_consumer_without_a_note_of_its_owner_is_given_time(bench, monkeypatch):
    """It is one being made, or half given up; after that its lots go back."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    bench.pin(mine, 1)
    os.unlink(bench.path / mine.base / pins.OWNER)
    assert bench.queue.purge().released == 0
    monkeypatch.setattr(pins, "OWNERLESS_SECONDS", -LONG)
    assert bench.queue.purge().released == 1
    assert drain(bench.queue) == [b"x"]


def test_what_else_lies_with_a_lost_consumer_is_left(bench):
    """Half acknowledged lots are finished, others given back; foreign names stay, and so does their directory."""
    for body in (b"1", b"2", b"3"):
        bench.queue.put(body)
    mine = bench.consumer(timeout=0.0)
    for lot in (1, 2):
        assert bench.pin(mine, lot, messages=1) == 1
    base = bench.path / mine.base
    os.rename(base / "1", base / "1.ack")
    (base / "2" / "note").write_bytes(b"foreign")
    (part,) = [each for each in os.listdir(base / "2") if each.endswith(".part")]
    (base / "2" / part / "note").write_bytes(b"foreign")
    (base / "note").write_bytes(b"foreign")
    assert [message.data for message in bench.queue.peek("leased")] == [b"2"]
    assert bench.queue.purge().released == 1
    assert os.listdir(base) == ["note"]
    assert drain(bench.queue) == [b"2", b"3"]


def test_an_unsealed_lot_with_nothing_in_it_goes(bench):
    """The try before died at once."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    os.makedirs(bench.path / mine.base / "1.new" / "1700000000000000000000001.part")
    assert bench.pin(mine, 1) == 1
    assert [message.data for message in bench.queue.peek("leased")] == [b"x"]


def test_a_lot_that_goes_while_it_is_looked_at_is_no_error(bench):
    """Acknowledged between two listings."""
    bench.queue.put(b"x")
    mine = bench.consumer()
    bench.pin(mine, 1)
    with before("open", lambda: mine.ack(1), when=of("/1")):
        assert list(bench.queue.peek("leased")) == []


def test_a_message_that_goes_before_it_is_measured_is_passed_over(bench):
    """With a limit of bytes each is measured first."""
    for body in (b"1", b"2", b"3"):
        bench.queue.put(body)
    other = Queue(bench.path, sync=False)
    mine = bench.consumer()
    with before("stat", lambda: other.get(timeout=0).ack(), when=lambda path, **_: path.isdigit()):
        assert bench.pin(mine, 1, size=1000) == 2
    assert sorted(message.data for message in bench.queue.peek("leased")) == [b"2", b"3"]


# --- what can be taken --------------------------------------------------------------------------------------


def taken(supply):
    return [name for _, name in iter(supply.take, None)]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.ESTALE]))
def test_a_directory_that_goes_before_its_turn_is_passed_over(bench, code):
    """Emptied and removed by another consumer."""
    bench.queue.put_many([b"1", b"2"])
    last = bench.queue.put(b"3")
    supply = bench.supply()
    with failing("open", code, when=of(".batch/")):
        assert taken(supply) == [last]


def test_emptied_directories_go_but_young_slices_stay(bench):
    """Somebody may be about to append; deeper than messages lie nobody looks."""
    old, young = f"1700000000000000{0:09d}", new_id()
    for name in (f"{old}.slice", f"{young}.slice", f"{old}.batch", f"{old}.batch/{old}.part/{old}.part"):
        os.makedirs(bench.path / name)
    assert taken(bench.supply()) == []
    found = sorted(name for name in os.listdir(bench.path) if name.endswith((".batch", ".slice")))
    assert found == [f"{old}.batch", f"{young}.slice"]


def test_a_random_order_gives_each_once(queue_dir):
    """Where the queue has no order, those who take many have none either."""
    bench = Bench(queue_dir, order="random")
    ids = [bench.queue.put(b"x") for _ in range(20)]
    assert sorted(taken(bench.supply())) == ids
