"""The queue as directories, so that many processes can read it together: one finds them, each lists some.

Layer: layouts.  Touches: nothing.
Invariant: a message that stays where it is from the search to the last listing is read exactly once, whoever reads
which directory. One that is moved meanwhile may be missed or seen twice; one that is put meanwhile is seen if it goes
to a directory that was found and is listed later.
COST: to find the directories of 1,000,000 messages takes 3 ms; to list their names takes 2 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.layouts.native import inspect, parts, pins
from dirqueue.layouts.native.names import BATCH, LEASED
from dirqueue.message import Entry
from dirqueue.states import VISIBLE

#: The links of a directory without directories in it: its name, and its own ".".
FLAT = 2


class Folder(NamedTuple):
    """A directory of messages."""

    #: With its slash; empty for the queue's own.
    prefix: str
    #: The state of all that is in it; empty if the names tell.
    state: str
    #: Whether directories in it are read with it; else they are folders of their own.
    deep: bool
    #: Roughly how many messages are in it.
    weight: int
    #: Of pinned messages: who pinned them, and until when.
    consumer: str = ""
    until: int = 0
    #: Which share of it is meant, and of how many: by a checksum of the name.
    share: int = 0
    shares: int = 1


def find(directory: Directory, states: frozenset[str], now: int) -> Iterator[Folder]:
    """Yield the directories in which messages of these states can be."""
    if not directory.find():
        return
    for prefix, state in inspect.rooms(directory, states, now):
        if state or not prefix:
            yield from _expand(directory, prefix, state)
        else:
            yield from _folder(directory, prefix)
    if LEASED in states:
        for consumer, until, prefix in pins.folders(directory):
            for each in _folder(directory, prefix, LEASED) if prefix else ():
                yield each._replace(consumer=consumer, until=until)


def _folder(directory: Directory, prefix: str, state: str = "") -> Iterator[Folder]:
    """Yield a directory, unless it is gone."""
    weight = _weight(directory, prefix)
    if weight:
        yield Folder(prefix, state, deep=True, weight=weight)


def _expand(directory: Directory, prefix: str, state: str = "") -> Iterator[Folder]:
    """Yield a directory without those in it, and those in it."""
    inner, count = [], 0
    try:
        for entry in fs.listing(prefix or ".", directory.fd):
            if not entry.is_dir(follow_symlinks=False):
                count += 1
            elif inspect.holds_messages(entry.name, prefix):
                inner.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        pass  # RACE: it was removed; or there never was such a room
    except OSError as error:
        if not prefix or not isinstance(error, PermissionError):
            raise access_error(directory.path, "list", error) from error
    if count:
        yield Folder(prefix, state, deep=False, weight=count)
    for name in sorted(inner):
        place = f"{prefix}{name}/"
        # A batch may have parts: its links tell, where the filesystem counts them.
        if not prefix and name.endswith(BATCH) and _links(directory, place) != FLAT:
            yield from _expand(directory, place, state)
        else:
            yield from _folder(directory, place, state)


def _links(directory: Directory, place: str) -> int:
    try:
        return fs.stat(place, dir_fd=directory.fd).st_nlink
    except OSError:
        return 0


def _weight(directory: Directory, place: str) -> int:
    """Return about how many names a directory has, by its size; 0 if it is not there."""
    try:
        size = fs.stat(place, dir_fd=directory.fd).st_size
    except OSError:
        return 0
    return max(1, size // directory.mount.name_bytes)


def read(
    directory: Directory, folder: Folder, states: frozenset[str], now: int, *, sure: bool = True
) -> Iterator[Entry]:
    """Yield the messages of these states in a share of a directory, as they are now; `sure` as in inspect.contents."""
    for entry in _entries(directory, folder, now, sure=sure):
        if folder.state and entry.state in VISIBLE:
            entry = entry._replace(state=folder.state)  # noqa: PLW2901 - it ended, whatever its name says of its life
        if entry.state in states and (
            folder.shares == 1 or crc32(entry.id.encode()) % folder.shares == folder.share
        ):
            yield entry


def _entries(directory: Directory, folder: Folder, now: int, *, sure: bool) -> Iterator[Entry]:
    if folder.consumer:
        yield from parts.read(directory, folder.prefix, folder.until, folder.consumer)
    elif folder.deep:
        yield from inspect.below(directory, folder.prefix, now, sure=sure)
    else:
        yield from inspect.contents(directory, folder.prefix, now, [], sure=sure)
