"""Transactions of tasks against a model: random changes of a small space, everything compared after each."""

import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from dirqueue import Conflict, Empty, LeaseLost, Space

QUEUES = ("a", "b", "c/d")
HOLDERS = ("ann", "bob")
HOUR = 3600.0

queues = st.sampled_from(QUEUES)
people = st.sampled_from(HOLDERS)
bodies = st.binary(max_size=8)
own_ids = st.sampled_from([None, "k1", "k2", "an odd / id"])


class Task:
    """What the model knows of one message."""

    def __init__(self, queue, body, own_id, failures, holder, delayed):
        self.queue, self.body, self.own_id, self.failures = queue, body, own_id, failures
        self.version = self.attempts = 0
        self.holder, self.leased, self.delayed = holder, False, delayed


class Tasks(RuleBasedStateMachine):
    """One space, and what must be in it. Leases last for an hour: none ends by itself."""

    #: Messages as they were seen once: (version, message). Most of them have changed since.
    seen = Bundle("seen")
    leases = Bundle("leases")

    def __init__(self):
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="dirqueue-model-")
        self.space = Space(f"{self.root}/s", sync=False, lease=HOUR, margin=0, max_attempts=0)
        self.tasks = {}

    def teardown(self):
        self.space.close()
        shutil.rmtree(self.root)

    # --- what happens --------------------------------------------------------------------------------------------

    @rule(
        queue=queues,
        body=bodies,
        own_id=own_ids,
        holder=people,
        failures=st.integers(0, 2),
        delayed=st.booleans(),
    )
    def put(self, queue, body, own_id, holder, failures, delayed):
        taken = own_id is not None and any(task.own_id == own_id for task in self.tasks.values())
        t = self.space.transaction(holder=holder)
        t.put(queue, body, id=own_id, failures=failures, delay=HOUR if delayed else 0)
        try:
            [put] = t.commit().puts
        except Conflict as conflict:
            assert taken
            assert [ref.id for ref in conflict.taken] == [own_id]
            return
        assert not taken
        assert (put.version, put.queue, put.attempts) == (0, queue, 0)
        self.tasks[put.id] = Task(queue, body, own_id, failures, holder, delayed)

    @rule(target=leases, queue=queues, holder=st.sampled_from([*HOLDERS, None]))
    def get(self, queue, holder):
        ready = [id for id, task in self.tasks.items() if task.queue == queue and not task.delayed]
        free = [id for id in ready if not self.tasks[id].leased]
        try:
            lease = self.space.get(queue, timeout=0, holder=holder)
        except Empty:
            assert not free
            return None
        task = self.tasks[lease.message.id]
        assert lease.message.id in free
        task.leased, task.holder = True, holder
        task.version += 1
        task.attempts += 1
        assert lease.message.body == task.body
        assert lease.message.version == task.version
        return lease

    @rule(target=seen, queue=queues, which=st.integers(0, 5))
    def look(self, queue, which):
        found = self.space.messages(queue)
        if not found:
            return None
        message = found[which % len(found)]
        return message.version, message

    @rule(
        what=seen,
        holder=people,
        body=st.one_of(st.none(), bodies),
        queue=st.one_of(st.none(), queues),
        failures=st.one_of(st.none(), st.integers(0, 2)),
        reset=st.booleans(),
        need=st.one_of(st.none(), seen),
        cancel=st.booleans(),
    )
    def change(self, what, holder, body, queue, failures, reset, need, cancel):
        """Change or cancel a message as it was seen, perhaps only if another one is as it was seen."""
        if what is None:
            return
        version, message = what
        task = self.tasks.get(message.id)
        t = self.space.transaction(holder=holder)
        given = {"body": body, "queue": queue, "failures": failures, "attempts": 0 if reset else None}
        t.cancel(message) if cancel else t.change(
            message, **{name: value for name, value in given.items() if value is not None}
        )
        current = task is not None and task.version == version
        held = current and task.leased and task.holder != holder
        if need is not None and need[1].id != message.id:
            t.need(need[1])
            other = self.tasks.get(need[1].id)
            needed = other is not None and other.version == need[0]
        else:
            needed = True
        try:
            [changed] = t.commit().changes
        except Conflict as conflict:
            assert not (current and not held and needed)
            if held:
                assert message.id in [ref.id for ref in conflict.held]
            if task is None:
                assert message.id in [ref.id for ref in conflict.missing]
            return
        assert current
        assert not held
        assert needed
        if cancel:
            del self.tasks[message.id]
            return
        task.version += 1
        task.body = task.body if body is None else body
        task.failures = task.failures if failures is None else failures
        task.attempts = 0 if reset else task.attempts
        task.queue = queue or task.queue
        task.leased, task.holder = False, None
        assert (changed.version, changed.attempts, changed.queue) == (task.version, task.attempts, task.queue)

    @precondition(lambda self: self.tasks)
    @rule(lease=consumes(leases), verb=st.sampled_from(["ack", "release", "retry", "renew"]))
    def end(self, lease, verb):
        """End a lease, which may have been changed by a transaction of its holder."""
        if lease is None:
            return
        task = self.tasks.get(lease.message.id)
        version = lease.message.version
        mine = task is not None and task.version == version
        try:
            lease.retry(0) if verb == "retry" else getattr(lease, verb)()
        except LeaseLost:
            assert not mine
            return
        assert mine
        if verb == "ack":
            del self.tasks[lease.message.id]
            return
        task.version += 1
        task.leased = verb == "renew"
        task.holder = task.holder if verb == "renew" else None
        task.attempts -= verb == "release"

    # --- what must be so -----------------------------------------------------------------------------------------

    @invariant()
    def everything_is_as_the_model_says(self):
        found = {message.id: (queue, message) for queue in QUEUES for message in self.space.messages(queue)}
        assert found.keys() == self.tasks.keys()
        for id, (queue, message) in found.items():
            task = self.tasks[id]
            state = "leased" if task.leased else "delayed" if task.delayed else "ready"
            assert (queue, message.body, message.own_id) == (task.queue, task.body, task.own_id)
            assert (message.version, message.attempts) == (task.version, task.attempts)
            assert (message.failures, message.state) == (task.failures, state)
            if task.holder is not None:
                assert message.holder == task.holder


def run(examples, steps):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Tasks,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_changes_agree_with_a_model():
    run(25, 25)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_changes_agree_with_a_model():
    run(1_000, 60)
