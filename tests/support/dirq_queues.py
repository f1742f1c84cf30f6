"""Queues of the two dirq layouts, for the tests of their errors."""

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
    """Give a function that makes clients of one directory, of a given layout."""

    def make(layout, **settings):
        given = {"layout": layout, "sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        return Queue(tmp_path / "queue", **given)

    return make


@pytest.fixture(params=LAYOUTS)
def make(request, made):
    """Give a function that makes clients of one directory, for each layout in turn."""
    return lambda **settings: made(request.param, **settings)


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


@pytest.fixture
def simple(made):
    """Give a dirq-simple queue with one message."""
    queue = made("dirq-simple")
    queue.put(b"one")
    return queue


@pytest.fixture
def normal(made):
    """Give a dirq-normal queue with one message."""
    queue = made("dirq-normal")
    queue.put(b"one")
    return queue


def remote(queue):
    """Treat the directory as if it were on a network filesystem."""
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
    """Let the next claim list the directory again."""
    queue.layout._cursor.refresh()
    return queue


def locked(queue):
    """Lock the only message as a consumer that died would; return its name."""
    lease = again(queue).get(timeout=0)
    name = lease.message.id
    age(queue, f"{name}.lck" if simply(queue) else name)
    return name


def relock(queue, name):
    """Lock the message as another consumer would: a new time, or another directory."""
    if simply(queue):
        os.utime(os.path.join(queue.path, f"{name}.lck"))
    else:
        os.rmdir(os.path.join(queue.path, name, "locked"))
        os.mkdir(os.path.join(queue.path, name, "spacer"))  # so that the inode number differs too
        os.mkdir(os.path.join(queue.path, name, "locked"))
