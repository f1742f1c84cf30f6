"""What merely lies in a queue costs nothing, and work on many messages costs so much for each of them: by counting.

Everything runs on a simulated filesystem whose clock is moved by calls and listed entries alone (lab/meter.py).
`benchmarks/growth.py` measures the same with up to 300,000 messages.
"""

import os

import pytest
from lab.meter import World

from dirqueue import Empty, Queue, QueueSet, renewer, waiting
from dirqueue.layouts.native import due, publish
from dirqueue.renewer import Renewer

FEW, MANY = 10, 2000
STATES = ("delayed", "leased", "backing off", "dead", "done")
HOUR = 3_600_000_000
MINUTE = 60_000_000
SETTINGS = {"sync": False, "lease": 3600.0, "margin": 0.0}


@pytest.fixture(name="world")
def _world():
    made = World()
    with made.running():
        yield made


def ids(now, count):
    return [f"{now - HOUR + number}123456789" for number in range(count)]


def fill(world, path, state, count, *, apart=1):
    """Write so many messages of a state, their ends so many microseconds apart, as docs/protocol.md says."""
    now = world.clock.ns // 1000
    found = ids(now, count)
    if state in ("dead", "done"):
        world.fill(f"{path}/{state}", ())
        world.fill(f"{path}/{state}/{now - now % HOUR}", [f"{id}.{now - 1000}.1" for id in found])
    elif state in ("leased", "expired", "expiring"):
        first = now + {"leased": HOUR, "expired": -HOUR, "expiring": 0}[state]
        world.fill(
            f"{path}/leased", [f"{id}.{first + n * apart}.1.host-1-ab-{n}" for n, id in enumerate(found)]
        )
    else:
        first = now if state == "due" else now + HOUR
        folder = f"{path}/later/{first - first % MINUTE}"
        world.fill(f"{path}/later", ())
        world.fill(folder, [f"{id}.{first + n * apart}.1" for n, id in enumerate(found)])
        if state == "backing off":
            world.fill(folder, [f"{id}.error" for id in found])


# --- beside what lies there --------------------------------------------------------------------------------


def round_trip(queue, world):
    """By a consumer that keeps up."""
    queue.put(b"x")
    queue.get(timeout=0).ack()


def empty_look(queue, world):
    with pytest.raises(Empty):
        queue.get(timeout=0)


def wake_up(queue, world):
    """A message comes while somebody waits."""
    world.clock.on_sleep = lambda: queue.put(b"x")
    queue.get(timeout=10).ack()


def stat_of_one_state(queue, world):
    assert len(list(queue.peek("ready"))) == 0


def message_by_id(queue, world):
    id = queue.put(b"x")
    message = queue.message(id)
    assert message.state == "ready"
    message.cancel()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("work", [round_trip, empty_look, wake_up, stat_of_one_state, message_by_id])
def test_what_lies_there_costs_nothing(work, state, monkeypatch):
    """As many calls and listed entries beside 2,000 messages as beside 10."""
    monkeypatch.setattr(waiting, "_open", lambda: None)
    counts = []
    for number in (FEW, MANY):
        world = World()
        with world.running():
            path = world.path()
            fill(world, path, state, number)
            queue = Queue(path, **SETTINGS)
            for _ in range(20):
                work(queue, world)

            def often(queue=queue, world=world):
                for _ in range(200):
                    work(queue, world)

            counts.append(world.counting(often))
    few, many = counts
    if state == "leased":  # a small room is listed whenever it has changed, a large one seldom
        assert many.cost <= 1.1 * few.cost, counts
    else:
        assert (many.calls, many.listed) == (few.calls, few.listed)


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "dead", "done"])
def test_stat_of_a_state_does_not_look_at_others(world, state):
    """Whatever lies in the other rooms is not listed."""
    counts = []
    for number in (FEW, MANY):
        path = world.path(f"q{number}")
        for other in {"delayed", "leased", "dead", "done"} - {state}:
            fill(world, path, other, number)
        queue = Queue(path, **SETTINGS)
        queue.put(b"x")
        list(queue.peek(state))
        counts.append(world.counting(lambda queue=queue: list(queue.peek(state))))
    few, many = counts
    assert (many.calls, many.listed) == (few.calls, few.listed)


def test_notification_of_a_message_is_enough_to_claim_it(world, monkeypatch):
    """Beside many leases, too: what came is tried before anything is listed."""
    path = world.path()
    fill(world, path, "leased", MANY)
    queue = Queue(path, **SETTINGS)

    class Inotify:
        def add_watch(self, path, events):
            return 1

        def close(self):
            pass

    def event(_, seconds):
        name = queue.put(b"x").encode() + b".new\0"
        return b"\1\0\0\0" + bytes(8) + len(name).to_bytes(4, "little") + name

    monkeypatch.setattr(waiting, "_open", Inotify)
    monkeypatch.setattr(waiting, "_event", event)
    monkeypatch.setattr(waiting, "_idle", [])
    for _ in range(3):
        empty_look(queue, world)
        world.clock.advance(1)
    counts = world.counting(lambda: queue.get(timeout=10).ack())
    assert counts.listed < 20, counts


# --- many at once ------------------------------------------------------------------------------------------


def drain(queue, count):
    for _ in range(count):
        queue.get(timeout=0).ack()
    with pytest.raises(Empty):
        queue.get(timeout=0)


