"""What a handler does decides what becomes of its message, in threads and in processes alike."""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import sys

import pytest

import dirqueue
from dirqueue import Reject, Release, Retry, SettingsError, Worker

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

WAYS = pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])


def only(queue, state):
    (message,) = queue.peek(state)
    return message


@WAYS
def test_returning_acknowledges(queue, way):
    """A handler that returns has done its work."""
    queue.put(b"one")
    assert Worker(queue, lambda message: None, **way).run_until_empty().acked == 1
    assert queue.stats().to_dict()["total"] == 0


@WAYS
def test_exception_is_a_failure_that_is_recorded_and_counted(queue, way):
    """After max_attempts failures a message is dead, with the last error beside it."""

    def handler(message):
        raise ValueError(f"bad {message.attempts}")

    queue.put(b"one")
    counts = Worker(queue, handler, **way).run_until_empty(idle=0.3)
    assert (counts.retried, counts.dead) == (2, 1)
    assert only(queue, "dead").error == "ValueError: bad 3"


@WAYS
def test_retry_delays_the_message_as_asked(queue, way):
    """Retry(delay) puts the message off by that delay."""

    def handler(message):
        raise Retry(3600, "not yet")

    queue.put(b"one")
    assert Worker(queue, handler, **way).run_until_empty().retried == 1
    message = only(queue, "delayed")
    assert message.error == "not yet"
    assert (message.until - message.enqueued_at).total_seconds() > 3000


@WAYS
def test_reject_sends_the_message_to_dead_at_once(queue, way):
    """Reject(reason) needs no further attempts."""

    def handler(message):
        raise Reject("no such customer")

    queue.put(b"one")
    assert Worker(queue, handler, **way).run_until_empty().dead == 1
    assert only(queue, "dead").error == "no such customer"


@WAYS
def test_release_gives_the_message_back_uncounted(queue, way):
    """Release() leaves the message as it was."""

    def handler(message):
        raise Release

    queue.put(b"one")
    assert Worker(queue, handler, limit=1, **way).run().released == 1
    assert only(queue, "ready").attempts == 0


@WAYS
def test_sys_exit_in_a_handler_is_a_failure(queue, way):
    """A handler cannot end its worker, and a message that exits does not come again without end."""
    queue.put(b"one")
    counts = Worker(queue, lambda message: sys.exit("bye"), **way).run_until_empty(idle=0.3)
    assert (counts.retried, counts.dead) == (2, 1)
    assert only(queue, "dead").error == "SystemExit: bye"


@WAYS
def test_invalid_delay_is_a_plain_failure(queue, way):
    """Nonsense in Retry() does not lose the message nor the error."""

    def handler(message):
        raise Retry(-1, "oops")

    id = queue.put(b"one")
    counts = Worker(queue, handler, limit=1, **way).run()
    assert counts.retried == 1
    assert "oops" in queue.message(id).error


