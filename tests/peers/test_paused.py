"""Real dirq 1.8, vsqs 0.3 and textqueue 1.1 beside a paused queue: they do not know of it, and nothing breaks."""

import subprocess
import sys
from pathlib import Path

import pytest
import textqueue
from support.kit import PATIENCE, drain

from dirqueue import Empty, Queue

PEERS = Path(__file__).with_name("peers.py")
LAYOUTS = ("dirq-simple", "dirq-normal", "vsqs")


def peer(who, verb, *rest):
    """Run a real program to its end; return the lines that it printed."""
    command = [sys.executable, str(PEERS), who, verb, *map(str, rest)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def opened(path, layout):
    more = (
        {"codec": "json", "schema": {"body": "string", "header": "table?"}} if layout == "dirq-normal" else {}
    )
    return Queue(path, layout=layout, sync=False, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_programs_of_others_go_on_beside_a_pause(layout, tmp_path):
    """They put, take all there is, purge, and leave the pause; ours gives nothing before it ends."""
    path, stop = tmp_path / "queue", tmp_path / "stop"
    peer(layout, "produce", path, "before", 3)
    queue = opened(path, layout)
    queue.pause()
    peer(layout, "produce", path, "while", 2)
    stop.touch()
    peer(layout, "purge", path, stop)
    with pytest.raises(Empty, match="it is paused"):
        queue.get(timeout=0)
    assert len(queue) == 5
    taken = peer(layout, "consume", path, stop)
    assert sorted(taken) == ["before-0", "before-1", "before-2", "while-0", "while-1"]
    peer(layout, "purge", path, stop)
    assert opened(path, layout).paused
    assert queue.stats().foreign == 0
    peer(layout, "produce", path, "after", 2)
    queue.resume()
    assert len(drain(opened(path, layout))) == 2


@pytest.mark.parametrize("kind", ["simple", "normal"])
def test_dirq_counts_a_paused_queue_right(kind, tmp_path):
    """Its count takes whatever lies in the directory into account, so the pause lies beside it."""
    from dirq.queue import Queue as Normal
    from dirq.QueueSimple import QueueSimple as Simple

    path = str(tmp_path / "queue")
    if kind == "simple":
        theirs = Simple(path)
        theirs.add("x")
    else:
        theirs = Normal(path, schema={"body": "string"})
        theirs.add({"body": "x"})
    opened(path, f"dirq-{kind}").pause()
    assert theirs.count() == 1
    assert (tmp_path / "queue.paused").exists()


def test_textqueue_goes_on_beside_a_pause(tmp_path):
    """It takes items from the file, and leaves the pause."""
    path = tmp_path / "jobs.tq"
    queue = Queue(path, layout="text", sync=False)
    queue.put_many([b"one", b"two"])
    queue.pause()
    theirs = textqueue.TextQueue()
    theirs.add_input(str(path))
    try:
        assert theirs.get_next().value == "one"
    finally:
        theirs.close()
    assert queue.paused
    with pytest.raises(Empty, match="it is paused"):
        queue.get(timeout=0)
    queue.resume()
    assert b"two" in drain(queue)
