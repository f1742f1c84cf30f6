"""Branches that a usual life does not reach: each by the fault or the race that it is for."""

import os
import signal
import threading

import pytest
from support.failing import before, failing
from support.kit import FORK, PATIENCE, drain, in_child, wait_until

from dirqueue import LayoutError, MessageNotFound, Queue, QueueAccess, QueueError, QueueNotFound
from dirqueue.disk import beside, fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.text import journal, layout, stamp, turn
from dirqueue.settings import Settings


def test_child_takes_a_lock_of_its_own(make, path):
    """The descriptor of the parent's lock is shared with a child, and so would the lock be."""
    queue = make()
    queue.put_many([b"a", b"b", b"c"])
    held = queue.get(timeout=0)
    assert in_child(lambda: drain(queue)) == [b"b", b"c"]
    held.ack()
    assert drain(queue) == []


def test_fork_in_the_middle_of_a_turn(make, path):
    """The child can use the queue when the parent's turn is over."""
    queue = make()
    queue.put(b"a")
    children = []

    def fork():
        child = FORK.Process(target=queue.put, args=(b"child",))
        child.start()
        children.append(child)

    with before("pwritev", fork):
        queue.put(b"parent")
    children[0].join(PATIENCE)
    assert children[0].exitcode == 0
    assert sorted(drain(queue)) == [b"a", b"child", b"parent"]


def test_handler_that_comes_in_the_middle_of_a_turn_gets_an_error(make, path):
    """By way of a thread that Python does not know it can: nothing is half done."""
    queue = make()
    queue.put(b"a")
    errors = []

    def interrupt():
        for use in (lambda: queue.put(b"x"), lambda: len(queue)):
            try:
                use()
            except QueueError as error:
                errors.append(str(error))

    with before("pwritev", interrupt):
        queue.put(b"b")
    assert len(errors) == 2
    assert all("in a handler" in each for each in errors)
    assert drain(queue) == [b"a", b"b"]


def test_handlers_are_held_back_for_a_turn(make, path):
    queue = make()
    seen = []
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(queue.put(b"handler")))
    try:
        with before("pwritev", lambda: os.kill(os.getpid(), signal.SIGUSR1)):
            queue.put(b"a")
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert len(seen) == 1
    assert drain(queue) == [b"a", b"handler"]


@pytest.fixture
def crowded():
    """Have another thread, which takes signals."""
    over = threading.Event()
    other = threading.Thread(target=over.wait, args=(PATIENCE,))
    other.start()
    yield
    over.set()
    other.join(PATIENCE)


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("use", [lambda queue: queue.put(b"a"), len], ids=["turn", "look"])
def test_handler_that_comes_through_another_thread_waits_for_what_it_interrupts(make, path, use):
    """A turn or a look goes on beside it, and the handler comes after."""
    queue = make()
    queue.put(b"first")
    seen = []
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(queue.put(b"handler")))
    try:
        with before("pread", lambda: os.kill(os.getpid(), signal.SIGUSR1)):
            use(queue)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert len(seen) == 1
    assert drain(queue) in ([b"first", b"a", b"handler"], [b"first", b"handler"])


@pytest.mark.usefixtures("crowded")
def test_what_a_handler_raises_comes_after_what_it_interrupts(make, path):
    """What was begun is done; and an error of the turn itself is raised as ever."""
    queue = make()
    queue.put(b"first")

    def stop(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGUSR1, stop)
    try:
        with (
            before("pwritev", lambda: os.kill(os.getpid(), signal.SIGUSR1)),
            pytest.raises(KeyboardInterrupt),
        ):
            queue.put(b"a")
        with failing("pwritev", 5), pytest.raises(QueueAccess):
            queue.put(b"b")
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert drain(queue) == [b"first", b"a"]


def test_threads_share_one_object(make, path):
    queue = make()
    threads = [
        threading.Thread(target=lambda n=n: [queue.put(b"%d-%d" % (n, m)) for m in range(20)])
        for n in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert len(set(drain(queue))) == 80


def test_remove_makes_a_comment(make, path):
    queue = make()
    ids = queue.put_many([b"a", b"b", b"c"])
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("no")
    for id in ids:
        entry = queue.layout.find(id)
        assert queue.layout.remove(entry)
        assert not queue.layout.remove(entry)
    assert queue.stats().total == queue.stats().dead == queue.stats().done == 0
    path.unlink()
    assert not queue.layout.remove(entry)
    assert not queue.layout.redrive(entry)


def test_dead_messages_past_their_time_become_comments(make, path):
    queue = make(keep_dead_for=0.000001)
    queue.put_many([b"a", b"b"])
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0).reject("no")
    path.write_bytes(path.read_bytes().replace(b"!b", b"=b"))
    wait_until(lambda: queue.purge(progress=lambda: None).dead)
    assert b"\n#a\n=b\n" in path.read_bytes()


