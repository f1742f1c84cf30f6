"""Whether a directory is a queue, by the names in it.

Layer: layouts.  Touches: nothing.
A message, a directory of messages or settings make a queue. What dirqueue keeps beside them (the reserve, the lock of
a purge) does so only where no other directory lies: earlier versions left both in directories that hold queues.
"""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple

from dirqueue.disk import beside, fs
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts import describe, detect, locate, recognise
from dirqueue.layouts.dirq.names import ELEMENT, ELEMENT_LENGTH
from dirqueue.layouts.native import links, names
from dirqueue.layouts.native.names import LATER, LEASED_ROOM, READY, ROOMS, SPARK, TEMPORARY
from dirqueue.settings import FILE

#: Names that are read, at most, to recognise a directory.
ENOUGH = 4096
#: Files of ours that are no messages. Alone they say little: see above.
FURNITURE = tuple(name for name in describe("native").litter if name != FILE)

#: What files are named that are looked at, if nothing beside them says that they are queues.
SUFFIXES = (".tq",)

QUEUE, EMPTY, OTHER = "queue", "empty", "other"


class Contents(NamedTuple):
    """What the names in a directory say."""

    #: QUEUE; EMPTY, which is a queue that was never used, or nothing; or OTHER.
    kind: str
    #: Directories in it that belong to no queue here: they may be queues, or hold some.
    below: list[str]
    #: Files in it that are queues by themselves.
    files: list[str]


def contents(path: str) -> Contents:
    """Read the names in a directory. Raises plain OSError; the caller adds the context."""
    below: list[str] = []
    files: list[str] = []
    dated: list[str] = []
    sign = furniture = folders = False
    count = 0
    with fs.scandir(path) as entries:
        for count, entry in enumerate(entries, 1):
            name, folder = entry.name, entry.is_dir(follow_symlinks=False)
            if not folder and (name in FURNITURE or TEMPORARY.fullmatch(name)):
                furniture = True
            elif _is_native(entry, path):
                sign = True
            elif folder and recognise(name, lambda: True) - {"native"}:
                dated.append(name)
            elif not folder and name.endswith(SUFFIXES) and is_text(os.path.join(path, name)):
                files.append(name)
            elif folder and beside.file_of(name) and is_text(os.path.join(path, beside.file_of(name))):
                files.append(beside.file_of(name))
            elif folder or _leads_to_directory(entry):
                folders = True
                if not name.startswith("."):
                    below.append(name)
            if count >= ENOUGH:
                break
    if _are_dirqs(path, dated, alone=not (sign or folders)):
        sign = True
    else:
        below += dated
    if sign or (furniture and not folders):
        return Contents(QUEUE, sorted(below), sorted(set(files)))
    return Contents(OTHER if count else EMPTY, sorted(below), sorted(set(files)))


def is_queue(path: str) -> bool:
    """Return whether the directory is a queue, or empty."""
    try:
        return contents(path).kind != OTHER
    except NotADirectoryError:
        return is_text(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise access_error(path, "list", error) from error


def is_text(path: str) -> bool:
    """Return whether there is a file whose lines are those of a text queue."""
    try:
        home = locate(path)
        return isinstance(home, beside.Beside) and home.find() and detect(home) == "text"
    except (QueueError, OSError):
        return False


def need_queue(path: str, done: str) -> None:
    """Raise QueueError if the directory is not a queue; `done` says what was not done to it."""
    if not is_queue(path):
        raise QueueError(
            f"{path!r} is not a queue: nothing in it is dirqueue's; nothing was {done}", path=path
        )


def _is_native(entry: os.DirEntry[str], path: str) -> bool:
    """Return whether the entry is one of a native queue, or of VSQS."""
    name = entry.name
    if not entry.is_dir(follow_symlinks=False):
        plain = entry.is_file(follow_symlinks=False) or links.is_link(os.path.abspath(entry.path), -1)
        return plain and bool(recognise(name, lambda: False))
    inside = os.path.join(path, name)
    if name in ROOMS:
        return _is_room(inside, name)
    if name == SPARK:
        return _is_spark(inside)
    if name == names.ATTRIBUTES:
        return _holds_buckets(inside)
    return "native" in recognise(name, lambda: True)


def _is_room(path: str, room: str) -> bool:
    """Return whether a directory with the name of a room is one: a queue may have such a name too.

    dead/ and done/ can be used as queues. In leased/ and later/ nobody puts, so that what shows that somebody does
    shows a queue: a leased/ of its own, settings, a message that is ready.
    """
    kind, fits = EMPTY, False
    try:
        with fs.scandir(path) as entries:
            for entry in itertools.islice(entries, ENOUGH):
                folder = entry.is_dir(follow_symlinks=False)
                if room in (LEASED_ROOM, LATER) and _is_of_queue(entry.name, folder=folder):
                    return False
                bucket = folder and room != LEASED_ROOM and names.parse_bucket(entry.name) is not None
                fits = fits or bucket or _is_native(entry, path)
                kind = OTHER
    except OSError:
        return True  # taken for what it is named
    return fits or kind == EMPTY


def _is_of_queue(name: str, *, folder: bool) -> bool:
    """Return whether an entry is one that a queue has at its top, and leased/ or later/ never has."""
    if folder:
        return name in ROOMS
    parsed = names.parse(name)
    return name == FILE or (parsed is not None and parsed.kind in (READY, names.NEW))


def _are_dirqs(path: str, dated: list[str], *, alone: bool) -> bool:
    """Return whether these directories are parts of a dirq queue: their names may be dates, and name queues.

    One with an element in it decides; without any, empty ones are a new dirq queue if there is nothing else.
    """
    empty = 0
    for name in dated:
        try:
            with fs.scandir(os.path.join(path, name)) as entries:
                inner = [entry.name for entry in itertools.islice(entries, 2)]
        except OSError:
            return True  # taken for what it is named
        if any(ELEMENT.match(each) for each in inner if len(each.partition(".")[0]) == ELEMENT_LENGTH):
            return True
        empty += not inner
    return alone and 0 < empty == len(dated)


def _is_spark(path: str) -> bool:
    """Return whether the directory holds pinned messages or records of batches: other programs have a .spark too."""
    try:
        with fs.scandir(path) as entries:
            return any(entry.name in ("pins", "txn") for entry in entries)
    except OSError:
        return True


def _holds_buckets(path: str) -> bool:
    """Return whether the directory holds what messages carry: a queue may have such a name too."""
    try:
        with fs.scandir(path) as entries:
            return any(names.parse_bucket(entry.name) is not None for entry in entries)
    except OSError:
        return True


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:
        return False  # a link to what may not be reached
