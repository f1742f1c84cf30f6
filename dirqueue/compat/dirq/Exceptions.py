"""The errors of dirq.

Layer: edges.
"""

from __future__ import annotations

import errno


class QueueError(Exception):
    """Something about the queue, its schema, or a name."""


class QueueLockError(QueueError):
    """An element could not be locked, or is not locked by us any more."""


class NotLockedError(QueueLockError, FileNotFoundError):
    """An element is not locked. dirq raises either of the parents, depending on the queue."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.errno = errno.ENOENT
