"""Keeping the leases of running handlers, and ending what ran too long.

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

from dirqueue.errors import DirQueueError, LeaseLost, Unsupported
from dirqueue.lease import Lease
from dirqueue.worker.events import Event

#: A lease is renewed when this part of it has passed: room for two failed tries before it ends.
RENEW_AT = 1 / 3
#: After a failed renewal the next try comes after this part of that pause.
TRY_AGAIN = 1 / 4
#: How long a handler has to notice that it was cancelled before its message is given back over its head.
GRACE = 5.0
#: The keeper looks up this often when nothing is due.
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
        self.renew_at = self.started + pause(lease.seconds)
        self.ends_at = math.inf if limit is None else self.started + limit

    @property
    def due(self) -> float:
        """When the keeper has to look at it next."""
        return min(self.renew_at, self.ends_at)

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
    """Return when to renew a lease of so many seconds: a third of it, less a little chance."""
    return seconds * RENEW_AT * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret


class Keeper:
    """One thread that renews the leases of all running deliveries and watches their time."""

    def __init__(self, emit: Callable[[Event], None], give_up: Callable[[Run], None]) -> None:
        self._emit = emit
        self._give_up = give_up
        self._runs: set[Run] = set()
        self._changed = threading.Condition()
        self._wakes = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="dirqueue-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; leases that are still held run out in their time."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(GRACE)

    @property
    def alive(self) -> bool:
        """Whether the thread is doing its work."""
        return self._thread.is_alive()

    def add(self, run: Run) -> None:
        """Look after a delivery from now on."""
        with self._changed:
            self._runs.add(run)
            # Waking a thread for each message would cost more than the message: it wakes by itself in time.
            if run.due < self._wakes:
                self._changed.notify()

    def remove(self, run: Run) -> None:
        """It has ended."""
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
                due = [run for run in self._runs if run.due <= now]
                if not due:
                    soonest = min((run.due for run in self._runs), default=math.inf)
                    self._wakes = min(soonest, now + TICK)
                    self._changed.wait(self._wakes - now)
                    continue
            for run in due:
                self._tend(run, now)

    def _tend(self, run: Run, now: float) -> None:
        if run.ends_at <= now:
            if run.cancel(LIMIT):
                run.ends_at = now + GRACE
            else:
                run.ends_at = math.inf
                self._give_up(run)
        if run.renew_at <= now:
            self._renew(run)

    def _renew(self, run: Run) -> None:
        lease = run.lease
        run.renew_at = math.inf
        if lease.ended:
            return
        try:
            lease.renew()
        except LeaseLost:
            if lease.lost:  # else RACE: the slot has just committed
                run.cancel(LOST)
        except Unsupported:
            return  # the layout's claims do not run out by themselves
        except (DirQueueError, OSError) as error:
            # A full disk, a dead server: there is time to try again, and the commit is fenced in any case.
            self._emit(run.event("error", f"cannot renew: {error}"))
            run.renew_at = time.monotonic() + pause(lease.seconds) * TRY_AGAIN
        else:
            run.renew_at = time.monotonic() + pause(lease.seconds)
