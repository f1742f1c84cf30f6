"""The tasks in a directory against the model: random modifications and claims, and the same answers."""

import threading
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model import Model

from dirqueue import Empty, Queue, Space
from dirqueue.entroq.store import DirectoryStore
from dirqueue.entroq.tasks import (
    Change,
    ClaimQuery,
    DependencyError,
    InvalidArgument,
    Mode,
    Modification,
    QueuesQuery,
    TaskData,
    TaskId,
    TasksQuery,
    uuid_of,
)

QUEUES = ("a", "b/ü", "dead")
PEOPLE = ("ann", "bob")
IDS = ("", "", "", "own-1", "own/2", "Ü" * 40)
HOUR = 3_600_000


def without_times(task):
    return (task.id, task.version, task.queue, task.claimant, task.value, task.claims, task.attempt, task.err)


class Differential(RuleBasedStateMachine):
    """Whatever is asked of both, both say the same. What arrives later does so in an hour: no clock matters."""

    @initialize()
    def begin(self):
        self.space = Space.temporary()
        self.store = DirectoryStore(self.space.path, sync=False)
        self.drawn = []
        self.model = Model(draw=lambda: self.drawn.pop(0))
        self.known = []

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.space.close()

    def one_of_known(self, data, *, exact=False):
        """Draw a task that was seen, maybe at another version or in another queue."""
        live = [task.key for task in self.model.by_id.values()]
        pool = live if exact else live + self.known
        if not pool:
            return TaskId("never", 0, "")
        old = data.draw(st.sampled_from(pool))
        if exact:
            return old
        old = old._replace(version=max(0, old.version + data.draw(st.sampled_from((0, 0, 0, 0, 1, -1)))))
        return old._replace(queue=data.draw(st.sampled_from((old.queue, old.queue, "", "a"))))

    @rule(data=st.data(), exact=st.booleans())
    def modify(self, data, exact):
        draw = data.draw
        who = draw(st.sampled_from(PEOPLE))
        arrival = st.sampled_from((0, 0, HOUR))

        def content():
            return {
                "queue": draw(st.sampled_from(QUEUES)),
                "value": draw(st.sampled_from((b"", b"1", b'{"x": 2}', b"\xff"))),
                "attempt": draw(st.sampled_from((0, 0, 1))),
                "err": draw(st.sampled_from(("", "", "bad ü\n"))),
                "by": draw(arrival),
            }

        inserts = [
            TaskData(**content(), id=draw(st.sampled_from(IDS)), skip_colliding=draw(st.booleans()))
            for _ in range(draw(st.integers(0, 2)))
        ]
        changes = []
        for _ in range(draw(st.integers(0, 2))):
            mode = draw(st.sampled_from(Mode))
            new = TaskData(by=draw(arrival)) if mode is Mode.LEASE else TaskData(**content())
            changes.append(Change(self.one_of_known(data, exact=exact), new, mode))
        deletes = [self.one_of_known(data, exact=exact) for _ in range(draw(st.integers(0, 1)))]
        depends = [self.one_of_known(data, exact=exact) for _ in range(draw(st.integers(0, 1)))]
        self.both(Modification(who, inserts, changes, deletes, depends))

    def both(self, modification):
        try:
            ours = self.store.modify(modification)
        except (DependencyError, InvalidArgument) as error:
            self.drawn = ["x" * 3] * 10
            with pytest.raises(type(error)) as expected:
                self.model.modify(modification)
            if isinstance(error, DependencyError):
                assert list(error.details()) == list(expected.value.details())
            return
        taken = {data.id for data in modification.inserts if data.id}
        self.drawn = [task.id for task in ours.inserted if task.id not in taken]
        theirs = self.model.modify(modification)
        assert list(map(without_times, ours.inserted)) == list(map(without_times, theirs.inserted))
        assert list(map(without_times, ours.changed)) == list(map(without_times, theirs.changed))
        for mine, other in zip(
            (*ours.inserted, *ours.changed), (*theirs.inserted, *theirs.changed), strict=True
        ):
            assert mine.at - mine.modified == other.at - other.modified
            self.known.append(mine.key)

    @rule(who=st.sampled_from(PEOPLE), queues=st.sets(st.sampled_from(QUEUES), min_size=1))
    def claim(self, who, queues):
        query = ClaimQuery(sorted(queues), who, HOUR)
        ours = self.store.claim(query)
        if ours is None:
            assert self.model.claim(query) is None
            return
        theirs = self.model.claim_this(ours.id, query, self.model.clock())
        assert without_times(ours) == without_times(theirs)
        assert ours.at - ours.modified == HOUR
        self.known.append(ours.key)

    @rule(data=st.data())
    def give_back(self, data):
        held = [
            task
            for task in self.model.by_id.values()
            if task.claims and task.claimant and task.at > task.modified
        ]
        if held:
            task = data.draw(st.sampled_from(held))
            self.store.give_back(task)
            self.model.give_back(task)

    @rule()
    def restart(self):
        """Another process sees the same."""
        self.store.close()
        self.store = DirectoryStore(self.space.path, sync=False)

    @invariant()
    def the_same_is_there(self):
        if not hasattr(self, "store"):
            return
        for name in QUEUES:
            ours = sorted(without_times(task) for task in self.store.tasks(TasksQuery(name)))
            theirs = sorted(without_times(task) for task in self.model.tasks(TasksQuery(name)))
            assert ours == theirs
        ours = [(stat.name, stat.size, stat.max_claims) for stat in self.store.queues(QueuesQuery())]
        theirs = [(stat.name, stat.size, stat.max_claims) for stat in self.model.queues(QueuesQuery())]
        assert ours == theirs


