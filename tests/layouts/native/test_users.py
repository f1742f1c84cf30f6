"""Two users of one group on one queue: what one makes the other can use, and what it cannot is stepped over."""

import os
import stat

import pytest
from support.kit import drain
from support.users import GROUP, as_user, import_all, open_to_all

from dirqueue import Empty, Queue
from dirqueue.layouts.native import publish
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import claimable

pytestmark = pytest.mark.root

ANN, BOB = 61001, 61002
BODIES = [b"%d" % number for number in range(12)]


@pytest.fixture
def shared(tmp_path):
    """Give the recommended set-up: a directory of the group, which hands its group down."""
    import_all(tmp_path / "any")
    path = open_to_all(tmp_path) / "queue"
    path.mkdir()
    os.chown(path, 0, GROUP)
    os.chmod(path, 0o2770)
    return path


def opened(path, **settings):
    return Queue(path, sync=False, margin=0.0, backoff=0.0, **settings)


def put_many(path):
    opened(path).put_many(BODIES)


def put_deep(path):
    publish.DEEP = -1  # in this child only
    queue = opened(path)
    for body in BODIES:
        queue.put(body)


def get_all(path):
    return drain(opened(path, keep_done=True))


def reject_one(path):
    opened(path).get(timeout=0).reject("no")


def redrive(path):
    return opened(path).redrive()


def modes(path):
    return {
        stat.S_IMODE(os.stat(path / name).st_mode) for name in os.listdir(path) if os.path.isdir(path / name)
    }


@pytest.mark.parametrize("put", [put_many, put_deep])
def test_what_one_user_puts_another_gets(shared, put):
    """Batches and slices have the mode of the queue, whatever the umask; done/ too."""
    as_user(ANN, put, shared)
    assert as_user(BOB, get_all, shared) == BODIES
    as_user(BOB, put, shared)
    assert as_user(ANN, get_all, shared) == BODIES
    assert modes(shared) == {0o2770}


def test_what_one_user_rejects_another_can_redrive(shared):
    """dead/ belongs to the group too."""
    as_user(ANN, put_many, shared)
    as_user(BOB, reject_one, shared)
    as_user(ANN, reject_one, shared)
    assert len(as_user(ANN, redrive, shared)) == 2
    assert sorted(as_user(BOB, get_all, shared)) == sorted(BODIES)


def test_directories_in_a_private_queue_are_private(tmp_path):
    """The queue's mode decides, not the umask."""
    path = tmp_path / "queue"
    path.mkdir(mode=0o700)
    opened(path).put_many(BODIES)
    assert modes(path) == {0o700}


@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
@pytest.mark.parametrize("kind", ["batch", "slice"])
def test_a_directory_of_another_users_is_stepped_over(shared, mode, kind):
    """Made with another mode by another program: it cannot be listed, or nothing can be claimed from it."""
    as_user(ANN, put_many if kind == "batch" else put_deep, shared)
    closed = [name for name in os.listdir(shared) if name.endswith(f".{kind}")]
    for name in closed:
        os.chmod(shared / name, mode)
    opened(shared).put(b"for all")
    assert as_user(BOB, get_all, shared) == [b"for all"]
    assert as_user(BOB, foreign, shared) == (closed if mode == 0o700 else [])
    as_user(BOB, purge, shared)
    assert as_user(ANN, get_all, shared) == BODIES


def foreign(path):
    return [entry.place for entry in opened(path).layout.entries() if entry.state == "foreign"]


def purge(path):
    opened(path, stale=0.0).purge()


def test_directory_of_another_users_costs_a_few_calls_not_many(shared):
    """A look that finds nothing else ends soon, and does not try again at once."""
    as_user(ANN, put_many, shared)
    (batch,) = [name for name in os.listdir(shared) if name.endswith(".batch")]
    os.chmod(shared / batch, 0o755)
    assert as_user(BOB, renames, shared) <= 2


def renames(path):
    from dirqueue.disk import fs

    calls = []
    real = fs.rename
    fs.rename = lambda *arguments, **named: (calls.append(arguments), real(*arguments, **named))
    queue = opened(path)
    for _ in range(3):
        with pytest.raises(Empty):
            queue.get(timeout=0)
    return len(calls)


def test_dead_directory_of_another_users_does_not_stop_claims(shared):
    """A message out of attempts cannot be moved there; the others are delivered."""
    (shared / "dead").mkdir()
    os.chmod(shared / "dead", 0o700)
    as_user(ANN, put_and_lose, shared)
    assert as_user(BOB, get_limited, shared) == [b"good"]


def put_and_lose(path):
    queue = opened(path)
    queue.put(b"poison")
    queue.put(b"good")
    queue.get(timeout=0, lease=0.001)


def get_limited(path):
    return drain(opened(path, max_attempts=1))


def test_lots_are_pinned_from_what_one_may_use(shared):
    """A batch of another user's is left where it is."""
    as_user(ANN, put_many, shared)
    (batch,) = [name for name in os.listdir(shared) if name.endswith(".batch")]
    os.chmod(shared / batch, 0o755)
    opened(shared).put(b"for all")
    assert as_user(BOB, pin, shared) == 1


def pin(path):
    queue = opened(path)
    mine = Pins(queue.layout.directory, queue.settings, "bob")
    mine.register(600.0)
    return mine.pin(1, claimable(mine.directory, mine.settings), Limit())
