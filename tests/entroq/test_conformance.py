"""What EntroQ's own suites check of every backend, through every door.

The names are those of its suites: qsvc/qtest of the seed, eqtest of later versions.
"""

import statistics
import threading
import time
import uuid

import pytest
from clients import later

from dirqueue.entroq.tasks import (
    Change,
    ClaimQuery,
    DependencyError,
    InvalidArgument,
    Modification,
    QueuesQuery,
    QueueStat,
    TaskData,
    TaskId,
    TasksQuery,
)

ME, YOU = str(uuid.uuid4()), str(uuid.uuid4())


def insert(client, *tasks, claimant=ME):
    return client.modify(Modification(claimant, inserts=tasks)).inserted


def claim(client, *queues, claimant=ME, duration=10_000):
    return client.claim(ClaimQuery(queues, claimant, duration))


def delete(client, *tasks, claimant=ME):
    client.modify(Modification(claimant, deletes=[task.key for task in tasks]))


def changed(task, queue=None, by=0, **fields):
    data = {"queue": task.queue, "value": task.value, "attempt": task.attempt, "err": task.err, **fields}
    return Change(task.key, TaskData(**{**data, "queue": queue or task.queue, "by": by}))


def refused(client, **operations):
    with pytest.raises(DependencyError) as refused:
        client.modify(Modification(operations.pop("claimant", ME), **operations))
    return refused.value


def test_simple_sequence(client):
    assert claim(client, "/a/q") is None
    first, second = insert(client, TaskData("/a/q", b'"hello"'), TaskData("/a/q", b'"there"', by=700))
    assert first.version == second.version == first.claims == 0
    assert first.claimant == second.claimant == ME
    assert second.at - second.modified == pytest.approx(700, abs=300)  # two readings of the clock over gRPC
    assert client.queues(QueuesQuery(prefixes=["/a"])) == [QueueStat("/a/q", 2, 0, 1, 1, 0)]
    listed = {task.id: task for task in client.tasks(TasksQuery("/a/q"))}
    assert {id: task.value for id, task in listed.items()} == {first.id: b'"hello"', second.id: b'"there"'}
    assert all(task.claimant == ME for task in listed.values())

    now = client.time()
    got = claim(client, "/a/q", claimant=YOU)
    assert (got.id, got.version, got.claims, got.claimant, got.value) == (first.id, 1, 1, YOU, b'"hello"')
    assert now + 9_000 < got.at < now + 12_000
    assert got.at - got.modified == 10_000
    assert claim(client, "/a/q") is None
    waited = client.wait(ClaimQuery(["/a/q"], ME, 10_000))
    assert waited.id == second.id
    assert claim(client, "/a/q") is None


def test_simple_change(client):
    (task,) = insert(client, TaskData("mine", b"1"))
    (moved,) = client.modify(Modification(ME, changes=[changed(task, "yours")])).changed
    assert (moved.id, moved.version, moved.queue, moved.value) == (task.id, 1, "yours", b"1")
    assert list(client.tasks(TasksQuery("mine"))) == []
    (found,) = client.tasks(TasksQuery("yours"))
    assert (found.id, found.version, found.claims, found.attempt) == (task.id, 1, 0, 0)
    assert found.created == task.created


def test_a_change_keeps_claims_and_releases(client):
    insert(client, TaskData("q", b"1"))
    got = claim(client, "q")
    (free,) = client.modify(
        Modification(ME, changes=[changed(got, value=b"2", err="bad", attempt=3)])
    ).changed
    assert (free.version, free.claims, free.value, free.err, free.attempt) == (2, 1, b"2", "bad", 3)
    (found,) = client.tasks(TasksQuery("q"))
    assert (found.claimant, found.version, found.value, found.err, found.attempt) == ("", 2, b"2", "bad", 3)
    again = claim(client, "q", claimant=YOU)
    assert (again.claims, again.version) == (2, 3)


