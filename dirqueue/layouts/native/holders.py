"""Who holds a task: a text of the user's own in the token of a lease.

    TOKEN = WHO__RANDOM-COUNT      WHO: letters, digits and - as they are, every other byte _HH
    .space/holders/HASH            the text of a holder that is too long for a name; WHO is _x and the HASH then

Only names with a card have holders: a token without a card, or without two underscores in a row, is of a consumer that
gave no name.

Layer: layouts.  Touches: .space/holders/.
Invariant: `WHO` is the same for the same text, so that holders are compared without reading anything.
"""

from __future__ import annotations

import base64
import hashlib
import re

from dirqueue.disk import fs, identity
from dirqueue.disk.identity import PROCESS
from dirqueue.errors import SettingsError
from dirqueue.layouts.native import names
from dirqueue.layouts.native.conditions import SPACE
from dirqueue.layouts.native.names import SPARK
from dirqueue.message import Entry

HOLDERS = f"{SPACE}/holders"
#: The most characters that a holder takes in a name.
LONGEST = 64
#: The longest text of a holder.
LIMIT = 4096
BETWEEN = "__"
LONG = "_x"

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_QUOTED = re.compile(rb"_([0-9A-F]{2})")


def who(holder: object) -> str:
    """Return how a holder is written in a token; SettingsError if it cannot be one."""
    if not isinstance(holder, str) or not holder or len(holder) > LIMIT:
        raise SettingsError(f"a holder is a text of 1 to {LIMIT} characters, not {holder!r:.60}")
    try:
        data = holder.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"a holder must be encodable as UTF-8, and {holder!r:.60} is not") from None
    text = "".join(chr(byte) if byte in _PLAIN else f"_{byte:02X}" for byte in data)
    return text if len(text) <= LONGEST else f"{LONG}{hashed(data)}"


def hashed(data: bytes) -> str:
    """Return 32 letters and digits that stand for a longer text."""
    return base64.b32encode(hashlib.sha256(data).digest()[:20]).decode().lower()


def stem(written: str) -> str:
    """Return the beginning of the tokens that this process gives a holder."""
    return f"{written}{BETWEEN}{PROCESS.random}-"


def new_token(written: str) -> str:
    """Return the name of one lease, of a holder or, if it is empty, of this process. Never the same twice."""
    return f"{stem(written)}{next(PROCESS.count)}" if written else identity.new_token()


def next_token(token: str) -> str:
    """Return the name of the next lease of whoever holds this one."""
    return new_token(written_in(token))


def written_in(token: str) -> str:
    """Return how the holder is written in a token; empty if it is of a consumer that gave none."""
    holder, found, _ = token.partition(BETWEEN)
    return holder if found else ""


def holder_of(entry: Entry) -> str:
    """Return how the holder of a message is written; empty if it is a consumer that gave none, or takes lots."""
    if entry.card is None or entry.place.startswith(f"{SPARK}/"):
        return ""
    return written_in(entry.token)


def text_of(entry: Entry, space: str, dir_fd: int) -> str:
    """Return who holds a message or put it; its token if that gave no name, or if a long one is not known any more.

    Args:
        entry: The message; it has a token.
        space: The path of the space from the open directory.
        dir_fd: The open directory.
    """
    written = holder_of(entry)
    if not written:
        return entry.token
    try:
        if written.startswith(LONG):
            return fs.read_file(f"{space}/{HOLDERS}/{written[len(LONG) :]}", dir_fd).decode()
        return _QUOTED.sub(lambda match: bytes([int(match[1], 16)]), written.encode()).decode()
    except (OSError, UnicodeDecodeError):
        return entry.token


def held(id: str, until: int, attempts: int, written: str, card: str) -> str:
    """Return where a task is that a holder keeps until then; one that was never claimed only waits."""
    token = new_token(written)
    if attempts:
        return names.leased(id, until, attempts, token, card)
    return names.later(id, until, 0, card, token)


def keep(holder: str, space: str, dir_fd: int) -> str:
    """Keep the text of a long holder in the space, and return how it is written. Raises plain OSError."""
    written = who(holder)
    for folder in (f"{space}/{SPACE}", f"{space}/{HOLDERS}"):
        fs.make_inner(folder, dir_fd)
    path = f"{space}/{HOLDERS}/{written[len(LONG) :]}"
    try:
        fs.utime(path, dir_fd=dir_fd)  # a purge leaves alone what was used lately
    except FileNotFoundError:
        fs.replace_file(path, holder.encode(), dir_fd, sync=True)
    return written