def test_purge_buries_what_is_out_of_attempts(make, path):
    queue = make(max_attempts=1)
    queue.put(b"a")
    queue.get(timeout=0, lease=0.001)
    wait_until(lambda: queue.purge().buried)
    assert next(queue.peek("dead")).error.startswith("delivered 1 times and never")


def test_message_out_of_attempts_after_a_retry_is_dead(make, path):
    queue = make(max_attempts=3)
    queue.put(b"a")
    queue.get(timeout=0).retry(0, "bad")
    other = make(max_attempts=1)
    assert drain(other) == []
    assert next(other.peek("dead")).error == "bad"


def test_purge_removes_old_parts_of_the_journal_and_leftovers(make, path, monkeypatch):
    monkeypatch.setattr(journal, "PART", 200)
    monkeypatch.setattr(journal, "KEPT_BYTES", 100)
    queue = make(stale=0)
    for n in range(20):
        queue.put(b"%d" % n)
    drain(queue)
    side = queue.layout.directory.side
    for name in ("new", ".clock-old", "journal.9999999999999999"):
        with open(os.path.join(side, name), "wb"):
            pass
        os.utime(os.path.join(side, name), (1e9, 1e9))
    parts = [name for name in os.listdir(side) if name.startswith("journal.")]
    assert len(parts) > 4
    for name in parts[1:]:
        os.utime(os.path.join(side, name), (1e9, 1e9))
    purged = queue.purge()
    assert purged.new == 2
    assert purged.other >= len(parts) - 4
    queue.put(b"x")
    assert drain(make()) == [b"x"]


def test_part_of_the_journal_that_cannot_begin_is_left_to_the_next(make, path, monkeypatch):
    queue = make()
    queue.put(b"a")
    monkeypatch.setattr(queue.layout.ledger.journal, "full", 0)
    with failing("open", 28, when=lambda name, *_, **__: str(name).startswith("journal."), times=1):
        queue.put(b"b")
    assert drain(queue) == [b"a", b"b"]


def test_seal_that_is_lost_while_parts_follow_each_other(make, path, monkeypatch):
    """The parts lead to each other; one that nothing leads to is not taken."""
    monkeypatch.setattr(journal, "PART", 300)
    queue = make()
    queue.put_many([b"%d" % n for n in range(6)])
    lease = queue.get(timeout=0)
    for _ in range(6):
        lease.renew()
    side = queue.layout.directory.side
    os.truncate(os.path.join(side, "lock"), 0)
    fresh = make()
    got = []
    wait_until(lambda: got.extend(drain(fresh)) or len(got) == 5)
    lease.ack()
    assert got == [b"%d" % n for n in range(1, 6)]
    first = min(name for name in os.listdir(side) if name.startswith("journal."))
    os.truncate(os.path.join(side, first), 5)
    os.truncate(os.path.join(side, "lock"), 0)
    fresh = make()
    fresh.put(b"x")
    wait_until(lambda: drain(fresh) == [b"x"])


def test_part_that_is_gone_is_not_needed(make, path):
    queue = make()
    queue.put_many([b"a", b"b"])
    lease = queue.get(timeout=0)
    side = queue.layout.directory.side
    for name in os.listdir(side):
        if name.startswith("journal."):
            os.unlink(os.path.join(side, name))
    fresh = make()
    assert [message.body for message in fresh.peek()] == [b"a", b"b"]
    got = []
    wait_until(lambda: got.extend(drain(fresh)) or len(got) == 2)
    del lease


def test_file_that_somebody_makes_first_is_used(make, path):
    """Between our look and our creation."""
    queue = make()
    real = fs.open

    def race(name, flags, *arguments, **named):
        if str(name) == str(path) and flags & os.O_EXCL and not path.exists():
            path.write_bytes(b"-theirs\n")
        return real(name, flags, *arguments, **named)

    fs.open = race
    try:
        queue.put(b"ours")
    finally:
        fs.open = real
    assert drain(queue) == [b"theirs", b"ours"]


def test_lock_that_vanishes_as_it_is_opened(make, path):
    queue = make()
    queue.put(b"a")
    queue.close()
    assert queue.layout.directory.fd >= 0
    import shutil

    with before(
        "open", lambda: shutil.rmtree(queue.layout.directory.side), when=lambda name, *_, **__: name == "lock"
    ):
        wait_until(lambda: drain(queue) == [b"a"])


