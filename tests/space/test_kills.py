"""Die before every call of every path of a transaction: all of it happened, or nothing, whoever comes next."""

import contextlib
import gc
import shutil
import time

import pytest
from support.dying import Died, dying

from dirqueue import Conflict, Empty, Put, Space
from dirqueue.layouts.native import conditions, resolve
from dirqueue.space import purge

#: Everything is over at once: leases, patience, and what makes a leftover stale.
SETTINGS = {"sync": False, "lease": 0.001, "margin": 0, "stale": 0, "backoff": 0.001, "max_attempts": 0}
BEFORE = [("a", b"one"), ("a", b"two"), ("b", b"seen")]


def opened(root, **more):
    return Space(root, **SETTINGS | more)


def prepared(root, attributes=None, **more):
    """Make the messages of BEFORE and return the space with leases of the first two, and a look at the third."""
    shutil.rmtree(root, ignore_errors=True)
    space = opened(root, **more)
    for queue, body in BEFORE:
        space.put(queue, body, attributes=attributes)
    space._ground.transacted("c")
    with space.transaction() as t:  # so that the registers are there
        t.put("c", b"warm")
        t.put("b", b"warm")
    space.get("c", timeout=0).ack()
    leases = [space.get("a", timeout=0), space.get("a", timeout=0)]
    [seen, warm] = sorted(space.queue("b").peek(), key=lambda message: message.body)
    warm.cancel()
    return space, leases, seen


def ack_and_put(space, leases, seen):
    leases[0].ack(then=[Put("c", b"new")])


def ack_two_and_put(space, leases, seen):
    with space.transaction() as t:
        t.ack(leases[0])
        t.ack(leases[1])
        t.put("c", b"new")


def move_and_put(space, leases, seen):
    with space.transaction() as t:
        t.move(leases[0], "c")
        t.put("b", b"new")


def everything(space, leases, seen):
    with space.transaction() as t:
        t.ack(leases[0])
        t.move(leases[1], "c", delay=0.001)
        t.cancel(seen)
        t.put("b", b"new", delay=0.001)


def retry_and_put(space, leases, seen):
    with space.transaction() as t:
        t.retry(leases[0], 0.001, "no luck")
        t.put("c", b"new")


def release_and_put(space, leases, seen):
    with space.transaction() as t:
        t.release(leases[0])
        t.put("c", b"new")


def reject_and_put(space, leases, seen):
    with space.transaction() as t:
        t.reject(leases[0], "bad")
        t.put("c", b"new")


def put_twice(space, leases, seen):
    with space.transaction() as t:
        t.put("b", b"new")
        t.put("c", b"newer")


def put_with_an_id(space, leases, seen):
    space.put("c", b"new", id="order-17")


def ack_and_put_with_an_id(space, leases, seen):
    with space.transaction() as t:
        t.ack(leases[0])
        t.put("c", b"new", id="order-17")


def ack_and_put_if(space, leases, seen):
    with space.transaction() as t:
        t.ack(leases[0])
        t.need(seen)
        t.need(leases[1])
        t.put("c", b"new")


def refused(space, leases, seen):
    leases[1].layout.ack(leases[1].claim)
    with contextlib.suppress(Conflict), space.transaction() as t:
        t.ack(leases[0])
        t.ack(leases[1])
        t.put("c", b"new", id="order-17")


def change_a_body(space, leases, seen):
    with space.transaction() as t:
        t.change(leases[0], body=b"changed", delay=0.001)


def change_and_put(space, leases, seen):
    with space.transaction(holder="ann") as t:
        t.change(leases[0], body=b"changed", queue="c", failures=1, error="no luck")
        t.change(seen, body=b"other")
        t.ack(leases[1])
        t.put("b", b"new", failures=2, id="an odd / id")


def put_by_a_holder(space, leases, seen):
    with space.transaction(holder="ann " * 50) as t:
        t.put("c", b"new", failures=1)


def without(*gone):
    return [each for each in BEFORE if each[1] not in gone]


