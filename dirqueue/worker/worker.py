"""The worker object: its arguments, its lanes, its signals and its end.

Layer: conveniences.
The thread that calls run() only waits, for signals, deadlines and the service manager; lanes do the work.
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
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dirqueue.codecs import Codec
from dirqueue.errors import SettingsError
from dirqueue.lease import Lease
from dirqueue.settings import check_seconds
from dirqueue.worker.events import Counts, Event, Events, Hook, key_values
from dirqueue.worker.keeper import STOP, Keeper, Run
from dirqueue.worker.notify import Notifier
from dirqueue.worker.nursery import Nursery
from dirqueue.worker.outcome import RELEASE, Outcome
from dirqueue.worker.process import InProcess, serve
from dirqueue.worker.slot import SHORT_PAUSE, Call, Slot, settle
from dirqueue.worker.thread import InThread

#: The waiting thread looks around this often.
TICK = 1.0
#: How long a handler has to let go when everything must be released at once.
LET_GO = 2.0


class Source(Protocol):
    """Anything to get leases from: a Queue, a QueueSet."""

    def get(self, *, timeout: float | None = None, lease: float | None = None) -> Lease[Any]: ...


class Worker:
    """Gets messages, runs a handler on each, keeps the lease while it runs, and commits what came of it."""

    def __init__(
        self,
        source: Source,
        handler: Callable[[Any], object],
        *,
        threads: int = 1,
        processes: int = 0,
        lease: float | None = None,
        time_limit: float | None = None,
        limit: int | None = None,
        drain: float = 60.0,
        hooks: Mapping[str, Hook] | None = None,
        signals: bool = True,
    ) -> None:
        """Describe the worker; run() starts it.

        Args:
            source: A queue, or a set of queues.
            handler: Called with each message. Returning is success; Retry, Reject and Release say otherwise; any
                other exception is a failure that is tried again by the queue's policy.
            threads: Messages handled at once, in threads.
            processes: Messages handled at once, in child processes (instead of threads): they may crash or be killed.
            lease: Seconds to hold a message; renewed at a third of that while the handler runs.
            time_limit: Seconds a handler may take for one message before it is stopped and the message retried.
            limit: Stop after so many messages.
            drain: Seconds that running handlers have to finish after stop() or SIGTERM; then they are stopped and
                their messages released.
            hooks: Event name -> function of an Event; see `dirqueue.worker.events.LEVELS` for the names.
            signals: Whether run() in the main thread takes SIGTERM, SIGINT and SIGUSR1.
        """
        if not callable(getattr(source, "get", None)):
            raise SettingsError(f"a worker needs a Queue or a QueueSet, not {source!r:.60}")
        if not callable(handler):
            raise SettingsError(f"handler must be callable, not {handler!r:.60}")
        _whole("threads", threads, 1)
        _whole("processes", processes, 0)
        if limit is not None:
            _whole("limit", limit, 1)
        if processes and threads != 1:
            raise SettingsError(
                "give threads or processes, not both: each process handles one message at a time"
            )
        self.source = source
        self.handler = handler
        self.lease = None if lease is None else check_seconds("lease", lease, above=True)
        self.time_limit = None if time_limit is None else check_seconds("time_limit", time_limit, above=True)
        self.name = str(getattr(source, "path", type(source).__name__))
        self.until_empty = False
        self._threads, self._processes = threads, processes
        self._limit = limit
        self._drain = check_seconds("drain", drain)
        self._take_signals = signals
        self._events = Events(hooks)
        self.emit = self._events.emit
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._running = False
        self._reset()

    def _reset(self) -> None:
        self._stop.clear()
        self._left = self._limit
        self._error: Exception | None = None
        self._stop_signals = 0
        self._status_asked = False
        self._last_work = self._began = time.monotonic()
        self._finished = False
        self._slots: list[Slot] = []
        self.keeper = Keeper(self.emit, self._give_up)

    # --- what people call ----------------------------------------------------------------------------------

    def run(self) -> Counts:
        """Work until stop() or a signal; return how the deliveries ended."""
        return self._run(until_empty=False, idle=0.0)

    def run_until_empty(self, idle: float = 0.0) -> Counts:
        """Work until nothing could be claimed for `idle` seconds and nothing runs; return how deliveries ended.

        Messages that back off after a failure, or were put with a delay, are not waited for beyond `idle`.
        """
        return self._run(until_empty=True, idle=check_seconds("idle", idle))

    def stop(self) -> None:
        """Claim no more; run() returns when the running handlers have finished, or `drain` seconds later."""
        self._stop.set()
        self.wake()

    def status(self) -> dict[str, Any]:
        """Return what the worker is doing, as plain values."""
        runs = self.keeper.running()
        return {
            "queue": self.name,
            "pid": os.getpid(),
            "state": "stopping" if self._stop.is_set() else "running" if self._running else "stopped",
            "slots": len(self._slots),
            "running": len(runs),
            **self._events.counts()._asdict(),
            "uptime": round(time.monotonic() - self._began, 1) if self._running else 0.0,
            "longest": round(runs[0].seconds, 1) if runs else None,
            "longest_id": runs[0].id if runs else None,
        }

    def status_line(self) -> str:
        """Return the status as one line of key=value."""
        told = {key: value for key, value in self.status().items() if value is not None}
        return key_values({"event": "status", **told})

    # --- what lanes call -----------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether no more is to be claimed."""
        return self._stop.is_set()

    def reserve(self) -> bool:
        """Take one from the limit; False when it is used up."""
        with self._lock:
            if self._left is not None:
                if self._left == 0:
                    return False
                self._left -= 1
            return True

    def give_back(self) -> None:
        """Nothing was claimed after all."""
        with self._lock:
            if self._left is not None:
                self._left += 1

    def worked(self) -> None:
        """A message was handled."""
        self._last_work = time.monotonic()

    def goes_on(self, looked: float) -> bool:
        """Whether a lane that looked then and found nothing looks again.

        A lane ends only after a look of its own found nothing, so what its own handler put is never left behind.
        """
        if not self.until_empty:
            return True
        with self._lock:
            quiet = all(slot.idle for slot in self._slots) and not self.keeper.running()
            if quiet and looked - self._last_work >= self._idle:
                self._finished = True
            return not self._finished

    def pause(self, seconds: float) -> bool:
        """Sleep; True if the worker was stopped meanwhile."""
        return self._stop.wait(seconds)

    def fail(self, error: Exception) -> None:
        """A lane cannot go on: stop the others, and let run() raise it."""
        with self._lock:
            self._error = self._error or error
        self.stop()

    def wake(self) -> None:
        """Make the waiting thread look around."""
        try:
            self._wake.send(b"\0")
        except (AttributeError, OSError):
            pass  # not running, or it has more than enough to wake up for

    # --- running -------------------------------------------------------------------------------------------

    def _run(self, *, until_empty: bool, idle: float) -> Counts:
        with self._lock:
            if self._running:
                raise SettingsError("this worker is running already: make another one")
            self._running = True
        before = self._events.counts()
        nursery = None
        try:
            self._reset()
            self.until_empty, self._idle = until_empty, idle
            if self._processes:
                codecs = _codecs_of(self.source)
                nursery = Nursery(functools.partial(serve, self.handler, codecs))
                calls: list[Call] = [
                    InProcess(nursery, codecs, self.emit, self.pause) for _ in range(self._processes)
                ]
            else:
                calls = [InThread(self.handler) for _ in range(self._threads)]
            self._slots = [Slot(self, call, number) for number, call in enumerate(calls, 1)]
            self._work(nursery)
        finally:
            if nursery is not None:
                nursery.close()
            self._running = False
        if self._error is not None:
            raise self._error
        after = self._events.counts()
        return Counts(*(now - then for now, then in zip(after, before, strict=True)))

    def _work(self, nursery: Nursery | None) -> None:
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._notifier = Notifier()
        unwatch = self._events.watch_puts(self.source)
        restore = self._install_signals()
        try:
            self.emit(Event("started", self.name, pid=os.getpid()))
            self.keeper.start()
            for slot in self._slots:
                slot.thread.start()
            self._notifier.tell("READY=1", f"STATUS={self.status_line()}")
            self._wait(nursery)
            self.emit(Event("stopped", self.name, pid=os.getpid()))
        finally:
            self._stop.set()
            restore()
            unwatch()
            self.keeper.close()
            self._woken.close()
            self._wake.close()

    def _wait(self, nursery: Nursery | None) -> None:
        """Look around until every lane has ended or the time to drain is over."""
        deadline = math.inf
        alive_at = 0.0
        while not all(slot.ended for slot in self._slots):
            now = time.monotonic()
            if self._status_asked:
                self._status_asked = False
                print(self.status_line(), file=sys.stderr, flush=True)  # noqa: T201 - asked for by SIGUSR1, as with dd
            if nursery is not None and not nursery.alive:
                self.fail(nursery.lost())
            if self._stop_signals:
                self._stop.set()
            if self._stop.is_set() and deadline == math.inf:
                deadline = now + self._drain
                self.emit(Event("stopping", self.name, pid=os.getpid()))
                self._notifier.tell("STOPPING=1")
            if now >= deadline or self._stop_signals > 1:
                self._release_all()
                return
            every = self._notifier.every or TICK
            if now >= alive_at and self.keeper.alive:
                alive_at = now + every
                self._notifier.tell("WATCHDOG=1", f"STATUS={self.status_line()}")
            pause = max(0.0, min(TICK, every, deadline - now))
            if select.select([self._woken], [], [], pause)[0]:
                self._woken.recv(4096)

    def _release_all(self) -> None:
        """Stop every running handler and give its message back; those that do not let go lose it anyway."""
        deadline = time.monotonic() + LET_GO
        while not all(slot.ended for slot in self._slots) and time.monotonic() < deadline:
            for run in self.keeper.running():
                run.cancel(STOP)
            select.select([self._woken], [], [], SHORT_PAUSE)
        for run in self.keeper.running():
            run.cancel(STOP)
            settle(run, Outcome(RELEASE), self.time_limit, self.emit)

    def _give_up(self, run: Run) -> None:
        """A handler did not stop at its time limit: take the message from it, so that others may try."""
        self.emit(run.event("stuck", "the handler cannot be stopped; use processes"))
        settle(run, Outcome(RELEASE), self.time_limit, self.emit)

    # --- signals -------------------------------------------------------------------------------------------

    def _install_signals(self) -> Callable[[], None]:
        """Take over the signals if we may; return what gives them back."""
        if not self._take_signals or threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = {
            number: signal.signal(number, taker)
            for number, taker in (
                (signal.SIGTERM, self._take_stop),
                (signal.SIGINT, self._take_stop),
                (signal.SIGUSR1, self._take_status),
            )
        }

        def restore() -> None:
            for number, taker in before.items():
                signal.signal(number, taker)

        return restore

    # A signal may come while this thread holds any lock: the takers only leave a mark and knock.

    def _take_stop(self, _number: int, _frame: object) -> None:
        self._stop_signals += 1
        self.wake()

    def _take_status(self, _number: int, _frame: object) -> None:
        self._status_asked = True
        self.wake()


def _whole(name: str, value: object, low: int) -> None:
    if type(value) is not int or value < low:
        raise SettingsError(f"{name} must be a whole number of at least {low}, not {value!r:.60}")


def _codecs_of(source: Any) -> list[Codec[Any]]:
    """Return the codecs that children inherit: those of the queue, or of the queues in a set."""
    queues = [source, *getattr(source, "queues", ())]
    return [queue._codec for queue in queues if hasattr(queue, "_codec")]  # noqa: SLF001 - read once, not a message's path
