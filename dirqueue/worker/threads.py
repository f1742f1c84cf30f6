"""Running a handler in the slot's own thread, and reaching into that thread to stop it.

Layer: conveniences.
Limit: Python delivers the exception between two bytecodes; a handler inside one long C call gets it afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from dirqueue.worker.outcome import Cancelled, Outcome, call
from dirqueue.worker.watchdog import Run


class InThread:
    """Calls the handler here."""

    def __init__(self, handler: Callable[[Any], object]) -> None:
        self._handler = handler
        self._thread = 0
        self._running: Run | None = None
        self._cancelling = False
        self._sent = False

    def prepare(self) -> bool:
        """Nothing to prepare."""
        return True

    def run(self, run: Run) -> Outcome:
        """Return how the handler ended; Cancelled if it was stopped."""
        self._thread = threading.get_ident()
        try:
            try:
                self._running = run
                return call(self._handler, run.lease.message)
            finally:
                self._disarm()
        except Cancelled:
            # RACE: it may have come inside the first _disarm. It is sent once, so this one runs to its end.
            self._disarm()
            raise

    def _disarm(self) -> None:
        """From here on no cancellation reaches this thread: not one on its way, not one that waits.

        RACE: `cancel` raises its flag before it looks at `_running`, and we clear `_running` before we look at the
        flag: either it sees that we are done, or we wait for it and then take back what it sent. No lock, because
        the exception could come between taking a lock and the block that gives it back.
        """
        self._running = None
        while self._cancelling:
            time.sleep(0.001)
        if self._sent:
            self._sent = False
            _raise_in(self._thread, None)

    def cancel(self, run: Run) -> None:
        """Raise Cancelled in the handler if it is still running this delivery."""
        self._cancelling = True
        try:
            if self._running is run:
                self._sent = True
                _raise_in(self._thread, Cancelled)
        finally:
            self._cancelling = False

    def close(self) -> None:
        """Nothing to close."""


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    import ctypes

    exception = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
