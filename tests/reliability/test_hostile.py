"""A directory full of entries that are not messages, and strings that are not ids."""

import itertools
import os
import random

import pytest
from lab import hostile
from support.failing import before

import dirqueue
from dirqueue.disk import fs
from dirqueue.layouts import signs
from dirqueue.layouts.native import names
from dirqueue.tools import check, delete


@pytest.fixture
def planted(tmp_path):
    """Give a queue directory with every kind of foreign entry, and a file outside that is the target of links."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    assert hostile.plant(str(path), str(outside)) >= 60
    return path, outside


def test_foreign_entries_are_neither_delivered_nor_touched(planted):
    """Among 60 kinds of entries only messages are delivered; no verb changes anything else."""
    path, outside = planted
    before = hostile.tree(path)
    queue = dirqueue.Queue(
        path, sync=False, stale=0.0, max_attempts=2, keep_done_for=0.001, keep_dead_for=0.001
    )
    for number in range(5):
        queue.put(b"%d" % number)
    queue.put_many([b"5", b"6"])
    got = []
    for _ in range(30):
        try:
            lease = queue.get(timeout=0)
        except dirqueue.Empty:
            break
        got.append(lease.message.body)
        if lease.message.body == b"3":
            lease.reject("bad")
        else:
            lease.ack()
    assert sorted(got) == [b"%d" % number for number in range(7)]
    assert queue.redrive() != []
    queue.get(timeout=0).ack()
    queue.purge()
    list(queue.peek())
    queue.stats()
    after = hostile.tree(path)
    assert {name: entry for name, entry in before.items() if after.get(name) != entry} == {}
    assert outside.read_bytes() == b"precious"


def test_entries_reports_foreign_files(planted):
    """Foreign entries are listed with the state "foreign", so that tools can report them."""
    path, _outside = planted
    queue = dirqueue.Queue(path, sync=False)
    assert sum(1 for entry in queue.layout.entries() if entry.state == "foreign") >= 60


def test_fuzzed_names_are_parsed_exactly_or_rejected():
    """100,000 almost valid names: parsing never raises, and an accepted name is rebuilt exactly."""
    accepted, wrong = hostile.fuzz(100_000)
    assert wrong == []
    assert 1000 < accepted < 99_000


def test_fuzzed_ids_reach_no_path(tmp_path):
    """A string that is not an id is refused before any file is accessed."""
    canary = tmp_path / "canary"
    canary.write_bytes(b"precious")
    queue = dirqueue.Queue(tmp_path / "queue", sync=False)
    queue.put(b"x")
    strings = ["", ".", "..", "../canary", str(canary), "a\0b", "9" * 10_000, *hostile.fuzzed(3000, seed=1)]
    for text in strings:
        if names.parse(text) is not None and names.parse(text).kind == "ready":
            continue
        with pytest.raises((dirqueue.InvalidId, dirqueue.MessageNotFound)):
            queue.message(text)
    assert canary.read_bytes() == b"precious"
    assert len(queue) == 1


def test_put_does_not_write_through_a_planted_symlink(tmp_path, monkeypatch):
    """An attacker guesses the name of the next file and plants a symlink there: put uses another name."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    guesses = iter(["1700000000000000000000001", "1700000000000000000000002"])
    monkeypatch.setattr("dirqueue.layouts.native.publish.new_id", lambda: next(guesses))
    os.symlink(precious, path / "1700000000000000000000001.new")
    queue = dirqueue.Queue(path, sync=False)
    assert queue.put(b"x") == "1700000000000000000000002"
    assert precious.read_bytes() == b"precious"


