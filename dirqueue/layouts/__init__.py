"""The on-disk formats, one module each, and how to tell them apart.

Layer: layouts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Container
from typing import Any

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import LayoutError, SettingsError, access_error
from dirqueue.layouts.base import Layout, refuse
from dirqueue.settings import Settings

_MODULES = {
    "native": ("dirqueue.layouts.native", "Native"),
    "vsqs": ("dirqueue.layouts.vsqs.layout", "Vsqs"),
    "dirq-simple": ("dirqueue.layouts.dirq.simple", "DirqSimple"),
    "dirq-normal": ("dirqueue.layouts.dirq.normal", "DirqNormal"),
    "null": ("dirqueue.layouts.null", "Null"),
}
#: COMPAT: what the programs of a format take for granted, unless somebody asks for something else.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "dirq-simple": {"lease": 600.0, "stale": 300.0},
    "dirq-normal": {"lease": 600.0, "stale": 300.0},
}
#: Formats with a place for queue.json.
KEEPS_SETTINGS = frozenset(("native", "vsqs"))

#: How many names are looked at, at most, to tell the format of a directory.
ENOUGH = 10_000
_DIRQ = re.compile(r"[0-9a-f]{8}")
_VSQS = re.compile(r"([1-9][0-9]{12}|[1-9][0-9]{15})(\.([1-9][0-9]{12}|[1-9][0-9]{15}|new))?")
_NATIVE = re.compile(
    r"[1-9][0-9]{24,33}(\..*)?|[1-9][0-9]{12,33}\.(batch|batch\.new|slice|error)|(.*\.){3}.*"
)
_NORMAL = frozenset(("temporary", "obsolete"))


def open_layout(directory: Directory, settings: Settings, given: Container[str] = ()) -> Layout:
    """Return the layout that the settings name or, with "auto", the one that the directory is written in.

    `given` are the settings that somebody asked for: what nobody did is as the format's own programs have it.
    """
    name = settings.layout
    if name == "auto":
        name = detect(directory)
    if name in _DEFAULTS:
        usual = {key: value for key, value in _DEFAULTS[name].items() if key not in given}
        settings = Settings(**(settings._asdict() | usual))
    layout: Layout = layout_class(name)(directory, settings)
    if directory.foreign and settings.max_attempts and "max_attempts" in given:
        refuse(layout, "attempts", f"give up after max_attempts={settings.max_attempts}")
    return layout


def layout_class(name: str) -> Any:
    """Return the class of a layout."""
    if name not in _MODULES:
        raise SettingsError(f"layout must be one of {', '.join(_MODULES)}, not {name!r:.60}")
    module, cls = _MODULES[name]
    return getattr(importlib.import_module(module), cls)


def detect(directory: Directory) -> str:
    """Return the layout that a directory is written in; an empty or missing one is native.

    Raises:
        LayoutError: names of different formats lie side by side.
    """
    if not directory.find():
        return "native"
    shown: dict[str, str] = {}
    try:
        for count, entry in enumerate(fs.listing(".", directory.fd)):
            kind = _kind(entry.name, is_directory=entry.is_dir)
            if kind:
                shown.setdefault(kind, entry.name)
            if count > ENOUGH:
                break
    except OSError as error:
        raise access_error(directory.path, "look into", error) from error
    return _decide(directory.path, shown)


def _kind(name: str, is_directory: Any) -> str:
    """Return the format that a name belongs to, or nothing."""
    if len(name) == 25 or name == "queue.json":
        return "native" if name == "queue.json" or (name.isascii() and name.isdigit()) else ""
    if name in _NORMAL:
        return "dirq-normal" if is_directory(follow_symlinks=False) else ""
    if _DIRQ.fullmatch(name):
        return "dirq" if is_directory(follow_symlinks=False) else ""
    if _VSQS.fullmatch(name):
        return "" if is_directory(follow_symlinks=False) else "vsqs"
    return "native" if _NATIVE.fullmatch(name) and name[0].isdigit() else ""


def _decide(path: str, shown: dict[str, str]) -> str:
    if "dirq" in shown:
        # Both formats of dirq have such directories; only one has the other two beside them.
        kind = "dirq-normal" if "dirq-normal" in shown else "dirq-simple"
        shown.setdefault(kind, shown.pop("dirq"))
    if "native" in shown:
        shown.pop("vsqs", None)  # the native layout reads what VSQS programs put into its directory
    if len(shown) > 1:
        (one, first), (two, second) = sorted(shown.items())[:2]
        raise LayoutError(
            f"{path!r} is a mixture: {first!r} is of the layout {one}, {second!r} of {two}; "
            f"move one of them elsewhere, or name the layout that is meant",
            path=path,
        )
    return next(iter(shown), "native")
