"""One suite for all layouts: what every queue promises, whatever its files look like."""

from support.queues import given, is_file, layout, make_queue, native, needs, queue

__all__ = ["given", "is_file", "layout", "make_queue", "native", "needs", "queue"]