def test_a_renewal_holds_on(client):
    insert(client, TaskData("q", b"1"))
    got = claim(client, "q", duration=800)
    (held,) = client.modify(Modification(ME, changes=[changed(got, by=5_000)])).changed
    assert (held.claimant, held.version, held.claims) == (ME, 2, 1)
    assert client.wait(ClaimQuery(["q"], YOU), timeout=1.0) is None
    assert refused(client, deletes=[got.key]).deletes == [got.key]
    delete(client, held)


def test_tasks_with_id(client):
    tasks = insert(client, *(TaskData("one" if i % 2 else "two", b"%d" % i) for i in range(6)))
    wanted = [tasks[i].id for i in (4, 1, 3)]
    assert [task.id for task in client.tasks(TasksQuery(ids=wanted))] == wanted
    assert [task.id for task in client.tasks(TasksQuery("one", ids=wanted))] == wanted[1:]
    assert list(client.tasks(TasksQuery(ids=[str(uuid.uuid4())]))) == []
    assert len(list(client.tasks(TasksQuery("one", limit=2)))) == 2


def test_tasks_omit_value(client):
    (task,) = insert(client, TaskData("q", b'{"a":[1,2]}'))
    (bare,) = client.tasks(TasksQuery("q", omit_values=True))
    assert bare.value == b""
    assert (bare.id, bare.version, bare.claimant, bare.at) == (task.id, 0, ME, task.at)


def test_tasks_of_a_claimant(client):
    insert(client, TaskData("q", b"1"), TaskData("q", b"2"), TaskData("q", b"3"))
    mine, yours = claim(client, "q"), claim(client, "q", claimant=YOU)
    found = {task.id for task in client.tasks(TasksQuery("q", claimant=ME))}
    assert mine.id in found
    assert yours.id not in found
    assert len(found) == 2


@pytest.mark.parametrize(
    "id", ["6f2c1f4e-2f0b-4d6e-9c3a-0a1b2c3d4e5f", "order-17", "ü/ö " + "x" * 60, "=" + "A" * 39]
)
def test_insert_with_id(client, id):
    (task,) = insert(client, TaskData("q", b"1", id=id))
    assert (task.id, task.version) == (id, 0)
    assert refused(client, inserts=[TaskData("q", b"2", id=id)]).inserts == [TaskId(id, 0, "q")]
    elsewhere = refused(client, inserts=[TaskData("r", b"2", id=id), TaskData("r", b"3")])
    assert [old.id for old in elsewhere.inserts] == [id]
    assert client.queues(QueuesQuery(exact=["r"])) == []
    got = claim(client, "q")
    assert got.id == id
    assert [task.id for task in client.tasks(TasksQuery(ids=[id]))] == [id]
    delete(client, got)
    (again,) = insert(client, TaskData("r", b"4", id=id))
    assert (again.id, again.version, again.queue) == (id, 0, "r")


def test_skip_colliding_is_the_clients(client):
    """EntroQ's clients skip by asking again without what collided, here with a delete in the same modification."""
    (old,) = insert(client, TaskData("q", b"1"))
    insert(client, TaskData("q", b"1", id="taken"))
    inserts = [TaskData("q", b"2", id="taken"), TaskData("q", b"2", id="free")]
    error = refused(client, inserts=inserts, deletes=[old.key])
    taken = {each.id for each in error.inserts}
    assert taken == {"taken"}
    assert not error.deletes
    left = [each for each in inserts if each.id not in taken]
    client.modify(Modification(ME, inserts=left, deletes=[old.key]))
    assert {task.id for task in client.tasks(TasksQuery("q"))} == {"taken", "free"}


def test_queue_match(client):
    names = ["/a=b/c", "/a=b/d", "/a", "/b", "/ab", "dead", "12", ".x", "a b", "ü"]
    insert(client, *(TaskData(name, b"1") for name in names))

    def found(**query):
        return sorted(stat.name for stat in client.queues(QueuesQuery(**query)))

    assert found() == sorted(names)
    assert found(exact=["/a"]) == ["/a"]
    assert found(exact=["/a", "/b", "none"]) == ["/a", "/b"]
    assert found(prefixes=["/a"]) == ["/a", "/a=b/c", "/a=b/d", "/ab"]
    assert found(prefixes=["/a=b/"]) == ["/a=b/c", "/a=b/d"]
    assert found(prefixes=["/a=", "du"], exact=["dead"]) == ["/a=b/c", "/a=b/d", "dead"]
    assert found(prefixes=["nothing"]) == []
    assert len(found(limit=3)) == 3


