"""The on-disk formats, one module each, and how to tell them apart.

Layer: layouts.
"""

from __future__ import annotations

import importlib

from dirqueue.errors import LayoutError
from dirqueue.home import Home
from dirqueue.layouts.base import Layout
from dirqueue.settings import Settings

_MODULES = {
    "native": ("dirqueue.layouts.native", "Native"),
}


def open_layout(home: Home, settings: Settings) -> Layout:
    """Return the layout that the settings name or, with "auto", the one that the directory is written in."""
    name = settings.layout
    if name == "auto":
        name = detect(home)
    if name not in _MODULES:
        raise LayoutError(f"the layout {name!r} is not in this version of dirqueue", path=home.path)
    module, cls = _MODULES[name]
    layout: Layout = getattr(importlib.import_module(module), cls)(home, settings)
    return layout


def detect(home: Home) -> str:
    """Return the layout that a directory is written in; an empty or missing one is native."""
    return "native"
