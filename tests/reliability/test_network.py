"""A network filesystem that loses replies, caches and refuses links, mounted twice as two hosts."""

import pytest
from lab import faultfs, network
from support.patience import until

import dirqueue

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.timeout(600)]

#: Messages for each kind of bad server; every tenth reply is lost.
COUNT = 700
FAULTS = {"": {}, "cache": {"cache": 1.0}, "nolink": {"nolink": True}}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=list(FAULTS))
def test_lost_replies_neither_lose_nor_double_nor_frighten(faults, tmp_path):
    """Every tenth reply lost, two hosts: each message comes once, and no lease is called lost that was not."""
    passed, replies, wrong = network.lose(tmp_path, COUNT, seed=1, lost=0.1, **faults)
    assert wrong == []
    assert passed == COUNT
    assert replies > COUNT // 10  # the faults did happen


def test_that_is_at_least_2000_messages():
    """The number that the documentation gives."""
    assert COUNT * len(FAULTS) >= 2_000


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
