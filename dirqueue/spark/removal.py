"""Acknowledged lots, removed while the next batch runs.

Layer: edges.  Touches: lots that are acknowledged (see layouts/native/pins.py).
Invariant: a lot is acknowledged by one rename, before anything of it is removed and before the next lot is pinned.
Crash: what is left is removed when the consumer comes again, or is given up.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from dirqueue.errors import DirQueueError
from dirqueue.layouts.native.pins import Pins

#: COST: a run of availableNow waits for this at its end: with two, 3.6 µs for each message, else 6.6.
THREADS = 2


class Removal:
    """One thread at a time that removes lots of one consumer."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failed: DirQueueError | None = None

    def begin(self, pins: Pins, last: int, *, keep: bool) -> None:
        """Acknowledge the lots up to this number; their messages go while the caller goes on."""
        self.end()
        ended = pins.end_through(last)
        if ended:
            self._thread = threading.Thread(
                target=self._remove, args=(pins, ended, keep), name="dirqueue-removal", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """Wait until all is removed; an error that it met is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _remove(self, pins: Pins, ended: list[str], keep: bool) -> None:
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                for name in ended:
                    pins.finish(name, keep=keep, mapped=pool.map)
        except DirQueueError as error:
            self._failed = error
