"""One run of a worker: its slots, its signals and its end.

Layer: conveniences.
The thread that calls run() only waits, for signals, deadlines and the service manager; slots do the work.
"""

from __future__ import annotations

import functools
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from dirqueue.codecs import Codec
from dirqueue.consumer import FRESH_SECONDS, Consumer
from dirqueue.errors import DirQueueError
from dirqueue.layouts.base import Layout
from dirqueue.lease import Lease, Outcome
from dirqueue.worker.events import Event, Events, key_values
from dirqueue.worker.forkserver import ForkServer
from dirqueue.worker.policy import Policy
from dirqueue.worker.processes import InProcess, serve
from dirqueue.worker.slot import SHORT_PAUSE, Call, Slot, settle
from dirqueue.worker.systemd import Notifier
from dirqueue.worker.threads import InThread
from dirqueue.worker.watchdog import STOP, Delivery, Watchdog

#: The waiting thread looks around this often.
TICK = 1.0
#: How long a handler has to let go when everything must be released at once.
LET_GO = 2.0
#: What to do about a handler that goes on.
STUCK_THREAD = "the handler cannot be stopped; use processes"
STUCK_TASK = "the handler cannot be cancelled: it blocks the event loop, or swallows CancelledError"


class Source(Protocol):
    """Anything to get leases from: a Queue, a QueueSet."""

    def get(self, *, timeout: float | None = None, lease: float | None = None) -> Lease[Any]: ...


@dataclass(frozen=True)
class Plan:
    """The arguments of a Worker."""

    source: Source
    handler: Callable[[Any], Any]
    threads: int
    processes: int
    #: Above 0 the handler is async.
    concurrency: int
    lease: float | None
    time_limit: float | None
    limit: int | None
    drain: float
    signals: bool
    policy: Policy

    @property
    def name(self) -> str:
        """What log lines call the source."""
        queues = getattr(self.source, "queues", ())
        paths = [queue.path for queue in queues] or [getattr(self.source, "path", type(self.source).__name__)]
        return ",".join(map(str, paths))


