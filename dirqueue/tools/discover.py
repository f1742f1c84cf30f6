"""Which directories are queues: finding them under a root, and removing one whole.

Layer: mechanisms.  Touches: nothing, except `delete`, which removes messages and furniture of ours and nothing else.
Crash: a delete that was cut short leaves a queue with fewer messages; delete it again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.errors import QueueError, QueueNotFound, access_error
from dirqueue.layouts import describe, recognise
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import names
from dirqueue.layouts.native.inspect import DEAD, DONE, TEMPORARY
from dirqueue.layouts.native.names import CONTAINERS, DELAYED, LEASED, READY, STAGING

#: How deep queues are looked for below a root, and how many names of a directory are looked at to know it.
DEPTH = 8
LOOK_AT = 4096
#: Attempts at removing a queue while somebody still puts to it.
TRIES = 5
#: Furniture that goes with the queue, and furniture that may hold messages of somebody else's.
PLAIN, NESTS = describe("native").litter, describe("native").nests

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


class Look(NamedTuple):
    """What the names in a directory say: "queue", "empty" or "other", and the directories in it."""

    kind: str
    inner: list[str]


def is_queue(path: str) -> bool:
    """Whether the directory is a queue: it holds something of ours, or nothing at all."""
    try:
        return _look(path).kind != "other"
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise access_error(path, "look into", error) from error


def _look(path: str) -> Look:
    inner: list[str] = []
    empty = True
    with fs.scandir(path) as entries:
        for count, entry in enumerate(entries):
            if _is_sign(entry, path):
                return Look("queue", [])
            empty = False
            if entry.is_dir() and not entry.name.startswith("."):
                inner.append(entry.name)
            if count > LOOK_AT:
                break
    return Look("empty" if empty else "other", sorted(inner))


def _is_sign(entry: os.DirEntry[str], path: str) -> bool:
    name = entry.name
    if name in PLAIN:
        return entry.is_file(follow_symlinks=False)
    is_folder = entry.is_dir(follow_symlinks=False)
    if is_folder and name in (DEAD, DONE):
        return is_queue(os.path.join(path, name))
    if is_folder and recognise(name, lambda: True):
        return True
    parsed = names.parse(name)
    if parsed is None:
        return False
    return is_folder if _holds(parsed.kind) else entry.is_file(follow_symlinks=False)


def _holds(kind: str) -> bool:
    return kind in CONTAINERS or kind == STAGING


def find(root: str, depth: int = DEPTH) -> Iterator[str]:
    """Yield the paths of the queues at or under a root, in order; what cannot be read is left out.

    A queue is not looked into. An empty directory under the root is an empty queue.
    """
    try:
        facts = fs.stat(root)
        found = _look(root)
    except FileNotFoundError:
        raise QueueNotFound(f"there is no directory {root!r}", path=root) from None
    except OSError as error:
        raise access_error(root, "look for queues in", error) from error
    if found.kind == "queue":
        yield root
    else:
        yield from _below(root, found.inner, depth, {(facts.st_dev, facts.st_ino)})


def _below(path: str, inner: list[str], depth: int, seen: set[tuple[int, int]]) -> Iterator[str]:
    for name in inner:
        each = os.path.join(path, name)
        try:
            facts = fs.stat(each)
            found = _look(each)
        except OSError:
            continue  # RACE: gone meanwhile; or not ours to read
        if (facts.st_dev, facts.st_ino) in seen:
            continue  # a link to what was seen already, or to a directory above
        seen.add((facts.st_dev, facts.st_ino))
        if found.kind != "other":
            yield each
        elif depth > 1:
            yield from _below(each, found.inner, depth - 1, seen)


# --- delete ------------------------------------------------------------------------------------------------


def strangers(layout: Layout, limit: int = 3) -> list[str]:
    """Return the first few entries of a queue that are not dirqueue's, or not its to delete."""
    fd = layout.directory.fd
    found = [name for name in NESTS if fs.exists(name, fd) and any(True for _ in fs.listing(name, fd))]
    for entry in layout.entries():
        if len(found) >= limit:
            break
        if entry.state == "foreign" and entry.place not in PLAIN:
            found.append(entry.place)
    return found


def delete(layout: Layout) -> int:
    """Remove a queue with every message in it; how many. Refuses, before anything goes, if something else is there."""
    directory = layout.directory
    directory.need()
    if not is_queue(directory.path):
        text = f"{directory.path!r} is not a queue: nothing in it is dirqueue's; nothing was deleted"
        raise QueueError(text, path=directory.path)
    if found := strangers(layout):
        raise QueueError(
            f"{directory.path!r} holds what is not dirqueue's to delete ({', '.join(map(repr, found))}): "
            "move that away first; nothing was deleted",
            path=directory.path,
        )
    gone = 0
    for _ in range(TRIES):
        try:
            gone += _sweep(".", directory.fd) if layout.name == "native" else _remove_all(layout)
            fs.rmdir(directory.path)
        except FileNotFoundError:
            return gone
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise access_error(directory.path, "delete", error) from error
            continue  # RACE: somebody put meanwhile
        return gone
    raise QueueError(
        f"cannot delete {directory.path!r}: it does not become empty, because somebody writes to it or something in it "
        f"is not dirqueue's ({gone} messages were removed)",
        path=directory.path,
    )


def _sweep(folder: str, fd: int) -> int:
    """Remove all that is ours in a directory of a native queue; how many messages that were."""
    gone = 0
    for entry in list(fs.listing(folder, fd)):
        name, path = entry.name, f"{folder}/{entry.name}"
        parsed = names.parse(name)
        if entry.is_dir(follow_symlinks=False):
            if (parsed and _holds(parsed.kind)) or (folder == "." and name in (DEAD, DONE, *NESTS)):
                gone += _sweep(path, fd)
                fs.remove_directory(path, fd)
        elif entry.is_file(follow_symlinks=False):
            ours = parsed or (folder == "." and (name in PLAIN or TEMPORARY.fullmatch(name)))
            if ours and fs.discard(path, fd) and parsed:
                gone += parsed.kind in (READY, DELAYED, LEASED)
    return gone


def _remove_all(layout: Layout) -> int:
    gone = sum(layout.remove(entry) for entry in layout.entries() if entry.state not in ("foreign", "new"))
    for name in PLAIN:
        fs.discard(name, layout.directory.fd)
    _hollow(".", layout.directory.fd, 2)
    return gone


def _hollow(folder: str, fd: int, depth: int) -> None:
    """Remove the empty directories in a directory."""
    for entry in list(fs.listing(folder, fd)):
        if entry.is_dir(follow_symlinks=False):
            path = f"{folder}/{entry.name}"
            if depth:
                _hollow(path, fd, depth - 1)
            fs.remove_directory(path, fd)
