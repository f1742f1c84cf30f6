"""A producer that is stopped for longer than `stale` while a purge removes what it was writing."""

import os
import signal
import time

import dirq.queue
import dirq.QueueSimple
import pytest
from support.kit import FORK, PATIENCE, drain, wait_until

from dirqueue import Queue
from dirqueue.disk import fs

OLD = time.time() - 10_000
#: Layout -> the call that shows the message.
SHOWN_BY = {"vsqs": "rename_noreplace", "dirq-simple": "link", "dirq-normal": "rename"}


def purge(path, layout):
    """Purge as the layout's own program does; VSQS has no purge but ours."""
    if layout == "dirq-simple":
        dirq.QueueSimple.QueueSimple(path).purge()
    elif layout == "dirq-normal":
        dirq.queue.Queue(path, schema={"body": "string"}).purge()
    else:
        with Queue(path, layout="vsqs", stale=0.0) as queue:
            for name in os.listdir(path):
                os.rename(os.path.join(path, name), os.path.join(path, f"{int(OLD)}000000.new"))
                os.utime(os.path.join(path, f"{int(OLD)}000000.new"), (OLD, OLD))
            queue.purge()


@pytest.mark.parametrize("layout", SHOWN_BY)
def test_put_that_was_stopped_and_purged_writes_the_message_again(tmp_path, layout):
    """The process is really stopped, between the last write and the call that shows the message."""
    path = str(tmp_path / "q")
    Queue.create(path, layout=layout).close()
    (tmp_path / "q" / "queue.json").unlink(missing_ok=True)

    def produce():
        real, stops = getattr(fs, SHOWN_BY[layout]), []

        def stop(*arguments, **named):
            if not stops:
                stops.append(1)
                os.kill(os.getpid(), signal.SIGSTOP)
            return real(*arguments, **named)

        setattr(fs, SHOWN_BY[layout], stop)
        with Queue(path, layout=layout, sync=False) as queue:
            queue.put(b"accepted")

    process = FORK.Process(target=produce)
    process.start()
    try:
        wait_until(lambda: _state(process.pid) == "T", "the stop")
        for top, directories, files in os.walk(path):
            for name in directories + files:
                os.utime(os.path.join(top, name), (OLD, OLD))
        purge(path, layout)
        assert [name for _, _, files in os.walk(path) for name in files] == []
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.join(PATIENCE)
    assert process.exitcode == 0
    with Queue(path, layout=layout, sync=False) as queue:
        assert drain(queue) == [b"accepted"]


def _state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
