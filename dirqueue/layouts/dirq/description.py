"""What the two dirq layouts say of themselves.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

from dirqueue.layouts.description import Description, IsDirectory
from dirqueue.layouts.dirq.names import DIRECTORY, OBSOLETE, STAGING

_SIMPLE, _NORMAL = "dirq-simple", "dirq-normal"
#: COMPAT: what dirq's own purge takes for granted.
_DEFAULTS = {"lease": 600.0, "stale": 300.0}

DESCRIPTIONS = (
    Description(
        _SIMPLE,
        "dirqueue.layouts.dirq.simple",
        "DirqSimple",
        defaults=_DEFAULTS,
        needs=("create", "links", "link-race", "ack", "list"),
    ),
    Description(
        _NORMAL,
        "dirqueue.layouts.dirq.normal",
        "DirqNormal",
        defaults=_DEFAULTS,
        needs=("create", "directory", "mkdir-race", "rename", "list"),
        nests=(STAGING, OBSOLETE),
    ),
)


def recognise(name: str, is_directory: IsDirectory) -> tuple[str, ...]:
    """Return the layouts of this folder that have such a name."""
    # Both have directories of eight digits; only one has the other two beside them.
    if name in (STAGING, OBSOLETE):
        return (_NORMAL,) if is_directory() else ()
    return (_SIMPLE, _NORMAL) if DIRECTORY.fullmatch(name) and is_directory() else ()