TestDifferential = Differential.TestCase
TestDifferential.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- beside plain consumers --------------------------------------------------------------------------------


def put(store, queue, value=b"1", **fields):
    (task,) = store.modify(Modification("me", inserts=[TaskData(queue, value, **fields)])).inserted
    return task


def test_plain_messages_are_tasks(store):
    """A plain put is a task of version 0; what a task client claims, a plain consumer does not get, and back."""
    native = store.space.put("q", b"plain")
    (task,) = store.tasks(TasksQuery("q"))
    assert (task.id, task.version, task.claims, task.value) == (uuid_of(native), 0, 0, b"plain")
    got = store.claim(ClaimQuery(["q"], "me"))
    assert (got.id, got.version, got.claims) == (task.id, 1, 1)
    with Queue(store.space.path + "/q") as plain:
        with pytest.raises(Empty):
            plain.get(timeout=0)
        store.modify(Modification("me", changes=[Change(got.key, TaskData("q", b"changed"))]))
        lease = plain.get(timeout=5)
        assert lease.message.data == b"changed"
        with pytest.raises(DependencyError):
            store.modify(Modification("me", deletes=[TaskId(task.id, 3, "q")]))
        lease.ack()
    assert list(store.tasks(TasksQuery("q"))) == []


def test_a_plain_retry_is_another_version(store):
    task = put(store, "q")
    with Queue(store.space.path + "/q") as plain:
        plain.get(timeout=1).retry(delay=0)
    with pytest.raises(DependencyError):
        store.modify(Modification("me", deletes=[task.key]))
    (found,) = store.tasks(TasksQuery("q"))
    assert found.version > task.version
    store.modify(Modification("me", deletes=[found.key]))


def test_asking_makes_no_directory(store, tmp_path):
    assert store.claim(ClaimQuery(["never", "x/y"], "me")) is None
    assert list(store.tasks(TasksQuery("never"))) == []
    assert store.next_arrival(["never"]) is None
    with pytest.raises(DependencyError):
        store.modify(Modification("me", deletes=[TaskId("x", 0, "never")]))
    assert [path.name for path in (tmp_path / "space").iterdir()] == [".space"]


def test_a_name_that_is_too_long_is_said(store):
    with pytest.raises((InvalidArgument, ValueError), match="255"):
        put(store, "ü" * 100)
    with pytest.raises(InvalidArgument, match="255"):
        store.claim(ClaimQuery(["ü" * 100], "me"))


