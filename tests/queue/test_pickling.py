"""What can be sent to another process, and what to send instead of what cannot."""

import copy
import pickle

import pytest

from dirqueue import QueueSet, Settings
from dirqueue.aio import AsyncLease, AsyncQueue
from dirqueue.settings import build


def things(queue):
    """Return one of each kind of object that is bound to its process."""
    queue.put(b"ready")
    queue.put(b"leased")
    lease = queue.get(timeout=0)
    (waiting,) = queue.peek()
    bound = AsyncQueue(queue.path)
    return {
        "Queue": queue,
        "Lease": lease,
        "Message": waiting,
        "LeasedMessage": lease.message,
        "QueueSet": QueueSet([queue]),
        "AsyncQueue": bound,
        "AsyncLease": AsyncLease(lease, bound._threads),
    }


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_is_refused_with_what_to_send_instead(queue, protocol):
    """One sentence that names what to send and what to call with it."""
    ways = {
        "Queue": "path", "AsyncQueue": "path", "QueueSet": "paths", "Lease": "handle", "AsyncLease": "handle",
        "Message": "body", "LeasedMessage": "body",
    }  # fmt: skip
    for name, thing in things(queue).items():
        for way in (lambda thing: pickle.dumps(thing, protocol), copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=rf"cannot be pickled: send .*{ways[name]}") as caught:
                way(thing)
            assert "\n" not in str(caught.value)


def test_pickling_advice_works(make_queue):
    """A lease is taken over by its handle, a message is found by its id."""
    queue = make_queue()
    bound = things(queue)
    path, handle, id = pickle.loads(pickle.dumps((queue.path, bound["Lease"].handle, bound["Message"].id)))
    other = make_queue()
    assert other.path == path
    assert other.message(id).body == bound["Message"].body
    other.lease(handle).ack()
    assert len(queue) == 1


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_settings_can_be_pickled_and_copied(protocol):
    """They are plain values, checked again on arrival."""
    settings = Settings(lease=7, schema={"body": "binary"}, sync=False)
    for again in (
        pickle.loads(pickle.dumps(settings, protocol)),
        copy.copy(settings),
        copy.deepcopy(settings),
    ):
        assert type(again) is Settings
        assert again == settings
        assert build({"lease": 7}, again._asdict()).sync is False