@WAYS
@pytest.mark.parametrize("size", [0, 10, 65536, 65537, 3_000_000])
def test_bodies_of_any_size_arrive_whole(queue, way, size):
    """A body is the same as bytes, as a stream and in its length, however long it is."""
    body = os.urandom(size)

    def handler(message):
        with message.open() as file:
            assert file.read() == body
            file.seek(size // 2)
            assert file.read() == body[size // 2 :]
        assert message.size == size
        assert message.body == body

    queue.put(body)
    assert Worker(queue, handler, **way).run_until_empty().acked == 1


@WAYS
def test_a_handler_sees_the_message_and_its_last_failure(queue, way):
    """Attempts, ids, times and the earlier error are the same in a child process."""
    said = []

    def handler(message):
        if message.attempts == 1:
            raise ValueError("first")
        if (message.id, message.error, message.state) != (id, "ValueError: first", "leased"):
            raise Reject(repr(message.to_dict()))
        if message.failure.at < message.enqueued_at or message.leased_at is None:
            raise Reject(repr(message.to_dict()))

    id = queue.put(b"one")
    counts = Worker(queue, handler, **way).run_until_empty(idle=0.3)
    assert (counts.retried, counts.acked, counts.dead) == (1, 1, 0), (said, [*queue.peek("dead")])


@WAYS
def test_bodies_are_decoded_by_the_queues_codec(queue_dir, way):
    """A codec that cannot be pickled works in child processes too: they inherit it."""

    class Backwards:
        def encode(self, value):
            return value[::-1].encode()

        def decode(self, data):
            return data.decode()[::-1]

    queue = dirqueue.Queue(queue_dir, codec=Backwards(), sync=False)
    queue.put("stressed")

    def handler(message):
        assert message.body == "stressed"
        assert message.data == b"desserts"

    assert Worker(queue, handler, **way).run_until_empty().acked == 1


def test_a_message_in_a_child_cannot_be_changed(queue):
    """cancel() and change() of a held message are refused in a child as they are elsewhere."""

    def handler(message):
        for change in (message.cancel, lambda: message.change(delay=5)):
            try:
                change()
            except dirqueue.MessageNotFound:
                continue
            raise Reject("changed")

    queue.put(b"one")
    assert Worker(queue, handler, processes=1).run_until_empty().acked == 1


@WAYS
def test_any_object_with_get_is_a_source(tmp_path, way):
    """A worker asks its source for nothing but get(timeout=, lease=)."""
    queues = [dirqueue.Queue(tmp_path / name, codec=codec) for name, codec in (("a", "json"), ("b", "text"))]
    queues[0].put({"n": 1})
    queues[1].put("two")

    class Both:
        def get(self, *, timeout=None, lease=None):
            for queue in queues:
                try:
                    return queue.get(timeout=0, lease=lease)
                except dirqueue.Empty:
                    continue
            raise dirqueue.Empty("both are empty")

    def handler(message):
        assert message.body in ({"n": 1}, "two")

    assert Worker(Both(), handler, **way).run_until_empty().acked == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"threads": 0}, "threads"),
        ({"threads": True}, "threads"),
        ({"processes": -1}, "processes"),
        ({"threads": 2, "processes": 2}, "not both"),
        ({"lease": 0}, "lease"),
        ({"time_limit": -1}, "time_limit"),
        ({"limit": 0}, "limit"),
        ({"drain": "soon"}, "drain"),
        ({"hooks": {"ackd": print}}, "ackd"),
        ({"hooks": {"acked": 5}}, "acked"),
    ],
)
def test_invalid_argument_is_refused_by_name(queue, arguments, word):
    """A wrong argument is one sentence that names it."""
    with pytest.raises(SettingsError, match=word):
        Worker(queue, print, **arguments)


def test_a_source_and_a_handler_are_checked(queue):
    """What cannot be a queue or a handler is refused before anything is claimed."""
    with pytest.raises(SettingsError, match="QueueSet"):
        Worker("spool", print)
    with pytest.raises(SettingsError, match="callable"):
        Worker(queue, "print")


async def _coroutine(message):
    raise AssertionError("nobody awaits this")


async def _async_generator(message):
    yield message


def _generator(message):
    yield message


class _CallableGenerator:
    def __call__(self, message):
        yield message


class _CallableAsyncGenerator:
    async def __call__(self, message):
        yield message


@pytest.mark.parametrize(
    "handler",
    [
        _async_generator,
        _generator,
        functools.partial(functools.partial(_generator)),
        _CallableGenerator(),
        _CallableAsyncGenerator(),
        functools.partial(_CallableAsyncGenerator()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_handler_that_would_do_nothing_is_refused(queue, handler):
    """Calling a generator function runs none of it, so that returning would not mean success."""
    with pytest.raises(SettingsError, match="without yield") as refused:
        Worker(queue, handler)
    assert "\n" not in str(refused.value)
    with pytest.raises(SettingsError, match="hook for 'acked'"):
        Worker(queue, print, hooks={"acked": handler})


def _future():
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.create_future()


class _Awaitable:
    def __await__(self):
        yield


@WAYS
@pytest.mark.parametrize(
    "returned",
    [
        _coroutine,
        _async_generator,
        _generator,
        lambda message: (byte for byte in message.data),
        lambda message: map(print, message.data),
        lambda message: _Awaitable(),
        lambda message: _future(),
        lambda message: concurrent.futures.Future(),
    ],
    ids="coroutine async_generator generator expression map awaitable future concurrent".split(),
)
def test_returned_awaitable_is_a_failure(queue, way, returned):
    """What a handler returned and nobody awaits is counted as a failure, never acknowledged."""
    id = queue.put(b"one")

    def handler(message):
        return returned(message)

    counts = Worker(queue, handler, limit=1, **way).run()
    assert counts == (0, 1, 0, 0, 0)
    assert queue.message(id).error.startswith("TypeError: the handler returned a ")


@WAYS
def test_returned_value_is_ignored(queue, way):
    """Plain results, lists and even open files are success."""
    queue.put_many([b"0", b"1", b"2"])
    results = [[1], "text", sys.stderr]
    assert Worker(queue, lambda message: results[int(message.data)], **way).run_until_empty().acked == 3


def test_future_of_a_failed_delivery_is_cancelled(queue):
    """The work that was handed over does not run beside the next attempt."""
    future = concurrent.futures.Future()
    queue.put(b"one")
    Worker(queue, lambda message: future, limit=1).run()
    assert future.cancelled()
