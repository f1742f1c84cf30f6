"""Moving messages from one queue to another.

Layer: tools.  Touches: the exact names of messages that nobody holds, in both queues.
Invariant: between two native queues of one filesystem a move is one rename: the message is in one or the other,
never in both or none. Otherwise it is claimed, put and acknowledged: a crash in between leaves it in both.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.errors import (
    Empty,
    MessageNotFound,
    MessageTooLarge,
    SettingsError,
    Unsupported,
    access_error,
)
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import with_priority
from dirqueue.message import Entry
from dirqueue.queue import Queue
from dirqueue.tools.lookup import find_all

if TYPE_CHECKING:
    from dirqueue.layouts.base import Layout


class Moved(NamedTuple):
    """What a move did."""

    #: The ids of the messages as they are in the other queue.
    ids: list[str]
    #: Whether each was one rename.
    atomic: bool


def move(
    source: Queue[Any],
    target: Queue[Any],
    ids: Iterable[str] | None = None,
    *,
    state: str = "ready",
    limit: int | None = None,
    progress: Callable[[], None] | None = None,
) -> Moved:
    """Move messages that nobody holds; those that are claimed meanwhile stay where they are.

    Args:
        source: Where they are.
        target: Where they go; what it was created with decides about priorities and sizes.
        ids: Only these; MessageNotFound for the first that is missing.
        state: ready, delayed (keeps its delay and its attempts) or dead (becomes ready, with no attempts counted).
        limit: The most messages to move, the oldest first.
        progress: Called once per message.
    """
    states.check(state, states.MOVABLE)
    here, there = source.layout, target.layout
    here.directory.need()
    there.directory.make()
    if _same(here, there):
        raise SettingsError(f"{source.path!r} and {target.path!r} are the same queue")
    chosen = _chosen(source, ids, state, limit)
    if here.name == there.name == "native":
        try:
            return Moved(_rename_all(source, target, chosen, progress or _nothing), atomic=True)
        except OSError as error:
            if error.errno != errno.EXDEV:  # raised by the first rename, before anything was moved
                raise
    if ids is not None or state == states.DELAYED:
        raise Unsupported(
            f"messages of {source.path!r} cannot be moved by id, nor delayed ones, to {target.path!r}: "
            "that takes two native queues on one filesystem",
            path=source.path,
        )
    if state == states.DEAD:
        return Moved(_copy_dead(source, target, chosen, progress or _nothing), atomic=False)
    return Moved(_relay(source, target, len(chosen), progress or _nothing), atomic=False)


def _nothing() -> None:
    pass


def _same(here: Layout, there: Layout) -> bool:
    one, other = fs.fstat(here.directory.fd), fs.fstat(there.directory.fd)
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _chosen(source: Queue[Any], ids: Iterable[str] | None, state: str, limit: int | None) -> list[Entry]:
    if ids is None:
        return [message.entry for message in source.peek(state, limit)]
    wanted = [source.layout.check_id(id) for id in ids]
    seen = find_all(source.layout, wanted) if len(wanted) > 1 else {}
    found = [seen[id] if id in seen else source.message(id).entry for id in wanted]
    for entry in found:
        if entry.state != state:
            text = f"message {entry.id} of {source.path!r} is {entry.state}, not {state}"
            raise MessageNotFound(text, message_id=entry.id)
    return found[:limit]


# --- one rename each ---------------------------------------------------------------------------------------


def _rename_all(
    source: Queue[Any], target: Queue[Any], chosen: list[Entry], step: Callable[[], None]
) -> list[str]:
    moved = []
    left = set()
    for entry in chosen:
        _check_fits(source, target, entry)
        id = _rename(source, target, entry)
        if id is not None:
            moved.append(id)
            left.add(entry.place.rpartition("/")[0] or ".")
        step()
    if moved and (source.settings.sync or target.settings.sync):
        try:
            target.layout.directory.sync()
            for directory in left:
                _sync_if_there(source, directory)
        except OSError as error:
            raise access_error(target.path, "flush a move to", error) from error
    return moved


def _sync_if_there(source: Queue[Any], directory: str) -> None:
    try:
        source.layout.directory.sync(directory)
    except FileNotFoundError:
        pass  # RACE: emptied and removed, with the names in it


def _check_fits(source: Queue[Any], target: Queue[Any], entry: Entry) -> None:
    settings = target.settings
    if settings.max_size:
        size = source.layout.size(entry.place)
        if size > settings.max_size:
            text = f"message {entry.id} has {size} bytes; {target.path!r} takes at most {settings.max_size}"
            raise MessageTooLarge(text, message_id=entry.id, size=size, limit=settings.max_size)
    if settings.max_messages:
        target._wait_for_room(1, 0)  # noqa: SLF001


def _rename(source: Queue[Any], target: Queue[Any], entry: Entry) -> str | None:
    """Move one message by its exact name; return None if another process was faster."""
    directory = target.layout.directory
    here = os.path.join(os.path.abspath(source.path), entry.place)
    tail = "" if entry.state == states.DEAD else entry.place.rpartition("/")[2][len(entry.id) :]
    id = entry.id
    if target.settings.priorities != (entry.priority is not None):
        id = with_priority(id, target.settings.default_priority if target.settings.priorities else None)
    try:
        try:
            fs.rename_noreplace(here, id + tail, directory.fd)
        except NotImplementedError:
            # RACE: nobody else makes this id; only a copy made by hand can have it.
            if fs.exists(id + tail, directory.fd):
                raise FileExistsError(errno.EEXIST, "the id is taken") from None
            fs.rename(here, id + tail, dst_dir_fd=directory.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise
        raise access_error(target.path, f"move message {entry.id} to", error) from error
    _move_note(here, entry, directory.fd, id if tail else None)
    return id


def _move_note(here: str, entry: Entry, dir_fd: int, id: str | None) -> None:
    """Move the note of the last failure too, or remove it if the message becomes ready."""
    note = os.path.join(os.path.dirname(here), f"{entry.id}.{names.ERROR}")
    try:
        if id is None:
            fs.unlink(note)
        else:
            fs.rename(note, f"{id}.{names.ERROR}", dst_dir_fd=dir_fd)
    except OSError:
        pass  # there was none; it is only a note


# --- claim, put, acknowledge -------------------------------------------------------------------------------


def _relay(source: Queue[Any], target: Queue[Any], count: int, step: Callable[[], None]) -> list[str]:
    moved = []
    for _ in range(count):
        try:
            lease = source.get(timeout=0)
        except Empty:
            break
        with lease as message:
            try:
                moved.append(_put(target, message.data, message.priority))
            except BaseException:
                lease.release()
                raise
            # CRASH: here it is in both queues, and comes back in the first when the lease is over.
        step()
    return moved


def _copy_dead(
    source: Queue[Any], target: Queue[Any], chosen: list[Entry], step: Callable[[], None]
) -> list[str]:
    layout = source.layout
    moved = []
    for entry in chosen:
        try:
            data = layout.load(entry.place)
        except MessageNotFound:
            continue  # RACE: another process redrove it
        moved.append(_put(target, data, entry.priority))
        layout.remove(entry)
        step()
    return moved


def _put(target: Queue[Any], data: bytes, priority: int | None) -> str:
    """Put bytes as they are, whatever codec the queue was opened with."""
    if 0 < target.settings.max_size < len(data):
        text = f"a message of {len(data)} bytes does not fit: {target.path!r} takes at most {target.settings.max_size}"
        raise MessageTooLarge(text, message_id="", size=len(data), limit=target.settings.max_size)
    if target.settings.max_messages:
        target._wait_for_room(1, 0)  # noqa: SLF001
    wanted = (priority or target.settings.default_priority) if target.settings.priorities else None
    return target.layout.put(data, 0, wanted)
