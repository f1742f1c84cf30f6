"""What a worker does with messages that fail, and with commits that are refused.

Layer: conveniences.  Pure values, and functions of the user.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from dirqueue.errors import Conflict
from dirqueue.lease import Lease, Outcome


class Policy(NamedTuple):
    """The arguments of a Worker that decide about failures."""

    #: The queue for messages that failed for good, by the name of the queue they came from; dead/ if None.
    failed_to: Callable[[str], str] | None = None
    #: Deliveries after which a failure is for good; the queue's max_attempts if 0.
    max_failures: int = 0
    #: Called with the message and the Conflict; an exception that it returns ends the worker.
    on_conflict: Callable[[Any, Conflict], Exception | None] | None = None
    #: Ends the worker with an error; given to it by the run.
    fail: Callable[[Exception], None] | None = None

    def conclude(self, outcome: Outcome, lease: Lease[Any]) -> Outcome:
        """Return how to end the lease: a failure for good goes to another queue, or is rejected."""
        attempts = lease.message.attempts
        limit = self.max_failures or lease.layout.settings.max_attempts
        final = outcome.verb == "reject" or (outcome.verb == "retry" and 0 < limit <= attempts)
        if not final:
            return outcome
        error = outcome.error or f"failed {attempts} times"
        if self.failed_to is not None:
            return Outcome("move", None, error, (), self.failed_to(_name_of(lease)))
        return Outcome("reject", None, error) if self.max_failures else outcome

    def refused(self, conflict: Conflict, lease: Lease[Any]) -> None:
        """Ask the user about a commit that was refused: the work is thrown away, and the worker goes on or ends."""
        if self.on_conflict is not None:
            ending = self.on_conflict(lease.message, conflict)
            if isinstance(ending, Exception) and self.fail is not None:
                self.fail(ending)


def _name_of(lease: Lease[Any]) -> str:
    """Return the name of the queue that a message came from."""
    space = lease.layout.space
    return os.path.basename(lease.path) if space is None else space.queue_of(lease)
