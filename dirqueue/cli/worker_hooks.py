"""What `dirqueue work` does at the events of its worker: counts for metrics, a command for dead letters, notices.

Layer: edges.
Hooks are called in the threads of the worker, several at a time.
"""

from __future__ import annotations

import bisect
import logging
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from dirqueue.cli import output
from dirqueue.cli.metrics import address, server_of
from dirqueue.tools.metrics import Family, Sample, label
from dirqueue.worker import Counts, Event

logger = logging.getLogger("dirqueue.worker")

#: Upper bounds of the histogram of durations, in seconds.
BOUNDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: How long a command for a dead letter may take.
COMMAND_SECONDS = 60.0
#: Linux takes no more than 128 KiB in one variable.
VARIABLE_LENGTH = 4000

Hooks = Mapping[str, Callable[[Event], object]]


class Hooked(Protocol):
    """Anything that wants to be called at events."""

    def hooks(self) -> Hooks: ...


def joined(*parties: Hooked) -> dict[str, Callable[[Event], None]]:
    """Return one hook for each event, which calls those of all parties."""
    wanted: dict[str, list[Callable[[Event], object]]] = {}
    for party in parties:
        for name, hook in party.hooks().items():
            wanted.setdefault(name, []).append(hook)

    def all_of(hooks: Iterable[Callable[[Event], object]]) -> Callable[[Event], None]:
        def call(event: Event) -> None:
            for hook in hooks:
                hook(event)

        return call

    return {name: all_of(hooks) for name, hooks in wanted.items()}


class Failures:
    """Which messages failed when they were last tried, and whether the worker was stopped."""

    def __init__(self) -> None:
        self.dead = 0
        self.stopped = False
        #: Queue and id. Only what fails and has not succeeded since is kept.
        self.backing_off: set[tuple[str, str]] = set()

    def hooks(self) -> Hooks:
        """Return what to call at which event."""
        return {
            "retried": lambda event: self.backing_off.add((event.queue, event.id)),
            "acked": lambda event: self.backing_off.discard((event.queue, event.id)),
            "dead": self._died,
            "stopping": lambda _: setattr(self, "stopped", True),
        }

    def _died(self, event: Event) -> None:
        self.dead += 1
        self.backing_off.discard((event.queue, event.id))


class Farewell:
    """Says at the first signal what the worker waits for."""

    def __init__(self, status: Callable[[], Mapping[str, Any]], drain: float) -> None:
        self._status = status
        self._drain = drain

    def hooks(self) -> Hooks:
        """Return what to call at which event."""
        return {"stopping": self._say}

    def _say(self, _: Event) -> None:
        status = self._status()
        running = status["running"]
        if running:
            output.complain(
                f"stopping: {running} message{'s are' * (running > 1) or ' is'} being handled, the longest "
                f"({status['longest_id']}) for {status['longest']:g} s; waiting up to {self._drain:g} s. "
                "Ctrl-C again stops them and gives their messages back"
            )


class OnDead:
    """Runs a shell command for each message that this worker sends to dead/."""

    def __init__(self, command: str) -> None:
        self._command = command

    def hooks(self) -> Hooks:
        """Return what to call at which event."""
        return {"dead": self._run}

    def _run(self, event: Event) -> None:
        details = {"queue": event.queue, "id": event.id, "attempts": event.attempts, "error": event.error}
        env = {f"DIRQUEUE_{name.upper()}": _variable(value) for name, value in details.items()}
        try:
            done = subprocess.run(  # noqa: S602 - the command of whoever started the worker
                self._command,
                shell=True,
                input=(output.dumps(details | {"trace": event.trace}) + "\n").encode(),
                env=os.environ | env,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            failed = str(error)
        else:
            if not done.returncode:
                return
            failed = f"status {done.returncode}"
        logger.error("%s", Event("error", event.queue, event.id, error=f"--on-dead failed: {failed}").line())


def _variable(value: object) -> str:
    """Return a value as an environment variable can hold it."""
    text = str(value or "")[:VARIABLE_LENGTH].replace("\0", "\\0")
    try:
        os.fsencode(text)  # a path need not be UTF-8
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


class Metrics:
    """Counts deliveries and how long they took, and serves that to Prometheus."""

    def __init__(self, status: Callable[[], Mapping[str, Any]], where: str) -> None:
        self._status = status
        self._server = server_of(self.families, *address(where))
        self._lock = threading.Lock()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        #: Queue and place in BOUNDS: deliveries that took at most that long, and longer than the bound before.
        self._took: Counter[tuple[str, int]] = Counter()

    def hooks(self) -> Hooks:
        """Return what to call at which event."""
        return dict.fromkeys(Counts._fields, self._end) | {"error": self._error, "started": self._start}

    def _start(self, _: Event) -> None:
        # Only now: a process that is going to fork must not have threads yet.
        threading.Thread(target=self._server.serve_forever, name="dirqueue-metrics", daemon=True).start()

    def _error(self, event: Event) -> None:
        with self._lock:
            self._errors[label(event.queue)] += 1

    def _end(self, event: Event) -> None:
        queue, seconds = label(event.queue), event.seconds or 0.0
        with self._lock:
            self._ended[queue, event.name] += 1
            self._seconds[queue] += seconds  # type: ignore[assignment] # a Counter of floats
            self._took[queue, bisect.bisect_left(BOUNDS, seconds)] += 1

    def families(self) -> list[Family]:
        """Return what was counted so far."""
        status = self._status()
        with self._lock:
            queues = sorted(self._seconds)
            ended: list[Sample] = [
                ({"queue": queue, "outcome": how}, self._ended[queue, how])
                for queue in queues
                for how in Counts._fields
            ]
            errors: list[Sample] = [({"queue": queue}, n) for queue, n in sorted(self._errors.items())]
            took = [sample for queue in queues for sample in self._histogram(queue)]
        return [
            Family("dirqueue_worker_deliveries_total", "Deliveries by how they ended.", ended, "counter"),
            Family(
                "dirqueue_worker_errors_total",
                "Times that a queue could not be read, or a lease not renewed or ended.",
                errors,
                "counter",
            ),
            Family("dirqueue_worker_delivery_seconds", "From claim to end.", took, "histogram"),
            Family("dirqueue_worker_running", "Messages being handled.", [({}, status["running"])]),
            Family(
                "dirqueue_worker_longest_running_seconds",
                "For how long the oldest of them has been handled.",
                [({}, status.get("longest") or 0)],
            ),
        ]

    def _histogram(self, queue: str) -> Iterator[Sample]:
        below = 0
        for place, bound in enumerate([*map("{:g}".format, BOUNDS), "+Inf"]):
            below += self._took[queue, place]
            yield {"queue": queue, "le": bound}, below, "_bucket"
        yield {"queue": queue}, self._seconds[queue], "_sum"
        yield {"queue": queue}, below, "_count"
