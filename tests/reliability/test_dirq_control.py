"""The control: the explorer finds the known bugs of dirq 1.8 in dirq 1.8 itself.

Bugs that depend on the order of calls, or on a reply that a network filesystem loses, are here under their numbers in
the list of known bugs: D1, D2, D4, D7 to D14. The others do not depend on the order; tests/peers/test_bugs_of_dirq.py
shows them: D3 (add loops endlessly on an error), D5 (the umask), D15 (nothing is flushed), D16 (a name may leave the
queue), D17 (sets of queues). D6 (the lock of another user's element) comes from the kernel; test_users.py shows it for
dirqueue.
"""

import pytest
from lab import dirqs
from lab.dirqs import AGES, Case

pytestmark = pytest.mark.timeout(600)


# --- the queue before the clients start --------------------------------------------------------------------


def an_old_element(queue, world):
    """Add an element that has been waiting for longer than a lock may last."""
    name = queue.add(b"x" if world.case.kind == "simple" else {"body": "x"})
    world.clock.advance(AGES)
    return name


def an_old_lock(queue, world):
    """Add an element that was locked long ago."""
    name = an_old_element(queue, world)
    assert queue.lock(name)
    world.clock.advance(AGES)
    return name


def a_fresh_lock(queue, world):
    """Add an element that was locked just now."""
    name = an_old_element(queue, world)
    assert queue.lock(name)
    return name


def nothing(queue, world):
    """Leave the queue empty."""


# --- clients -----------------------------------------------------------------------------------------------


def lock(queue, world, client):
    if queue.lock(world.element):
        world.record("locked", client)


def lock_and_remove(queue, world, client):
    if queue.lock(world.element):
        queue.remove(world.element)


def unlock(queue, world, client):
    queue.unlock(world.element)


def remove(queue, world, client):
    queue.remove(world.element)
    world.record("removed", client)


def purge(queue, world, client):
    queue.purge(maxtemp=300, maxlock=600)


def purge_directories(queue, world, client):
    """Run only that part of purge that removes empty directories."""
    queue.purge(maxtemp=0, maxlock=0)


def add(queue, world, client):
    name = queue.add(client.encode() if world.case.kind == "simple" else {"body": client})
    world.record("added", client, name)


def add_text(queue, world, client):
    name = queue.add(client * 3)
    world.record("added", client, name)


def remove_own(queue, world, client):
    """Add an element, lock it and remove it."""
    name = queue.add({"body": client})
    assert queue.lock(name)
    queue.remove(name)


# --- judges ------------------------------------------------------------------------------------------------


def two_holders(world):
    return "two holders" if sum(event[0] == "locked" for event in world.story) > 1 else ""


def raised(*names):
    def judge(world):
        failed = world.errors(*names)
        return f"raised in {failed[0]}" if failed else ""

    judge.__qualname__ = f"raised{names}"
    return judge


def removed_under_a_holder(world):
    """The lock of the first holder expired and another client has the element, but the first one removes it."""
    story = [event[0] for event in world.story]
    return "removed under a holder" if story == ["locked", "removed"] else ""


def added_and_gone(world):
    """An element whose add returned must be there, unchanged."""
    there = [body.decode() for body in world.elements().values()]
    for _, client, _ in world.story:
        if there.count(client * 3) != 1:
            return "lost or mixed"
    return ""


def published_twice(world):
    return "twice" if len(world.elements()) > 1 else ""


def locked_without_holder(world):
    locks = [path for path in world.files.tree() if path.endswith(".lck")]
    return "locked without a holder" if locks and not world.story else ""


#: Number and description of the bug -> (case, verdict, the shortest schedule that shows it).
KNOWN = {
    "D1 a fresh lock looks as old as its element, and purge frees it": (
        Case("simple", an_old_element, {"a": lock, "b": lock, "c": purge}, two_holders),
        "two holders",
        "0012",
    ),
    "D2 a permissive lock fails over a lock that is gone": (
        Case("simple", an_old_element, {"a": lock, "b": lock_and_remove, "c": purge}, raised("a")),
        "raised in a",
        "00120000001",
    ),
    "D4 two producers of text write one temporary file": (
        Case("simple", nothing, {"a": add_text, "b": add_text}, added_and_gone),
        "lost or mixed",
        "00001000001000001",
    ),
    "D7 a lock is freed by its name, even if another client holds it by now": (
        Case(
            "simple", an_old_lock, {"a": unlock, "b": lock, "c": lock, "d": purge}, two_holders, touches=True
        ),
        "two holders",
        "01230000001",
    ),
    "D8 a link whose reply is lost is published twice": (
        Case("simple", nothing, {"a": add}, published_twice, lossy=1),
        "twice",
        "0000000001",
    ),
    "D9 a lock whose reply is lost has no holder": (
        Case("simple", an_old_element, {"a": lock}, locked_without_holder, lossy=1),
        "locked without a holder",
        "001",
    ),
    "D10 purge removes the directory of a live add": (
        Case("normal", nothing, {"a": add, "b": purge}, raised("a")),
        "raised in a",
        "00001",
    ),
    "D10 purge fails because of a live add": (
        Case("normal", nothing, {"a": add, "b": purge}, raised("b")),
        "raised in b",
        "00000000001",
    ),
    "D11 a live remove fails because of purge": (
        Case("normal", a_fresh_lock, {"a": remove, "b": purge}, raised("a")),
        "raised in a",
        "000000001",
    ),
    "D12 a holder whose lock expired removes the element of another holder": (
        Case("normal", an_old_lock, {"a": remove, "b": lock, "c": purge}, removed_under_a_holder),
        "removed under a holder",
        "0001200000000000001",
    ),
    "D13 an emptied directory is mistaken for a free name": (
        Case("normal", nothing, {"a": remove_own, "b": remove_own}, raised("a", "b")),
        "raised in a",
        "0000000000000000000001",
    ),
    "D14 purge removes the directory that an add has chosen": (
        Case("normal", nothing, {"a": add, "b": add, "c": purge_directories}, raised("a")),
        "raised in a",
        "000000000010000000000000000001",
    ),
}


@pytest.mark.parametrize(("case", "wanted", "schedule"), KNOWN.values(), ids=KNOWN)
def test_explorer_finds_the_known_bugs_of_dirq(case, wanted, schedule):
    """A search finds the bug, and the shortest schedule still shows it."""
    found, runs = dirqs.search(case, wanted)
    assert found is not None, f"not found in {runs} schedules"
    assert dirqs.replay(case, found)[0] == wanted
    wrong, log = dirqs.replay(case, schedule)
    assert wrong == wanted, f"now it is {found!r}"
    assert len(log) > 2


@pytest.mark.parametrize(
    "case",
    [
        Case("simple", an_old_element, {"a": lock, "b": lock}, two_holders),
        Case("simple", an_old_element, {"a": lock, "b": lock, "c": purge}, two_holders, touches=True),
        Case("simple", nothing, {"a": add}, published_twice),
        Case("normal", nothing, {"a": add, "b": purge_directories}, raised("a", "b")),
    ],
    ids=["no purge", "fresh locks", "no lost reply", "nothing else to purge"],
)
def test_explorer_finds_nothing_without_the_cause(case):
    """The control of the control: without the cause of a bug no schedule shows it."""
    for wanted in ("two holders", "twice", "raised in a", "raised in b"):
        found, runs = dirqs.search(case, wanted)
        assert found is None
        assert runs > 0
