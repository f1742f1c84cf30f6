"""Running a handler in the slot's own thread, and stopping it there.

Layer: conveniences.
Invariant: Cancelled is raised in the code of the handler, or by a put, get or wait that has not begun; never inside
another call of this library, where it could leave a lock taken.
Limit: Python delivers the exception between two bytecodes; a handler inside one long C call, or inside one long call
of this library, gets it afterwards.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from dirqueue.interrupts import INTERRUPTS
from dirqueue.lease import Outcome
from dirqueue.worker.outcome import Cancelled, call
from dirqueue.worker.watchdog import Delivery


class InThread:
    """Calls the handler here."""

    def __init__(self, handler: Callable[[Any], object]) -> None:
        self._handler = handler
        self._thread = 0
        self._running: Delivery | None = None
        #: Taken by the threads that cancel, never by the one that may be interrupted.
        self._one_at_a_time = threading.Lock()
        self._cancelling = False
        self._sent = False

    def prepare(self) -> bool:
        """Nothing to prepare."""
        return True

    def run(self, delivery: Delivery) -> Outcome:
        """Return how the handler ended; Cancelled if it was stopped."""
        self._thread = threading.get_ident()
        try:
            try:
                self._running = delivery
                return call(self._handler, delivery.lease.message)
            finally:
                self._disarm()
        except Cancelled:
            # RACE: it may have come inside the first _disarm. It is sent once, so this one runs to its end.
            self._disarm()
            raise

    def cancel(self, delivery: Delivery) -> bool:
        """Raise Cancelled in the handler if it is at this delivery.

        Return False if the handler was not reached, to be tried again: it has not begun yet, or the thread is inside
        the library. Then its next put, get or wait raises Cancelled too.
        """
        with self._one_at_a_time:
            self._cancelling = True
            try:
                return self._running is delivery and (self._sent or self._strike())
            finally:
                self._cancelling = False

    def _strike(self) -> bool:
        # RACE: left first, looked afterwards: what enters the library from here on by put, get or wait finds it.
        INTERRUPTS[self._thread] = self._interrupt
        time.sleep(0)  # a thread that has just got the GIL keeps it for far longer than the next lines take
        if _in_library(self._thread):
            return False
        INTERRUPTS.pop(self._thread, None)
        self._sent = True
        _raise_in(self._thread, Cancelled)
        return True

    def _interrupt(self) -> None:
        """Raise Cancelled here, in the handler's thread, where the library has not begun anything.

        RACE: `cancel` may be at work. It sees that `_sent` is set, or we wait for it and take back what it sent. If
        that arrives earlier, it does the same as our own `raise`.
        """
        self._sent = True
        self._withdraw()
        raise Cancelled

    def _disarm(self) -> None:
        """From here on no cancellation reaches this thread: not one on its way, not one that waits.

        RACE: `cancel` raises its flag before it looks at `_running`, and we clear `_running` before we look at the
        flag: either it sees that we are done, or we wait for it and then take back what it sent. No lock, because
        the exception could come between taking a lock and the block that gives it back.
        """
        self._running = None
        self._withdraw()
        self._sent = False

    def _withdraw(self) -> None:
        while self._cancelling:
            time.sleep(0.001)
        INTERRUPTS.pop(self._thread, None)
        if self._sent:
            _raise_in(self._thread, None)

    def close(self) -> None:
        """Nothing to close."""


def _in_library(thread: int) -> bool:
    """Return whether a thread is inside a call of this library, rather than in its handler."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see where another thread is
    while frame is not None:
        if frame.f_code is call.__code__:
            return False
        if frame.f_globals.get("__name__", "").startswith("dirqueue."):
            return True
        frame = frame.f_back
    return False


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    import ctypes

    exception = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
