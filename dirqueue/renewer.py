"""The engine that keeps leases alive while their holders work.

Layer: mechanisms.  Touches: nothing itself; every change is made by the `renew()` of what is watched.
Anything with a `renew()` can be watched, a Lease or a consumer's sign of life:

    RENEWER.watch(thing, every)     calls thing.renew() every `every` seconds, in a thread
    RENEWER.forget(thing)           ends that; returns True if the thing was lost and `lost=` was not given

A renewal that raises LeaseLost ends the watch; `lost=` is called with the error, or else `forget` returns True.
Unsupported ends it too: what cannot be renewed does not run out. After any other exception `failed=` is called with
it, and the next try comes after a quarter of the time. Both are called in the renewer's thread and should be short.
RENEWER serves the whole process; whoever runs the code of others in `lost` and `failed` makes a Renewer of their own.
Crash: nothing is renewed any more, so that leases run out. A forked child starts with an empty RENEWER.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from dirqueue.disk import signals
from dirqueue.errors import LeaseLost, Unsupported

#: What is due within this part of its time is renewed along: so many leases take few looks, not one each.
EARLY = 1 / 16
#: After a failed renewal the next try comes after this part of the time between two.
TRY_AGAIN = 1 / 4
#: A thread with nothing to renew ends after this many seconds; the next watch starts another.
IDLE_SECONDS = 5.0


class Renewable(Protocol):
    """What can be kept alive."""

    def renew(self) -> None: ...


class Watch:
    """How one thing is kept alive, and when it is due."""

    __slots__ = ("due", "every", "failed", "lost")

    def __init__(
        self,
        every: float,
        lost: Callable[[LeaseLost], object] | None,
        failed: Callable[[Exception], object] | None,
    ) -> None:
        self.every = every
        self.due = time.monotonic() + every
        self.lost = lost
        self.failed = failed


class Renewer:
    """One thread that renews all that is watched; started when needed."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may come here while the code that it interrupted is here.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._watches: dict[Renewable, Watch] = {}
        #: What was found to be lost, until its holder forgets it.
        self._unreported: set[Renewable] = set()
        self._wakes = 0.0
        self._thread: threading.Thread | None = None

    def watch(
        self,
        thing: Renewable,
        every: float,
        *,
        lost: Callable[[LeaseLost], object] | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        """Call `thing.renew()` every `every` seconds, the first time after as many, until it is forgotten."""
        watch = Watch(every, lost, failed)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dirqueue-renewer", daemon=True)
                thread.start()
                self._thread = thread
            self._watches[thing] = watch
            # Waking the thread for each message would cost more than the message: it wakes by itself in time.
            if watch.due < self._wakes:
                self._changed.notify()

    def forget(self, thing: Renewable) -> bool:
        """Stop renewing. Return True if the thing was lost and no `lost` was there to be called."""
        with self._lock:
            self._watches.pop(thing, None)
            if thing not in self._unreported:
                return False
            self._unreported.remove(thing)
            return True

    def _run(self) -> None:
        # A signal that came to this thread would run its handler in the middle of what the main thread protects.
        signals.refuse()
        while True:
            with self._lock:
                now = time.monotonic()
                self._wakes = min((each.due for each in self._watches.values()), default=now + IDLE_SECONDS)
                due = self._due(now) if self._wakes <= now else []
                if not due:
                    if not self._changed.wait(self._wakes - now) and not self._watches:
                        self._thread = None
                        return
                    continue
            for thing, watch in due:
                self._renew(thing, watch)

    def _due(self, now: float) -> list[tuple[Renewable, Watch]]:
        """Return what is due now or very soon. COST: this looks at all that is watched."""
        return [
            (thing, watch) for thing, watch in self._watches.items() if watch.due <= now + EARLY * watch.every
        ]

    def _renew(self, thing: Renewable, watch: Watch) -> None:
        if self._watches.get(thing) is not watch:
            return  # RACE: forgotten since it was found to be due
        pause = watch.every
        try:
            thing.renew()
        except LeaseLost as error:
            self._lose(thing, watch, error)
            return
        except Unsupported:
            self.forget(thing)
            return
        except Exception as error:  # noqa: BLE001 - one thing in trouble must not end the renewal of the others
            pause *= TRY_AGAIN  # a full disk, a dead server: there is time to try again
            _call(watch.failed, error)
        watch.due = time.monotonic() + pause

    def _lose(self, thing: Renewable, watch: Watch, error: LeaseLost) -> None:
        """Report the loss, unless the holder has ended the lease itself, or has forgotten it."""
        with self._lock:
            if self._watches.pop(thing, None) is None or error.reason != "gone":
                return
            if watch.lost is None:
                self._unreported.add(thing)
        _call(watch.lost, error)


def _call(report: Callable[..., object] | None, error: Exception) -> None:
    if report is not None:
        with contextlib.suppress(Exception):  # the other things still have to be renewed
            report(error)


RENEWER = Renewer()
os.register_at_fork(after_in_child=RENEWER.__init__)  # type: ignore[misc]
