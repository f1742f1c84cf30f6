"""One lane of a worker: claim, run, commit, again.

Layer: conveniences.
Invariant: every claim ends in exactly one of acked, retried, dead, released, lost, or in an `error` event that says
why it could not, and then the lease runs out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dirqueue.errors import DirQueueError, Empty, LeaseLost, SettingsError, Unsupported
from dirqueue.lease import Lease
from dirqueue.worker.events import Event
from dirqueue.worker.outcome import ACK, REJECT, RELEASE, RETRY, Cancelled, Outcome
from dirqueue.worker.watchdog import LIMIT, LOST, STOP, Run

if TYPE_CHECKING:
    from dirqueue.worker.run import Crew

#: How long one look for a message may take before the lane asks whether to stop.
LOOK_SECONDS = 0.5
#: Pause between looks while other lanes may still bring work to an empty queue.
SHORT_PAUSE = 0.02
#: A queue that cannot be read, or a nursery that cannot fork, may recover: tries, and the first and longest pause.
TRIES = 10
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
#: Tries to commit, and the pause after the first failed one.
COMMITS, COMMIT_PAUSE = 4, 0.1


class Call(Protocol):
    """A way to run a handler that can be stopped from another thread."""

    def prepare(self) -> bool: ...
    def run(self, run: Run) -> Outcome: ...
    def cancel(self, run: Run) -> None: ...
    def close(self) -> None: ...


class Slot:
    """One lane, in a thread of its own."""

    def __init__(self, crew: Crew, call: Call, number: int) -> None:
        self._crew = crew
        self.call = call
        #: Whether the last look found nothing.
        self.idle = False
        self.ended = False
        self._failures = 0
        # A handler that cannot be stopped must not keep the program from ending.
        self.thread = threading.Thread(target=self._main, name=f"dirqueue-worker-{number}", daemon=True)

    def _main(self) -> None:
        crew = self._crew
        try:
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001 - told by run(), after the other lanes have finished
            crew.fail(error)
        finally:
            self.idle = True
            self.call.close()
            self.ended = True
            crew.wake()

    def _turn(self) -> bool:
        """Handle one message, or find that there is none; whether to go on."""
        crew = self._crew
        if crew.stopping or not crew.reserve():
            return False
        try:
            if not self.call.prepare():
                crew.give_back()
                return False
            looked = time.monotonic()
            lease = crew.plan.source.get(
                timeout=0 if crew.until_empty else LOOK_SECONDS, lease=crew.plan.lease
            )
        except Empty:
            crew.give_back()
            self._failures = 0
            self.idle = True
            return crew.goes_on(looked) and not (crew.until_empty and crew.pause(SHORT_PAUSE))
        except (DirQueueError, OSError) as error:
            crew.give_back()
            return self._trouble(error)
        self.idle = False
        self._failures = 0
        self._deliver(lease)
        crew.worked()
        return True

    def _trouble(self, error: Exception) -> bool:
        """Wait and try again, but not for ever."""
        self._failures += 1
        if self._failures >= TRIES or isinstance(error, SettingsError):
            raise error
        self._crew.emit(Event("error", self._crew.plan.name, error=str(error)))
        pause = min(FIRST_PAUSE * 2.0 ** (self._failures - 1), LONGEST_PAUSE)
        return not self._crew.pause(pause)

    def _deliver(self, lease: Lease[Any]) -> None:
        crew = self._crew
        run = Run(lease, crew.plan.time_limit, self.call.cancel)
        crew.emit(run.event("leased"))
        if crew.stopping:
            # RACE: stopped while we were claiming, perhaps what another lane has just released.
            settle(run, Outcome(RELEASE), None, crew.emit)
            return
        crew.watchdog.add(run)
        try:
            outcome = self.call.run(run)
        except Cancelled:
            outcome = Outcome(RELEASE)
        except Exception as error:  # noqa: BLE001 - the body cannot be read or sent: a failure of this message
            outcome = Outcome(RETRY, None, f"{type(error).__name__}: {error}")
        finally:
            # RACE: from here on the watchdog starts nothing new for it; what it has begun, the lease's lock orders.
            crew.watchdog.remove(run)
        settle(run, outcome, crew.plan.time_limit, crew.emit)


def settle(run: Run, outcome: Outcome, limit: float | None, emit: Callable[[Event], None]) -> None:
    """End the lease as the outcome says, unless the delivery was cancelled; then as the reason says."""
    if run.cancelled == LIMIT:
        outcome = Outcome(RETRY, None, f"time limit of {limit:g} s exceeded")
    elif run.cancelled == STOP:
        outcome = Outcome(RELEASE)
    error = outcome.error
    if run.cancelled != LOST and not run.lease.ended:
        error = _commit(run.lease, outcome) or error
    if not run.report():
        return
    how = run.lease.ended or ("lost" if run.cancelled == LOST else "error")
    emit(run.event(how, None if how in ("acked", "released") else error))


def _commit(lease: Lease[Any], outcome: Outcome) -> str | None:
    """Use the verb, again if the disk refuses; return what is wrong if it stays so."""
    for attempt in range(COMMITS):
        try:
            _verb(lease, outcome)
            return None
        except LeaseLost as error:
            return str(error)
        except Unsupported as error:
            if outcome.verb == RELEASE:
                return str(error)
            outcome = Outcome(RELEASE)  # a layout that cannot count or bury: all it can do is give it back
        except SettingsError as error:
            outcome = Outcome(RETRY, None, f"{outcome.error or 'failed'} ({error})")
        except (DirQueueError, OSError) as error:
            told = str(error)
            time.sleep(COMMIT_PAUSE * 2.0**attempt)
    return f"could not {outcome.verb}: {told}; the lease runs out and the message comes again"


def _verb(lease: Lease[Any], outcome: Outcome) -> None:
    if outcome.verb == ACK:
        lease.ack()
    elif outcome.verb == RETRY:
        lease.retry(outcome.delay, outcome.error)
    elif outcome.verb == REJECT:
        lease.reject(outcome.error or "rejected by the handler")
    else:
        lease.release()