#: The story, what there is afterwards if it happened, what there is if it did not, settings.
STORIES = {
    "lean": (ack_and_put, [*without(b"one"), ("c", b"new")], BEFORE, {}),
    "held": (ack_two_and_put, [*without(b"one", b"two"), ("c", b"new")], BEFORE, {}),
    "planned": (move_and_put, [*without(b"one"), ("c", b"one"), ("b", b"new")], BEFORE, {}),
    "everything": (everything, [("c", b"two"), ("b", b"new")], BEFORE, {}),
    "retried": (retry_and_put, [*BEFORE, ("c", b"new")], BEFORE, {}),
    "released": (release_and_put, [*BEFORE, ("c", b"new")], BEFORE, {}),
    "rejected": (reject_and_put, [*without(b"one"), ("c", b"new")], BEFORE, {}),
    "kept": (ack_and_put, [*without(b"one"), ("c", b"new")], BEFORE, {"keep_done": True}),
    "nothing consumed": (put_twice, [*BEFORE, ("b", b"new"), ("c", b"newer")], BEFORE, {}),
    "keyed": (put_with_an_id, [*BEFORE, ("c", b"new")], BEFORE, {}),
    "lean and keyed": (ack_and_put_with_an_id, [*without(b"one"), ("c", b"new")], BEFORE, {}),
    "needs": (ack_and_put_if, [*without(b"one"), ("c", b"new")], BEFORE, {}),
    "refused": (refused, without(b"two"), BEFORE, {}),
    "body changed": (change_a_body, [*without(b"one"), ("a", b"changed")], BEFORE, {}),
    "durable, body changed": (
        change_a_body,
        [*without(b"one"), ("a", b"changed")],
        BEFORE,
        {"sync": True},
    ),
    "changed and put": (change_and_put, [("c", b"changed"), ("b", b"other"), ("b", b"new")], BEFORE, {}),
    "put by a holder": (put_by_a_holder, [*BEFORE, ("c", b"new")], BEFORE, {}),
    "durable": (ack_two_and_put, [*without(b"one", b"two"), ("c", b"new")], BEFORE, {"sync": True}),
    "durable and planned": (
        move_and_put,
        [*without(b"one"), ("c", b"one"), ("b", b"new")],
        BEFORE,
        {"sync": True},
    ),
}


def die(root, story, at, **more):
    """Run a story in a process that dies at its n-th call; return whether it came to its end."""
    space, leases, seen = prepared(root, **more)
    gc.collect()
    with dying(at) as count:
        try:
            story(space, leases, seen)
        except Died:
            pass
        over = count[0] <= at
    space._ground.owner().reset()  # the process is dead: it leaves nothing in order
    return over


def drained(root, **more):
    """Return all that consumers get, who know nothing of transactions."""
    time.sleep(0.002)
    got = []
    with opened(root, **more) as space:
        for name in sorted({*space.names(), "a", "b", "c"}):
            while True:
                try:
                    lease = space.queue(name).get(timeout=0)
                except Empty:
                    break
                got.append((name, lease.message.body))
                lease.ack()
    return sorted(got)


def conditional(root):
    return [path for path in root.rglob("*") if conditions.parse(path.name) and ".space" not in path.parts]


