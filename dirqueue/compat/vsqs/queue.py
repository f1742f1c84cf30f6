"""The queues of VSQS: publish, receive, delete.

Layer: edges.  What is on disk: layouts/vsqs/. Times are microseconds, as vsqs 0.3 has them.
"""

from __future__ import annotations

import os
import time
from typing import Any, overload

from dirqueue.errors import Empty, InvalidId
from dirqueue.queue import Queue as _Queue
from dirqueue.waiting import Waiter


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
        capacity: `publish` waits when so many messages are in the queue; no limit if None. May be changed later.
    """

    @overload
    def __init__(self, path: str | os.PathLike[str], capacity: int | None = None) -> None: ...
    @overload
    def __init__(
        self, manager: QueueManager, path: str | os.PathLike[str], capacity: int | None = None
    ) -> None: ...

    def __init__(self, *arguments: object, **named: object) -> None:
        manager, path, capacity = _arguments(*arguments, **named)
        self.path = os.fspath(path)
        self.capacity = capacity
        self.manager = manager
        # An expired message is anybody's at once: VSQS knows no margin.
        self._queue = _Queue(self.path, layout="vsqs", margin=0)
        self._queue.layout.create()

    def publish(self, data: bytes, timeout: float | None = None) -> str:
        """Put a message; return its id. Wait up to `timeout` seconds for room, without end if None."""
        if self.capacity is not None:
            self._wait_for_room(None if timeout is None else max(0.0, timeout))
        return self._queue.put(data)

    def _wait_for_room(self, timeout: float | None) -> None:
        with Waiter((self._queue.layout,), timeout, for_room=True) as waiter:
            while self.capacity is not None and (size := self.size()) >= self.capacity:
                if not waiter.pause():
                    raise QueueFullException(size)

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
        """Remove a message, whoever received it; one that is not there, or what is no id, is no error."""
        layout = self._queue.layout
        try:
            id = layout.check_id(str(m_id))
        except InvalidId:
            return
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
        """Return the queue of that name, which may lie in sub-directories ("a/b") but not outside of the manager's."""
        if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"{name!r} is not a valid name of a queue")
        queue = Queue(self, os.path.join(self.path, name), capacity=capacity)
        self._queues.append(queue)
        return queue

    def close(self) -> None:
        """Close the queues that were given out."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()
