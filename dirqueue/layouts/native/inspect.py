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
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import TIME_DIGITS
from dirqueue.errors import MessageNotFound, QueueAccess, QueueError, QueueNotFound, access_error
from dirqueue.layouts.base import Claim, bad_handle, lost
from dirqueue.layouts.native import conditions, links, names, sidefile
from dirqueue.layouts.native.conditions import IF, OPEN, UNKNOWN, Condition
from dirqueue.layouts.native.names import (
    ACKED,
    CONTAINERS,
    DEAD,
    DELAYED,
    DEPTH,
    DONE,
    ERROR,
    ERROR_NEW,
    LATER,
    LEASED,
    LEASED_ROOM,
    NEW,
    READY,
    STAGING,
    Name,
)
from dirqueue.layouts.native.register import register_beside
from dirqueue.layouts.native.resolve import PATIENCE
from dirqueue.layouts.native.side import note_of, read_note
from dirqueue.message import Details, Entry, Failure, instant
from dirqueue.states import FOREIGN, LISTED, LIVE, UNCLAIMED, VISIBLE

_MESSAGES = frozenset(LIVE)
_DIRECTORIES = CONTAINERS | {STAGING}
_QUEUED = (LEASED_ROOM, LATER)
_ENDED = (f"{DEAD}/", f"{DONE}/")


def entries(directory: Directory, states: frozenset[str]) -> Iterator[Entry]:
    """Yield what is in the queue, in no order; all states if none is named. Only rooms that can have them are read."""
    if not directory.find():
        return
    now = directory.clock.now()
    for prefix, state in rooms(directory, states, now):
        for entry in below(directory, prefix, now):
            if state and entry.state in _MESSAGES:
                entry = entry._replace(state=state)  # noqa: PLW2901 - it ended, whatever its name says of its life
            if not states or entry.state in states or (state and entry.state == FOREIGN):
                yield entry
    if not states or LEASED in states:
        from dirqueue.layouts.native import pins

        yield from pins.entries(directory)


def rooms(directory: Directory, states: frozenset[str], now: int) -> Iterator[tuple[str, str]]:
    """Yield the directories to read, and the state of all that is in them if it has ended."""
    if not states or not states.isdisjoint(LISTED):
        yield "", ""
    if not states or LEASED in states or FOREIGN in states:
        yield f"{LEASED_ROOM}/", ""
    if not states or not states.isdisjoint((*UNCLAIMED, FOREIGN)):
        # What waits for a minute that has not begun is not ready.
        last = now if states and DELAYED not in states and FOREIGN not in states else None
        for bucket in buckets(directory, LATER):
            if last is None or bucket <= last:
                yield f"{LATER}/{bucket}/", ""
    for room in (DONE, DEAD):
        if not states or room in states:
            yield f"{room}/", room


def in_rooms(directory: Directory, now: int) -> Iterator[Entry]:
    """Yield what is held and what waits for its time."""
    for prefix, _ in rooms(directory, frozenset((LEASED, DELAYED)), now):
        if prefix:
            yield from below(directory, prefix, now)


def buckets(directory: Directory, room: str) -> list[int]:
    """Return the buckets in a room, the earliest first."""
    try:
        found = [names.parse_bucket(each) for each in fs.directories_in(room, directory.fd)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except OSError as error:
        raise access_error(directory.path, "list", error) from error
    return sorted(each.until for each in found if each is not None)


def below(
    directory: Directory, prefix: str, now: int, depth: int = 0, *, sure: bool = True
) -> Iterator[Entry]:
    """Yield what is in a directory, and in the directories of messages in it."""
    inner: list[str] = []
    yield from contents(directory, prefix, now, inner, sure=sure)
    if depth < DEPTH:
        for each in inner:
            yield from below(directory, each, now, depth + 1, sure=sure)


def contents(
    directory: Directory, prefix: str, now: int, inner: list[str], *, sure: bool = True
) -> Iterator[Entry]:
    """Yield what is in one directory; the directories of messages in it go to `inner`.

    Args:
        sure: Read each link to see whether it is ours, a call for each. Whoever reads the bodies next need not be sure.
    """
    try:
        for found in fs.listing(prefix or ".", directory.fd):
            name = found.name
            if names.is_plain(name) and links.is_body(found, prefix, directory.fd, sure=sure):
                # COST: nearly all names of a deep queue; 1.9 µs where what follows takes 4.4.
                yield Entry(name, READY, prefix + name, int(name[:TIME_DIGITS]))
                continue
            folder = found.is_dir(follow_symlinks=False)
            parsed = names.parse_directory(name) if folder else names.parse(name)
            if parsed is None:
                condition = None if folder else conditions.parse(name)
                if condition is not None and links.is_body(found, prefix, directory.fd):
                    yield from _conditional(directory, condition, prefix, now)
                elif folder and name in _QUEUED and prefix in _ENDED:
                    inner.append(f"{prefix}{name}/")  # somebody consumes them as a queue
                elif prefix not in ("", *_ENDED) or not names.is_furniture(name):
                    yield Entry("", FOREIGN, prefix + name, 0)
            elif folder and parsed.kind == STAGING:
                yield Entry(parsed.id, "new", prefix + name, names.micros_of(parsed.id))
            elif folder:
                inner.append(f"{prefix}{name}/")
            elif (
                not links.fits(found, parsed, prefix, directory.fd, sure=sure) or parsed.kind in _DIRECTORIES
            ):
                yield Entry("", FOREIGN, prefix + name, 0)
            elif parsed.kind in _MESSAGES or parsed.kind == NEW:
                yield entry_of(parsed, prefix, now)
            else:
                assert parsed.kind in (ACKED, ERROR, ERROR_NEW)  # noqa: S101 - notes and tombstones
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not prefix or not isinstance(error, PermissionError):
            raise access_error(directory.path, "list", error) from error
        yield Entry("", FOREIGN, prefix[:-1], 0)  # another user's: what is in it cannot be known


def _conditional(directory: Directory, condition: Condition, prefix: str, now: int) -> Iterator[Entry]:
    """Yield what a conditional name is under the verdict of its transaction, without bringing it to its end."""
    verdict = register_beside(directory).look(condition.txn)
    place = prefix + condition.text
    entry = entry_of(condition.base, prefix, now)._replace(place=place)
    if verdict == UNKNOWN:
        yield Entry("", FOREIGN, place, 0)
    elif verdict == OPEN and condition.how == IF:
        yield entry._replace(state=NEW)
    elif verdict == OPEN:
        # Held by its transaction, for a few seconds from now at most, unless that is renewed.
        yield entry._replace(state=LEASED, until=max(entry.until, now + micros(PATIENCE)))
    elif conditions.here(condition, verdict):
        yield entry


def holds_messages(name: str, prefix: str) -> bool:
    """Return whether a directory of this name is one of messages; `prefix` is where it lies."""
    parsed = names.parse_directory(name)
    if parsed is None:
        return name in _QUEUED and prefix in _ENDED  # somebody consumes them as a queue
    return parsed.kind != STAGING


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
        name.card,
    )


