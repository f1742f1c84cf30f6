"""The names of queues, and the directories that they lie in.

Any text is the name of a queue. Letters, digits and `_-=,+@`, and dots that are not the first character, stand for
themselves; every other byte of its UTF-8 form is written %HH. So `a` and `a/b` are two queues side by side, `a` and
`a%2Fb`. A name that would look like a part of a queue (digits, `dead`, `leased`, eight hexadecimal digits as dirq has
them) has its first byte written so too.

Layer: objects.  Pure values, no I/O.
Invariant: `decode(encode(name)) == name`; no two names have the same directory.
"""

from __future__ import annotations

import re

from dirqueue.errors import SettingsError
from dirqueue.layouts import recognise
from dirqueue.layouts.native.names import is_furniture

#: The longest name of a directory, in bytes.
LONGEST = 255

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=,+@.")
_QUOTED = re.compile(rb"%([0-9A-F]{2})")
#: Directories of the native layout and of dirq.
_RESERVED = re.compile(r"dead|done|leased|later|temporary|obsolete|[0-9]+|[0-9a-f]{8}")


def encode(name: object) -> str:
    """Return the directory of a queue; SettingsError if it cannot have one."""
    if not isinstance(name, str) or not name:
        raise SettingsError(f"the name of a queue is a text of at least one character, not {name!r:.60}")
    try:
        text = quote(name)
    except UnicodeEncodeError:
        raise SettingsError(
            f"the name of a queue must be encodable as UTF-8, and {name!r:.60} is not"
        ) from None
    if _is_reserved(text):
        text = f"%{ord(text[0]):02X}{text[1:]}"
    if len(text) > LONGEST:
        raise SettingsError(
            f"the name of a queue may take {LONGEST} bytes as a directory, and {name!r:.60} takes {len(text)}"
        )
    return text


def quote(text: str) -> str:
    """Return a text as one part of a path; UnicodeEncodeError if it is no text."""
    data = text.encode()
    quoted = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def decode(directory: str) -> str | None:
    """Return the name of the queue in a directory; None if no queue has such a directory."""
    name = unquote(directory)
    try:
        return name if name is not None and encode(name) == directory else None
    except SettingsError:
        return None


def unquote(part: str) -> str | None:
    """Return the text that was written as a part of a path; None if there is none."""
    if not part.isascii():
        return None
    try:
        return _QUOTED.sub(lambda match: bytes([int(match[1], 16)]), part.encode()).decode()
    except UnicodeDecodeError:
        return None


def _is_reserved(text: str) -> bool:
    """Return whether a directory of that name would be taken for a part of a queue."""
    return bool(_RESERVED.fullmatch(text)) or is_furniture(text) or bool(recognise(text, lambda: True))
