"""The interface of the index's `entroq` 0.15 on a directory: no service, no HTTP, the same calls.

    from dirqueue.compat.entroq import EntroQJSON, EntroQWorker, Modification, TaskData

    async with EntroQJSON("spool") as eq: ...

Layer: edges.  `classic` has the interface of the document's Python module.
What is different, and why:

* `EntroQJSON` takes a directory, a space, in place of an address. Whoever may write to it may do everything.
* There are no documents: the types are not here, `claim_docs` raises `UnsupportedError`, handlers get an empty list.
* To keep the index's own worker and types, give them: `EntroQJSON("spool", types=entroq)`.
* `claim` is woken by whoever puts, also by plain `Queue.put`; `poll_ms` is not needed.
* A disk that refuses is a `TransportError`.
"""

from dirqueue.compat.entroq.client import EntroQJSON
from dirqueue.compat.entroq.types import (
    DependencyError,
    InvalidArgumentError,
    Modification,
    ModifyResult,
    Task,
    TaskArrival,
    TaskChange,
    TaskData,
    TaskID,
    TransportError,
    UnsupportedError,
)
from dirqueue.compat.entroq.worker import (
    EntroQWorker,
    FatalWorker,
    Handler,
    MoveError,
    RetryError,
    StopWorker,
    default_err_q_map,
)

__all__ = [
    "DependencyError",
    "EntroQJSON",
    "EntroQWorker",
    "FatalWorker",
    "Handler",
    "InvalidArgumentError",
    "Modification",
    "ModifyResult",
    "MoveError",
    "RetryError",
    "StopWorker",
    "Task",
    "TaskArrival",
    "TaskChange",
    "TaskData",
    "TaskID",
    "TransportError",
    "UnsupportedError",
    "default_err_q_map",
]
