"""Die before each filesystem call of publishing, pinning, acknowledging and releasing; whatever comes next finds all.

Dying before call n + 1 is dying after call n, so both sides of every call are tried.
"""

import contextlib
import os

import pytest
from support.dying import Died, dying
from support.kit import files

from dirqueue import Queue
from dirqueue.layouts.native import attempt, pins, staged
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.staged import Identity
from dirqueue.layouts.native.supply import claimable

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # the dead close nothing
)
WAITING = [b"1", b"2", b"3", b"4"]
NEW = [b"new 1", b"new 2", b"new 3"]


class Life:
    """One queue and one consumer, before and after a death."""

    def __init__(self, path, *, sync):
        self.settings = {"sync": sync, "stale": 0.0, "margin": 0.0}
        self.path = path
        self.queue = Queue(path, **self.settings)
        self.queue.put_many(WAITING)
        self.open()

    def open(self):
        """Come (again): nothing is known but what is on disk."""
        self.queue = Queue(self.path, **self.settings)
        self.directory = self.queue.layout.directory
        self.mine = Pins(self.directory, self.queue.settings, "c")

    def pinned(self, *, keep=False):
        self.mine.register(600.0, keep=keep)
        assert self.mine.pin(1, claimable(self.directory, self.queue.settings), Limit(2)) == 2

    def staged(self):
        staging = staged.begin(self.directory)
        parts = []
        for some in (NEW[:2], NEW[2:]):
            writer = attempt.Writer(self.directory, self.queue.settings, staging)
            writer.add(some)
            parts += writer.finish()
        return staging, parts

    def seen(self):
        """Every message that anybody can see, by state."""
        return {
            state: sorted(message.data for message in self.queue.peek(state))
            for state in ("ready", "leased", "done")
        }


def publish(life):
    """One rename, or nothing."""
    staging, parts = life.staged()
    return lambda: staged.commit(life.directory, life.queue.settings, staging, parts)


def publish_with_identity(life):
    """The record is the commit point."""
    staging, parts = life.staged()
    return lambda: staged.commit(life.directory, life.queue.settings, staging, parts, Identity("app", 1))


def abort(life):
    """Nothing becomes visible."""
    staging, _ = life.staged()
    return lambda: staged.abort(life.directory, staging)


def register(life):
    """Nothing is taken."""
    return lambda: life.mine.register(600.0)


def pin(life):
    """Two of four are taken."""
    life.mine.register(600.0)
    supply = claimable(life.directory, life.queue.settings)
    return lambda: life.mine.pin(1, supply, Limit(2))


def ack(life):
    """Both go, or none."""
    life.pinned()
    return lambda: (life.mine.ack(1), life.mine.forget())


def ack_and_keep(life):
    """Both are done, or none is; after a death somebody finishes it."""
    life.pinned(keep=True)
    return lambda: (life.mine.ack(1, keep=True), life.mine.forget())


def release(life):
    """Both go back, or none."""
    life.pinned()
    return lambda: (life.mine.release(1), life.mine.forget())


def give_up(life):
    """What a purge does to a consumer that never came back."""
    life.pinned()
    silent(life)
    return lambda: pins.release_stale(life.directory, life.queue.settings)


OPERATIONS = [publish, publish_with_identity, abort, register, pin, ack, ack_and_keep, release, give_up]
KEEPS = [ack_and_keep]


def silent(life):
    """Make it long ago that the consumer gave a sign of life."""
    base = life.path / life.mine.base
    for path in (base / pins.OWNER, base):
        if path.exists():
            os.utime(path, (0, 0))


def comes_again(life, operation):
    """The same consumer goes on where it was, as a stream does from its checkpoint, and gives back what it holds."""
    for name in life.mine.names():
        if name.endswith(".ack"):
            life.mine.finish(name, keep=operation in KEEPS)
        elif name not in pins.NOTES:
            life.mine.give_back(name)
    life.mine.forget()
    life.queue.purge()


def never_comes(life, _):
    """The consumer is past its timeout, and somebody purges."""
    silent(life)
    life.queue.purge()


@pytest.mark.parametrize("sync", [False, True], ids=["fast", "sync"])
@pytest.mark.parametrize("after", [comes_again, never_comes])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_death_at_any_call_loses_and_doubles_nothing(tmp_path, operation, after, sync):
    """For n = 0, 1, 2 ... until it gets through: n calls, dead, look, tidy up, look again."""
    for calls in range(500):
        life = Life(tmp_path / str(calls), sync=sync)
        act = operation(life)
        with dying(calls) as count, contextlib.suppress(Died):
            act()
        died = count[0] > calls
        life.open()
        _all_or_nothing(life, operation, died=died)
        after(life, operation)
        life.open()
        _nothing_lost(life, operation, died=died)
        if not died:
            assert calls > 0
            return
    pytest.fail("it never got through")


def _all_or_nothing(life, operation, *, died):
    """Right after the death: what is visible is whole, and nothing has two names."""
    seen = life.seen()
    every = [body for bodies in seen.values() for body in bodies]
    assert len(every) == len(set(every))
    new = [body for body in seen["ready"] if body in NEW]
    assert new in ([], NEW)
    if operation in (publish, publish_with_identity) and not died:
        assert new == NEW
    if operation is abort:
        assert new == []
    if operation is ack:
        assert seen["leased"] in ([], WAITING[:2])
        assert [body for body in seen["ready"] if body in WAITING] == WAITING[2:], "acked or held, never back"
    if operation is release:
        assert seen["leased"] + [body for body in seen["ready"] if body in WAITING[:2]] == WAITING[:2]


def _nothing_lost(life, operation, *, died):
    """After somebody came: each message is ready, done, or acknowledged; nothing half made is left."""
    seen = life.seen()
    assert seen["leased"] == []
    waiting = [body for body in seen["ready"] if body in WAITING]
    if operation is ack:
        assert waiting in ([*WAITING], WAITING[2:])
        assert died or waiting == WAITING[2:]
    elif operation is ack_and_keep:
        assert sorted(waiting + seen["done"]) == WAITING
        assert seen["done"] in ([], WAITING[:2])
        assert died or seen["done"] == WAITING[:2]
    else:
        assert waiting == WAITING
    left = [name for name in files(life.path) if name.endswith((".new", ".ack")) or "/pins/" in name]
    assert left == []
