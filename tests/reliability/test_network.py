"""A network filesystem that loses replies, caches attributes and refuses links, mounted twice as by two hosts."""

import pytest
from lab import faultfs, network
from support.patience import until

import dirqueue

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.timeout(600)]

#: Messages for each kind of faulty server; every tenth reply is lost.
COUNT = 700
FAULTS = {"": {}, "cache": {"cache": 1.0}, "nolink": {"nolink": True}}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=list(FAULTS))
def test_lost_replies_cause_no_lost_or_doubled_message_and_no_lease_lost(faults, tmp_path):
    """Two hosts, every tenth reply lost: each message is delivered once, and LeaseLost is never raised wrongly."""
    passed, replies, wrong = network.lose(tmp_path, COUNT, seed=1, lost=0.1, **faults)
    assert wrong == []
    assert passed == COUNT
    assert replies > COUNT // 10  # the faults did occur


def test_messages_are_at_least_2000():
    """The documentation gives this number."""
    assert COUNT * len(FAULTS) >= 2_000


def test_lease_on_a_server_with_a_clock_ahead_lasts_as_long_as_it_should(tmp_path):
    """The clock of the server is an hour ahead of the hosts: a live lease is not claimed, an expired one is."""
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


def test_text_file_is_read_and_refused_with_the_way_out(tmp_path):
    """Two hosts that each hold "the" lock would write over each other's lines: a text queue needs a lock for all."""
    with faultfs.mounted(tmp_path / "server", tmp_path / "one") as one:
        assert network.text_file(one) == []
        with pytest.raises(dirqueue.LayoutError, match="local disk"):
            dirqueue.Queue(f"{one}/new/jobs.tq", layout="text").put(b"x")
        assert not (tmp_path / "server/new").exists()


def test_error_of_the_server_is_raised_as_queue_access(tmp_path):
    """An error of the server is raised as QueueAccess with its errno."""
    with faultfs.mounted(tmp_path / "server", tmp_path / "one", refuse={"rename": "EIO"}) as one:
        queue = dirqueue.Queue(f"{one}/queue", sync=False)
        with pytest.raises(dirqueue.QueueAccess, match="EIO"):
            queue.put(b"x")
        assert len(queue) == 0
