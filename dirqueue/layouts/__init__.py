"""The on-disk formats, one folder each, and how to tell them apart.

Layer: layouts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Container
from functools import partial
from typing import Any

from dirqueue.disk import beside, fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS as _ID_DIGITS
from dirqueue.errors import LayoutError, SettingsError, access_error
from dirqueue.layouts.base import Layout, refuse
from dirqueue.layouts.description import Description, IsDirectory
from dirqueue.settings import Settings

#: Every layout, and the module that describes it: to add one is to add a line here.
_DESCRIBED_IN = {
    "native": "dirqueue.layouts.native.description",
    "vsqs": "dirqueue.layouts.vsqs.description",
    "dirq-simple": "dirqueue.layouts.dirq.description",
    "dirq-normal": "dirqueue.layouts.dirq.description",
    "text": "dirqueue.layouts.text.description",
    "null": "dirqueue.layouts.null",
}
NAMES = tuple(_DESCRIBED_IN)
#: How many names are looked at, at most, to tell the format of a directory.
ENOUGH = 10_000
_NATIVE = frozenset(("native",))


def locate(path: str, *, create: bool = True, layout: object = "auto") -> Directory:
    """Return the home of the queue at a path: a directory or, if the layout or what is there says so, a file."""
    named = layout != "auto" and layout in NAMES
    is_file = describe(str(layout)).is_file if named else beside.is_home(path)
    return beside.Beside(path, create=create) if is_file else Directory(path, create=create)


def open_layout(directory: Directory, settings: Settings, given: Container[str] = ()) -> Layout:
    """Return the layout that the settings name or, with "auto", the one that the directory is written in.

    `given` names the settings that the user chose; the others are those of the format's own programs.
    """
    name = settings.layout
    if name == "auto":
        name = detect(directory)
    defaults = describe(name).defaults
    if defaults:
        usual = {key: value for key, value in defaults.items() if key not in given}
        settings = Settings(**(settings._asdict() | usual))
    layout: Layout = layout_class(name)(directory, settings)
    if directory.foreign and settings.max_attempts and "max_attempts" in given:
        refuse(layout, "attempts", f"give up after max_attempts={settings.max_attempts}")
    return layout


def describe(name: str) -> Description:
    """Return what a layout says of itself."""
    if name not in _DESCRIBED_IN:
        raise SettingsError(f"layout must be one of auto, {', '.join(NAMES)}, not {name!r:.60}")
    described: tuple[Description, ...] = _module(name).DESCRIPTIONS
    return next(each for each in described if each.name == name)


def layout_class(name: str) -> Any:
    """Return the class of a layout."""
    description = describe(name)
    return getattr(importlib.import_module(description.module), description.cls)


def _module(name: str) -> Any:
    return importlib.import_module(_DESCRIBED_IN[name])


def detect(directory: Directory) -> str:
    """Return the layout that a directory is written in; an empty or missing one is native.

    Raises:
        LayoutError: names of different formats lie side by side.
    """
    if isinstance(directory, beside.Beside):
        return _detect_file(directory)
    if not directory.find():
        return "native"
    #: Which layouts have all names so far, and the name that each set of them was shown by.
    fits = frozenset(NAMES)
    shown: dict[frozenset[str], str] = {}
    try:
        for count, entry in enumerate(fs.listing(".", directory.fd)):
            kinds = recognise(entry.name, partial(entry.is_dir, follow_symlinks=False))
            if kinds and kinds not in shown:
                shown[kinds] = entry.name
                fits &= kinds
            if count > ENOUGH:
                break
    except OSError as error:
        raise access_error(directory.path, "look into", error) from error
    if not fits:
        raise _mixture(directory.path, shown)
    return _preferred(fits) if shown else "native"


def _detect_file(home: beside.Beside) -> str:
    """Return "text" if each line of the file begins as that format has it; LayoutError if not."""
    from dirqueue.layouts.text import grammar

    try:
        fd = beside.opened(home.path, os.O_RDONLY)
        try:
            data = fs.pread(fd, grammar.ENOUGH, 0)
        finally:
            fs.close(fd)
    except FileNotFoundError:
        return "text"  # an editor is replacing it
    except OSError as error:
        raise access_error(home.path, "look into", error) from error
    if not data and home.fd < 0:
        raise LayoutError(
            f"{home.path!r} is an empty file, which says nothing of its layout: `dirqueue create FILE --layout text` "
            "makes it a queue",
            path=home.path,
        )
    if not grammar.looks_like(data, whole=len(data) < grammar.ENOUGH):
        raise LayoutError(
            f"{home.path!r} is a file, but not a text queue: each line of one begins with -, =, !, #, a space or a "
            'backslash; give a directory, or layout="text" if odd lines are to be passed over',
            path=home.path,
        )
    return "text"


def recognise(name: str, is_directory: IsDirectory) -> frozenset[str]:
    """Return the layouts in which a queue has such a name at its top; none if it is no sign of any.

    The descriptions of other layouts are loaded only for names that the native one does not have for itself.
    """
    if len(name) == _ID_DIGITS and name.isascii() and name.isdigit():  # most names of most queues
        return _NATIVE if name[0] != "0" and not is_directory() else frozenset()
    native = _module("native")
    kinds = native.recognise(name, is_directory)
    if name[0] == "." or name in native.SOLE or (kinds and name.find(".") >= _ID_DIGITS):
        return frozenset(kinds)
    found = {kind for each in _DESCRIBED_IN for kind in _module(each).recognise(name, is_directory)}
    return frozenset(found)


def _preferred(fits: frozenset[str]) -> str:
    """Return the layout that is meant where names fit several: native last, since it reads VSQS names too."""
    return next((name for name in NAMES if name in fits and name != "native"), "native")


def _mixture(path: str, shown: dict[frozenset[str], str]) -> LayoutError:
    """Return the error for names of which no layout has all."""
    pairs = ((a, b) for a in shown for b in shown if not a & b)
    one, two = sorted(next(pairs), key=_preferred)
    return LayoutError(
        f"{path!r} is a mixture: {shown[one]!r} is of the layout {_preferred(one)}, {shown[two]!r} of "
        f"{_preferred(two)}; move one of them elsewhere, or name the layout that is meant",
        path=path,
    )
