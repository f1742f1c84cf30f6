"""Getting: one message to one taker, in order, waiting without burning CPU."""

import queue as stdlib
import threading
import time

import pytest
from support.kit import LONG, PATIENCE, SHORT, drain, wait_until

from dirqueue import Empty, QueueAccess, SettingsError
from dirqueue.consumer import give_back


def test_fifo_by_default(queue):
    """First in, first out, from one producer."""
    bodies = [f"{n}".encode() for n in range(30)]
    for body in bodies:
        queue.put(body)
    assert drain(queue) == bodies


def test_leased_message_is_not_delivered_again(make_queue):
    """While a lease lasts, no other client gets the message."""
    first, second = make_queue(), make_queue()
    first.put(b"x")
    held = first.get(timeout=0)
    with pytest.raises(Empty):
        second.get(timeout=0)
    with pytest.raises(Empty):
        first.get(timeout=0)
    held.ack()


def test_clients_share_the_messages(make_queue):
    """Two takers in turn get each message once between them."""
    clients = make_queue(), make_queue()
    bodies = {clients[n % 2].put(f"{n}".encode()) for n in range(40)}
    seen = []
    for n in range(40):
        lease = clients[n % 2].get(timeout=0)
        seen.append(lease.message.id)
        lease.ack()
    assert sorted(seen) == sorted(bodies)
    assert drain(clients[0]) == []


def test_get_from_an_empty_queue_raises_empty(queue):
    """timeout=0 looks once; the error is the one people know from the standard library."""
    with pytest.raises(stdlib.Empty) as caught:
        queue.get(timeout=0)
    assert isinstance(caught.value, Empty)
    assert queue.path in str(caught.value)


def test_missing_directory_is_an_empty_queue(queue, tmp_path):
    """Consumers may start before the first producer, and make nothing."""
    with pytest.raises(Empty, match="no such queue"):
        queue.get(timeout=0)
    assert not (tmp_path / "queue").exists()


def test_timeout_is_waited_for(queue):
    """Get gives up after its timeout, not before."""
    queue.put(b"x")
    drain(queue)
    began = time.monotonic()
    with pytest.raises(Empty):
        queue.get(timeout=0.2)
    assert time.monotonic() - began >= 0.2


def test_waiting_get_sees_a_put(make_queue):
    """Get waits until somebody else puts."""
    getter, putter = make_queue(), make_queue()
    putter.put(b"gone")
    drain(getter)
    got = []
    thread = threading.Thread(target=lambda: got.append(getter.get(timeout=PATIENCE).message.body))
    thread.start()
    putter.put(b"x")
    thread.join(PATIENCE)
    assert got == [b"x"]


def test_waiting_get_sees_a_queue_being_made(make_queue):
    """A consumer that came before the directory sees the first put."""
    getter, putter = make_queue(), make_queue()
    got = []
    thread = threading.Thread(target=lambda: got.append(getter.get(timeout=PATIENCE).message.body))
    thread.start()
    putter.put(b"x")
    thread.join(PATIENCE)
    assert got == [b"x"]


def test_waiting_get_sees_a_lease_end(make_queue):
    """Get wakes when a dead consumer's lease runs out."""
    queue = make_queue()
    queue.put(b"x")
    queue.get(timeout=0, lease=SHORT)  # and its holder is never heard of again
    assert make_queue().get(timeout=PATIENCE).message.body == b"x"


def test_waiting_burns_no_cpu(queue):
    """A long wait is sleep: far less CPU than wall time, polling included."""
    queue.put(b"x")
    drain(queue)
    cpu = time.thread_time()
    with pytest.raises(Empty):
        queue.get(timeout=1.0)
    assert time.thread_time() - cpu < 0.5


def test_get_many_takes_what_is_there(queue):
    """get_many returns up to n leases and does not wait for more."""
    ids = {queue.put(b"x") for _ in range(5)}
    leases = queue.get_many(3, timeout=0)
    assert len(leases) == 3
    leases += queue.get_many(10, timeout=0)
    assert {lease.message.id for lease in leases} == ids
    with pytest.raises(Empty):
        queue.get_many(1, timeout=0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, QueueAccess("no", path="", errno=5)], ids=repr)
