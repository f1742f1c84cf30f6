"""What the native layout says of itself.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

from dirqueue.disk import ballast
from dirqueue.layouts.description import Description, IsDirectory
from dirqueue.layouts.native import conditions, names
from dirqueue.settings import FILE

_OURS = ("native",)
_NONE: tuple[str, ...] = ()
#: Names that no other layout gives a meaning to, so that nobody else needs to be asked.
SOLE = frozenset((FILE, names.SPARK)) | names.ROOMS
_DIRECTORIES = names.CONTAINERS | {names.STAGING}

DESCRIPTIONS = (
    Description(
        "native",
        "dirqueue.layouts.native.layout",
        "Native",
        keeps_settings=True,
        needs=("create", "names", "rename", "rooms", "replace", "directory", "ack", "list", "clock"),
        litter=(FILE, ballast.NAME, ".purge.lock", names.PAUSED),
        nests=(names.SPARK,),
    ),
)


def recognise(name: str, is_directory: IsDirectory) -> tuple[str, ...]:
    """Return ("native",) if the native layout has such a name."""
    if name == FILE:
        return _NONE if is_directory() else _OURS
    if name == names.SPARK:
        return _OURS if is_directory() else _NONE
    parsed = names.parse(name)
    if parsed is None:
        return _OURS if conditions.parse(name) is not None and not is_directory() else _NONE
    return _OURS if is_directory() == (parsed.kind in _DIRECTORIES) else _NONE
