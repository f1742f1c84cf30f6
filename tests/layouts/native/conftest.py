"""Queues for tests of the native layout's error branches."""

import pytest
from support.kit import LONG
from support.native import Bench

from dirqueue import Queue


@pytest.fixture
def make(tmp_path):
    """Give a maker of clients of one directory."""

    def make(**settings):
        return Queue(
            tmp_path / "queue", **{"sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        )

    return make


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


@pytest.fixture
def bench(queue_dir):
    return Bench(queue_dir)


@pytest.fixture
def durable(queue_dir):
    return Bench(queue_dir, sync=True)
