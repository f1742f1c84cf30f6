"""Limits: how many messages, how large."""

import queue as stdlib
import threading
import time

import pytest
from support.kit import PATIENCE, drain, files, put_all

from dirqueue import Full, MessageTooLarge, SettingsError


def test_full_queue_refuses(make_queue):
    """max_messages counts what is waiting and held; the error is the standard library's too."""
    queue = make_queue(max_messages=3)
    for _ in range(3):
        queue.put(b"x", timeout=0)
    lease = queue.get(timeout=0)
    with pytest.raises(stdlib.Full) as caught:
        queue.put(b"y", timeout=0)
    assert isinstance(caught.value, Full)
    assert "max_messages=3" in str(caught.value)
    lease.ack()
    queue.put(b"y", timeout=0)
    assert len(queue) == 3


def test_put_waits_for_room(make_queue):
    """A blocked put goes on when a consumer makes room."""
    queue, other = make_queue(max_messages=1), make_queue(max_messages=1)
    queue.put(b"a")
    thread = threading.Thread(target=queue.put, args=(b"b",), kwargs={"timeout": PATIENCE})
    thread.start()
    assert drain(other, 1) == [b"a"]
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert drain(other) == [b"b"]


def test_put_waits_no_longer_than_its_timeout(make_queue):
    """Then Full, and nothing was written."""
    queue = make_queue(max_messages=1)
    queue.put(b"a")
    began = time.monotonic()
    with pytest.raises(Full):
        queue.put(b"b", timeout=0.1)
    assert time.monotonic() - began >= 0.1
    assert drain(queue) == [b"a"]


def test_waiting_for_room_burns_no_cpu(make_queue):
    """Not even when a lease that was seen ended long ago."""
    queue = make_queue(max_messages=1, lease=0.01, max_attempts=0)
    queue.put(b"a")
    queue.get(timeout=0)
    queue.get(timeout=PATIENCE, lease=0.01)  # the end of the first lease was seen, and is past
    cpu = time.thread_time()
    with pytest.raises(Full):
        queue.put(b"b", timeout=1.0)
    assert time.thread_time() - cpu < 0.5


def test_batch_fits_or_does_not(make_queue, needs):
    """put_many counts all of them, and one that never fits is refused at once."""
    needs("batch")
    queue = make_queue(max_messages=3)
    queue.put_many([b"a", b"b"], timeout=0)
    with pytest.raises(Full):
        queue.put_many([b"c", b"d"], timeout=0)
    with pytest.raises(Full, match="never"):
        queue.put_many([b"x"] * 4)
    queue.put_many([b"c"], timeout=0)
    assert len(queue) == 3


def test_large_body_is_refused(make_queue, tmp_path):
    """max_size is the largest that is taken; the error has both numbers."""
    queue = make_queue(max_size=10)
    queue.put(b"x" * 10)
    before = files(tmp_path / "queue")
    file = tmp_path / "file"
    file.write_bytes(b"x" * 11)
    for put in (
        lambda: queue.put(b"x" * 11),
        lambda: put_all(queue, [b"x" * 11, b"small"]),
        lambda: queue.put_path(file),
    ):
        with pytest.raises(ValueError, match="11 bytes") as caught:
            put()
        assert isinstance(caught.value, MessageTooLarge)
        assert (caught.value.size, caught.value.limit) == (11, 10)
    assert file.exists()
    assert files(tmp_path / "queue") == before


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_timeout_that_is_invalid_is_refused(queue, timeout):
    """Whether or not the queue has a limit."""
    with pytest.raises(SettingsError, match="timeout"):
        queue.put(b"x", timeout=timeout)
    with pytest.raises(SettingsError, match="timeout"):
        queue.put_many([b"x"], timeout=timeout)
