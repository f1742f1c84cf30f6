"""Queues of the dirq layouts."""

from support.dirq_queues import made, make, normal, queue, simple

__all__ = ["made", "make", "normal", "queue", "simple"]