def test_queue_stats(client):
    insert(client, *(TaskData("/one", b"1") for _ in range(3)), TaskData("/two", b"1", by=60_000))
    got = claim(client, "/one")
    assert client.queues(QueuesQuery()) == [
        QueueStat("/one", 3, 1, 2, 0, 1),
        QueueStat("/two", 1, 0, 0, 1, 0),
    ]
    client.modify(Modification(ME, changes=[changed(got)]))
    assert client.queues(QueuesQuery(exact=["/one"])) == [QueueStat("/one", 3, 0, 3, 0, 1)]
    delete(client, *client.tasks(TasksQuery("/one")))
    assert client.queues(QueuesQuery(exact=["/one"])) == []


def test_queue_stats_are_of_whole_queues_below_a_limit(client):
    insert(client, *(TaskData(f"q{i % 4}", b"1") for i in range(20)))
    found = client.queues(QueuesQuery(limit=2))
    assert len(found) == 2
    assert all(stat.size == 5 for stat in found)


def test_delete_missing_task(client):
    (task,) = insert(client, TaskData("q", b"1"))
    unknown = TaskId(str(uuid.uuid4()), 0, "q")
    assert refused(client, deletes=[unknown]).deletes == [unknown]
    wrong = task.key._replace(version=7)
    assert refused(client, deletes=[wrong]).deletes == [wrong]
    elsewhere = task.key._replace(queue="r")
    assert refused(client, deletes=[elsewhere]).deletes == [elsewhere]
    delete(client, task)
    assert refused(client, deletes=[task.key]).deletes == [task.key]


def test_a_queue_may_be_left_out(client):
    (one, two, three) = insert(client, *(TaskData("q", b"1") for _ in range(3)))
    client.modify(
        Modification(
            ME,
            deletes=[one.key._replace(queue="")],
            changes=[Change(two.key._replace(queue=""), TaskData("r", b"2"))],
            depends=[three.key._replace(queue="")],
        )
    )
    assert [task.id for task in client.tasks(TasksQuery("r"))] == [two.id]
    assert [task.id for task in client.tasks(TasksQuery("q"))] == [three.id]


def test_all_that_is_wrong_is_told_at_once(client):
    free, other, held, taken = insert(client, *(TaskData("q", b"%d" % i) for i in range(4)))
    insert(client, TaskData("h", b"1"), TaskData("k", b"1", id="key"))
    held = claim(client, "h", claimant=YOU)
    gone = [TaskId(str(uuid.uuid4()), i, "q") for i in range(3)]
    error = refused(
        client,
        inserts=[TaskData("n", b"1"), TaskData("n", b"1", id="key")],
        changes=[changed(free), Change(gone[0], TaskData("q", b"1"))],
        deletes=[held.key, gone[1]],
        depends=[other.key, gone[2], taken.key._replace(version=3)],
    )
    assert [old.id for old in error.inserts] == ["key"]
    assert error.changes == [gone[0]]
    assert error.deletes == [gone[1]]
    assert error.depends == [gone[2], taken.key._replace(version=3)]
    assert error.claims == [held.key]
    assert client.queues(QueuesQuery(exact=["n"])) == []
    assert {task.version for task in client.tasks(TasksQuery("q"))} == {0}


def test_refusal_of_many_reaches_the_client(client):
    """Over gRPC the first of them do: what a client takes of an error is limited."""
    missing = [TaskId(str(uuid.uuid4()), 0, "q" * 20) for _ in range(300)]
    error = refused(client, deletes=missing)
    assert error.deletes == missing[: len(error.deletes)]
    assert len(error.deletes) >= 20


