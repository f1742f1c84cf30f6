"""dirqueue: a work queue that is just a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    # objects
    "Lease": "lease",
    "Message": "message",
    "Purged": "layouts.base",
    "Queue": "queue",
    "QueueSet": "queueset",
    "Settings": "settings",
    "Stats": "stats",
    "Worker": "worker",
    "Committed": "space",
    "Put": "message",
    "Space": "space",
    "Transaction": "space",
    "Written": "space",
    # errors
    "CodecError": "errors",
    "Conflict": "errors",
    "Contended": "errors",
    "InDoubt": "errors",
    "Move": "errors",
    "DirQueueError": "errors",
    "Empty": "errors",
    "Full": "errors",
    "InvalidId": "errors",
    "LayoutError": "errors",
    "LeaseLost": "errors",
    "MessageError": "errors",
    "MessageNotFound": "errors",
    "MessageTooLarge": "errors",
    "QueueAccess": "errors",
    "QueueError": "errors",
    "QueueNotFound": "errors",
    "SettingsError": "errors",
    "Unsupported": "errors",
    # raised by handlers
    "Reject": "errors",
    "Release": "errors",
    "Retry": "errors",
}
__all__ = [
    "CodecError",
    "Committed",
    "Conflict",
    "Contended",
    "DirQueueError",
    "Empty",
    "Full",
    "InDoubt",
    "InvalidId",
    "LayoutError",
    "Lease",
    "LeaseLost",
    "Message",
    "MessageError",
    "MessageNotFound",
    "MessageTooLarge",
    "Move",
    "Purged",
    "Put",
    "Queue",
    "QueueAccess",
    "QueueError",
    "QueueNotFound",
    "QueueSet",
    "Reject",
    "Release",
    "Retry",
    "Settings",
    "SettingsError",
    "Space",
    "Stats",
    "Transaction",
    "Unsupported",
    "Worker",
    "Written",
]

if TYPE_CHECKING:
    from dirqueue.errors import (
        CodecError,
        Conflict,
        Contended,
        DirQueueError,
        Empty,
        Full,
        InDoubt,
        InvalidId,
        LayoutError,
        LeaseLost,
        MessageError,
        MessageNotFound,
        MessageTooLarge,
        Move,
        QueueAccess,
        QueueError,
        QueueNotFound,
        Reject,
        Release,
        Retry,
        SettingsError,
        Unsupported,
    )
    from dirqueue.layouts.base import Purged
    from dirqueue.lease import Lease
    from dirqueue.message import Message, Put
    from dirqueue.queue import Queue
    from dirqueue.queueset import QueueSet
    from dirqueue.settings import Settings
    from dirqueue.space import Committed, Space, Transaction, Written
    from dirqueue.stats import Stats
    from dirqueue.worker import Worker


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `import dirqueue` itself costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dirqueue' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"dirqueue.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
