"""What the vsqs layout says of itself.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

from dirqueue.layouts.description import Description, IsDirectory
from dirqueue.layouts.native.names import PAUSED
from dirqueue.layouts.vsqs import names
from dirqueue.settings import FILE

DESCRIPTIONS = (
    Description(
        "vsqs",
        "dirqueue.layouts.vsqs.layout",
        "Vsqs",
        keeps_settings=True,
        needs=("create", "rename", "ack", "list"),
        litter=(FILE, PAUSED),
    ),
)


def recognise(name: str, is_directory: IsDirectory) -> tuple[str, ...]:
    """Return the layouts of this folder that have such a name."""
    return ("vsqs",) if names.parse(name) is not None and not is_directory() else ()
