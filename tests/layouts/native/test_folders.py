"""A queue read by directory: one process finds the directories, others list them, and together they see it once."""

import errno
import os
import time

import pytest
from support.failing import failing, of
from support.kit import replaced

from dirqueue import MessageNotFound, Queue
from dirqueue.disk import fs
from dirqueue.errors import QueueError
from dirqueue.layouts.native import folders
from dirqueue.layouts.native.bodies import Bodies
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.publish import SLICE_SIZE
from dirqueue.layouts.native.supply import claimable
from dirqueue.states import VISIBLE

NOW = time.time_ns() // 1000


@pytest.fixture
def queue(queue_dir):
    """A queue with messages of every state, in every kind of directory."""
    queue = Queue.create(queue_dir, keep_done=True)
    directory = queue.layout.directory
    queue.put_many([b"batch"] * 3)
    queue.put_many([b"parts"] * 5000)
    queue.put(b"flat")
    queue.put_many([b"later"] * 2, delay=3600)
    queue.put(b"delayed", delay=60)
    for body in (b"done", b"dead", b"leased"):
        queue.put(body)
    for lease in queue.get_many(5010, lease=600):
        if lease.message.data == b"done":
            lease.ack()
        elif lease.message.data == b"dead":
            lease.reject("bad")
        elif lease.message.data != b"leased":
            lease.release()
    pins = Pins(directory, queue.settings, "c")
    pins.register(600.0)
    assert pins.pin(1, claimable(directory, queue.settings), Limit(100)) == 100
    place = queue_dir / f"{NOW}000000000.slice"
    place.mkdir()
    (place / f"{NOW}000000001").write_bytes(b"slice")
    return queue


def read(queue, states, shares=1):
    """Read all folders, each in so many shares."""
    directory, wanted, now = queue.layout.directory, frozenset(states), time.time_ns() // 1000
    return [
        entry
        for folder in folders.find(directory, wanted, now)
        for share in range(shares)
        for entry in folders.read(directory, folder._replace(share=share, shares=shares), wanted, now)
    ]


@pytest.mark.parametrize("states", [*((state,) for state in VISIBLE), VISIBLE, ("ready", "leased")])
@pytest.mark.parametrize("shares", [1, 3])
def test_folders_hold_what_a_scan_finds(queue, states, shares):
    """Every message of the wanted states, once, with the same fields, in however many shares."""
    key = lambda entry: entry.id  # noqa: E731
    scanned = [entry for entry in queue.layout.entries(states) if entry.state in states]
    found = read(queue, states, shares)
    assert sorted(found, key=key) == sorted(scanned, key=key)
    assert len({entry.id for entry in found}) == len(found) > 0


def test_finding_folders_lists_no_batch_without_parts(queue_dir):
    """COST: the names in a slice, a part or a flat batch are for whoever reads it."""
    queue = Queue(queue_dir)
    queue.put_many([b"x"] * 300)
    queue.put_many([b"x"] * 9000)
    listed = []
    real = fs.listing

    def listing(name, fd):
        for entry in real(name, fd):
            listed.append(entry.name)
            yield entry

    with replaced(fs, listing=listing):
        found = list(folders.find(queue.layout.directory, frozenset(("ready",)), NOW))
    assert len(listed) < SLICE_SIZE + 20, "the names beside the parts of a batch, and none in them"
    assert sum(folder.weight for folder in found) >= 9300
    assert len(found) == 4


def test_a_folder_that_is_gone_is_no_error(queue):
    """Emptied and removed between any two looks."""
    directory, states = queue.layout.directory, frozenset(VISIBLE)
    found = list(folders.find(directory, states, NOW))
    queue.flush()
    assert [entry for folder in found for entry in folders.read(directory, folder, states, NOW)] == []
    assert list(folders.find(Queue(f"{queue.path}-none").layout.directory, states, NOW)) == []


