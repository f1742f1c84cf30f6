"""Die before or after every call of every operation: no promised message is lost, no ended message comes back."""

import os
import time

import pytest
from support.checker import leftovers, messages, problems
from support.dying import Died, Killer
from support.kit import LONG, drain

from dirqueue import Queue

SETTINGS = {"margin": 0, "lease": LONG, "stale": 0, "backoff": 0}


def put(queue):
    return lambda: queue.put(b"new")


def put_delayed(queue):
    return lambda: queue.put(b"new", delay=0.000001)


def put_many(queue):
    return lambda: queue.put_many([b"new", b"new2", b"new3"])


def put_path(queue):
    path = os.path.join(os.path.dirname(queue.path), f"file-{time.monotonic_ns()}")
    with open(path, "wb") as file:
        file.write(b"new")
    return lambda: queue.put_path(path)


def get(queue):
    return lambda: queue.get(timeout=0)


def ack(queue):
    return queue.get(timeout=0).ack


def ack_in_batch(queue):
    queue.put_many([b"b1", b"b2"])
    leases = queue.get_many(9, timeout=0)
    for lease in leases[:-1]:
        lease.release()
    return leases[-1].ack


def retry(queue):
    lease = queue.get(timeout=0)
    return lambda: lease.retry(0, error="why")


def release(queue):
    return queue.get(timeout=0).release


def reject(queue):
    lease = queue.get(timeout=0)
    return lambda: lease.reject("never")


def renew(queue):
    return queue.get(timeout=0).renew


def cancel(queue):
    return next(queue.peek()).cancel


def change(queue):
    message = next(queue.peek())
    return lambda: message.change(delay=0.000001)


def redrive(queue):
    queue.get(timeout=0).reject("no")
    return queue.redrive


def bury(queue):
    lease = queue.get(timeout=0)
    queue.layout.settings = Queue(queue.path, **SETTINGS, sync=False, max_attempts=1).settings
    return lambda: lease.retry(error="last")


def flush(queue):
    return queue.flush


def purge(queue):
    queue.put_many([b"e1", b"e2"])
    for lease in queue.get_many(9, timeout=0):
        if lease.message.body.startswith(b"e"):
            lease.ack()
        else:
            lease.release()
    with open(os.path.join(queue.path, "1500000000000000123456789.new"), "wb") as file:
        file.write(b"torn")
    return queue.purge


#: Operation -> (bodies that it may end, bodies that it may add).
OPERATIONS = {
    put: (set(), {b"new"}),
    put_delayed: (set(), {b"new"}),
    put_many: (set(), {b"new", b"new2", b"new3"}),
    put_path: (set(), {b"new"}),
    get: (set(), set()),
    ack: ({b"one"}, set()),
    ack_in_batch: ({b"one", b"b1", b"b2"}, {b"b1", b"b2"}),
    retry: (set(), set()),
    release: (set(), set()),
    reject: (set(), set()),
    renew: (set(), set()),
    cancel: ({b"one"}, set()),
    change: (set(), set()),
    redrive: (set(), set()),
    bury: (set(), set()),
    flush: ({b"one", b"two"}, set()),
    purge: (set(), set()),
}


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize(
    "kept",
    [{}, {"sync": True}, {"keep_done": True}, {"links": True, "sync": True}],
    ids=["plain", "sync", "done", "links"],
)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_death_at_any_call_breaks_nothing(tmp_path, operation, kept, how):
    """For n = 1, 2, ... until the operation completes: die at call n, check, purge, check again, drain."""
    ends, adds = OPERATIONS[operation]
    settings = {"sync": False, **SETTINGS, **kept}
    for at in range(1, 500):
        path = tmp_path / f"{at}"
        queue = Queue(path, **settings)
        queue.put(b"one")
        queue.put(b"two")
        act = operation(queue)
        before = set(messages(path)[0].values())
        with Killer(at, how) as killer:
            try:
                act()
            except Died:
                pass
        _check(path, before, ends, adds, died=killer.dead)
        fresh = Queue(path, **settings)
        fresh.purge()
        _check(path, before, ends, adds, died=killer.dead)
        assert leftovers(path) == []
        _drain(path, settings)
        if not killer.dead:
            assert at > 1
            return
    pytest.fail("the operation never completed")


def _check(path, before, ends, adds, *, died):
    """Check that only messages that the operation ends are missing, and that none is torn or doubled."""
    assert problems(path) == []
    bodies, _ = messages(path)
    found = list(bodies.values())
    assert len(found) == len(set(found))
    assert before - ends <= set(found) <= before | adds
    new = {body for body in found if body.startswith(b"new")}
    assert new in (
        set(),
        {body for body in adds if body.startswith(b"new")},
    )  # a put happens completely or not at all
    if not died:
        assert new == {body for body in adds if body.startswith(b"new")}


def _drain(path, settings):
    """Check that all remaining messages can be redriven and drained once, whoever held them."""
    bodies, where = messages(path)
    live = sorted(body for id, body in bodies.items() if where[id] != "done")
    queue = Queue(path, **settings)
    queue.redrive()
    for message in list(queue.peek("leased")):
        queue.lease(message_handle(queue, message)).release()
    time.sleep(0.000002)
    assert sorted(drain(queue)) == live
    assert problems(path) == []


def message_handle(queue, message):
    """Return the handle of a lease of a dead process, as a supervisor would find it."""
    return message.entry.place
