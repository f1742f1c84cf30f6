"""What the cursor of the dirq layouts remembers, and for how long."""

import errno
import math

import pytest
from support.dirq_queues import again, remote, simply
from support.failing import failing
from support.kit import drain

from dirqueue import (
    Empty,
)
from dirqueue.layouts import snapshot
from dirqueue.layouts.dirq import cursor as dirq_cursor
from dirqueue.layouts.dirq import layout as dirq_layout


def test_cursor_remembers_a_bounded_number_of_names(queue, monkeypatch):
    """Locks, pauses and directories are remembered for a while only."""
    monkeypatch.setattr(dirq_cursor, "REMEMBERED", 3)
    cursor = queue.layout._cursor
    for number in range(5):
        cursor.not_before(f"x/{number}", 1 << 61)
        cursor._lock_ends[f"x/{number}"] = 1
        cursor._still[f"x{number}"] = (0, 0)
    assert drain(again(queue)) == [b"one"]
    assert (len(cursor._not_before), len(cursor._lock_ends)) == (0, 0)
    for number in range(9):
        cursor._still[f"x{number}"] = (0, 0)
    cursor.fill(1 << 60)
    assert len(cursor._still) <= 4


def test_names_that_were_jumped_over_are_looked_at_again(queue, monkeypatch):
    """Another consumer works through here: on a little further, and back at the end."""
    monkeypatch.setattr(snapshot, "JUMP", 10_000)
    for number in range(9):
        queue.put(b"%d" % number)
    call = "link" if simply(queue) else "mkdir"
    monkeypatch.setattr("random.random", lambda: 0.5)
    with failing(call, errno.EEXIST, times=dirq_cursor.PATIENCE + 1):
        lease = again(queue).get(timeout=0)
    lease.release()
    assert len(drain(queue)) == 10


def test_times_of_a_network_filesystem_are_not_trusted(queue):
    """Nor those that cannot be read."""
    cursor = queue.layout._cursor
    where = queue.layout.store.directories()[0]
    assert cursor._mtime(where) > 0
    with failing("stat", errno.EIO):
        assert cursor._mtime(where) == -1
    remote(queue)
    assert cursor._mtime(where) == -1


def test_names_that_another_thread_has_just_listed_are_not_listed_again(queue):
    """The names ran out as one thread looked, and another had filled them when its turn came."""
    cursor = queue.layout._cursor
    cursor.run, cursor.snapshot.expires = ["x"], math.inf
    assert cursor.fill(1 << 60)
    assert cursor.run == ["x"]  # which a listing would not have found


class Gone(list):
    """A list from which another thread takes the last item just before us."""

    def pop(self):
        self.clear()
        return super().pop()


def test_name_that_another_thread_takes_first_is_passed_over(queue, monkeypatch):
    """After a look, or without one; so often and no more."""
    cursor = queue.layout._cursor
    cursor.run, cursor.snapshot.expires = Gone(["x"]), math.inf
    assert queue.get(timeout=0).message.body == b"one"
    monkeypatch.setattr(dirq_layout, "LOOKS", 5)
    looks = []

    def fill(now):
        looks.append(now)
        cursor.run = Gone(["x"])
        return True

    monkeypatch.setattr(cursor, "fill", fill)
    cursor.run = []
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert len(looks) == 5


def test_cursor_returns_to_a_directory_that_is_gone_without_an_error(queue):
    """Names were passed over there; then everything is listed anew."""
    cursor = queue.layout._cursor
    again(queue).get(timeout=0)
    cursor.run, cursor._directories, cursor.snapshot.expires = [], [], math.inf
    cursor._here, cursor._skipped = "5f000000", True
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert not cursor._skipped


def test_cursor_returns_to_every_directory_with_names_passed_over(made, monkeypatch):
    """Before it goes on to the next one, so that no directory is forgotten until everything is listed anew."""
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(dirq_cursor, "FRESH_SECONDS", math.inf)
    monkeypatch.setattr("random.random", lambda: 0.05)
    queue = made("dirq-simple", granularity=1)
    for directory in range(2):
        monkeypatch.setattr("time.time", lambda now=1_700_000_000.0 + directory: now)
        for number in range(9):
            queue.put(b"%d-%d" % (directory, number))
    held = []
    for _ in range(2):
        with failing("link", errno.EEXIST, times=dirq_cursor.PATIENCE + 1):
            held += [queue.get(timeout=0).message.body for _ in range(9)]
    assert [sorted(held[:9]), sorted(held[9:])] == [
        [b"%d-%d" % (directory, number) for number in range(9)] for directory in range(2)
    ]
