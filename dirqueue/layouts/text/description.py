"""What the text layout says of itself.

Layer: layouts.  Pure values, no I/O.
"""

from __future__ import annotations

from dirqueue.layouts.description import Description, IsDirectory

DESCRIPTIONS = (
    Description(
        "text",
        "dirqueue.layouts.text.layout",
        "Text",
        keeps_settings=True,
        is_file=True,
        needs=("create", "lock"),
    ),
)


def recognise(_name: str, _is_directory: IsDirectory) -> tuple[str, ...]:
    """Return nothing: this layout has no names in a directory."""
    return ()
