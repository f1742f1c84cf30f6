"""Ids and tokens: unique in every process and thread, whatever interrupts the one who makes them."""

import ctypes
import signal
import sys
import threading

import pytest
from support.kit import PATIENCE, in_child

from dirqueue.disk import identity
from dirqueue.disk.identity import PROCESS, new_id


class Interrupted(Exception):
    """Raised where nobody expects it."""


def free():
    """Return whether another thread can make an id."""
    thread = threading.Thread(target=new_id, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_new_id_interrupted_by_a_signal_handler_leaves_its_lock_free(monkeypatch):
    """The handler raises while the clock is looked at, between the taking of the lock and its release."""

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    real = identity.time.time_ns

    def time_ns():
        signal.raise_signal(signal.SIGUSR1)
        return real()

    try:
        monkeypatch.setattr(identity.time, "time_ns", time_ns)
        with pytest.raises(Interrupted):
            new_id()
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGUSR1, before)
    assert free()


@pytest.mark.skipif(
    sys.gettrace() is not None, reason="the exception would strike in the tracer and be lost there"
)
def test_new_id_cancelled_in_a_thread_leaves_its_lock_free():
    """As a worker cancels a handler at its time limit: an exception that comes between any two instructions."""
    for _ in range(200):
        started = threading.Event()

        def make(started=started):
            try:
                started.set()
                while True:
                    new_id()
            except Interrupted:
                pass

        thread = threading.Thread(target=make, daemon=True)
        thread.start()
        started.wait(PATIENCE)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted)
        )
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert free()


def test_ids_and_tokens_change_after_a_fork(monkeypatch):
    """In the child: another generation, other unique digits, tokens of its own."""

    def look():
        return PROCESS.generation, PROCESS.unique, PROCESS.stem, new_id()

    mine = look()
    theirs = in_child(look)
    assert theirs[0] == mine[0] + 1
    assert all(one != other for one, other in zip(mine, theirs, strict=True))
    monkeypatch.setattr("dirqueue.disk.identity.PROCESS", fork := type(PROCESS)())
    unique = fork.unique
    fork.forked()
    assert (fork.generation, fork.unique == unique) == (1, False)
