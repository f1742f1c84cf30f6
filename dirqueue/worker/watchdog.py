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

from dirqueue.failure import trace_of
from dirqueue.lease import RENEW_AT, Lease
from dirqueue.renewer import Renewer
from dirqueue.worker.events import Event
from dirqueue.worker.policy import Policy

#: How long a handler has to notice that it was cancelled before its message is taken from it.
GRACE = 5.0
#: How soon a handler that was not reached is tried again.
TRY_AGAIN = 0.02
#: The watchdog looks up this often when nothing is due.
TICK = 0.25
#: Why a delivery was cancelled.
LOST, LIMIT, STOP = "lost", "limit", "stop"


class Delivery:
    """One delivery that is being handled."""

    def __init__(self, lease: Lease[Any], limit: float | None, cancel: Callable[[Delivery], bool]) -> None:
        self.lease = lease
        self.id = lease.message.id
        self.attempts = lease.message.attempts
        self.started = time.monotonic()
        #: Why it was cancelled; empty while it was not.
        self.cancelled = ""
        #: What decides about failures; given to it by the watchdog.
        self.policy = Policy()
        #: Whether the handler was reached: until then it is to be tried again.
        self._reached = False
        self._reported = False
        self._cancel = cancel
        self._lock = threading.Lock()
        self._ends_at = math.inf if limit is None else self.started + limit
        #: When to try again to reach the handler, and when to take the message from it.
        self._tries_at = 0.0
        self._gives_up_at = math.inf

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    @property
    def due(self) -> float:
        """When the watchdog has to look at it next."""
        if not self.cancelled:
            return self._ends_at
        return self._gives_up_at if self._reached else min(self._tries_at, self._gives_up_at)

    def tend(self, now: float) -> bool:
        """Stop a handler whose time is over. Return True, once, when it has not stopped for too long."""
        if not self.cancelled:
            self._gives_up_at = now + GRACE
        self.cancel(self.cancelled or LIMIT)
        self._tries_at = now + TRY_AGAIN
        if now < self._gives_up_at:
            return False
        self._gives_up_at = math.inf
        return True

    def cancel(self, why: str) -> None:
        """Stop the handler; the first reason counts. May be called again until the handler is reached."""
        with self._lock:
            self.cancelled = self.cancelled or why
        self._reached = self._cancel(self)

    def report(self) -> bool:
        """Return whether the end of this delivery is still to be reported: True once."""
        with self._lock:
            first, self._reported = not self._reported, True
        return first

    def event(self, name: str, error: str | None = None) -> Event:
        """Return something that happened to this delivery."""
        seconds = None if name == "leased" else self.seconds
        return Event(name, self.lease.path, self.id, self.attempts, seconds, error, trace=trace_of(error))


def pause(seconds: float) -> float:
    """Return how often to renew a lease that was taken for `seconds`: at a third of it, less a random part."""
    return seconds * RENEW_AT * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret


class Watchdog:
    """Has the leases of all running deliveries renewed, and one thread that watches their time limits."""

    def __init__(self, emit: Callable[[Event], None], give_up: Callable[[Delivery], None]) -> None:
        self._emit = emit
        self._give_up = give_up
        #: What decides about failures of the deliveries that it looks after.
        self.policy = Policy()
        self._deliveries: set[Delivery] = set()
        # Of its own: hooks are called from it, and those of one worker must not delay the leases of others.
        self._renewer = Renewer()
        # Reentrant: a signal handler may come here while the code that it interrupted is here.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._wakes = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="dirqueue-watchdog", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; leases that are still held run out in their time."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        for delivery in self.running():
            self._renewer.forget(delivery.lease)
        self._thread.join(GRACE)

    @property
    def alive(self) -> bool:
        """Whether the thread is doing its work."""
        return self._thread.is_alive()

    def add(self, delivery: Delivery) -> None:
        """Look after a delivery from now on."""
        delivery.policy = self.policy
        with self._lock:
            self._deliveries.add(delivery)
            if delivery.due < self._wakes:
                self._changed.notify()
        self._renewer.watch(
            delivery.lease,
            pause(delivery.lease.seconds),
            lost=lambda _: delivery.cancel(LOST),
            failed=lambda error: self._emit(delivery.event("error", f"cannot renew: {error}")),
        )

    def remove(self, delivery: Delivery) -> None:
        """Stop looking after a delivery that has ended."""
        self._renewer.forget(delivery.lease)
        with self._lock:
            self._deliveries.discard(delivery)

    def running(self) -> list[Delivery]:
        """Return the deliveries being handled, the oldest first."""
        with self._lock:
            return sorted(self._deliveries, key=lambda delivery: delivery.started)

    def _loop(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                due = [delivery for delivery in self._deliveries if delivery.due <= now]
                if not due:
                    soonest = min((delivery.due for delivery in self._deliveries), default=math.inf)
                    self._wakes = min(soonest, now + TICK)
                    self._changed.wait(self._wakes - now)
                    continue
            for delivery in due:
                if delivery.tend(now):
                    self._give_up(delivery)