def test_what_another_holds_is_refused_until_its_time(client):
    insert(client, TaskData("q", b"1"))
    held = claim(client, "q", claimant=YOU, duration=1_500)
    assert refused(client, deletes=[held.key]).claims == [held.key]
    assert refused(client, changes=[changed(held)]).claims == [held.key]
    client.modify(Modification(ME, depends=[held.key], inserts=[TaskData("r", b"1")]))  # depends may
    time.sleep(1.6)
    delete(client, held)


def test_force_is_to_say_who_holds_it(client):
    insert(client, TaskData("q", b"1"))
    held = claim(client, "q", claimant=YOU, duration=60_000)
    delete(client, held, claimant=YOU)
    assert client.queues(QueuesQuery()) == []


@pytest.mark.parametrize("modification", [Modification(ME), Modification(ME, inserts=[TaskData("", b"1")])])
def test_what_makes_no_sense(client, modification):
    with pytest.raises(InvalidArgument):
        client.modify(modification)


def test_one_task_twice_in_one_modification(client):
    (task,) = insert(client, TaskData("q", b"1"))
    with pytest.raises(InvalidArgument, match="twice"):
        client.modify(Modification(ME, deletes=[task.key], depends=[task.key]))
    with pytest.raises(InvalidArgument):
        client.claim(ClaimQuery([], ME))


def test_claim_unblocks_on_notify(client):
    waiting = later(client.wait, ClaimQuery(["a", "q"], ME))
    time.sleep(0.3)
    began = time.monotonic()
    (task,) = insert(client, TaskData("q", b"1"))
    assert waiting.result(10).id == task.id
    assert time.monotonic() - began < 3


def test_a_claim_waits_for_the_end_of_a_lease(client):
    insert(client, TaskData("q", b"1"))
    held = claim(client, "q", duration=1_000)
    got = client.wait(ClaimQuery(["q"], YOU, 10_000))
    assert (got.id, got.version, got.claims) == (held.id, held.version + 1, 2)
    assert got.modified >= held.at
    assert refused(client, deletes=[held.key]).deletes == [held.key]


def test_a_claim_given_up_takes_nothing(client):
    assert client.wait(ClaimQuery(["q"], ME), timeout=0.5) is None
    time.sleep(0.3)
    insert(client, TaskData("q", b"1"))
    time.sleep(0.3)
    assert client.queues(QueuesQuery()) == [QueueStat("q", 1, 0, 1, 0, 0)]


def test_many_workers_each_task_once(client):
    """SimpleWorker and MultiWorker: short queues are drained early, and nothing is done twice."""
    sizes = {"large": 150, "middle": 30, "small": 10}
    insert(client, *(TaskData(name, b"%d" % i) for name, size in sizes.items() for i in range(size)))
    done, lock = [], threading.Lock()

    def work(number):
        while (got := claim(client, *sizes, claimant=f"worker-{number}")) is not None:
            client.modify(Modification(f"worker-{number}", deletes=[got.key]))
            with lock:
                done.append((got.queue, got.value))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(set(done)) == sum(sizes.values())
    places = {name: [i for i, (queue, _) in enumerate(done) if queue == name] for name in sizes}
    medians = [statistics.median(places[name]) for name in ("small", "middle", "large")]
    assert medians == sorted(medians)


def test_values(client):
    values = [b"", b"1", b'"\xc3\xbc"', b'{"a":{"b":[null,true,1.5]}}', b"[]"]
    inserted = insert(client, *(TaskData("q", value) for value in values))
    assert [task.value for task in inserted] == values
    found = {task.id: task.value for task in client.tasks(TasksQuery("q"))}
    assert [found[task.id] for task in inserted] == values
    big = b'"' + b"x" * 1_000_000 + b'"'
    insert(client, TaskData("big", big))
    assert claim(client, "big").value == big


def test_times(client):
    now = client.time()
    assert abs(now - time.time() * 1000) < 5_000
    (task,) = insert(client, TaskData("q", b"1"))
    assert task.at == task.modified
    assert task.modified - 1_000 < task.created <= task.modified
    assert now <= task.at <= now + 5_000
