"""Batches: a directory that loses its .new in one rename."""

import os

import pytest
from support.kit import drain, files, replaced

from dirqueue import CodecError, QueueAccess
from dirqueue.disk import fs
from dirqueue.layouts.native import publish


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("n", [2, 9, 300])
def test_a_batch_appears_by_one_rename(native, n, sync):
    """Before the rename there is nothing for anybody, after it everything."""
    queue, other = native(sync=sync), native()
    seen = []

    def rename(src, dst, **named):
        if dst.endswith(".batch"):
            seen.append((drain(other), len(other)))
        return real["rename"](src, dst, **named)

    with replaced(fs, rename=rename) as real:
        ids = queue.put_many(f"{each}" for each in range(n))
    assert seen == [([], 0)]
    assert len(ids) == len(other) == n
    assert drain(other) == [f"{each}".encode() for each in range(n)]


def test_failed_batch_leaves_nothing(native, tmp_path):
    """An invalid body, an iterator that raises, a full disk: nothing is visible, nothing is left."""
    queue = native()
    queue.put(b"x")
    before = files(tmp_path / "queue")

    def bodies():
        yield b"a"
        yield b"b"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue.put_many(bodies())
    with pytest.raises(CodecError):
        queue.put_many([b"a", b"b", 5])

    def full(fd, data):
        raise OSError(28, "No space left on device")

    with replaced(fs, write=full), pytest.raises(QueueAccess, match="disk is full"):
        queue.put_many([b"a", b"b"])
    assert files(tmp_path / "queue") == before


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_large_batch_is_in_parts_and_in_order(native, monkeypatch, order):
    """Parts bound what a listing shows; the order is that of the puts, or its reverse."""
    monkeypatch.setattr(publish, "SLICE_SIZE", 10)
    queue = native(order=order)
    queue.put(b"before")
    queue.put_many(f"{each}" for each in range(57))
    queue.put(b"after")
    expected = [b"before", *(f"{each}".encode() for each in range(57)), b"after"]
    assert drain(queue) == (expected if order == "fifo" else expected[::-1])
    assert [name for name in files(queue.path) if "batch" in name] == []


def test_drained_batch_is_removed_by_get(native):
    """Nobody has to purge."""
    queue = native()
    for _ in range(5):
        queue.put_many([b"a", b"b", b"c"])
    drain(queue)
    assert [name for name in os.listdir(queue.path) if "batch" in name] == []


def test_messages_of_a_batch_live_like_others(native):
    """Retry, reject, release, cancel, change, redrive inside a batch."""
    queue = native()
    ids = queue.put_many([b"a", b"b", b"c", b"d", b"e"])
    leases = {lease.message.body: lease for lease in queue.get_many(4, timeout=0)}
    leases[b"a"].retry(0, error="why")
    leases[b"b"].reject("no")
    leases[b"c"].release()
    leases[b"d"].ack()
    queue.message(ids[4]).change(delay=600)
    queue.message(ids[4]).cancel()
    assert queue.message(ids[0]).error == "why"
    assert queue.redrive() == [ids[1]]
    assert sorted(drain(queue)) == [b"a", b"b", b"c"]


@pytest.mark.slow
def test_hundred_thousand_appear_at_once(native):
    """The promise of the issue, whole."""
    queue = native()
    queue.put_many(b"x" for _ in range(100_000))
    assert len(queue) == 100_000
