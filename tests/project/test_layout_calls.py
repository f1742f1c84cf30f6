"""Budgets of the layouts of other programs: how many calls of the filesystem one message takes."""

import collections
import statistics

import pytest

from dirqueue import Queue
from dirqueue.disk import fs
from dirqueue.layouts.dirq import cursor as dirq_cursor
from dirqueue.layouts.vsqs import cursor as vsqs_cursor

#: So long that no stall of the machine makes a consumer look again, or a lock be touched.
FOR_EVER = 36_000.0
#: layout -> calls of a put, calls of a get, a read and an ack; without sync.
BUDGET = {"dirq-simple": (5, 9), "dirq-normal": (5, 9), "vsqs": (4, 5), "text": (14, 24)}


@pytest.fixture
def count(monkeypatch):
    """Give a function that says which calls something made."""
    seen = collections.Counter()

    def counted(name, call):
        def run(*arguments, **options):
            seen[name] += 1
            return call(*arguments, **options)

        return run

    for name in fs.CALLS:
        monkeypatch.setattr(fs, name, counted(name, getattr(fs, name)))

    def count(function):
        seen.clear()
        function()
        return dict(seen)

    return count


@pytest.mark.parametrize("layout", BUDGET)
def test_a_message_takes_as_few_calls_as_its_format_allows(tmp_path, monkeypatch, count, layout):
    """The usual put and the usual get and ack, in the middle of a run; a new directory or a new look costs more."""
    monkeypatch.setattr(dirq_cursor, "FRESH_SECONDS", FOR_EVER)
    monkeypatch.setattr(vsqs_cursor, "FRESH_SECONDS", FOR_EVER)

    def consume():
        lease = queue.get(timeout=0)
        assert lease.message.body == b"body"
        lease.ack()

    with Queue(tmp_path / "q", layout=layout, sync=False, lease=FOR_EVER) as queue:
        puts = [count(lambda: queue.put(b"body")) for _ in range(60)]
        gets = [count(consume) for _ in range(60)]
    for each, most in zip((puts, gets), BUDGET[layout], strict=True):
        usual = statistics.mode(str(sorted(calls.items())) for calls in each)
        calls = next(calls for calls in each if str(sorted(calls.items())) == usual)
        assert sum(calls.values()) <= most, calls
        assert not calls.keys() & {"listdir", "scandir", "fsync"}, calls
