"""Queues of the vsqs layout."""

from support.vsqs_queues import make, queue

__all__ = ["make", "queue"]
