"""Queues of the vsqs layout, for the tests of its errors."""

import os

import pytest
from support.kit import LONG

from dirqueue import Queue


@pytest.fixture
def make(tmp_path):
    """Give a function that makes clients of one directory."""

    def make(**settings):
        given = {"layout": "vsqs", "sync": False, "margin": 0, "lease": LONG, "backoff": 0, **settings}
        return Queue(tmp_path / "queue", **given)

    return make


@pytest.fixture
def queue(make):
    """Give a queue with one message."""
    queue = make()
    queue.put(b"one")
    return queue


def listed(queue):
    return sorted(os.listdir(queue.path))