class Run:
    """The slots of one run, and what watches over them."""

    def __init__(self, plan: Plan, events: Events, *, until_empty: bool, idle: float) -> None:
        self.plan = plan
        self.until_empty = until_empty
        self._idle = idle
        self._events = events
        self.emit = events.emit
        self.watchdog = Watchdog(self.emit, self._give_up)
        self.watchdog.policy = plan.policy._replace(fail=self.fail)
        self._slots: list[Slot] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._left = plan.limit
        self.error: Exception | None = None
        self._stop_signals = 0
        self._status_asked = False
        self._last_work = self._began = time.monotonic()
        self._finished = False
        self._refreshing = threading.Lock()
        self._refreshes_at = self._began + FRESH_SECONDS
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._notifier = Notifier()

    def stop(self) -> None:
        """Claim no more."""
        self._stop.set()
        self.wake()

    def status(self) -> dict[str, Any]:
        """Return what the worker is doing, as plain values."""
        runs = self.watchdog.running()
        return {
            "queue": self.plan.name,
            "pid": os.getpid(),
            "state": "stopping" if self._stop.is_set() else "running",
            "slots": sum(slot.places for slot in self._slots),
            "running": len(runs),
            **self._events.counts()._asdict(),
            "uptime": round(time.monotonic() - self._began, 1),
            "longest": round(runs[0].seconds, 1) if runs else None,
            "longest_id": runs[0].id if runs else None,
        }

    # --- called by slots -----------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether no more is to be claimed."""
        return self._stop.is_set()

    def reserve(self) -> bool:
        """Take one from the limit. Return False when it is used up."""
        with self._lock:
            if self._left is not None:
                if self._left == 0:
                    return False
                self._left -= 1
            return True

    def give_back(self) -> None:
        """Return what was reserved: nothing was claimed."""
        with self._lock:
            if self._left is not None:
                self._left += 1

    def worked(self) -> None:
        """Note that a message was handled just now."""
        self._last_work = time.monotonic()

    def goes_on(self, looked: float) -> bool:
        """Return whether a slot that looked at that time, and found nothing, looks again.

        A slot ends only after a look of its own found nothing, so what its own handler put is never left behind.
        """
        if not self.until_empty:
            return True
        with self._lock:
            quiet = all(slot.idle for slot in self._slots) and not self.watchdog.running()
            if quiet and looked - self._last_work >= self._idle:
                self._finished = True
            return not self._finished

    def refresh(self) -> None:
        """Go by settings that were changed, from now on; looked for twice a second at most, by one slot at a time."""
        source = self.plan.source
        if time.monotonic() < self._refreshes_at or not isinstance(source, Consumer):
            return
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            if source.refresh():
                self.emit(Event("refreshed", self.plan.name))
        except (DirQueueError, OSError) as error:
            self.emit(Event("error", self.plan.name, error=f"cannot take up changed settings: {error}"))
        finally:
            self._refreshes_at = time.monotonic() + FRESH_SECONDS
            self._refreshing.release()

    def report_buried(self) -> None:
        """Report what claims have moved to the dead on their way: out of attempts, expired, or unreadable."""
        for queue in (self.plan.source, *getattr(self.plan.source, "queues", ())):
            layout = getattr(queue, "layout", None)
            while layout is not None and layout.buried:
                try:
                    id = layout.buried.popleft()
                except IndexError:
                    break  # RACE: another slot was faster
                self.emit(_buried(layout, id))

    def pause(self, seconds: float) -> bool:
        """Sleep. Return True if the worker was stopped meanwhile."""
        return self._stop.wait(seconds)

    def fail(self, error: Exception) -> None:
        """Stop the other slots because one cannot go on, and let run() raise the error."""
        with self._lock:
            self.error = self.error or error
        self.stop()

    def wake(self) -> None:
        """Make the waiting thread look around."""
        try:
            self._wake.send(b"\0")
        except OSError:
            pass  # it has ended, or has more than enough to wake up for

    # --- running -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, until empty, or until the limit is reached."""
        forkserver = None
        try:
            plan = self.plan
            if plan.concurrency:
                from dirqueue.worker.loop import LoopSlot

                self._slots = [LoopSlot(self, plan.handler, plan.concurrency)]
            elif plan.processes:
                codecs = _codecs_of(plan.source)
                forkserver = ForkServer(functools.partial(serve, plan.handler, codecs))
                self._fill(
                    InProcess(forkserver, codecs, self.emit, self.pause) for _ in range(plan.processes)
                )
            else:
                self._fill(InThread(plan.handler) for _ in range(plan.threads))
            self._work(forkserver)
        finally:
            if forkserver is not None:
                forkserver.close()
            self._woken.close()
            self._wake.close()

    def _fill(self, calls: Iterable[Call]) -> None:
        self._slots = [Slot(self, call, number) for number, call in enumerate(calls, 1)]

    def _work(self, forkserver: ForkServer | None) -> None:
        restore = self._install_signals()
        try:
            self.emit(Event("started", self.plan.name, pid=os.getpid()))
            self.watchdog.start()
            for slot in self._slots:
                slot.thread.start()
            self._notifier.send("READY=1", f"STATUS={status_line(self.status())}")
            self._wait(forkserver)
            self.emit(Event("stopped", self.plan.name, pid=os.getpid()))
        finally:
            self._stop.set()
            restore()
            self.watchdog.close()

    def _wait(self, forkserver: ForkServer | None) -> None:
        """Look around until every slot has ended or the time to drain is over."""
        deadline = math.inf
        alive_at = 0.0
        while not all(slot.ended for slot in self._slots):
            now = time.monotonic()
            if self._status_asked:
                self._status_asked = False
                print(status_line(self.status()), file=sys.stderr, flush=True)  # noqa: T201 - asked for by SIGUSR1, as with dd
            if forkserver is not None and not forkserver.alive:
                self.fail(forkserver.lost())
            if self._stop_signals:
                self._stop.set()
            if self._stop.is_set() and deadline == math.inf:
                deadline = now + self.plan.drain
                self.emit(Event("stopping", self.plan.name, pid=os.getpid()))
                self._notifier.send("STOPPING=1")
            if now >= deadline or self._stop_signals > 1:
                self._release_all()
                return
            every = self._notifier.every or TICK
            if now >= alive_at and self.watchdog.alive:
                alive_at = now + every
                self._notifier.send("WATCHDOG=1", f"STATUS={status_line(self.status())}")
            pause = max(0.0, min(TICK, every, deadline - now))
            if self._sleep(pause):
                self._woken.recv(4096)

    def _sleep(self, seconds: float) -> bool:
        """Sleep until somebody wakes us; return whether somebody did."""
        poll = select.poll()  # not select(): a program may have more than 1,024 descriptors
        poll.register(self._woken, select.POLLIN)
        return bool(poll.poll(math.ceil(seconds * 1000)))

    def _release_all(self) -> None:
        """Stop every running handler and give its message back, even if the handler does not stop."""
        deadline = time.monotonic() + LET_GO
        while not all(slot.ended for slot in self._slots) and time.monotonic() < deadline:
            for delivery in self.watchdog.running():
                delivery.cancel(STOP)
            self._sleep(SHORT_PAUSE)
        for delivery in self.watchdog.running():
            delivery.cancel(STOP)
            settle(delivery, Outcome("release"), self.plan.time_limit, self.emit)

    def _give_up(self, delivery: Delivery) -> None:
        """Take the message from a handler that did not stop at its time limit, so that others may try."""
        self.emit(delivery.event("stuck", STUCK_TASK if self.plan.concurrency else STUCK_THREAD))
        settle(delivery, Outcome("release"), self.plan.time_limit, self.emit)

    # --- signals -------------------------------------------------------------------------------------------

    def _install_signals(self) -> Callable[[], None]:
        """Handle the signals if we may. Return a function that restores the handlers of before."""
        if not self.plan.signals or threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, self._on_stop),
                (signal.SIGINT, self._on_stop),
                (signal.SIGUSR1, self._on_status),
            )
        }

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore

    # A signal may come while this thread holds any lock: these only leave a mark and wake the waiting thread.

    def _on_stop(self, _number: int, _frame: object) -> None:
        self._stop_signals += 1
        self.wake()

    def _on_status(self, _number: int, _frame: object) -> None:
        self._status_asked = True
        self.wake()


def status_line(status: dict[str, Any]) -> str:
    """Return a status as one line of key=value."""
    known = {key: value for key, value in status.items() if value is not None}
    return key_values({"event": "status", **known})


def _buried(layout: Layout, id: str) -> Event:
    """Return the event for a message that no handler had."""
    path, failure, attempts = layout.directory.path, None, 0
    try:
        entry = layout.find(id)
        if entry is not None:
            attempts, failure = entry.attempts, layout.failure(entry)
    except (DirQueueError, OSError):
        pass  # it moved on, or the disk refuses: the id is known
    error, trace = (failure.error, failure.trace) if failure else (None, None)
    return Event("dead", path, id, attempts, error=error, trace=trace)


def _codecs_of(source: Any) -> list[Codec[Any]]:
    """Return the codecs that children inherit: those of the queue, or of the queues in a set."""
    queues = [source, *getattr(source, "queues", ())]
    return [queue._codec for queue in queues if hasattr(queue, "_codec")]  # noqa: SLF001 - read once, not a message's path
