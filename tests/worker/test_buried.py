"""Messages that a worker's claims move to the dead on their way: no handler had them, and they are reported."""

import json
import time
from pathlib import Path

import pytest

from dirqueue import Queue, QueueSet, Worker


def worn_out(path, layout):
    """Put a message whose only consumer died with it."""
    queue = Queue(path, layout=layout, sync=False, max_attempts=1, margin=0.0)
    id = queue.put(b"worn out")
    queue.get(timeout=0, lease=0.001)
    time.sleep(0.01)
    queue.close()
    return id


def run(source):
    """Work until nothing is left; return the events of the dead, and the counts."""
    heard = []
    counts = Worker(source, str, hooks={"dead": heard.append}, signals=False).run_until_empty()
    return heard, counts


@pytest.mark.parametrize("layout", ["native", "text"])
def test_message_out_of_attempts_is_reported(tmp_path, layout):
    """With the reason, once, also among the queues of a set."""
    id = worn_out(tmp_path / "q.tq", layout)
    queue = Queue(tmp_path / "q.tq", layout=layout, sync=False, max_attempts=1, margin=0.0)
    other = Queue(tmp_path / "other", sync=False)
    other.put(b"fine")
    heard, counts = run(QueueSet([queue, other]))
    assert [(event.id, event.queue, event.attempts) for event in heard] == [(id, queue.path, 1)]
    assert "never acknowledged" in heard[0].error
    assert (counts.acked, counts.dead) == (1, 1)
    assert run(queue) == ([], counts._replace(acked=0, dead=0)), "once"


@pytest.mark.parametrize("keep", [True, False])
def test_expired_message_is_reported_if_it_is_kept(tmp_path, keep):
    """One that is removed goes nowhere."""
    queue = Queue(tmp_path / "q", sync=False, keep_expired=keep)
    id = queue.put(b"late", ttl=600)
    for path in Path(queue.path, "attributes").glob("*/*"):
        path.write_text(json.dumps({"attributes": {}, "expires": 10**15}))
    heard, _ = run(queue)
    assert [(event.id, event.error) for event in heard] == ([(id, "expired")] if keep else [])


def test_body_that_cannot_be_decoded_is_reported(tmp_path):
    """It never comes to a handler."""
    with Queue(tmp_path / "q", sync=False) as producer:
        id = producer.put(b"{")
    heard, counts = run(Queue(tmp_path / "q", codec="json", sync=False))
    assert [event.id for event in heard] == [id]
    assert counts.dead == 1


def test_settings_that_change_meanwhile_keep_what_is_to_be_reported(tmp_path):
    """A refresh makes the layout anew."""
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"a")
    queue.layout.buried.append("1")
    Queue(tmp_path / "q").configure(max_attempts=9)
    assert queue.refresh()
    assert list(queue.layout.buried) == ["1"]
