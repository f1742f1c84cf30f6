"""The deliveries that are being handled: their leases are renewed, and what runs too long is ended.

Layer: conveniences.  Touches: leases, by renew; and by retry where a handler cannot be stopped.
Invariant: a renewal that finds the lease gone marks the delivery as cancelled before anything else happens.
Crash: nothing renews any more, so the leases run out.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from dirqueue.lease import RENEW_AT, Lease
from dirqueue.renewer import Renewer
from dirqueue.worker.events import Event

#: How long a handler has to notice that it was cancelled before its message is taken from it.
GRACE = 5.0
#: The watchdog looks up this often when nothing is due.
TICK = 0.25
#: Why a delivery was cancelled.
LOST, LIMIT, STOP = "lost", "limit", "stop"


class Run:
    """One delivery that is being handled."""

    def __init__(self, lease: Lease[Any], limit: float | None, cancel: Callable[[Run], None]) -> None:
        self.lease = lease
        self.id = lease.message.id
        self.attempts = lease.message.attempts
        self.started = time.monotonic()
        self.cancelled = ""
        self._reported = False
        self._cancel = cancel
        self._lock = threading.Lock()
        self.ends_at = math.inf if limit is None else self.started + limit

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    def cancel(self, why: str) -> bool:
        """Stop the handler, once; whether this call did."""
        with self._lock:
            if self.cancelled:
                return False
            self.cancelled = why
        self._cancel(self)
        return True

    def report(self) -> bool:
        """Whether the end of this delivery is still to be told; True once."""
        with self._lock:
            first, self._reported = not self._reported, True
        return first

    def event(self, name: str, error: str | None = None) -> Event:
        """Return something that happened to this delivery."""
        seconds = None if name == "leased" else self.seconds
        return Event(name, self.lease.path, self.id, self.attempts, seconds, error)


def pause(seconds: float) -> float:
    """Return how often to renew a lease of so many seconds: at a third of it, less a random part."""
    return seconds * RENEW_AT * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret


class Watchdog:
    """Has the leases of all running deliveries renewed, and one thread that watches their time limits."""

    def __init__(self, emit: Callable[[Event], None], give_up: Callable[[Run], None]) -> None:
        self._emit = emit
        self._give_up = give_up
        self._runs: set[Run] = set()
        # Of its own: hooks are called from it, and those of one worker must not delay the leases of others.
        self._renewer = Renewer()
        self._changed = threading.Condition()
        self._wakes = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="dirqueue-watchdog", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; leases that are still held run out in their time."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for run in self.running():
            self._renewer.forget(run.lease)
        self._thread.join(GRACE)

    @property
    def alive(self) -> bool:
        """Whether the thread is doing its work."""
        return self._thread.is_alive()

    def add(self, run: Run) -> None:
        """Look after a delivery from now on."""
        with self._changed:
            self._runs.add(run)
            if run.ends_at < self._wakes:
                self._changed.notify()
        self._renewer.watch(
            run.lease,
            pause(run.lease.seconds),
            lost=lambda _: run.cancel(LOST),
            failed=lambda error: self._emit(run.event("error", f"cannot renew: {error}")),
        )

    def remove(self, run: Run) -> None:
        """Stop looking after a delivery that has ended."""
        self._renewer.forget(run.lease)
        with self._changed:
            self._runs.discard(run)

    def running(self) -> list[Run]:
        """Return the deliveries being handled, the oldest first."""
        with self._changed:
            return sorted(self._runs, key=lambda run: run.started)

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = [run for run in self._runs if run.ends_at <= now]
                if not due:
                    soonest = min((run.ends_at for run in self._runs), default=math.inf)
                    self._wakes = min(soonest, now + TICK)
                    self._changed.wait(self._wakes - now)
                    continue
            for run in due:
                self._end(run, now)

    def _end(self, run: Run, now: float) -> None:
        if run.cancel(LIMIT):
            run.ends_at = now + GRACE
        else:
            run.ends_at = math.inf
            self._give_up(run)
