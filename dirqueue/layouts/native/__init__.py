"""The native layout; `layout.py` is where to start."""

from .layout import Native

__all__ = ["Native"]
