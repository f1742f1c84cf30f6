"""When a message can be got, how long it stays, and waiting for its end."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from support.kit import LONG, PATIENCE

from dirqueue import Empty, SettingsError, Unsupported

LATER = timedelta(hours=3)


# --- at ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["put", "put_many", "put_path"])
def test_message_put_for_an_instant_waits_for_it(make_queue, needs, tmp_path, how):
    """Its delay ends at that instant, whichever way it was put."""
    needs("delay")
    queue = make_queue()
    at = (datetime.now(UTC) + LATER).astimezone()
    if how == "put":
        queue.put(b"a", at=at)
    elif how == "put_many":
        queue.put_many([b"a", b"b"], at=at)
    else:
        (tmp_path / "file").write_bytes(b"a")
        queue.put_path(tmp_path / "file", at=at)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    for message in queue.peek("delayed"):
        assert abs(message.until - at) < timedelta(minutes=1)


def test_instant_that_is_over_delays_nothing(make_queue):
    """In a layout without delays either."""
    queue = make_queue()
    queue.put(b"a", at=datetime.now(UTC) - LATER)
    assert queue.get(timeout=0).message.body == b"a"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"at": datetime(2099, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"at": 5}, "is not an instant"),
        ({"at": datetime(2099, 1, 1, tzinfo=UTC), "delay": 5}, "not both"),
    ],
)
def test_instant_that_is_none_is_refused(make_queue, how, said):
    """And nothing is put."""
    queue = make_queue()
    with pytest.raises(SettingsError, match=said):
        queue.put(b"a", **how)
    assert len(queue) == 0


# --- purge by age --------------------------------------------------------------------------------------------


def test_purge_moves_old_messages_to_the_dead(make_queue, needs):
    """Those that wait and were put longer ago; what is held or delayed stays."""
    needs("dead", "delay")
    queue = make_queue()
    queue.put(b"held")
    queue.get(timeout=0)
    ids = queue.put_many([b"old", b"older"])
    queue.put(b"delayed", delay=LONG)
    assert queue.purge(older_than=LONG).expired == 0
    assert queue.purge(older_than=0).expired == 2
    dead = list(queue.peek("dead"))
    assert [message.id for message in dead] == ids
    assert {message.error for message in dead} == {"expired: put more than 0 s ago"}
    assert (queue.stats().delayed, queue.stats().leased) == (1, 1)
    assert queue.redrive() == ids


def test_purge_by_age_needs_a_place_for_the_dead(make_queue):
    """Nothing is thrown away instead."""
    queue = make_queue()
    queue.put(b"a")
    if "dead" in queue.layout.lacks:
        with pytest.raises(Unsupported, match="too old"):
            queue.purge(older_than=0)
    assert len(queue) == 1


# --- join ----------------------------------------------------------------------------------------------------


def test_join_tells_whether_the_queue_is_empty(make_queue):
    """Held messages count too."""
    queue = make_queue()
    assert queue.join(timeout=0), "there is no queue yet"
    queue.put(b"a")
    assert not queue.join(timeout=0)
    lease = queue.get(timeout=0)
    assert not queue.join(timeout=0)
    lease.ack()
    assert queue.join(timeout=0)


def test_join_waits_for_the_last_ack(make_queue):
    """It returns when another client has ended all."""
    queue, consumer = make_queue(), make_queue()
    queue.put(b"a")
    lease = consumer.get(timeout=0)
    joined = []
    thread = threading.Thread(target=lambda: joined.append(queue.join(timeout=PATIENCE)))
    thread.start()
    lease.ack()
    thread.join(2 * PATIENCE)
    assert joined == [True]


def test_join_of_one_message_waits_for_its_end(make_queue, needs):
    """An ack, or death; others do not matter."""
    needs("dead")
    queue = make_queue()
    first, second = queue.put(b"a"), queue.put(b"b")
    queue.put(b"c")
    queue.get(timeout=0).ack()
    lease = queue.get(timeout=0)
    assert queue.join(first, timeout=0)
    assert not queue.join(second, timeout=0)
    lease.reject("bad")
    assert queue.join(second, timeout=0)
