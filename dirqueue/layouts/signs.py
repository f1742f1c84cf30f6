"""Whether a directory is a queue, by the names in it.

Layer: layouts.  Touches: nothing.
A message, a directory of messages or settings make a queue. What dirqueue keeps beside them (the reserve, the lock of
a purge) does so only where no other directory lies: earlier versions left both in directories that hold queues.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts import describe, recognise
from dirqueue.layouts.native.names import DEAD, DONE, SPARK, TEMPORARY
from dirqueue.settings import FILE

#: Names that are read, at most, to recognise a directory.
ENOUGH = 4096
#: Files of ours that are no messages. Alone they say little: see above.
FURNITURE = tuple(name for name in describe("native").litter if name != FILE)

QUEUE, EMPTY, OTHER = "queue", "empty", "other"


class Contents(NamedTuple):
    """What the names in a directory say."""

    #: QUEUE; EMPTY, which is a queue that was never used, or nothing; or OTHER.
    kind: str
    #: Directories in it that belong to no queue here: they may be queues, or hold some.
    below: list[str]


def contents(path: str) -> Contents:
    """Read the names in a directory. Raises plain OSError; the caller adds the context."""
    below: list[str] = []
    sign = furniture = folders = empty = False
    with fs.scandir(path) as entries:
        count = 0
        for count, entry in enumerate(entries, 1):
            folder = entry.is_dir(follow_symlinks=False)
            if not folder and (entry.name in FURNITURE or TEMPORARY.fullmatch(entry.name)):
                furniture = True
            elif _is_sign(entry, path, others=sign):
                sign = True
            elif folder or _leads_to_directory(entry):
                folders = True
                if not entry.name.startswith("."):
                    below.append(entry.name)
            if count >= ENOUGH:
                break
        empty = not count
    if sign or (furniture and not folders):
        return Contents(QUEUE, sorted(below))
    return Contents(EMPTY if empty else OTHER, sorted(below))


def is_queue(path: str) -> bool:
    """Return whether the directory is a queue, or empty."""
    try:
        return contents(path).kind != OTHER
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise access_error(path, "list", error) from error


def need_queue(path: str, done: str) -> None:
    """Raise QueueError if the directory is not a queue; `done` says what was not done to it."""
    if not is_queue(path):
        raise QueueError(
            f"{path!r} is not a queue: nothing in it is dirqueue's; nothing was {done}", path=path
        )


def _is_sign(entry: os.DirEntry[str], path: str, *, others: bool) -> bool:
    """Return whether the entry belongs to a queue; `others` if entries before it did."""
    name, folder = entry.name, entry.is_dir(follow_symlinks=False)
    inside = os.path.join(path, name)
    if folder and name in (DEAD, DONE):
        return _kind(inside) != OTHER
    if folder and name == SPARK:
        return _is_spark(inside)
    kinds = recognise(name, lambda: folder)
    if not folder or not kinds or "native" in kinds:
        return bool(kinds) and (folder or entry.is_file(follow_symlinks=False))
    # COMPAT: the directories of dirq have eight digits; so does a date, which may name a queue.
    return others or _kind(inside) != QUEUE


def _is_spark(path: str) -> bool:
    """Return whether the directory holds pinned messages or records of batches: other programs have a .spark too."""
    try:
        with fs.scandir(path) as entries:
            return any(entry.name in ("pins", "txn") for entry in entries)
    except OSError:
        return True


def _kind(path: str) -> str:
    """Return the kind of a directory inside; one that may not be read is taken for what it is named."""
    try:
        return contents(path).kind
    except OSError:
        return EMPTY


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:
        return False  # a link to what may not be reached
