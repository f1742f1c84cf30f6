"""The document's Python module on a directory: its client and its worker."""

import json
import threading
import time

import pytest

pytest.importorskip("dirqueue.entroq.store")

from dirqueue.compat.entroq.classic import (
    DependencyError,
    EntroQ,
    EQWorker,
    as_change,
    as_id,
    entroq_pb2,
    id_str,
)


@pytest.fixture
def eq(tmp_path):
    client = EntroQ(tmp_path / "space")
    yield client
    client.close()


def insert(eq, *values, queue="in", **fields):
    inserted, _ = eq.modify(
        inserts=[entroq_pb2.TaskData(queue=queue, value=value, **fields) for value in values]
    )
    return list(inserted)


def test_task_goes_from_insert_to_delete(eq):
    [put] = insert(eq, b'{"n": 1}')
    assert (put.version, put.claimant_id, put.queue) == (0, eq.claimant_id, "in")
    task = eq.try_claim("in", duration_ms=60_000)
    assert (task.id, task.version, task.claims) == (put.id, 1, 1)
    assert eq.try_claim(["in", "other"]) is None
    assert EntroQ.to_dict(task, "json")["value"] == {"n": 1}
    assert EntroQ.to_dict(task)["value"] == "eyJuIjogMX0="
    change = as_change(task)
    change.new_data.queue, change.new_data.at_ms = "out", 0
    _, [moved] = eq.modify(changes=[change], depends=[])
    assert (moved.queue, moved.version, moved.value) == ("out", 2, b'{"n": 1}')
    assert eq.queue_empty("in")
    [stat] = eq.queues(prefixmatches=["o"], exactmatches=["in"])
    assert (stat.name, stat.num_tasks, stat.num_available) == ("out", 1, 1)
    assert eq.task_by_id(put.id).version == 2
    assert [each.value for each in eq.tasks("out", omit_values=True)] == [b""]
    eq.delete(as_id(moved))
    with pytest.raises(ValueError, match="not found"):
        eq.task_by_id(put.id)
    assert abs(eq.now() - eq.time()) < 60_000


def test_refused_modification_says_what_was_in_the_way(eq):
    [task] = insert(eq, b"1", id="00000000-0000-0000-0000-000000000001")
    gone = entroq_pb2.TaskID(id="00000000-0000-0000-0000-000000000002", version=4)
    with pytest.raises(DependencyError) as caught:
        eq.modify(inserts=[entroq_pb2.TaskData(queue="in", id=task.id)], deletes=[gone])
    assert caught.value.inserts == [f"{task.id}:0"]
    assert caught.value.deletes == [id_str(gone)]
    assert json.loads(str(caught.value))["deletes"] == [id_str(gone)]
    other = EntroQ(eq.addr)
    held = other.claim("in")
    with pytest.raises(DependencyError) as caught:
        eq.delete(as_id(held))
    assert caught.value.claims == [id_str(held)]
    eq.delete(as_id(held), unsafe_claimant_id=other.claimant_id)
    other.close()


def test_claim_waits_for_a_task(eq):
    other = EntroQ(eq.addr)
    thread = threading.Thread(target=lambda: (time.sleep(0.2), insert(other, b"late")))
    thread.start()
    assert eq.claim("in").value == b"late"
    thread.join()
    other.close()


def test_renewed_task_keeps_all_else_and_its_newest_version_is_returned(eq):
    """The original loses its renewals, and attempt and err with them."""
    insert(eq, b"1", attempt=3, err="bad")
    task = eq.claim("in", duration_ms=400)
    renewed, result = eq.do_with_renew(task, lambda task: time.sleep(1) or "done", duration=0.4)
    assert result == "done"
    assert renewed.version >= 3
    assert (renewed.attempt, renewed.err, renewed.claimant_id) == (3, "bad", eq.claimant_id)
    eq.delete(as_id(renewed))


def test_renewal_of_a_lost_task_is_an_error(eq):
    insert(eq, b"1")
    task = eq.claim("in")
    eq.delete(as_id(task))
    with pytest.raises(DependencyError):
        eq.do_with_renew(task, lambda task: time.sleep(0.3), duration=0.2)


def test_pop_all_leaves_what_others_hold_unless_it_is_forced(eq):
    insert(eq, b"1", b"2", b"3")
    other = EntroQ(eq.addr)
    held = other.claim("in")
    assert {each.value for each in eq.pop_all("in")} == {b"1", b"2", b"3"} - {held.value}
    assert [each.value for each in eq.pop_all("in", force=True)] == [held.value]
    assert eq.queue_empty("in")
    other.close()


def test_worker_commits_what_its_function_returns(eq):
    """With the version of the last renewal; a refused commit is thrown away."""
    insert(eq, b"1", b"refused", b"last")
    worker = EQWorker(eq)
    seen = []

    def work(task):
        seen.append(task.value)
        if len(seen) >= 3:
            worker.stop()
        request = entroq_pb2.ModifyRequest(deletes=[as_id(task)])
        if task.value == b"refused":
            request.depends.append(entroq_pb2.TaskID(id="00000000-0000-0000-0000-000000000009"))
        elif task.value == b"1":
            time.sleep(0.6)  # it is renewed meanwhile
            request.inserts.append(entroq_pb2.TaskData(queue="out", value=b"one"))
        return request

    worker.work("in", work, claim_duration=0.4)
    assert sorted(seen)[:1] == [b"1"]
    assert [task.value for task in eq.tasks("out")] == [b"one"]
    assert b"1" not in [task.value for task in eq.tasks("in")]