def expire_at_once(world, count):
    """What so many leases cost that have all expired."""
    fill(world, path := world.path(), "expired", count)
    queue = Queue(path, **SETTINGS)
    return world.counting(lambda: drain(queue, count))


def redrive(world, count):
    fill(world, path := world.path(), "dead", count)
    queue = Queue(path, **SETTINGS)
    return world.counting(queue.redrive)


def purge(world, count):
    fill(world, path := world.path(), "done", count)
    queue = Queue(path, keep_done_for=0.0001, **SETTINGS)
    return world.counting(queue.layout.purge)


def keep_done(world, count):
    queue = Queue(world.path(), keep_done=True, **SETTINGS)

    def work():
        for _ in range(count):
            queue.put(b"x")
            queue.get(timeout=0).ack()

    return world.counting(work)


def priorities(world, count):
    """A hundred of them."""
    queue = Queue(world.path(), priorities=True, **SETTINGS)

    def work():
        for number in range(count):
            queue.put(b"x", priority=1 + number * 37 % 100)
        drain(queue, count)

    return world.counting(work)


def renew(world, count):
    queue = Queue(world.path(), **SETTINGS)
    queue.put_many(b"x" for _ in range(count))
    leases = [queue.get(timeout=0) for _ in range(count)]
    return world.counting(lambda: [lease.renew() for lease in leases])


def set_of_queues(world, count):
    """One message in each."""
    queues = [Queue(world.path(f"q{number}"), **SETTINGS) for number in range(count)]
    for queue in queues:
        queue.put(b"x")
    together = QueueSet(queues)

    def work():
        for _ in range(count):
            together.get(timeout=0).ack()

    return world.counting(work)


@pytest.mark.parametrize(
    ("work", "sizes"),
    [
        (expire_at_once, (200, 1000, 5000)),
        (redrive, (30, 300, 3000)),
        (purge, (30, 300, 3000)),
        (keep_done, (30, 300, 3000)),
        (priorities, (200, 1000, 3000)),
        (renew, (30, 300, 3000)),
        (set_of_queues, (10, 100, 300)),
    ],
)
def test_work_on_many_costs_as_much_for_each(work, sizes, monkeypatch):
    """Linear in their number, or less; the limits of listings are lowered, so that these are many."""
    monkeypatch.setattr(due, "KEPT", 64)
    monkeypatch.setattr(publish, "SLICE_SIZE", 64)
    costs = []
    for size in sizes:
        world = World()
        with world.running():
            costs.append(work(world, size).cost / size)
    assert max(costs[1:]) <= 1.3 * costs[0], costs


def test_put_near_max_messages_looks_at_each_directory_once(monkeypatch):
    """Full but for one, each put has to count: a call for each directory of 4,096 messages, which is not listed."""
    monkeypatch.setattr(publish, "SLICE_SIZE", 64)
    found, steps = [], 50
    for size in (320, 3200):
        world = World()
        with world.running():
            queue = Queue(world.path(), max_messages=size + 1, **SETTINGS)
            queue.put_many(b"x" for _ in range(size))
            world.clock.advance(1)
            round_trip(queue, world)

            def work(queue=queue, world=world):
                for _ in range(steps):
                    round_trip(queue, world)

            found.append(world.counting(work))
    few, many = found
    more = (3200 - 320) / 64
    assert (many.total - few.total) / steps <= 1.1 * more, found
    assert (many.listed - few.listed) / steps <= 1.1 * more, found  # their names


@pytest.mark.parametrize("state", ["due", "expiring"])
def test_what_becomes_due_one_by_one_is_not_listed_for_each(state, monkeypatch):
    """As after an outage: thousands back off within this minute, and each is claimed when its time comes.

    A large room is listed so seldom that each costs no more than in a small one, which is listed for each.
    """
    monkeypatch.setattr(waiting, "_open", lambda: None)
    costs = []
    for size in (300, 1500):
        world = World()
        with world.running():
            fill(world, path := world.path(), state, size, apart=3000)
            queue = Queue(path, **SETTINGS)

            def work(queue=queue):
                for _ in range(200):
                    queue.get(timeout=60).ack()

            costs.append(world.counting(work).cost)
    assert costs[1] <= costs[0], costs


def test_set_is_made_of_many_queues_in_one_pass(tmp_path, monkeypatch):
    """Each path is resolved once."""
    resolved = []
    real = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: resolved.append(path) or real(path))
    QueueSet(tmp_path / f"q{number}" for number in range(50))
    assert len(resolved) <= 50


def test_many_leases_are_renewed_in_few_looks(monkeypatch):
    """Each look at all that is watched renews a part of it, not one."""

    class Thing:
        def renew(self):
            pass

    class Now:
        seconds = 0.0

        def monotonic(self):
            return self.seconds

    clock = Now()
    monkeypatch.setattr(renewer, "time", clock)
    engine = Renewer()
    engine._thread = object()  # this test is the thread
    for number in range(1000):
        clock.seconds = number / 100
        engine.watch(Thing(), 20.0)
    looks = renewed = 0
    while renewed < 5000:
        clock.seconds = max(clock.seconds, min(watch.due for watch in engine._watches.values()))
        found = engine._due(clock.seconds)
        for thing, watch in found:
            engine._renew(thing, watch)
        looks += 1
        renewed += len(found)
    assert looks <= 5 * 17