def test_a_folder_that_goes_before_its_size_is_asked_for_is_left_out(queue):
    """RACE: as if it had gone before the listing."""
    directory, states = queue.layout.directory, frozenset(("ready",))
    with failing("stat", errno.ENOENT, when=of(".slice/")):
        assert not any(each.prefix.endswith(".slice/") for each in folders.find(directory, states, NOW))
    queue.put_many([b"x", b"y"])
    with failing("stat", errno.ENOENT, when=of(".batch/")):
        (batch,) = [each for each in folders.find(directory, states, NOW) if each.prefix.endswith(".batch/")]
    assert not batch.deep, "listed to be sure, since nothing tells whether it has parts"
    with failing("open", errno.ENOENT, when=of("dead/")):
        assert [each for each in folders.find(directory, frozenset(("dead",)), NOW) if not each.deep] == []


def test_a_folder_of_another_user_is_left_out_and_a_closed_queue_is_an_error(queue_dir):
    """The queue's own directory has to be readable; a part of a batch is as if it were empty."""
    queue = Queue(queue_dir)
    queue.put_many([b"x"] * 9000)
    directory, ready = queue.layout.directory, frozenset(("ready",))
    with failing("open", errno.EACCES, when=of(".batch/")):
        assert list(folders.find(directory, ready, NOW)) == []
    for code in (errno.EACCES, errno.EIO):
        with failing("open", code, when=of(".")), pytest.raises(QueueError):
            list(folders.find(directory, ready, NOW))
    with failing("open", errno.EIO, when=of(".batch/")), pytest.raises(QueueError):
        list(folders.find(directory, ready, NOW))


def test_pins_of_another_user_are_left_out(queue):
    """Nobody can know what is in them."""
    with failing("open", errno.EACCES, when=of("/c")):
        found = read(queue, ("leased",))
    assert [entry.token for entry in found if entry.token == "c"] == []


# --- bodies ------------------------------------------------------------------------------------------------


def test_bodies_of_files_and_links_are_read_in_turn(queue_dir):
    """Short and long, empty, in several directories; and what is gone is said to be gone."""
    wanted = {}
    for links in (False, True, False):
        queue = Queue(queue_dir, links=links)
        for body in (b"", b"short", b"x" * 5000, b"short"):
            wanted[queue.put(body)] = body
        wanted |= dict(zip(queue.put_many([b"1", b"2"]), (b"1", b"2"), strict=True))
    entries = sorted(queue.layout.entries(("ready",)), key=lambda entry: entry.id)
    bodies = Bodies(queue.layout.directory)
    assert {entry.id: bodies.load(entry.place) for entry in entries} == wanted
    for place in (entries[0].place, entries[-1].place, f"{entries[0].id}.batch/{entries[0].id}"):
        (queue_dir / place).unlink(missing_ok=True)
        with pytest.raises(MessageNotFound):
            bodies.load(place)


def test_a_link_is_read_by_one_call(queue_dir):
    """COST: after the first one, nobody tries to open it as a file."""
    queue = Queue(queue_dir, links=True)
    queue.put_many([b"x"] * 10)
    entries = list(queue.layout.entries(("ready",)))
    bodies = Bodies(queue.layout.directory)
    bodies.load(entries[0].place)
    opened, read = [], []
    real = fs.readlink
    with replaced(
        fs,
        open=lambda *each, **_: opened.append(each),
        readlink=lambda *each, **more: (read.append(each), real(*each, **more))[1],
    ):
        assert {bodies.load(entry.place) for entry in entries} == {b"x"}
    assert (len(opened), len(read)) == (0, 10)


def test_a_body_that_cannot_be_read_is_an_error_of_the_queue(queue_dir):
    """A disk that fails; a link that is none of ours is no body at all."""
    queue = Queue(queue_dir, links=True)
    first, second = queue.put(b"1"), queue.put(b"2")
    bodies = Bodies(queue.layout.directory)
    assert bodies.load(first) == b"1"
    (queue_dir / second).unlink()
    os.symlink("/etc/passwd", queue_dir / second)
    assert bodies.load(second) is None
    with failing("open", errno.EIO), pytest.raises(QueueError):
        Bodies(queue.layout.directory).load(first)
    with failing("open", errno.EIO, when=of(first)), pytest.raises(QueueError):
        Bodies(queue.layout.directory).load(first)
