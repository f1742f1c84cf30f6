"""Leases: a with block, renewal, loss, interrupts, fork."""

import contextlib
import signal
import threading
import time

import pytest
from support.kit import LONG, PATIENCE, SHORT, drain, in_child, wait_until

from dirqueue import Empty, LeaseLost, Reject, Release, Retry, SettingsError
from dirqueue import lease as lease_module


def test_block_that_succeeds_acknowledges(queue):
    """With lease as message: ack at the end."""
    queue.put(b"x")
    with queue.get(timeout=0) as message:
        assert message.body == b"x"
        assert queue.stats().leased == 1
    assert len(queue) == 0


def test_block_that_fails_retries_and_raises(make_queue, needs):
    """The exception goes on, and the message comes again with the error kept."""
    needs("attempts", "delay", "dead")
    queue = make_queue(backoff=0)
    queue.put(b"x")
    with pytest.raises(ZeroDivisionError), queue.get(timeout=0):
        1 / 0  # noqa: B018
    message = queue.get(timeout=PATIENCE).message
    assert message.attempts == 2
    assert message.error == "ZeroDivisionError: division by zero"


def test_block_that_fails_loses_nothing(make_queue):
    """In every layout a failed message is still in the queue."""
    queue = make_queue(backoff=0)
    id = queue.put(b"x")
    with pytest.raises(ZeroDivisionError), queue.get(timeout=0):
        1 / 0  # noqa: B018
    assert queue.get(timeout=PATIENCE).message.id == id


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_block_releases(queue, error):
    """Being stopped is not the message's fault."""
    id = queue.put(b"x")
    with pytest.raises(error), queue.get(timeout=0):
        raise error
    lease = queue.get(timeout=PATIENCE)
    assert lease.message.id == id
    assert lease.message.attempts <= 1


def test_handler_steers_the_block(make_queue, needs):
    """Retry, Reject and Release say how the lease ends, and end there."""
    needs("attempts", "dead", "delay")
    queue = make_queue()
    queue.put(b"x")
    with queue.get(timeout=0):
        raise Release
    with queue.get(timeout=PATIENCE):
        raise Retry(delay=0, error="later")
    lease = queue.get(timeout=PATIENCE)
    assert (lease.message.attempts, lease.message.error) == (2, "later")
    with lease:
        raise Reject("never")
    assert next(queue.peek("dead")).error == "never"


def test_lease_ended_inside_its_block_is_left_alone(queue):
    """The block does not end what its body has ended."""
    queue.put(b"x")
    lease = queue.get(timeout=0)
    with lease:
        lease.release()
    assert lease.ended == "released"
    assert queue.stats().ready == 1


def test_a_block_is_renewed_while_it_runs(make_queue, monkeypatch):
    """Work that takes longer than the lease keeps its message."""
    monkeypatch.setattr(lease_module, "RENEW_AT", 1 / 600)  # soon, and with a minute to spare
    queue, thief = make_queue(), make_queue()
    queue.put(b"x")
    lease = queue.get(timeout=0, lease=60.0)
    first = lease.until
    with lease:
        wait_until(lambda: lease.until > first, "the renewal")
        with pytest.raises(Empty):
            thief.get(timeout=0)
    assert lease.ended == "acked"


def test_renew_holds_on(make_queue):
    """A renewed lease ends later; nobody else gets the message meanwhile."""
    queue, thief = make_queue(), make_queue()
    queue.put(b"x")
    lease = queue.get(timeout=0, lease=SHORT)
    try:
        lease.renew(LONG)
    except LeaseLost:  # only if this machine slept, and nobody else is here
        raise AssertionError("nobody took it") from None
    assert (lease.until - lease.message.enqueued_at).total_seconds() > LONG / 2
    with pytest.raises(Empty):
        thief.get(timeout=3 * SHORT)
    lease.ack()
    assert len(queue) == 0


def test_each_renewal_is_a_new_lease(queue, needs):
    """A renewal changes the token, so that the old one is worth nothing."""
    needs("fencing")
    queue.put(b"x")
    lease = queue.get(timeout=0)
    tokens = {lease.token}
    ends = [lease.until]
    for _ in range(5):
        lease.renew()
        tokens.add(lease.token)
        ends.append(lease.until)
    assert len(tokens) == 6
    assert ends == sorted(set(ends))


def test_long_body_is_readable_through_renewals(queue):
    """The file's name changes under the message object, and it does not notice."""
    body = b"x" * 300_000
    queue.put(body)
    lease = queue.get(timeout=0)
    message = lease.message
    lease.renew()
    assert message.size == 300_000
    lease.renew()
    assert message.body == body


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", True, 1e300])
def test_renewal_that_is_invalid_is_refused(queue, seconds):
    """And the lease is as it was."""
    queue.put(b"x")
    lease = queue.get(timeout=0)
    before = lease.until
    with pytest.raises(SettingsError, match="seconds"):
        lease.renew(seconds)
    assert lease.until == before
    lease.ack()


