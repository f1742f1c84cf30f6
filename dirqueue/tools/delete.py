"""Removing a queue with everything in it.

Layer: tools.  Touches: messages and files of dirqueue in one queue, and nothing else.
Crash: a delete that was cut short leaves a queue with fewer messages; delete it again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.beside import Beside
from dirqueue.disk.directory import Directory
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts import describe, signs
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import links, names, pins, resolve, sidefile
from dirqueue.layouts.native.names import (
    ATTRIBUTES,
    DELAYED,
    LEASED,
    READY,
    ROOMS,
    SPARK,
    TEMPORARY,
)
from dirqueue.layouts.pausing import Pausable, beside
from dirqueue.tools import conversion

#: Attempts at removing a queue while others still put to it.
TRIES = 5
PLAIN = describe("native").litter
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


def check(layout: Layout, limit: int = 3) -> None:
    """Raise QueueError if the directory is not a queue, or something in it is not dirqueue's to delete."""
    directory = layout.directory
    directory.need()
    signs.need_queue(directory.path, "deleted")
    conversion.refuse(directory.path, "deleted")
    found = []
    for place in _strangers(layout):
        found.append(repr(place))
        if len(found) >= limit:
            break
    if found:
        raise QueueError(
            f"{directory.path!r} holds what is not dirqueue's to delete ({', '.join(found)}): "
            "move that away first; nothing was deleted",
            path=directory.path,
        )


def _strangers(layout: Layout) -> Iterator[str]:
    if isinstance(layout.directory, Beside):
        return  # what lines there are that are not ours is a person's to see, and the file is asked for by name
    fd = layout.directory.fd
    if fs.exists(SPARK, fd):
        yield from _strangers_of_spark(SPARK, fd)
    for entry in layout.entries():
        if entry.state == states.FOREIGN and entry.place not in PLAIN:
            yield entry.place


def _strangers_of_spark(folder: str, fd: int) -> Iterator[str]:
    """Yield the files among pinned messages and records that are neither."""
    for entry in list(fs.listing(folder, fd)):
        path = f"{folder}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _strangers_of_spark(path, fd)
        elif not (entry.name in pins.NOTES or entry.name.isdecimal() or names.parse(entry.name)):
            yield path


def delete(layout: Layout) -> int:
    """Remove a queue and return the number of messages in it; refuse, before anything goes, what `check` refuses."""
    check(layout)
    directory = layout.directory
    if isinstance(directory, Beside):
        return _delete_file(layout, directory)
    gone = 0
    for _ in range(TRIES):
        try:
            gone += _remove_messages(layout)
            fs.rmdir(directory.path)
            _resume(layout)
        except FileNotFoundError:
            return gone
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise access_error(directory.path, "delete", error) from error
            continue  # RACE: another process put meanwhile
        return gone
    raise QueueError(
        f"cannot delete {directory.path!r}: it does not become empty, because another process writes to it or "
        f"something in it is not dirqueue's ({gone} messages were removed)",
        path=directory.path,
    )


def _delete_file(layout: Layout, home: Beside) -> int:
    """Remove a queue that is one file, and what lies beside it."""
    gone = sum(entry.state in states.VISIBLE for entry in layout.entries())
    try:
        fs.unlink(home.path)
        layout.close()
        fs.remove_tree(home.side, -1)
        _resume(layout)
    except FileNotFoundError:
        return gone
    except OSError as error:
        raise access_error(home.path, "delete", error) from error
    return gone


def _resume(layout: Layout) -> None:
    """Remove the sign of a pause that lies beside the queue: another of the same name is not paused."""
    if isinstance(layout, Pausable) and not layout.pauses_inside:
        fs.discard(beside(layout.directory).name, -1)


def _remove_messages(layout: Layout) -> int:
    """Remove everything in the directory of a queue that is dirqueue's; return the number of messages."""
    fd = layout.directory.fd
    if layout.name == "native":
        gone = sum(1 for _ in pins.entries(layout.directory))
        fs.remove_tree(SPARK, fd)
        _remove_attributes(fd)
        gone += _remove_native(".", layout.directory)
    else:
        gone = sum(layout.remove(entry) for entry in layout.entries() if entry.state in states.VISIBLE)
    for name in PLAIN:
        fs.discard(name, fd)
    if layout.name != "native":
        _remove_empty_directories(".", fd, 2)
    return gone


def _remove_native(folder: str, directory: Directory) -> int:
    """Remove the messages in a directory, and the directories of messages, buckets and rooms in it."""
    gone, fd = 0, directory.fd
    for entry in list(fs.listing(folder, fd)):
        name, path = entry.name, f"{folder}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if name in ROOMS or names.parse_directory(name) is not None:
                gone += _remove_native(path, directory)
                fs.remove_directory(path, fd)
        elif links.is_body(entry, f"{folder}/", fd):
            place = resolve.settled(directory, path) or ""
            parsed = names.parse(place.rpartition("/")[2])
            ours = parsed or (folder == "." and TEMPORARY.fullmatch(name))
            if ours and fs.discard(place, fd) and parsed:
                gone += parsed.kind in (READY, DELAYED, LEASED)
                sidefile.forget(directory, parsed.id, parsed.card)
    return gone


def _remove_attributes(fd: int) -> None:
    """Remove what messages carry, and nothing else that lies there."""
    for bucket in fs.names_in(ATTRIBUTES, fd) if fs.exists(ATTRIBUTES, fd) else ():
        folder = f"{ATTRIBUTES}/{bucket}"
        for name in fs.names_in(folder, fd) if names.parse_bucket(bucket) else ():
            if names.parse(name.removesuffix(".new")):
                fs.discard(f"{folder}/{name}", fd)
        fs.remove_directory(folder, fd)
    fs.remove_directory(ATTRIBUTES, fd)


def _remove_empty_directories(folder: str, fd: int, depth: int) -> None:
    for entry in list(fs.listing(folder, fd)):
        if entry.is_dir(follow_symlinks=False):
            path = f"{folder}/{entry.name}"
            if depth:
                _remove_empty_directories(path, fd, depth - 1)
            fs.remove_directory(path, fd)