def stray_sides(root, **more):
    """Return what side files are left after a purge, when every message is gone."""
    if more.get("keep_done"):
        return []
    with opened(root, **more) as space:
        purge.clean(space, space._ground.directory)
    return list((root / ".space").glob("side/*/*"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("recovery", ["get", "purge"])
def test_death_at_every_call_leaves_all_or_nothing(tmp_path, impatient, name, recovery):
    """Recovered by plain gets alone, or by a purge and then by gets."""
    story, after, before, more = STORIES[name]
    root, deaths = tmp_path / "space", 0
    while True:
        over = die(root, story, deaths, **more)
        time.sleep(0.002)
        if recovery == "purge":
            with opened(root, **more) as space:
                for _ in range(3):
                    purge.clean(space, space._ground.directory)
                    for queue in space.names():
                        space.queue(queue).layout.purge(None)
                assert not list((root / ".space/txn").iterdir())
        got = drained(root, **more)
        assert got in (sorted(after), sorted(before)), (deaths, got)
        assert not conditional(root), deaths
        assert not stray_sides(root, **more), deaths
        if over:
            assert got == sorted(after)
            break
        deaths += 1
    assert deaths >= 6


ATTRIBUTES = {"colour": "blue"}


def carried(root):
    return [path for path in root.rglob("attributes/*/*") if path.is_file()]


def with_attributes(space, leases, seen):
    with space.transaction() as t:
        t.ack(leases[0])
        t.move(leases[1], "c", delay=0.001)
        t.put("b", b"new", attributes=ATTRIBUTES)
        t.put("b", b"newer", attributes=ATTRIBUTES, ttl=600)


def moved_alone(space, leases, seen):
    with space.transaction() as t:
        t.move(seen, "c")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("story", "left"), [(with_attributes, 4), (moved_alone, 3)])
def test_death_leaves_no_message_without_its_attributes(tmp_path, impatient, story, left):
    """Put, moved and given back ones; and when all are gone, a purge leaves none behind."""
    root, deaths = tmp_path / "space", 0
    while not die(root, story, deaths, attributes=ATTRIBUTES, sync=True):
        time.sleep(0.002)
        with opened(root) as space:
            for queue in "abc":
                for lease in space.queue(queue).consume(timeout=0):
                    assert lease.message.attributes == ATTRIBUTES, (deaths, queue, lease.message.body)
                    lease.ack()
            for _ in "12":  # the plan of one that died may still be followed until its process is forgotten
                time.sleep(0.002)
                purge.clean(space, space._ground.directory)
            for queue in space.names():
                space.queue(queue).layout.purge(None)
        assert carried(root) == [], deaths
        deaths += 1
    assert deaths >= 3
    assert len(carried(root)) == left


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_death_of_a_helper_at_every_call_leaves_all_or_nothing(tmp_path, impatient):
    """A consumer that finishes or undoes what a dead process left dies at each call, and another one comes."""
    root, kills = tmp_path / "space", 0
    story, after, before, _ = STORIES["everything"]
    calls = 0
    while not die(root, story, calls):
        calls += 1
    for at in range(0, calls, 2):
        helped = 0
        while True:
            die(root, story, at)
            time.sleep(0.002)
            helper = opened(root)
            helper.now()
            with dying(helped) as count:
                try:
                    for queue in "abc":
                        layout = helper.queue(queue).layout
                        layout.directory.find()
                        layout._cursor._refresh(helper._ground.directory.clock.now())
                    purge.clean(helper, helper._ground.directory)
                    purge.clean(helper, helper._ground.directory)
                except Died:
                    pass
                over = count[0] <= helped
            kills += 1
            got = drained(root)
            assert got in (sorted(after), sorted(before)), (at, helped, got)
            assert not conditional(root), (at, helped)
            if over:
                break
            helped += 7
    assert kills >= 100


def test_patience_leaves_a_living_owner_alone(tmp_path, space):
    """A held name is not touched before the owner's time is over."""
    assert resolve.PATIENCE == 5.0
    root = tmp_path / "space"
    space.put("a", b"one")
    space.put("a", b"two")
    space.put("c", b"old", id="warm")
    space._ground.transacted("a")
    leases = [space.get("a", timeout=0), space.get("a", timeout=0)]
    with dying(4), pytest.raises(Died), space.transaction() as t:
        t.ack(leases[0])
        t.ack(leases[1])
        t.put("c", b"new")
    space.get("c", timeout=0).ack()
    held = conditional(root)
    assert {path.name.split(".")[-2] for path in held} == {"if", "un"}
    with pytest.raises(Empty):
        space.get("a", "c", timeout=0)
    space.queue("a").layout.purge(None)
    assert conditional(root) == held
