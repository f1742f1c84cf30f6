"""A process that forks while one of its threads is in a call of a peer layout."""

import threading

import pytest
from support.kit import FORK, PATIENCE, drain, replaced

from dirqueue import Queue
from dirqueue.disk import fs

LISTING = {"vsqs": "scandir", "dirq-simple": "listdir", "dirq-normal": "listdir"}


@pytest.mark.parametrize("layout", LISTING)
def test_child_gets_while_a_thread_of_its_parent_is_in_get(tmp_path, layout):
    """The lock that the thread holds is free in the child, which looks for itself."""
    queue = Queue(tmp_path / "q", layout=layout, sync=False)
    bodies = [b"%d" % number for number in range(3)]
    for body in bodies:
        queue.put(body)
    inside, go_on = threading.Event(), threading.Event()
    real = getattr(fs, LISTING[layout])

    def wait(*arguments):
        inside.set()
        assert go_on.wait(PATIENCE)
        return real(*arguments)

    def child():
        setattr(fs, LISTING[layout], real)
        assert drain(queue) == bodies

    with replaced(fs, **{LISTING[layout]: wait}):
        thread = threading.Thread(target=lambda: drain(queue, 1))
        thread.start()
        try:
            assert inside.wait(PATIENCE)
            process = FORK.Process(target=child)
            process.start()
            process.join(PATIENCE)
            if process.exitcode is None:
                process.kill()
                process.join()
        finally:
            go_on.set()
            thread.join(PATIENCE)
    assert process.exitcode == 0
    queue.close()


def test_locks_and_snapshots_are_made_anew_after_a_fork(tmp_path):
    """What the child does, done here; a layout without a snapshot has none to forget."""
    queue, null = (Queue(tmp_path / "q", layout=layout, sync=False) for layout in ("vsqs", "null"))
    for body in (b"x", b"y"):
        queue.put(body)
    queue.get(timeout=0)
    lock = queue.layout._lock
    assert queue.layout._cursor.run
    queue.layout._renew_in_child()
    null.layout._renew_in_child()
    assert queue.layout._lock is not lock
    assert not queue.layout._cursor.run
    assert null.layout._lock is not lock
    queue.close()