def test_editor_that_saves_in_the_middle_of_our_change(make, path):
    """The file leases of the kernel keep it out where they can; where not, the record is redone."""
    queue = make()
    queue.put_many([b"one", b"two"])
    copy = path.read_bytes()
    real = fs.fcntl
    fs.fcntl = lambda *_: (_ for _ in ()).throw(OSError(22, "no leases here"))

    def save():
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(copy + b"-typed\n")

    try:
        with before("pwritev", save):
            queue.put(b"three")
        got = []
        wait_until(lambda: got.extend(drain(queue)) or len(got) >= 4)
    finally:
        fs.fcntl = real
    assert sorted(got) == [b"one", b"three", b"two", b"typed"]


def test_sizes_and_reads_of_what_is_gone(make, path):
    queue = make()
    id = queue.put(b"x")
    message = queue.message(id)
    path.write_bytes(b"")
    for look in (lambda: message.data, lambda: message.size, message.open):
        with pytest.raises(MessageNotFound):
            look()
    with pytest.raises(QueueNotFound):
        path.unlink()
        queue.layout.in_turn(lambda: None, "look at")


def test_message_is_found_by_its_text_when_it_was_moved(make, path):
    queue = make()
    ids = queue.put_many([b"a", b"b"])
    drain(queue, 1)
    path.write_bytes(b"# above\n" + path.read_bytes())
    assert queue.message(ids[0]).state == "done"
    assert queue.message(ids[1]).state == "ready"
    with pytest.raises(MessageNotFound):
        queue.message("000000000000-000000000000")
    wait_until(lambda: _cancelled(queue, ids[1]))
    assert drain(queue) == []


def _cancelled(queue, id):
    queue.message(id).cancel()
    return True


def test_file_that_keeps_changing_is_an_error(make, path, monkeypatch):
    queue = make()
    queue.put_many([b"a", b"b"])
    lease = queue.get(timeout=0)
    drain(queue)
    monkeypatch.setattr(turn, "PATIENCE", 0)
    for use in (lambda: queue.put(b"x"), lease.ack, queue.clear):
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(QueueError, match="keeps changing it"):
            use()
    assert queue.purge().busy == 1


def test_reserved_file_is_waited_for(make, path):
    """A look in the middle of another process's change."""
    make().put(b"x")
    ready, go = FORK.Event(), FORK.Event()

    def hold():
        fd = os.open(path, os.O_RDWR)
        assert beside.reserve(fd)
        ready.set()
        go.wait(PATIENCE)
        os.close(fd)

    child = FORK.Process(target=hold)
    child.start()
    assert ready.wait(PATIENCE)
    timer = threading.Timer(0.05, go.set)
    timer.start()
    assert len(make()) == 1
    child.join(PATIENCE)
    timer.join()


@pytest.mark.parametrize("data", [b"", b"rubbish", stamp.Seal(*[1] * 14).dump()[:25], b"a b c 00000000"])
def test_seal_that_is_none(data):
    assert stamp.load(data) is None
    text = b"x y"
    import zlib

    assert stamp.load(b"%b %08x" % (text, zlib.crc32(text))) is None


def test_home_of_a_file(tmp_path, path):
    home = beside.Beside(str(path), create=False)
    assert repr(home) == f"Beside({str(path)!r})"
    assert not home.find()
    with pytest.raises(QueueNotFound):
        home.remake()
    assert not home.reopen()
    assert not home.removed()
    assert beside.file_of(".x.dirqueue") == "x"
    assert beside.file_of("x") == ""
    (tmp_path / "file").write_bytes(b"")
    assert not beside.is_home(str(tmp_path / "file" / "below"))
    with pytest.raises(LayoutError, match="is a directory"):
        layout.Text(Directory(str(tmp_path)), Settings())
    (tmp_path / ".y.dirqueue").write_bytes(b"")
    with pytest.raises(QueueAccess):
        Queue(tmp_path / "y", layout="text").put(b"x")


def test_append_where_the_kernel_cannot_say_at_the_end(make, path, monkeypatch):
    monkeypatch.setattr(beside, "_AT_END", None)
    queue = make()
    queue.put_many([b"a", b"b"])
    assert drain(queue) == [b"a", b"b"]


def test_parents_are_made_and_synced(tmp_path):
    with Queue(tmp_path / "a" / "b" / "q.tq", layout="text") as queue:
        queue.put(b"x")
    with failing("fsync", 5), pytest.raises(QueueAccess):
        Queue(tmp_path / "c" / "q.tq", layout="text").put(b"x")
    with failing("fsync", 13, times=3), Queue(tmp_path / "d" / "q.tq", layout="text", sync=False) as queue:
        queue.put(b"x")
        assert drain(queue) == [b"x"]
