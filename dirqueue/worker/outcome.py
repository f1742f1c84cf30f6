"""What became of one delivery: the handler's return or exception, as a verb of the lease.

Layer: conveniences.  Pure values: they cross the socket between a worker and its child processes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from dirqueue.errors import Reject, Release, Retry
from dirqueue.lease import describe

ACK, RETRY, RELEASE, REJECT = "ack", "retry", "release", "reject"


class Cancelled(BaseException):
    """Raised inside a running handler: its lease was lost, its time is over, or the worker must go now.

    Not an Exception, so that a handler's `except Exception` lets it pass. Whoever swallows it gains nothing: the
    message is not committed.
    """


class Outcome(NamedTuple):
    """How to end the lease."""

    verb: str = ACK
    delay: float | None = None
    error: str | None = None


def signal_name(number: int) -> str:
    """Return a signal as people call it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def outcome_of(error: BaseException) -> Outcome:
    """Return what an exception out of a handler asks for."""
    if isinstance(error, Retry):
        return Outcome(RETRY, error.delay, error.error)
    if isinstance(error, Reject):
        return Outcome(REJECT, None, str(error.reason))
    if isinstance(error, Release):
        return Outcome(RELEASE)
    # sys.exit() too: given back uncounted, such a message would come again at once and for ever.
    return Outcome(RETRY, None, describe(error))


def call(handler: Callable[[Any], object], message: Any) -> Outcome:
    """Call the handler; whatever it does is an outcome, only a cancellation passes."""
    try:
        handler(message)
    except Cancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - the handler is a guest: nothing of it may end the worker
        return outcome_of(error)
    return Outcome()