def held(directory: Directory, handle: str) -> Claim:
    """Return the lease that a handle names: the path inside the queue, parsed and rebuilt before it is used."""
    *above, last = str(handle).split("/")
    inside = [each if each == LEASED_ROOM else _container(each) for each in above]
    name = names.parse(last)
    if name is None or name.kind != LEASED or None in inside or len(inside) > DEPTH:
        raise bad_handle(handle)
    place = "/".join([*(each for each in inside if each), name.text])
    held = Claim(name.id, place, 0, name.until, name.attempts)
    directory.need()
    try:
        facts = fs.stat(place, dir_fd=directory.fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        raise lost(held, "take over") from None
    # The claim, or its last renewal, was the last rename.
    held.leased = facts.st_ctime_ns // 1000
    return held


def _container(text: str) -> str | None:
    name = names.parse(text)
    return name.text if name is not None and name.kind in CONTAINERS else None


def find(directory: Directory, id: str) -> Entry | None:
    """Return where a message is; its plain name is tried before the queue is searched."""
    if not directory.find():
        return None
    if links.is_message(id, directory.fd):
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
        body = sidefile.body_of(directory, place)
        return links.load(place, directory.fd, 0) if body is None else body
    except OSError as error:
        raise unreachable(directory, place, error) from error


def stream(directory: Directory, place: str) -> BinaryIO:
    """Open a body for reading."""
    try:
        directory.need()
        body = sidefile.body_of(directory, place)
        if body is not None:
            return io.BytesIO(body)
        try:
            return io.BufferedReader(io.FileIO(fs.open(place, fs.READ, dir_fd=directory.fd), "rb"))
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        return io.BytesIO(links.read(place, directory.fd))
    except OSError as error:
        raise unreachable(directory, place, error) from error


def size(directory: Directory, place: str) -> int:
    """Return the length of a body."""
    try:
        directory.need()
        body = sidefile.body_of(directory, place)
        return links.size_of(place, directory.fd) if body is None else len(body)
    except OSError as error:
        raise unreachable(directory, place, error) from error


def unreachable(directory: Directory, place: str, error: OSError) -> Exception:
    """Return the error for a body that cannot be read."""
    id = place.rpartition("/")[2].partition(".")[0]
    if isinstance(error, QueueNotFound) or error.errno in (errno.ENOENT, errno.ESTALE):
        return moved_on(id)
    if error.errno == errno.EBADMSG:
        return QueueAccess(
            f"cannot read message {id} of {directory.path!r}: {error.strerror}",
            path=directory.path,
            errno=error.errno,
            strerror=error.strerror or "",
        )
    return access_error(directory.path, f"read message {id} of", error)


def details(directory: Directory, entry: Entry) -> Details | None:
    """Return what the side file of a message says; None if it has none."""
    if entry.card is None or not entry.card.side:
        return None
    try:
        directory.need()
        return sidefile.read(directory, entry.place)
    except OSError as error:
        raise unreachable(directory, entry.place, error) from error


def failure(directory: Directory, entry: Entry) -> Failure | None:
    """Return the reason kept beside a message, or in its side file: the later one."""
    note = read_note(directory, note_of(entry.place, entry.id))
    try:
        said = details(directory, entry)
    except (QueueError, MessageNotFound):
        return note  # it is damaged, or gone by now: whoever needs what it says will be told
    if said is None or said.error is None or (note is not None and note.at >= instant(said.at)):
        return note
    return Failure(said.error, instant(said.at), None, None)


def leased_at(directory: Directory, entry: Entry) -> datetime | None:
    """Return when it was last claimed: kept as the time of a done file, or with the reason of a failure.

    Of one that is held the last rename tells: its claim, or its last renewal.
    """
    if entry.state not in (DONE, LEASED):
        found = failure(directory, entry)
        return found.leased_at if found else None
    try:
        directory.need()
        facts = fs.stat(entry.place, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if entry.state == LEASED:
        return instant(facts.st_ctime_ns // 1000)
    # A cancelled message was never claimed, and has no time; a file with other names keeps its own.
    claimed = facts.st_mtime_ns // 1000 if facts.st_nlink == 1 else 0
    return instant(claimed) if claimed else None


def moved_on(id: str) -> MessageNotFound:
    """Return the error for a message that is not where it was seen."""
    return MessageNotFound(
        f"message {id} is not there any more: it was claimed, finished or changed meanwhile", message_id=id
    )
