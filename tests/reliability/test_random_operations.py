"""Several clients of one directory are compared with a model in memory; only the test moves the clock."""

import shutil
import tempfile
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.checker import problems

from dirqueue import Empty, LeaseLost, MessageNotFound, Queue
from dirqueue.disk import identity
from dirqueue.disk.clock import Clock
from dirqueue.layouts.native import publish
from dirqueue.layouts.native.names import micros_of

LEASE = 30.0
MARGIN = 2.0
START = 1_800_000_000_000_000
CLIENTS = 3


class Time:
    """The clock of all clients, in microseconds; each reading advances it by one."""

    def __init__(self):
        self.now = START

    def look(self, _clock=None):
        self.now += 1
        return self.now


@dataclass
class Modelled:
    """The expected state of a message."""

    body: bytes
    priority: int
    put: int
    state: str = "waiting"  # waiting, leased, dead, done, gone
    until: int = 0
    attempts: int = 0
    error: str | None = None


class Machine(RuleBasedStateMachine):
    """Whatever the clients do, the directory matches the model."""

    order = "fifo"
    priorities = False
    keep_done = False
    deep = False

    @initialize()
    def begin(self):
        self.time = Time()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Clock, "now", self.time.look)
        self.patch.setattr(identity.time, "time_ns", lambda: self.time.look() * 1000)
        self.patch.setattr(
            identity.PROCESS, "last", START
        )  # restored later: ids of other tests must not start at this time
        if self.deep:
            self.patch.setattr(publish, "DEEP", 0)
            self.patch.setattr(publish, "SLICE_SIZE", 3)
        self.path = tempfile.mkdtemp(prefix="model-")
        self.clients = [self.open() for _ in range(CLIENTS)]
        self.model: dict[str, Modelled] = {}
        self.leases = []
        self.count = 0

    def open(self):
        return Queue(
            self.path, sync=False, lease=LEASE, margin=MARGIN, max_attempts=3, backoff=8, max_backoff=8,
            order=self.order, priorities=self.priorities, keep_done=self.keep_done,
        )  # fmt: skip

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()
            for client in self.clients:
                client.close()
            shutil.rmtree(self.path)

    # --- what the model knows ------------------------------------------------------------------------------

    def due(self, message, *, slack=0):
        now = self.time.now + slack
        if message.state == "waiting":
            return message.until <= now
        return message.state == "leased" and message.until + MARGIN * 1_000_000 <= now

    def body(self):
        self.count += 1
        return f"{self.count}".encode()

    def added(self, id, body, priority, delay=0.0):
        until = self.time.now + int(delay * 1_000_000) if delay else 0
        self.model[id] = Modelled(body, priority, micros_of(id), until=until)

    client = st.integers(0, CLIENTS - 1)
    priority = st.integers(1, 3)
    delay = st.sampled_from([5.0, 20.0, 100.0])

    def ranked(self, priority):
        return priority if self.priorities else None

    # --- producers -----------------------------------------------------------------------------------------

    @rule(client=client, priority=priority)
    def put(self, client, priority):
        body = self.body()
        id = self.clients[client].put(body, priority=self.ranked(priority))
        assert id not in self.model
        self.added(id, body, priority)

    @rule(client=client, priority=priority, delay=delay)
    def put_delayed(self, client, priority, delay):
        body = self.body()
        id = self.clients[client].put(body, priority=self.ranked(priority), delay=delay)
        self.added(id, body, priority, delay)

    @rule(client=client, priority=priority, n=st.integers(0, 5))
    def put_many(self, client, priority, n):
        bodies = [self.body() for _ in range(n)]
        ids = self.clients[client].put_many(bodies, priority=self.ranked(priority))
        for id, body in zip(ids, bodies, strict=True):
            self.added(id, body, priority)

    # --- consumers -----------------------------------------------------------------------------------------

    @rule(client=client)
    def get(self, client):
        queue = self.clients[client]
        queue.layout._cursor.stale()  # a snapshot may be out of date for a moment; that is tested elsewhere
        self.forget_poison()
        candidates = {id: m for id, m in self.model.items() if self.due(m) and m.attempts < 3}
        try:
            lease = queue.get(timeout=0)
        except Empty:
            assert not candidates
            return
        message = self.model[lease.message.id]
        assert lease.message.id in candidates or self.due(message)
        assert lease.message.body == message.body
        assert lease.message.attempts == message.attempts + 1
        if self.order != "random":
            self.in_order(lease.message.id, candidates)
        message.state, message.attempts = "leased", message.attempts + 1
        message.until = int(lease.until.timestamp() * 1_000_000 + 0.5)
        assert abs(message.until - self.time.now - LEASE * 1_000_000) < 1000
        self.leases.append((client, lease))

    def in_order(self, id, candidates):
        """Check the order: exact for flat names; a slice or batch is ordered as a whole, by its first id."""
        if self.deep or any("batch" in m.entry.place or "/" in m.entry.place for m in self.clients[0].peek()):
            first = min(self.model[each].priority for each in candidates) if self.priorities else 0
            assert not self.priorities or self.model[id].priority == first
            return
        sign = -1 if self.order == "lifo" else 1
        best = min(
            candidates,
            key=lambda each: (self.model[each].priority * self.priorities, sign * int(each[-25:])),
        )
        assert id == best

    def forget_poison(self):
        """Expect messages without attempts left to be moved to dead/ by the next client that finds them."""
        for message in self.model.values():
            if self.due(message, slack=1000) and message.attempts >= 3 and message.state == "leased":
                message.state = "poison"

    def pick(self, data):
        return self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))

    def end(self, data, verb, *arguments):
        """End a lease; this must succeed if and only if the message was not claimed since."""
        client, lease = self.pick(data)
        message = self.model[lease.message.id]
        held = message.state in ("leased", "poison") and lease.token == self.holder(lease.message.id)
        try:
            getattr(lease, verb)(*arguments)
        except LeaseLost:
            assert not held
            return None
        assert held
        return client, lease, message

    def holder(self, id):
        try:
            return self.clients[0].message(id).token
        except MessageNotFound:
            return ""

    held = precondition(lambda self: self.leases)

    @held
    @rule(data=st.data())
    def ack(self, data):
        if done := self.end(data, "ack"):
            done[2].state = "done" if self.keep_done else "gone"

    @held
    @rule(data=st.data(), delay=st.sampled_from([0, 5, None]), error=st.sampled_from([None, "why"]))
    def retry(self, data, delay, error):
        if done := self.end(data, "retry", delay, error):
            message = done[2]
            if message.attempts >= 3:
                message.state, message.error = "dead", error
            else:
                message.state, message.error = "waiting", error or message.error
                message.until = self.time.now + int((8 if delay is None else delay) * 1_000_000)
                if delay is None:  # jitter
                    message.until = int(self.clients[0].message(done[1].message.id).until.timestamp() * 1e6)
                    assert self.time.now + 3_900_000 < message.until < self.time.now + 8_100_000

    @held
    @rule(data=st.data())
    def release(self, data):
        if done := self.end(data, "release"):
            done[2].state, done[2].until = "waiting", 0
            done[2].attempts -= 1

    @held
    @rule(data=st.data())
    def reject(self, data):
        if done := self.end(data, "reject", "never"):
            done[2].state, done[2].error = "dead", "never"

    @held
    @rule(data=st.data(), seconds=st.sampled_from([None, 10.0, 100.0]))
    def renew(self, data, seconds):
        if done := self.end(data, "renew", seconds):
            done[2].state = "leased"
            done[2].until = int(done[1].until.timestamp() * 1_000_000 + 0.5)
            self.leases.append(done[:2])

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 33.0]))
    def wait(self, seconds):
        self.time.now += int(seconds * 1_000_000)

    # --- others --------------------------------------------------------------------------------------------

    def some(self, data, *states):
        ids = [id for id, message in self.model.items() if message.state in states]
        return data.draw(st.sampled_from(sorted(ids))) if ids else None

    @rule(data=st.data(), client=client)
    def cancel(self, data, client):
        if id := self.some(data, "waiting"):
            self.clients[client].message(id).cancel()
            self.model[id].state = "done" if self.keep_done else "gone"

    @rule(data=st.data(), client=client, delay=st.sampled_from([0, 15.0]))
    def change_delay(self, data, client, delay):
        if id := self.some(data, "waiting"):
            self.clients[client].message(id).change(delay=delay)
            self.model[id].until = self.time.now + int(delay * 1_000_000) if delay else 0

    @precondition(lambda self: self.priorities)
    @rule(data=st.data(), client=client, priority=priority)
    def change_priority(self, data, client, priority):
        if id := self.some(data, "waiting"):
            changed = self.clients[client].message(id).change(priority=priority)
            message = self.model.pop(id)
            message.priority = priority
            self.model[changed.id] = message

    @rule(data=st.data(), client=client)
    def redrive(self, data, client):
        if id := self.some(data, "dead"):
            assert self.clients[client].redrive(id) == [id]
            message = self.model[id]
            message.state, message.attempts, message.until, message.error = "waiting", 0, 0, None

    @rule(client=client)
    def purge(self, client):
        self.forget_poison()
        self.clients[client].purge()

    @rule(client=client)
    def clear(self, client):
        done = [message for message in self.model.values() if message.state == "done"]
        assert self.clients[client].clear() == len(done)
        for message in done:
            message.state = "gone"

    @rule(client=client)
    def reopen(self, client):
        self.clients[client].close()
        self.clients[client] = self.open()

    # --- always --------------------------------------------------------------------------------------------

    @invariant()
    def the_directory_is_the_model(self):
        if not hasattr(self, "model"):
            return
        assert problems(self.path) == []
        shown = {}
        for state in ("ready", "delayed", "leased", "dead", "done"):
            for message in self.clients[0].peek(state):
                assert message.id not in shown
                shown[message.id] = (state, message.attempts, message.error if state == "dead" else None)
        for id, message in self.model.items():
            if message.state == "gone":
                assert id not in shown
                continue
            state, attempts, error = shown.pop(id)
            if message.state == "poison":
                assert state in ("leased", "dead")
                if state == "dead":
                    message.state = "dead"
                    assert "3 times" in error
                continue
            expected = message.state
            if expected == "waiting":
                expected = state
                assert state == ("ready" if message.until <= self.time.now else "delayed")
            assert (state, attempts) == (expected, message.attempts)
        assert shown == {}


VARIANTS = {
    "fifo": {},
    "lifo": {"order": "lifo"},
    "random": {"order": "random"},
    "priorities": {"priorities": True},
    "priorities-lifo": {"priorities": True, "order": "lifo"},
    "keep-done": {"keep_done": True},
    "slices": {"deep": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_queue_matches_the_model(variant, monkeypatch):
    """Random histories of several clients give the states of the model; Hypothesis shrinks a failure."""
    machine = type(f"Machine_{variant.replace('-', '_')}", (Machine,), VARIANTS[variant])
    case = machine.TestCase
    wanted = settings().max_examples
    case.settings = settings(
        max_examples=max(40, wanted // 4),
        stateful_step_count=40,
        derandomize=wanted < 1000,  # the suite is deterministic; a soak explores
        database=None,
    )
    case("runTest").runTest()
