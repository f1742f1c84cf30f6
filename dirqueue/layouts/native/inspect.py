"""Reading: the whole queue, every name once and nothing kept; or one message.

Layer: layouts.  Touches: nothing.
A scan is a snapshot of names that others are renaming: it may miss a message, or see it twice, never invent one.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from datetime import datetime
from typing import BinaryIO

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import MessageNotFound, QueueNotFound, access_error
from dirqueue.layouts.base import Claim, bad_handle, lost
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import (
    ACKED,
    CONTAINERS,
    DEAD,
    DELAYED,
    DEPTH,
    DONE,
    ERROR,
    ERROR_NEW,
    LEASED,
    NEW,
    READY,
    STAGING,
    Name,
)
from dirqueue.layouts.native.side import note_of, read_note
from dirqueue.message import Entry, Failure, instant
from dirqueue.states import LISTED, LIVE, VISIBLE

_MESSAGES = frozenset(LIVE)


def entries(directory: Directory, states: frozenset[str]) -> Iterator[Entry]:
    """Yield what is in the queue, in no order; all states if none is named."""
    if not directory.find():
        return
    now = directory.clock.now()
    live = not states or not states.isdisjoint(LISTED)
    if live:
        yield from (entry for entry in _directory(directory, "", now) if not states or entry.state in states)
    if not states or LEASED in states:
        from dirqueue.layouts.native import pins

        yield from pins.entries(directory)
    for ended in (DONE, DEAD):
        if not states or ended in states:
            yield from _ended(directory, ended, now)


def _directory(directory: Directory, prefix: str, now: int) -> Iterator[Entry]:
    inner = []
    try:
        for found in fs.listing(prefix or ".", directory.fd):
            name = found.name
            parsed = names.parse(name)
            if parsed is None:
                inside = prefix not in ("", f"{DEAD}/", f"{DONE}/")
                if inside or not names.is_furniture(name):
                    yield Entry("", "foreign", prefix + name, 0)
            elif parsed.kind in CONTAINERS or parsed.kind == STAGING:
                if not found.is_dir(follow_symlinks=False):
                    yield Entry("", "foreign", prefix + name, 0)
                elif parsed.kind == STAGING:
                    yield Entry(parsed.id, "new", prefix + name, names.micros_of(parsed.id))
                else:
                    inner.append(f"{prefix}{name}/")
            elif not found.is_file(follow_symlinks=False):
                yield Entry("", "foreign", prefix + name, 0)
            elif parsed.kind in _MESSAGES or parsed.kind == NEW:
                yield entry_of(parsed, prefix, now)
            else:
                assert parsed.kind in (ACKED, ERROR, ERROR_NEW)  # noqa: S101 - notes and tombstones
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not prefix or not isinstance(error, PermissionError):
            raise access_error(directory.path, "list", error) from error
        yield Entry("", "foreign", prefix[:-1], 0)  # another user's: what is in it cannot be known
    for each in inner:
        if each.count("/") <= DEPTH:
            yield from _directory(directory, each, now)


def _ended(directory: Directory, state: str, now: int) -> Iterator[Entry]:
    for entry in _directory(directory, state + "/", now):
        if entry.state in _MESSAGES:
            yield entry._replace(state=state)
        elif entry.state == "foreign":
            yield entry


def entry_of(name: Name, prefix: str, now: int) -> Entry:
    """Return what a parsed name says; a delay that is over is ready."""
    state = READY if name.kind == DELAYED and name.until <= now else name.kind
    return Entry(
        name.id,
        state,
        prefix + name.text,
        names.micros_of(name.id),
        name.until,
        name.attempts,
        name.token,
        names.priority_of(name.id),
    )


def held(directory: Directory, handle: str) -> Claim:
    """Return the lease that a handle names: the path inside the queue, parsed and rebuilt before it is used."""
    *above, last = str(handle).split("/")
    inside = [names.parse(each) for each in above]
    name = names.parse(last)
    if name is None or name.kind != LEASED or len(inside) > DEPTH:
        raise bad_handle(handle)
    if any(each is None or each.kind not in CONTAINERS for each in inside):
        raise bad_handle(handle)
    place = "/".join([*(each.text for each in inside if each), name.text])
    held = Claim(name.id, place, 0, name.until, name.attempts)
    directory.need()
    try:
        facts = fs.stat(place, dir_fd=directory.fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        raise lost(held, "take over") from None
    # The claim, or its last renewal, was the last rename.
    held.leased = facts.st_ctime_ns // 1000
    return held


def find(directory: Directory, id: str) -> Entry | None:
    """Return where a message is; its plain name is tried before the queue is searched."""
    if not directory.find():
        return None
    if fs.is_file(id, directory.fd):
        return entry_of(Name(id, READY, id), "", directory.clock.now())
    # A name being renamed may be missed by a listing: absence needs a second look.
    for _ in range(2):
        for entry in entries(directory, frozenset(VISIBLE)):
            if entry.id == id:
                return entry
    return None


# --- one message -------------------------------------------------------------------------------------------


def load(directory: Directory, place: str) -> bytes:
    """Return a whole body."""
    try:
        directory.need()
        return fs.read_file(place, directory.fd, 0)
    except OSError as error:
        raise _unreachable(directory, place, error) from error


def stream(directory: Directory, place: str) -> BinaryIO:
    """Open a body for reading."""
    try:
        directory.need()
        return io.BufferedReader(io.FileIO(fs.open(place, fs.READ, dir_fd=directory.fd), "rb"))
    except OSError as error:
        raise _unreachable(directory, place, error) from error


def size(directory: Directory, place: str) -> int:
    """Return the length of a body."""
    try:
        directory.need()
        return fs.size_of(place, directory.fd)
    except OSError as error:
        raise _unreachable(directory, place, error) from error


def _unreachable(directory: Directory, place: str, error: OSError) -> Exception:
    id = place.rpartition("/")[2].partition(".")[0]
    if isinstance(error, QueueNotFound) or error.errno in (errno.ENOENT, errno.ESTALE):
        return moved_on(id)
    return access_error(directory.path, f"read message {id} of", error)


def failure(directory: Directory, entry: Entry) -> Failure | None:
    """Return the reason kept beside a message."""
    return read_note(directory, note_of(entry.place, entry.id))


def leased_at(directory: Directory, entry: Entry) -> datetime | None:
    """Return when it was last claimed: kept as the time of a done file, or with the reason of a failure."""
    if entry.state != DONE:
        found = failure(directory, entry)
        return found.leased_at if found else None
    try:
        directory.need()
        facts = fs.stat(entry.place, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    # A cancelled message was never claimed, and has no time; a file with other names keeps its own.
    claimed = facts.st_mtime_ns // 1000 if facts.st_nlink == 1 else 0
    return instant(claimed) if claimed else None


def moved_on(id: str) -> MessageNotFound:
    """Return the error for a message that is not where it was seen."""
    return MessageNotFound(
        f"message {id} is not there any more: it was claimed, finished or changed meanwhile", message_id=id
    )
