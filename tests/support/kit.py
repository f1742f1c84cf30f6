"""Helpers for tests of queues: drain, wait for a condition, list a directory."""

import contextlib
import multiprocessing
import time
from pathlib import Path

from dirqueue import Empty

#: How long a test waits for something that must happen.
PATIENCE = 30.0
#: A lease that is meant to run out.
SHORT = 0.05
#: A lease that is meant to last, however slow the machine is.
LONG = 600.0
#: Real processes: forked, so that a test's functions need not be importable.
FORK = multiprocessing.get_context("fork")


def drain(queue, limit=None):
    """Get and acknowledge all messages; return the bodies in the order of delivery."""
    bodies = []
    while limit is None or len(bodies) < limit:
        try:
            lease = queue.get(timeout=0)
        except Empty:
            break
        bodies.append(lease.message.body)
        lease.ack()
    return bodies


def put_all(queue, bodies):
    """Put messages: in one batch if the layout can, else one by one."""
    if "batch" in queue.layout.lacks:
        return [queue.put(body) for body in bodies]
    return queue.put_many(bodies)


def wait_until(condition, what="the condition"):
    """Wait until the condition is true; fail after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {PATIENCE:g} s"
        time.sleep(0.002)
    return value


def files(path):
    """Return the relative paths of everything in a directory, to compare before and after."""
    root = Path(path)
    return sorted(str(each.relative_to(root)) for each in root.rglob("*"))


def in_child(function, *arguments):
    """Run a function in a forked child; return what it returned, or raise what it raised."""
    here, there = FORK.Pipe(duplex=False)

    def run():
        try:
            there.send((True, function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - the parent raises it again
            there.send((False, error))

    child = FORK.Process(target=run)
    child.start()
    try:
        assert here.poll(PATIENCE), "the child reported nothing"
        good, value = here.recv()
    finally:
        child.join(PATIENCE)
        if child.is_alive():
            child.kill()
            child.join()
        here.close()
        there.close()
    if not good:
        raise value
    return value


@contextlib.contextmanager
def replaced(module, **names):
    """Replace functions of a module within the block."""
    before = {name: getattr(module, name) for name in names}
    try:
        for name, value in names.items():
            setattr(module, name, value)
        yield before
    finally:
        for name, value in before.items():
            setattr(module, name, value)