def test_planted_hard_link_is_never_written_to(tmp_path):
    """A message that is a hard link to another file: delivering and ending it leaves that file unchanged."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    os.link(precious, path / "1700000000000000000000001")
    queue = dirqueue.Queue(path, sync=False)
    lease = queue.get(timeout=0)
    lease.retry(0.0, "no luck")
    queue.get(timeout=0).ack()
    assert precious.read_bytes() == b"precious"


# --- links -----------------------------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    """Give a queue whose rooms are full of links that are no messages, those links, and a watch on what is outside."""
    (tmp_path / "elsewhere").mkdir()
    outside = tmp_path / "elsewhere" / "outside"
    outside.write_bytes(b"precious")
    queue = dirqueue.Queue(
        tmp_path / "queue", sync=False, links=True, stale=0.0, margin=0, max_attempts=2, backoff=0, keep_done=True,
        keep_done_for=0.001, keep_dead_for=0.001,
    )  # fmt: skip
    queue.put(b"first")
    queue.get(timeout=0).release()
    planted = hostile.plant_links(queue.path, str(outside))
    return queue, planted, hostile.Watch(fs, outside, tmp_path / "elsewhere")


def test_links_that_are_no_messages_are_never_claimed_followed_or_removed(linked):
    """In all rooms: everything that a queue and its tools can do, and the links lie where they lay."""
    queue, planted, watch = linked
    before = {path: os.readlink(path) for path in planted}
    assert len(planted) >= 150
    with watch:
        queue.put_many([b"one", b"two"])
        queue.put(b"later", delay=0.000001)
        got = []
        for lease in queue.consume(timeout=0):
            got.append(lease.message.body)
            (lease.retry if lease.message.body == b"two" else lease.ack)()
        queue.redrive()
        for message in list(queue.peek()):
            message.change(delay=0.000001)
        list(queue.peek("dead"))
        queue.purge()
        stats = queue.stats()
        codes = {
            each.code for deep in (False, True) for each in check.check(queue.path, deep=deep, repair=True)
        }
        with pytest.raises(dirqueue.QueueError, match="not dirqueue's"):
            delete.delete(queue.layout)
        assert signs.is_queue(queue.path)
        for path in planted[:20]:
            name = os.path.basename(path)
            if name.isdigit():
                with pytest.raises(dirqueue.MessageNotFound):
                    queue.message(name)
    assert sorted(set(got)) == [b"first", b"later", b"one", b"two"]
    assert watch.reached == []
    assert stats.foreign >= len(planted)
    assert "Q03" in codes
    assert {path: os.readlink(path) for path in planted} == before


def _foreign(path, outside):
    os.symlink(outside, path)


def _loop(path, outside):
    os.symlink(os.path.basename(path), path)


def _other(path, outside):
    os.symlink(":other", path)


def _file(path, outside):
    with open(path, "wb") as file:
        file.write(b"other")


def _directory(path, outside):
    os.mkdir(path)


def _fifo(path, outside):
    os.mkfifo(path)


def _nothing(path, outside):
    pass


@pytest.mark.parametrize("become", [_foreign, _loop, _other, _file, _directory, _fifo, _nothing])
@pytest.mark.parametrize("call", ["scandir", "readlink", "rename", "open"])
@pytest.mark.parametrize("form", ["link", "file"])
def test_message_replaced_at_any_moment_of_a_get_leads_nowhere(tmp_path, form, call, become):
    """Between listing, reading and claiming: what is outside is not read, and the queue goes on."""
    if (form, call) == ("file", "readlink"):
        pytest.skip("a file is not read that way")
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    queue = dirqueue.Queue(tmp_path / "queue", sync=False, links=form == "link", backoff=0, max_attempts=2)
    id = queue.put(b"body")
    planted = os.path.join(queue.path, id)

    def replace():
        os.unlink(planted)
        become(planted, str(outside))

    got = []
    with hostile.Watch(fs, outside) as watch:
        with before(call, replace, when=lambda *words, **_: os.path.lexists(planted)):
            for _ in range(4):
                try:
                    lease = queue.get(timeout=0)
                    got.append(lease.message.body)
                    lease.ack()
                except dirqueue.DirQueueError:
                    break  # nothing there, or what was claimed is a directory by now
        queue.put(b"next")
        for lease in queue.consume(timeout=0):
            got.append(lease.message.body)
            lease.ack()
    assert watch.reached == []
    assert outside.read_bytes() == b"precious"
    assert got.count(b"next") == 1
    assert set(got) <= {b"body", b"other", b"next", *([b""] if become is _fifo else [])}
    assert got.count(b"body") + got.count(b"other") <= 1


@pytest.mark.parametrize("room", ["later", "dead", "done"])
def test_bucket_that_is_a_link_is_never_entered(tmp_path, room):
    """What lies where it leads is not claimed, not counted and not removed."""
    queue = dirqueue.Queue(
        tmp_path / "queue", sync=False, margin=0, stale=0.0, keep_dead_for=0.001, keep_done_for=0.001
    )
    queue.put(b"ours")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{hostile.ID}.{hostile.UNTIL}.1").write_bytes(b"precious")
    os.makedirs(os.path.join(queue.path, room))
    os.symlink(outside, os.path.join(queue.path, room, hostile.UNTIL[:-8] + "00000000"))
    for _ in range(2):
        assert [lease.message.body for lease in queue.consume(timeout=0)] in ([b"ours"], [])
    queue.purge()
    queue.redrive()
    assert list(queue.peek("ready")) + list(queue.peek("dead")) + list(queue.peek("done")) == []
    assert [each.read_bytes() for each in outside.iterdir()] == [b"precious"]
    assert "Q03" in {each.code for each in check.check(queue.path)}


def test_hard_linked_links_are_messages_of_their_own(tmp_path):
    """One link under two ids is two messages, and a name outside the queue is nobody's business."""
    queue = dirqueue.Queue(tmp_path / "queue", sync=False, links=True, keep_done=True)
    id = queue.put(b"body")
    other = str(int(id) + 1)
    os.link(os.path.join(queue.path, id), os.path.join(queue.path, other), follow_symlinks=False)
    os.link(os.path.join(queue.path, id), tmp_path / "outside", follow_symlinks=False)
    facts = os.lstat(tmp_path / "outside")
    leases = [queue.get(timeout=0), queue.get(timeout=0)]
    assert [lease.message.id for lease in leases] == [id, other]
    leases[0].reject("bad")
    leases[1].ack()
    queue.purge()
    assert [message.body for state in ("dead", "done") for message in queue.peek(state)] == [b"body", b"body"]
    assert os.readlink(tmp_path / "outside") == ":body"
    assert os.lstat(tmp_path / "outside").st_mtime_ns == facts.st_mtime_ns


def test_mixture_of_files_links_and_what_leads_elsewhere_is_drained_once(tmp_path):
    """Two programs, one that writes links and one that writes files, and a third that plants links of its own."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    queues = [dirqueue.Queue(tmp_path / "queue", sync=False, links=links) for links in (True, False)]
    dice = random.Random(13)
    want, planted = [], []
    for number in range(300):
        queue, body = dice.choice(queues), b"%d" % number * dice.choice((1, 100, 400))
        if number % 10 == 0:
            id = queue.put(body)
            planted.append(os.path.join(queue.path, str(int(id) + 1)))
            os.symlink(outside, planted[-1])
        elif number % 10 == 1:
            queue.put_many([body, body + b"+"])
            want.append(body + b"+")
        else:
            queue.put(body)
        want.append(body)
    got = []
    with hostile.Watch(fs, outside) as watch:
        for queue in itertools.cycle(queues):
            try:
                lease = queue.get(timeout=0)
            except dirqueue.Empty:
                break
            got.append(lease.message.body)
            lease.ack()
    assert sorted(got) == sorted(want)
    assert watch.reached == []
    assert [os.readlink(path) for path in planted] == [str(outside)] * 30
    assert (queues[0].stats().total, queues[0].stats().foreign) == (0, 30)
