"""Workers on the queues of a space: what a handler returns is put with the ack; failures go to other queues."""

import pytest
from support.kit import LONG

from dirqueue import Conflict, Move, Put, Queue, Reject, Retry, SettingsError, Space, Worker
from dirqueue.disk.identity import PROCESS


@pytest.fixture(params=["threads", "processes"])
def work(request, space):
    """Run a worker on queues of the space until they are empty; return the counts."""

    def work(handler, *names, **more):
        kind = {"processes": 1} if request.param == "processes" else {}
        source = space.queues(*(names or ("inbox",)))
        return Worker(source, handler, lease=LONG, **kind, **more).run_until_empty()

    return work


def waiting(space, name, state="ready"):
    return sorted(message.body for message in space.queue(name).peek(state))


def test_returned_puts_are_committed_with_the_ack(space, work):
    for number in range(5):
        space.put("inbox", str(number).encode())
    counts = work(lambda message: [Put("out", message.body), Put("log", b"done")])
    assert counts.acked == 5
    assert waiting(space, "out") == [b"0", b"1", b"2", b"3", b"4"]
    assert waiting(space, "log") == [b"done"] * 5
    assert space.empty("inbox")


def test_one_put_needs_no_list_and_other_results_mean_nothing(space, work):
    space.put("inbox", b"put")
    space.put("inbox", b"other")
    counts = work(lambda message: Put("out", b"x") if message.body == b"put" else [1, 2])
    assert counts.acked == 2
    assert waiting(space, "out") == [b"x"]


def test_mixed_list_is_a_failure(space, work):
    space.put("inbox", b"x")
    counts = work(lambda _: [Put("out", b"x"), 17])
    assert counts.retried == 1
    assert waiting(space, "out") == []
    assert "return only Put" in next(space.queue("inbox").peek("delayed")).error


def test_move_sends_the_message_to_another_queue(space, work):
    space.put("inbox", b"x")

    def handler(message):
        raise Move("elsewhere", "not mine")

    moved = []
    counts = work(handler, hooks={"moved": moved.append})
    assert (len(moved), counts.acked) == (1, 0)
    [message] = space.queue("elsewhere").peek()
    assert (message.body, message.attempts, message.error) == (b"x", 0, "not mine")


def test_failures_for_good_go_to_another_queue(space, work):
    def handler(message):
        if message.body == b"reject":
            raise Reject("bad")
        raise Retry(0, "no luck")

    space.put("inbox", b"reject")
    space.put("inbox", b"retry")
    moved = []
    failing = {"failed_to": lambda queue: f"{queue}/err", "max_failures": 3}
    counts = work(handler, **failing, hooks={"moved": moved.append})
    assert (len(moved), counts.retried, counts.dead) == (2, 2, 0)
    failed = {message.body: message.error for message in space.queue("inbox/err").peek()}
    assert failed == {b"reject": "bad", b"retry": "no luck"}


def test_max_failures_without_another_queue_means_dead(space, work):
    def handler(_):
        raise Retry(0, "no luck")

    space.put("inbox", b"x")
    counts = work(handler, max_failures=2)
    assert (counts.retried, counts.dead) == (1, 1)


def test_refused_commit_throws_the_work_away(space, work):
    """An id that is taken: nothing is put, the message is retried, and the user is asked."""
    space.put("out", b"first", id="k")
    space.put("inbox", b"x")
    asked = []

    def on_conflict(message, conflict):
        asked.append((message.body, [ref.id for ref in conflict.taken]))

    counts = work(lambda _: [Put("out", b"second", id="k")], on_conflict=on_conflict)
    assert asked == [(b"x", ["k"])]
    assert counts.retried == 1
    assert waiting(space, "out") == [b"first"]
    assert waiting(space, "inbox", "delayed") == [b"x"]


def test_refused_commit_may_end_the_worker(space, work):
    space.put("out", b"first", id="k")
    space.put("inbox", b"x")
    with pytest.raises(ZeroDivisionError):
        work(lambda _: [Put("out", b"second", id="k")], on_conflict=lambda *_: ZeroDivisionError("stop"))


def test_puts_of_a_queue_alone_are_a_failure_of_the_message(tmp_path):
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    counts = Worker(queue, lambda _: [Put("out", b"x")], lease=LONG).run_until_empty()
    assert counts.retried == 1
    assert "needs a lease from a Space" in next(queue.peek("delayed")).error


@pytest.mark.parametrize(
    "more", [{"failed_to": "err"}, {"on_conflict": 17}, {"max_failures": -1}, {"max_failures": "1"}]
)
def test_invalid_policies_are_refused(tmp_path, more):
    with pytest.raises(SettingsError):
        Worker(Space(tmp_path / "s").queues("a"), print, **more)


def test_lease_in_a_with_block_moves(space):
    space.put("inbox", b"x")
    with space.get("inbox", timeout=0):
        raise Move("elsewhere")
    assert waiting(space, "elsewhere") == [b"x"]


def test_lease_of_a_parent_is_refused_in_a_transaction(space, monkeypatch):
    """A forked child has the object, not the lease."""
    space.put("inbox", b"x")
    lease = space.get("inbox", timeout=0)
    monkeypatch.setattr(PROCESS, "generation", PROCESS.generation + 1)
    with pytest.raises(Conflict, match="by the parent process"):
        lease.ack([Put("out", b"y")])
    assert waiting(space, "out") == []
