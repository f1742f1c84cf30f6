"""A message of records of which some failed: it goes, and what failed comes, in one step."""

import pytest
from support.kit import files

from dirqueue import LeaseLost, Put, Space
from dirqueue.errors import Conflict


@pytest.fixture
def space(tmp_path):
    return Space(tmp_path / "space", codec="records")


def bodies(space, state="ready"):
    return sorted(message.body for message in space.queue("readings").peek(state))


def test_what_failed_comes_again_and_the_rest_is_gone(space):
    """Each record as a message of its own, so that its deliveries are counted."""
    space.put("readings", [b"1", b"bad", b"3", b"worse"])
    lease = space.get("readings", timeout=0)
    lease.ack(then=[Put("readings", [record]) for record in (b"bad", b"worse")])
    assert bodies(space) == [[b"bad"], [b"worse"]]
    assert space.stats()["readings"].total == 2


def test_a_lost_lease_puts_nothing(space, tmp_path):
    """Another consumer has the message by now: all of its records will be met there."""
    space.put("readings", [b"1", b"bad"])
    lease = space.get("readings", timeout=0)
    space.queue("readings").lease(lease.handle).release()
    before = files(tmp_path / "space" / "readings")
    with pytest.raises((Conflict, LeaseLost)):
        lease.ack(then=[Put("readings", [b"bad"])])
    assert bodies(space) == [[b"1", b"bad"]]
    assert files(tmp_path / "space" / "readings") == before


def test_a_record_that_always_fails_ends_in_dead(tmp_path):
    """Alone in its message it uses up its attempts."""
    space = Space(tmp_path / "space", codec="records", max_attempts=2)
    space.put("readings", [b"1", b"bad"])
    for _ in range(10):
        if space.empty("readings"):
            break
        lease = space.get("readings", timeout=0)
        if len(lease.message.body) == 1:
            lease.retry(delay=0, error="never")
        else:
            lease.ack(then=[Put("readings", [b"bad"])])
    assert bodies(space, "dead") == [[b"bad"]]
