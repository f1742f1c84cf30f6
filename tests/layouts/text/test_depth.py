"""A deep file costs what a short one does: counted in calls and in bytes that are read."""

import statistics

import pytest

from dirqueue.disk import fs


@pytest.fixture
def read(monkeypatch):
    """Give a function that says how many calls something made, and how many bytes they read."""
    seen = []
    real = {name: getattr(fs, name) for name in fs.CALLS}

    def counted(name, call):
        def run(*arguments, **named):
            result = call(*arguments, **named)
            seen.append(len(result) if name == "pread" else 0)
            return result

        return run

    for name, call in real.items():
        monkeypatch.setattr(fs, name, counted(name, call))

    def count(function):
        seen.clear()
        function()
        return len(seen), sum(seen)

    return count


def test_get_and_put_do_not_scan_the_file(make, path, read):
    """The same calls and the same bytes with 100 and with 100,000 messages before and behind."""
    costs = {}
    for depth in (100, 100_000):
        where = path.with_name(f"{depth}.tq")
        where.write_bytes(b"=done\n" * depth + b"".join(b"-m%d\n" % n for n in range(depth)))
        import time

        time.sleep(0.3)  # nobody is writing it any more
        queue = make(where)

        def consume(queue=queue):
            queue.get(timeout=0).ack()

        for _ in range(3):
            consume()
        gets = [read(consume) for _ in range(40)]
        puts = [read(lambda queue=queue: queue.put(b"x")) for _ in range(40)]
        costs[depth] = [
            statistics.median(each) for each in (*zip(*gets, strict=True), *zip(*puts, strict=True))
        ]
    shallow, deep = costs[100], costs[100_000]
    assert deep == pytest.approx(shallow, rel=0.1)
    assert deep[1] < 2000


def test_memory_is_that_of_what_is_held(make, path):
    """Not that of what waits or was processed."""
    queue = make()
    queue.put_many([b"%d" % n for n in range(20_000)])
    for _ in range(50):
        queue.get(timeout=0).ack()
    held = [queue.get(timeout=0) for _ in range(10)]
    ledger, cursor = queue.layout.ledger, queue.layout.cursor
    assert len(ledger.notes.by_offset) == len(ledger.notes.held) == len(held)
    assert len(cursor._due) + len(cursor._back) <= 2 * 60 + 10
