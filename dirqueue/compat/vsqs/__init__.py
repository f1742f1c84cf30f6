"""The interface of VSQS: change `from vsqs` to `from dirqueue.compat.vsqs` and go on.

Layer: edges.  The module is named as vsqs 0.3 names it: queue; its names can be had from here too.
"""

from dirqueue.compat.vsqs.queue import Queue, QueueException, QueueFullException, QueueManager

__all__ = ["Queue", "QueueException", "QueueFullException", "QueueManager"]