def test_get_many_that_fails_keeps_nothing(make_queue, monkeypatch, error):
    """What it had claimed before the error is ready again at once, not when the leases run out."""
    queue = make_queue()
    for number in range(3):
        queue.put(f"{number}")
    claim, calls = queue.layout.claim, []

    def failing(seconds):
        calls.append(seconds)
        if len(calls) == 3:
            raise error
        return claim(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(queue.layout, "claim", failing)
        with pytest.raises((KeyboardInterrupt, QueueAccess)):
            queue.get_many(3, timeout=0)
    assert len(make_queue().get_many(3, timeout=PATIENCE)) == 3


def test_give_back_releases_what_it_can(make_queue, needs):
    """A lease that was lost meanwhile does not keep the others from being released."""
    needs("fencing")
    queue = make_queue()
    for number in range(3):
        queue.put(f"{number}")
    leases = queue.get_many(3, timeout=0)
    make_queue().lease(leases[1].handle).ack()
    give_back(leases)
    assert [lease.ended for lease in leases] == ["released", "lost", "released"]
    assert len(drain(queue)) == 2


def test_consume_yields_until_idle(queue):
    """Consume is a loop over leases that ends when nothing comes."""
    for n in range(5):
        queue.put(f"{n}")
    seen = []
    for lease in queue.consume(timeout=0):
        with lease as message:
            seen.append(message.body)
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(queue) == 0


def test_consume_stops_at_its_limit(queue):
    """Limit leases are yielded, not one more is claimed."""
    for _ in range(5):
        queue.put(b"x")
    leases = list(queue.consume(timeout=0, limit=2))
    assert len(leases) == 2
    assert queue.stats().leased == 2
    assert list(queue.consume(timeout=0, limit=0)) == []


def test_lease_shows_its_message(queue):
    """A fresh lease has a token, an end, and a message with its facts."""
    id = queue.put(b"x")
    lease = queue.get(timeout=0, lease=LONG)
    message = lease.message
    assert message.id == id
    assert message.state == "leased"
    assert message.priority is None
    assert lease.ended == ""
    assert lease.until.tzinfo is not None
    assert lease.until > message.enqueued_at
    assert lease.message is message


def test_first_delivery_is_attempt_one(queue, needs):
    """Attempts counts deliveries, this one included."""
    needs("attempts")
    queue.put(b"x")
    assert queue.get(timeout=0).message.attempts == 1


def test_tokens_are_never_the_same(make_queue, needs):
    """Every lease has a name of its own."""
    needs("fencing")
    clients = make_queue(), make_queue()
    for _ in range(20):
        clients[0].put(b"x")
    tokens = [clients[n % 2].get(timeout=0).token for n in range(20)]
    assert len(set(tokens)) == 20


def test_queue_made_again_is_found(make_queue, tmp_path):
    """Consumers and producers survive somebody removing the directory and making it again."""
    old, other = make_queue(), make_queue()
    old.put(b"gone")
    drain(old)
    drain(other)
    for each in (*sorted((tmp_path / "queue").rglob("*"), reverse=True), tmp_path / "queue"):
        each.rmdir() if each.is_dir() else each.unlink()
    assert drain(other) == []
    make_queue().put(b"new")
    assert wait_until(lambda: drain(other)) == [b"new"]
    old.put(b"newer")
    assert wait_until(lambda: drain(other)) == [b"newer"]


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True, [], 1e300])
def test_timeout_that_is_invalid_is_refused(queue, timeout):
    """Arguments are checked whether or not there is a message."""
    queue.put(b"x")
    with pytest.raises(SettingsError, match="timeout"):
        queue.get(timeout=timeout)
    assert queue.stats().ready == 1


@pytest.mark.parametrize("lease", [-1, 0, float("nan"), float("inf"), "1", True, 1e300])
def test_lease_that_is_invalid_is_refused(queue, lease):
    """A lease of no time, or of more than names can say, takes nothing."""
    queue.put(b"x")
    with pytest.raises(SettingsError, match="lease"):
        queue.get(timeout=0, lease=lease)
    assert queue.stats().ready == 1


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_number_that_is_invalid_is_refused(queue, n):
    """get_many takes whole numbers from 1."""
    queue.put(b"x")
    with pytest.raises(SettingsError, match="n must"):
        queue.get_many(n, timeout=0)


@pytest.mark.parametrize("limit", [-1, 1.5, "2", True])
def test_limit_that_is_invalid_is_refused(queue, limit):
    """Consume's limit is a whole number."""
    queue.put(b"x")
    with pytest.raises(SettingsError, match="limit"):
        list(queue.consume(timeout=0, limit=limit))
    assert queue.stats().ready == 1
