"""What a layout says of itself before any of its code is loaded.

Layer: layouts.  Pure values, no I/O.
To add a layout: a folder whose `description.py` has DESCRIPTIONS and a function `recognise(name, is_directory)`, which
returns those of its layouts that have such a name at the top of a queue; and its line in `layouts/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

#: Answers whether an entry is a directory; asked only of names for which that matters.
IsDirectory = Callable[[], bool]


class Description(NamedTuple):
    """One layout."""

    name: str
    #: Where its class is: module and name.
    module: str
    cls: str
    #: Settings that its programs take for granted, unless the user gives others.
    defaults: Mapping[str, Any] = MappingProxyType({})
    #: Whether there is a place for queue.json.
    keeps_settings: bool = False
    #: Whether a queue is one file, not a directory.
    is_file: bool = False
    #: What it cannot do without, by the names of the doctor's probes; a layout without any needs no filesystem.
    needs: tuple[str, ...] = ()
    #: Files beside the messages that go when the queue is deleted, and directories that go if they are empty then.
    litter: tuple[str, ...] = ()
    nests: tuple[str, ...] = ()