def test_another_process_that_was_faster_is_noticed(tmp_path):
    """What one store remembers, another has changed."""
    path = str(tmp_path / "space")
    one, two = DirectoryStore(path, sync=False), DirectoryStore(path, sync=False)
    try:
        task = put(one, "q")
        (moved,) = two.modify(Modification("me", changes=[Change(task.key, TaskData("r", b"2"))])).changed
        with pytest.raises(DependencyError) as refused:
            one.modify(Modification("me", deletes=[task.key]))
        assert refused.value.deletes == [task.key]
        one.modify(Modification("me", deletes=[moved.key._replace(queue="")]))
        with pytest.raises(DependencyError):
            two.modify(Modification("me", deletes=[moved.key]))
    finally:
        one.close()
        two.close()


def test_only_one_of_many_wins(store):
    """Every version is changed once: the others are told."""
    task = put(store, "q")
    won, lock = [], threading.Lock()

    def change(number):
        try:
            done = store.modify(
                Modification(f"w{number}", changes=[Change(task.key, TaskData("q", b"%d" % number))],
                             inserts=[TaskData("log", b"%d" % number)])
            )  # fmt: skip
        except DependencyError:
            return
        with lock:
            won.append(done.changed[0].value)

    threads = [threading.Thread(target=change, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [each.value for each in store.tasks(TasksQuery("log"))] == won
    assert [each.value for each in store.tasks(TasksQuery("q"))] == won


def test_an_older_place_is_forgotten_not_believed(store, monkeypatch):
    """The hint cache is bounded."""
    monkeypatch.setattr("dirqueue.entroq.store.HINTS", 10)
    tasks = [put(store, "q", b"%d" % i) for i in range(30)]
    assert len(store._seen) == 10
    store.modify(Modification("me", deletes=[task.key for task in tasks]))
    assert store.queues(QueuesQuery()) == []


def test_renewing_and_ending_what_was_claimed_lists_nothing(store, monkeypatch):
    """Cost: it does not grow with what lies in the queue."""
    for i in range(20):
        put(store, "q", b"%d" % i)
    got = store.claim(ClaimQuery(["q"], "me", HOUR))
    layout = store.space.queue("q").layout
    monkeypatch.setattr(layout, "find", lambda _: pytest.fail("the queue was listed"))
    (held,) = store.modify(
        Modification("me", changes=[Change(got.key, TaskData("q", got.value, by=HOUR))])
    ).changed
    (again,) = store.modify(
        Modification("me", changes=[Change(held.key, TaskData(by=HOUR), Mode.LEASE)])
    ).changed
    assert (again.version, again.claims, again.value) == (3, 1, got.value)
    store.modify(Modification("me", deletes=[again.key]))


def test_times_of_a_listing(store):
    task = put(store, "q", by=HOUR)
    (found,) = store.tasks(TasksQuery("q"))
    assert found.at == task.at
    assert abs(found.modified - time.time() * 1000) < 5_000
    assert abs(found.created - task.created) < 1_000


def test_queues_that_were_there_keep_their_settings_and_new_ones_get_entroqs(tmp_path):
    path = tmp_path / "old"
    with Queue.create(path / "q", max_attempts=2, margin=0) as queue:
        queue.put(b"1")
    store = DirectoryStore(str(path), sync=False)
    try:
        put(store, "new")
        for count in range(1, 8):
            assert store.claim(ClaimQuery(["new"], "me", 1)).claims == count
            got = store.claim(ClaimQuery(["q"], "me", 1))
            assert got.claims == count if count < 3 else got is None
            time.sleep(0.01)
        with Queue(path / "q") as queue:
            assert queue.stats().dead == 1
        with Queue(path / "new") as queue:
            assert (queue.settings.max_attempts, queue.settings.order) == (0, "random")
    finally:
        store.close()


def test_a_space_that_has_settings_keeps_them(tmp_path):
    Space.create(tmp_path / "space", lease=7).close()
    store = DirectoryStore(str(tmp_path / "space"))
    put(store, "q")
    assert store.space.queue("q").settings.lease == 7
    store.close()
