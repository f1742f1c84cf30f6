"""What one on-disk format alone promises."""

from support.queues import native

__all__ = ["native"]
