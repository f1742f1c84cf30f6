"""Workers: claim, run a handler, keep the lease, commit.

Layer: conveniences.  Touches: nothing itself; every change is a verb of a lease.
Invariant: a lease that was lost is never committed, whatever the handler did.
Crash: at any point the lease runs out and the message is delivered again, counted.
"""

from dirqueue.worker.events import Counts, Event
from dirqueue.worker.outcome import Cancelled
from dirqueue.worker.worker import Worker

__all__ = ["Cancelled", "Counts", "Event", "Worker"]
