"""A network filesystem that loses replies, caches and refuses links, mounted twice as two hosts."""

import json
import threading

import pytest
from lab import faultfs
from patience import until

import dirqueue

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.timeout(600)]

SETTINGS = {"sync": False, "lease": 600.0}


def flow(one, other, count):
    """Put on one host, get and ack on the other, half each way; return (bodies acked, false losses)."""
    acked, lost = [], []

    def consume(queue):
        for lease in queue.consume(timeout=0 if done.is_set() else 1.0):
            body = lease.message.body
            if len(acked) % 10 == 3:
                lease.renew()
            try:
                lease.ack()
            except dirqueue.LeaseLost:
                lost.append(body)
            acked.append(body)

    def produce(queue, name):
        for number in range(count // 2):
            queue.put(b"%s%d" % (name, number))

    done = threading.Event()
    producers = [
        threading.Thread(target=produce, args=(dirqueue.Queue(path, **SETTINGS), name))
        for path, name in ((one, b"a"), (other, b"b"))
    ]
    for thread in producers:
        thread.start()
    consumers = [
        threading.Thread(target=consume, args=(dirqueue.Queue(path, **SETTINGS),)) for path in (one, other)
    ]
    for thread in consumers:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    for thread in consumers:
        thread.join()
    consume(dirqueue.Queue(one, **SETTINGS))
    return acked, lost


@pytest.mark.parametrize(
    "faults",
    [{"lost": 0.1}, {"lost": 0.1, "cache": 1.0}, {"lost": 0.1, "nolink": True}],
    ids=["", "cache", "nolink"],
)
def test_lost_replies_neither_lose_nor_double_nor_frighten(faults, tmp_path):
    """Every tenth reply lost, two hosts: each message comes once, and no lease is called lost that was not."""
    count = 700
    counts = tmp_path / "counts"
    with (
        faultfs.mounted(tmp_path / "server", tmp_path / "one", seed=1, counts=counts, **faults) as one,
        faultfs.mounted(tmp_path / "server", tmp_path / "two", seed=2, **faults) as two,
    ):
        acked, lost = flow(f"{one}/queue", f"{two}/queue", count)
    assert lost == []
    assert len(acked) == len(set(acked)) == count // 2 * 2
    assert sum(json.loads(counts.read_text()).values()) > count // 20  # the faults did happen
    left = [
        name for name in (tmp_path / "server/queue").iterdir() if not name.name.endswith((".new", ".slice"))
    ]
    assert [name.name for name in left if not name.name.startswith(".clock-")] == []


def test_a_server_whose_clock_is_ahead_takes_no_live_lease(tmp_path):
    """The server is an hour ahead of both hosts: a lease lasts as long as it should, and ends."""
    with faultfs.mounted(tmp_path / "server", tmp_path / "one", skew=3600.0) as one:
        queue = dirqueue.Queue(f"{one}/queue", lease=600.0, sync=False)
        queue.put(b"x")
        lease = queue.get(timeout=0)
        other = dirqueue.Queue(f"{one}/queue", lease=0.2, margin=0.0, sync=False)
        with pytest.raises(dirqueue.Empty):
            other.get(timeout=0)
        lease.release()
        other.get(timeout=0)
        assert until(lambda: _try(other)).message.body == b"x"


def _try(queue):
    try:
        return queue.get(timeout=0)
    except dirqueue.Empty:
        return None


def test_a_server_that_refuses_is_reported(tmp_path):
    """An error of the server comes out as the library's own, with its errno."""
    with faultfs.mounted(tmp_path / "server", tmp_path / "one", refuse={"rename": "EIO"}) as one:
        queue = dirqueue.Queue(f"{one}/queue", sync=False)
        with pytest.raises(dirqueue.QueueAccess, match="EIO"):
            queue.put(b"x")
        assert len(queue) == 0
