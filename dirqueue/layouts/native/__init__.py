"""The native layout; `layout.py` is where to start."""

from dirqueue.layouts.native.layout import Native

__all__ = ["Native"]
