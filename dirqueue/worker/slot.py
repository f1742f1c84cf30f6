"""One slot of a worker: claim, run, commit, again.

Layer: conveniences.
Invariant: every claim ends in exactly one of acked, retried, dead, released, lost, or in an `error` event with the
reason, and then the lease runs out.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dirqueue.errors import Conflict, DirQueueError, Empty, LeaseLost, SettingsError, Unsupported
from dirqueue.failure import Reason, describe, trace_of
from dirqueue.lease import Lease, Outcome
from dirqueue.worker.events import Event
from dirqueue.worker.outcome import Cancelled
from dirqueue.worker.policy import Policy
from dirqueue.worker.watchdog import LIMIT, STOP, Delivery

if TYPE_CHECKING:
    from dirqueue.worker.run import Run

#: How long one look for a message may take before the slot asks whether to stop.
LOOK_SECONDS = 0.5
#: Pause between looks while other slots may still bring work to an empty queue.
SHORT_PAUSE = 0.02
#: A queue that cannot be read, or a fork server that cannot fork, may recover: tries, and the first and longest pause.
TRIES = 10
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
#: Tries to commit, and the pause after the first failed one.
COMMITS, COMMIT_PAUSE = 4, 0.1


class Call(Protocol):
    """A way to run a handler that can be stopped from another thread."""

    def prepare(self) -> bool: ...
    def run(self, delivery: Delivery) -> Outcome: ...
    def cancel(self, delivery: Delivery) -> bool: ...
    def close(self) -> None: ...


class Slot:
    """Handles one message at a time, in a thread of its own."""

    def __init__(self, run: Run, call: Call, number: int) -> None:
        self._run = run
        self.call = call
        #: Messages that it may handle at once.
        self.places = 1
        #: Whether the last look found nothing.
        self.idle = False
        self.ended = False
        self._failures = 0
        # A handler that cannot be stopped must not keep the program from ending.
        self.thread = threading.Thread(target=self._main, name=f"dirqueue-worker-{number}", daemon=True)

    def _main(self) -> None:
        run = self._run
        try:
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001 - raised by run(), after the other slots have finished
            run.fail(error)
        finally:
            self.idle = True
            self.call.close()
            self.ended = True
            run.wake()

    def _turn(self) -> bool:
        """Handle one message, or find that there is none. Return whether to go on."""
        run = self._run
        if run.stopping or not run.reserve():
            return False
        run.refresh()
        try:
            if not self.call.prepare():
                run.give_back()
                return False
            looked = time.monotonic()
            lease = run.plan.source.get(timeout=0 if run.until_empty else LOOK_SECONDS, lease=run.plan.lease)
        except Empty:
            run.report_buried()
            run.give_back()
            self._failures = 0
            self.idle = True
            return run.goes_on(looked) and not (run.until_empty and run.pause(SHORT_PAUSE))
        except (DirQueueError, OSError) as error:
            run.give_back()
            return self._trouble(error)
        self.idle = False
        self._failures = 0
        run.report_buried()
        self._deliver(lease)
        run.worked()
        return True

    def _trouble(self, error: Exception) -> bool:
        """Wait before the next try, or raise the error when there were too many."""
        self._failures += 1
        if self._failures >= TRIES or isinstance(error, SettingsError) or _is_final(error):
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: a cycle would keep the descriptors in it open
        self._run.emit(Event("error", self._run.plan.name, error=str(error)))
        pause = min(FIRST_PAUSE * 2.0 ** (self._failures - 1), LONGEST_PAUSE)
        return not self._run.pause(pause)

    def _begun(self, lease: Lease[Any]) -> Delivery | None:
        """Return a delivery that is watched from now on; None if the worker has stopped, and it was released."""
        run = self._run
        delivery = Delivery(lease, run.plan.time_limit, self.call.cancel)
        run.emit(delivery.event("leased"))
        if run.stopping:
            # RACE: stopped while we were claiming, perhaps what another slot has just released.
            settle(delivery, Outcome("release"), None, run.emit)
            return None
        run.watchdog.add(delivery)
        return delivery

    def _deliver(self, lease: Lease[Any]) -> None:
        run, delivery = self._run, self._begun(lease)
        if delivery is None:
            return
        try:
            outcome = self.call.run(delivery)
        except Cancelled:
            outcome = Outcome("release")
        except Exception as error:  # noqa: BLE001 - the body cannot be read or sent: a failure of this message
            outcome = Outcome("retry", None, describe(error))
        finally:
            # RACE: from here on the watchdog starts nothing new for it; what it has begun, the lease's lock orders.
            run.watchdog.remove(delivery)
        run.refresh()
        settle(delivery, outcome, run.plan.time_limit, run.emit)


def settle(delivery: Delivery, outcome: Outcome, limit: float | None, emit: Callable[[Event], None]) -> None:
    """End the lease as the outcome says, unless the delivery was cancelled; then as the reason says."""
    if delivery.cancelled == LIMIT:
        outcome = Outcome("retry", None, f"time limit of {limit:g} s exceeded")
    elif delivery.cancelled == STOP:
        outcome = Outcome("release")
    error = outcome.error
    if not delivery.lease.ended:  # a lease that was lost has ended too
        error = _commit(delivery.lease, outcome, delivery.policy) or error
    if not delivery.report():
        return
    how = delivery.lease.ended or "error"
    emit(delivery.event(how, None if how in ("acked", "released") else error))


def _is_final(error: Exception) -> bool:
    """Return whether trying again is of no use until somebody changes permissions or mounts."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def _commit(lease: Lease[Any], outcome: Outcome, policy: Policy) -> str | None:
    """Use the verb, again if the disk refuses. Return the error if it keeps refusing."""
    reason = ""
    outcome = policy.conclude(outcome, lease)
    for attempt in range(COMMITS):
        try:
            outcome.end(lease)
            return None
        except LeaseLost as error:
            return str(error)
        except Conflict as error:
            reason = str(error)
            policy.refused(error, lease)
            outcome = Outcome("retry", None, reason)  # LeaseLost if that was the conflict
        except Unsupported as error:
            if outcome.verb == "release":
                return str(error)
            outcome = Outcome("release")  # a layout that cannot count or bury: all it can do is give it back
        except SettingsError as error:
            failed = Reason(f"{outcome.error or 'failed'} ({error})", trace_of(outcome.error))
            outcome = Outcome("retry", None, failed)
        except (DirQueueError, OSError) as error:
            reason = str(error)
            if _is_final(error):
                break
            time.sleep(COMMIT_PAUSE * 2.0**attempt)
    return f"could not {outcome.verb}: {reason}; the lease runs out and the message comes again"
