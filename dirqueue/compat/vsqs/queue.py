"""The queues of VSQS: publish, receive, delete.

Layer: edges.  What is on disk: layouts/vsqs.py. Times are microseconds, as vsqs 0.3 has them.
"""

from __future__ import annotations

import os
import time
from typing import Any, overload

from dirqueue.errors import Empty, Full
from dirqueue.queue import Queue as _Queue


class QueueException(Exception):
    """Base of the errors of VSQS."""


class QueueFullException(QueueException):
    """`publish` found the queue at its capacity."""


def micros() -> int:
    """Return the time in microseconds, as ids have it."""
    return time.time_ns() // 1000


class Queue:
    """One queue: `Queue(path, capacity=None)` or, as vsqs 0.3 has it, `Queue(manager, path, capacity=None)`.

    Args:
        path: The queue's directory, made if it is not there.
        capacity: `publish` waits when so many messages are in the queue; no limit if None.
    """

    @overload
    def __init__(self, path: str | os.PathLike[str], capacity: int | None = None) -> None: ...
    @overload
    def __init__(
        self, manager: QueueManager, path: str | os.PathLike[str], capacity: int | None = None
    ) -> None: ...

    def __init__(self, *arguments: object, **named: object) -> None:
        manager, path, capacity = _arguments(*arguments, **named)
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1, or None for no limit, not {capacity!r}")
        self.path = os.fspath(path)
        self.capacity = capacity
        self.manager = manager
        # An expired message is anybody's at once: VSQS knows no margin.
        self._queue = _Queue(self.path, layout="vsqs", max_messages=capacity or 0, margin=0)
        self._queue.layout.create()

    def publish(self, data: bytes, timeout: float | None = None) -> str:
        """Put a message; return its id. Waits up to `timeout` seconds for room (for ever if None)."""
        try:
            return self._queue.put(data, timeout=None if timeout is None else max(0.0, timeout))
        except Full:
            raise QueueFullException(self.size()) from None

    def receive(
        self, visibility_timeout: float = 10, timeout: float | None = None
    ) -> tuple[str, bytes] | tuple[None, None]:
        """Claim the oldest message for `visibility_timeout` seconds; (None, None) if none came in `timeout` seconds."""
        seconds = max(visibility_timeout, 0.000_001)
        try:
            lease = self._queue.get(timeout=None if timeout is None else max(0.0, timeout), lease=seconds)
        except Empty:
            return None, None
        return lease.message.id, lease.message.data

    def delete(self, m_id: str) -> None:
        """Remove a message, whoever received it; one that is not there is no error."""
        layout = self._queue.layout
        id = layout.check_id(str(m_id))
        # RACE: it may be requeued or claimed between the look and the removal: then it is looked for again.
        for _ in range(100):
            entry = layout.find(id)
            if entry is None or layout.remove(entry):
                return

    def size(self) -> int:
        """Return how many messages wait or are being worked on."""
        return len(self._queue)

    def close(self) -> None:
        """Let go of the directory."""
        self._queue.close()


def _arguments(*given: Any, **named: Any) -> tuple[QueueManager | None, str | os.PathLike[str], int | None]:
    """Return manager, path and capacity, in whichever of the two orders they were given."""
    if "manager" in named or (given and isinstance(given[0], QueueManager)):
        return _managed(*given, **named)
    return (None, *_plain(*given, **named))


def _managed(
    manager: QueueManager, path: str | os.PathLike[str], capacity: int | None = None
) -> tuple[QueueManager, str | os.PathLike[str], int | None]:
    return manager, path, capacity


def _plain(
    path: str | os.PathLike[str], capacity: int | None = None
) -> tuple[str | os.PathLike[str], int | None]:
    return path, capacity


class QueueManager:
    """Queues that lie in one directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._queues: list[Queue] = []

    def get_queue(self, name: str, capacity: int | None = None) -> Queue:
        """Return the queue of that name."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of a queue")
        queue = Queue(self, os.path.join(self.path, name), capacity=capacity)
        self._queues.append(queue)
        return queue

    def close(self) -> None:
        """Close the queues that were given out."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()
