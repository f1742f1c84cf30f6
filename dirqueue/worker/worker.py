"""The worker object: what people use.

Layer: conveniences.  Arguments and counts are here; each run is a Run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dirqueue.errors import Conflict, SettingsError
from dirqueue.settings import check_seconds
from dirqueue.worker.events import Counts, Events, Hook
from dirqueue.worker.outcome import check_handler, check_hook, is_async
from dirqueue.worker.policy import Policy
from dirqueue.worker.run import Plan, Run, Source, status_line


class Worker:
    """Gets messages, runs a handler on each, keeps the lease while it runs, and commits what came of it."""

    def __init__(
        self,
        source: Source,
        handler: Callable[[Any], object],
        *,
        threads: int = 1,
        processes: int = 0,
        concurrency: int | None = None,
        lease: float | None = None,
        time_limit: float | None = None,
        limit: int | None = None,
        drain: float = 60.0,
        hooks: Mapping[str, Hook] | None = None,
        signals: bool = True,
        failed_to: Callable[[str], str] | None = None,
        max_failures: int = 0,
        on_conflict: Callable[[Any, Conflict], Exception | None] | None = None,
    ) -> None:
        """Describe the worker; run() starts it.

        Args:
            source: A queue, or a set of queues.
            handler: A function, called with each message, or an `async def` function. Returning is success; Retry,
                Reject, Release and Move say otherwise; any other exception is a failure that is tried again by the
                queue's policy. A list of `Put` that it returns is put together with the ack: all or nothing, for queues
                of a Space. A generator function is refused, and a returned awaitable or generator is a failure.
            threads: Messages handled at once, in threads.
            processes: Messages handled at once, in child processes (instead of threads): they may crash or be killed.
            concurrency: Messages handled at once by an async handler, as tasks of one event loop (1 if None).
            lease: Seconds to hold a message; renewed at a third of that while the handler runs.
            time_limit: Seconds a handler may take for one message before it is stopped and the message retried.
            limit: Stop after this number of messages.
            drain: Seconds that running handlers have to finish after stop() or SIGTERM; then they are stopped and
                their messages released.
            hooks: Event name -> function of an Event; see `dirqueue.worker.events.LEVELS` for the names.
            signals: Whether run() in the main thread takes SIGTERM, SIGINT and SIGUSR1.
            failed_to: Function of a queue's name: the queue of the same space that messages go to which failed for
                good (rejected, or out of attempts), instead of dead/. For queues of a Space.
            max_failures: Deliveries after which a failure is for good; the queue's max_attempts if 0.
            on_conflict: Function of a message and the Conflict that refused what its handler returned. The work is
                thrown away and the message retried; if an exception is returned, the worker ends with it.
        """
        if not callable(getattr(source, "get", None)):
            raise SettingsError(f"a worker needs a Queue or a QueueSet, not {source!r:.60}")
        check_handler(handler)
        _whole("threads", threads, 1)
        _whole("processes", processes, 0)
        if limit is not None:
            _whole("limit", limit, 1)
        if concurrency is not None:
            _whole("concurrency", concurrency, 1)
        _whole("max_failures", max_failures, 0)
        for name, function in (("failed_to", failed_to), ("on_conflict", on_conflict)):
            if function is not None:
                check_hook(function, name)
        if processes and threads != 1:
            raise SettingsError(
                "give threads or processes, not both: each process handles one message at a time"
            )
        if is_async(handler):
            if processes or threads != 1:
                raise SettingsError(
                    f"handler {handler!r:.60} is async: give concurrency, not threads or processes"
                )
            concurrency = concurrency or 1
        elif concurrency is not None:
            raise SettingsError(
                f"concurrency is for async handlers, and {handler!r:.60} is not one: give threads or processes"
            )
        self._plan = Plan(
            source,
            handler,
            threads,
            processes,
            concurrency or 0,
            None if lease is None else check_seconds("lease", lease, above=True),
            None if time_limit is None else check_seconds("time_limit", time_limit, above=True),
            limit,
            check_seconds("drain", drain),
            signals,
            Policy(failed_to, max_failures, on_conflict),
        )
        self._events = Events(hooks, traces=not getattr(handler, "shows_output", False))
        self._lock = threading.Lock()
        self._current: Run | None = None

    def run(self) -> Counts:
        """Work until stop() or a signal. Return the number of deliveries that ended in each way."""
        return self._run(until_empty=False, idle=0.0)

    def run_until_empty(self, idle: float = 0.0) -> Counts:
        """Work until nothing could be claimed for `idle` seconds and nothing runs. Return counts as run() does.

        Messages that back off after a failure, or were put with a delay, are not waited for beyond `idle`.
        """
        return self._run(until_empty=True, idle=check_seconds("idle", idle))

    def stop(self) -> None:
        """Claim no more; run() returns when the running handlers have finished, or `drain` seconds later."""
        run = self._current
        if run is not None:
            run.stop()

    def status(self) -> dict[str, Any]:
        """Return what the worker is doing, as plain values."""
        run = self._current
        if run is not None:
            return run.status()
        status: dict[str, Any] = {
            "queue": self._plan.name,
            "pid": os.getpid(),
            "state": "stopped",
            "running": 0,
        }
        return status | self._events.counts()._asdict()

    def status_line(self) -> str:
        """Return the status as one line of key=value."""
        return status_line(self.status())

    def _run(self, *, until_empty: bool, idle: float) -> Counts:
        with self._lock:
            if self._current is not None:
                raise SettingsError("this worker is running already: make another one")
            run = self._current = Run(self._plan, self._events, until_empty=until_empty, idle=idle)
        before = self._events.counts()
        try:
            run.run()
        finally:
            self._current = None
        error, run.error = run.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame and the run: a cycle would keep descriptors open
        after = self._events.counts()
        return Counts(*(now - then for now, then in zip(after, before, strict=True)))


def _whole(name: str, value: object, low: int) -> None:
    if type(value) is not int or value < low:
        raise SettingsError(f"{name} must be a whole number of at least {low}, not {value!r:.60}")