def test_lease_lost_in_the_background_raises_at_the_end_of_the_block(make_queue, needs):
    """A block whose message was taken away must not look as if it had been acknowledged."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    lease = queue.get(timeout=0, lease=0.3)
    with pytest.raises(LeaseLost), lease:
        make_queue().flush()  # stands for a thief
        wait_until(lambda: lease.lost, "the renewal that finds out")
    assert lease.ended == "lost"


def test_lease_lost_that_the_block_has_caught_is_not_raised_twice(make_queue, needs):
    """Whoever caught LeaseLost inside the block knows already."""
    needs("fencing")
    queue = make_queue()
    queue.put(b"x")
    with queue.get(timeout=0) as message:
        make_queue().flush()
        with pytest.raises(LeaseLost):
            lease_of(message).ack()


def lease_of(message):
    """Find the lease of a message that a block was given."""
    import gc

    from dirqueue import Lease

    return next(each for each in gc.get_referrers(message) if isinstance(each, Lease))


def test_many_blocks_leave_nothing_behind(queue):
    """Ended leases are forgotten by the renewer, their bodies too."""
    import gc

    from dirqueue import Lease

    for _ in range(300):
        queue.put(b"x" * 100)
    for lease in queue.consume(timeout=0):
        with lease:
            pass
    del lease
    gc.collect()
    held = [each for each in gc.get_objects() if isinstance(each, Lease) and each._layout is queue.layout]
    assert len(held) < 10


def test_lease_is_refused_in_a_forked_child(queue):
    """The parent's lease is the parent's: the child can neither end nor renew it."""
    queue.put(b"x")
    lease = queue.get(timeout=0)

    def child():
        for end in (lease.ack, lease.retry, lease.release, lease.reject, lease.renew):
            with pytest.raises(LeaseLost) as caught:
                end()
            assert caught.value.reason == "forked"
        return "refused"

    assert in_child(child) == "refused"
    lease.ack()
    assert len(queue) == 0


@contextlib.contextmanager
def held_by_a_thread(lock):
    """Hold a lock in another thread, as a renewal or a get does in the moment of a fork."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)


def test_lease_that_is_being_renewed_at_a_fork_is_refused_in_the_child(queue):
    """A lock that a thread of the parent holds at the fork must not hang the child."""
    queue.put(b"x")
    lease = queue.get(timeout=0)

    def child():
        with pytest.raises(LeaseLost) as caught:
            lease.ack()
        return caught.value.reason

    lease.renew(60)
    with held_by_a_thread(lease._lock):
        assert in_child(child) == "forked"
    lease.ack()


@pytest.mark.parametrize("holder", [held_by_a_thread, lambda lock: lock], ids=["thread", "same thread"])
def test_fork_while_a_lease_becomes_shared_hangs_nobody(queue, holder):
    """Neither the child, if another thread is at it, nor the parent, if it forks in a signal handler."""
    queue.put(b"x")

    def child():
        with queue.get(timeout=0) as message:
            return message.body

    with holder(lease_module.MAKING):
        assert in_child(child) == b"x"


def test_lock_that_guards_locks_is_free_after_a_fork(queue):
    """As above, without the fork: what the child does first."""
    queue.put(b"x")
    with held_by_a_thread(lease_module.MAKING):
        lease_module._forked()
        with queue.get(timeout=0) as message:
            assert message.body == b"x"


def test_lease_ended_by_a_signal_handler_within_a_renewal_does_not_hang(queue):
    """The handler interrupts the thread that holds the lock of the lease."""
    queue.put(b"x")
    lease = queue.get(timeout=0)
    lease.renew()
    before = signal.signal(signal.SIGUSR1, lambda *_: lease.release())
    try:
        with lease._lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert lease.ended == "released"
    assert drain(queue) == [b"x"]


def test_forked_child_may_use_the_queue(queue):
    """The queue object itself works on both sides of a fork."""
    queue.put(b"parent")

    def child():
        queue.put(b"child")
        lease = queue.get(timeout=0)
        body = lease.message.body
        lease.ack()
        return body

    taken = in_child(child)
    assert sorted([taken, *drain(queue)]) == [b"child", b"parent"]


def test_ends_do_not_race_inside_a_process(queue):
    """Of many threads that end one lease exactly one does."""
    for _ in range(20):
        queue.put(b"x")
        lease = queue.get(timeout=0)
        barrier = threading.Barrier(4)
        ended = []

        def end(lease=lease, barrier=barrier, ended=ended):
            barrier.wait(PATIENCE)
            try:
                lease.ack()
                ended.append(1)
            except LeaseLost:
                pass

        def renew(lease=lease, barrier=barrier):
            barrier.wait(PATIENCE)
            try:
                for _ in range(5):
                    lease.renew()
            except LeaseLost:
                pass

        threads = [threading.Thread(target=each) for each in (end, end, renew, renew)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert ended == [1]
        assert lease.ended == "acked"
        assert len(queue) == 0


def test_until_is_by_the_clock_of_the_files(queue):
    """A lease of an hour ends in an hour."""
    queue.put(b"x")
    lease = queue.get(timeout=0, lease=3600)
    assert abs(lease.until.timestamp() - time.time() - 3600) < 60
