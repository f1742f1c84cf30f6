"""What lies in the parts of a lot of pinned messages (see pins.py).

Layer: layouts.  Touches: attributes/ of messages that were acknowledged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import TIME_DIGITS
from dirqueue.layouts.native import links, names
from dirqueue.layouts.native.extras import place_of
from dirqueue.layouts.native.names import ATTRIBUTES, DELAYED, LEASED, READY, Name
from dirqueue.message import Entry


def count(directory: Directory, part: str) -> int:
    """Return the number of messages in a part."""
    found = fs.names_in(part, directory.fd)
    return len(found) if names.are_plain(found) else len(_messages(found))


def read(
    directory: Directory, prefix: str, until: int, consumer: str, share: int = 0, shares: int = 1
) -> Iterator[Entry]:
    """Yield the messages in a part, or a share of them, as others see them: their token is the consumer.

    A share is the same at every look, and so is the order.
    """
    try:
        found = fs.names_in(prefix, directory.fd)
    except (FileNotFoundError, NotADirectoryError):
        return  # RACE: it ended meanwhile
    if names.are_plain(found):
        found.sort()
        for text in found[share::shares]:
            yield Entry(text, LEASED, prefix + text, int(text[:TIME_DIGITS]), until, 1, consumer)
        return
    for name in sorted(_messages(found), key=lambda name: names.order_key(name.id))[share::shares]:
        put, lead = names.micros_of(name.id), names.priority_of(name.id)
        place, attempts = prefix + name.text, name.attempts + 1
        yield Entry(name.id, LEASED, place, put, until, attempts, consumer, lead, name.card)


def contents(directory: Directory, path: str) -> Iterator[tuple[str, Name]]:
    """Yield (part, message) of a lot."""
    for part in list(fs.listing(path, directory.fd)):
        if part.is_dir(follow_symlinks=False):
            yield from ((part.name, name) for name in messages(directory, f"{path}/{part.name}"))


def messages(directory: Directory, part: str) -> list[Name]:
    """Return the messages in a part. Raises plain OSError."""
    return _messages(fs.names_in(part, directory.fd))


def forget_carried(directory: Directory, part: str) -> None:
    """Remove what the messages of an acknowledged part carried, if any message of the queue carries something."""
    if fs.exists(ATTRIBUTES, directory.fd):
        with contextlib.suppress(FileNotFoundError):  # RACE: another process finishes it
            for each in messages(directory, part):
                fs.discard(place_of(each.id), directory.fd)


def foreign(directory: Directory, part: str) -> list[str]:
    """Return the links in a part that are not ours: they came along with a whole directory, and are no messages."""
    prefix = part if part.endswith("/") else f"{part}/"
    try:
        with fs.entries(prefix, directory.fd) as found:
            linked = [entry.name for entry in found if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []  # RACE: it ended meanwhile
    return [name for name in linked if links.is_foreign(prefix + name, directory.fd)]


def _messages(found: list[str]) -> list[Name]:
    return [name for name in map(names.parse, found) if name and name.kind in (READY, DELAYED)]
