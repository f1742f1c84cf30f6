"""Purging: what goes by age goes by the right one."""

import os
import time

import pytest
from support.kit import drain

from dirqueue import Queue

#: Put in November 2023.
OLD = "1700000000000000000000001"


@pytest.mark.parametrize("state", ["done", "dead"])
def test_ended_messages_go_by_when_they_ended(queue_dir, state):
    """One that was put years ago and ended now stays; one that ended years ago goes."""
    queue = Queue(queue_dir, keep_done=True, keep_done_for=3600.0, keep_dead_for=3600.0)
    queue.layout.create()
    (queue_dir / OLD).write_bytes(b"just ended")
    lease = queue.get(timeout=0)
    lease.ack() if state == "done" else lease.reject("no")
    long_ago = queue_dir / state / f"{OLD[:-1]}2.{OLD[:16]}.1"
    long_ago.write_bytes(b"ended long ago")
    purged = queue.purge()
    assert (purged.done, purged.dead) == ((1, 0) if state == "done" else (0, 1))
    assert [message.body for message in queue.peek(state)] == [b"just ended"]


def test_message_out_of_attempts_is_buried_only_after_the_margin(queue_dir):
    """Its holder may still be at work, by a clock that is behind."""
    holder = Queue(queue_dir, max_attempts=1, margin=0.0)
    holder.put(b"held")
    holder.get(timeout=0, lease=0.001)
    time.sleep(0.002)
    assert Queue(queue_dir, max_attempts=1, margin=600.0).purge().buried == 0
    assert holder.purge().buried == 1


def test_purge_works_where_listings_do_not_tell_types(queue_dir, monkeypatch):
    """Some FUSE filesystems: each type is asked for while the directory is open."""
    queue = Queue(queue_dir, stale=0.0)
    queue.put_many([b"1", b"2"])
    queue.put(b"3")
    (queue_dir / f"{OLD}.new").write_bytes(b"")
    os.utime(queue_dir / f"{OLD}.new", (0, 0))
    monkeypatch.setattr("dirqueue.disk.fs.scandir", untyped)
    assert queue.purge().new == 1
    assert drain(queue) == [b"1", b"2", b"3"]


class Untyped:
    """An entry whose type is not known: as os.DirEntry does, it asks by the descriptor it came from, once."""

    def __init__(self, entry, fd):
        self.name, self._fd, self._facts = entry.name, fd, None

    def stat(self, *, follow_symlinks):
        if self._facts is None:
            self._facts = os.stat(self.name, dir_fd=self._fd, follow_symlinks=follow_symlinks)
        return self._facts

    def is_file(self, *, follow_symlinks):
        return self.stat(follow_symlinks=follow_symlinks).st_mode & 0o170000 == 0o100000

    def is_symlink(self):
        return self.stat(follow_symlinks=False).st_mode & 0o170000 == 0o120000

    def is_dir(self, *, follow_symlinks):
        return self.stat(follow_symlinks=follow_symlinks).st_mode & 0o170000 == 0o040000


class untyped:
    """scandir() of a filesystem that tells no types."""

    def __init__(self, place):
        found = os.scandir(place)
        self._found = [Untyped(entry, place) for entry in found] if isinstance(place, int) else found

    def __enter__(self):
        return iter(self._found)

    def __exit__(self, *_):
        pass
