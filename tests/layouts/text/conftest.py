"""Fixtures for queues in one file."""

import pytest
from support.kit import LONG

from dirqueue import Queue
from dirqueue.layouts.text import merge, turn


@pytest.fixture
def path(tmp_path):
    """Return where no queue is yet."""
    return tmp_path / "jobs.tq"


@pytest.fixture
def make(path):
    """Give a function that opens the queue; each result is a client of its own."""
    made = []

    def make(where=path, **settings):
        settings = {"sync": False, "margin": 0, "lease": LONG, "backoff": 0, "layout": "text", **settings}
        queue = Queue(where, **settings)
        made.append(queue)
        return queue

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def impatient(monkeypatch):
    """Take a file for whole as soon as it is there: in this test nobody is in the middle of saving."""
    for module in (turn, merge):
        monkeypatch.setattr(module, "QUIET", 0)
