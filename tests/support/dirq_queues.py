"""Queues of the two dirq layouts, and what happens to them: for the tests of one layout's errors."""

import os
import time

import pytest
from support.kit import LONG

from dirqueue import Queue
from dirqueue.disk import mount

LAYOUTS = ("dirq-simple", "dirq-normal")
HOUR = 3600


@pytest.fixture
def made(tmp_path):
    """Give a maker of clients of one directory, by layout."""

    def make(layout, **settings):
        given = {"layout": layout, "sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        return Queue(tmp_path / "queue", **given)

    return make


@pytest.fixture(params=LAYOUTS)
def make(request, made):
    """Give a maker of clients of one directory, of each layout in turn."""
    return lambda **settings: made(request.param, **settings)


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


@pytest.fixture
def simple(made):
    """Give a queue of dirq-simple with one message."""
    queue = made("dirq-simple")
    queue.put(b"one")
    return queue


@pytest.fixture
def normal(made):
    """Give a queue of dirq-normal with one message."""
    queue = made("dirq-normal")
    queue.put(b"one")
    return queue


def remote(queue):
    """Treat the directory as one on a network filesystem."""
    queue.layout.directory.mount = mount.Mount("nfs4")
    return queue


def simply(queue):
    return queue.layout.name == "dirq-simple"


def tree(queue):
    """Return every path in the queue."""
    found = []
    for top, directories, files in os.walk(queue.path):
        found += [os.path.relpath(os.path.join(top, name), queue.path) for name in directories + files]
    return sorted(found)


def age(queue, *paths, seconds=HOUR):
    """Make files or directories look old."""
    when = time.time() - seconds
    for path in paths:
        os.utime(os.path.join(queue.path, path), (when, when))


def again(queue):
    """Let the next claim look anew."""
    queue.layout._cursor.refresh()
    return queue


def locked(queue):
    """Lock the one message as a consumer that died; return its name."""
    lease = again(queue).get(timeout=0)
    name = lease.message.id
    age(queue, f"{name}.lck" if simply(queue) else name)
    return name


def relock(queue, name):
    """Let another consumer have the lock: a new time, or another directory."""
    if simply(queue):
        os.utime(os.path.join(queue.path, f"{name}.lck"))
    else:
        os.rmdir(os.path.join(queue.path, name, "locked"))
        os.mkdir(os.path.join(queue.path, name, "spacer"))  # so that the number is another, too
        os.mkdir(os.path.join(queue.path, name, "locked"))
