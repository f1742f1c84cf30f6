"""Moving messages from one queue to another.

Layer: tools.  Touches: the exact names of messages that nobody holds, in both queues.
Invariant: between two native queues of one filesystem a move is one rename: the message is in one or the other,
never in both or none. Otherwise, and where links would become readable to more people, it is claimed, put and
acknowledged: a crash in between leaves it in both.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

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
from dirqueue.layouts.native import links, names
from dirqueue.layouts.native.extras import ExtrasStore, place_of
from dirqueue.layouts.native.names import with_priority
from dirqueue.layouts.native.rooms import TRIES, Rooms
from dirqueue.message import Entry, Extras
from dirqueue.queue import Queue
from dirqueue.tools import spool
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
    there.create()
    if _same(here, there):
        raise SettingsError(f"{source.path!r} and {target.path!r} are the same queue")
    chosen = _chosen(source, ids, state, limit)
    need = "two native queues on one filesystem"
    if here.name == there.name == "native" and _shows_links(here, there, chosen):
        need = "a queue that lets in nobody more, since some are symbolic links, which everybody there could read"
    elif here.name == there.name == "native" and _leave_sides(here, there, chosen):
        need = "a queue of the same space, since some have side files there"
    elif here.name == there.name == "native":
        try:
            return Moved(_rename_all(source, target, chosen, progress or _nothing), atomic=True)
        except OSError as error:
            if error.errno != errno.EXDEV:  # raised by the first rename, before anything was moved
                raise
    if ids is not None or state == states.DELAYED:
        raise Unsupported(
            f"messages of {source.path!r} cannot be moved by id, nor delayed ones, to {target.path!r}: "
            f"that takes {need}",
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


def _shows_links(here: Layout, there: Layout, chosen: list[Entry]) -> bool:
    """Return whether a rename would show a body to somebody: a link has no mode of its own, only its directory has."""
    before, after = (fs.fstat(each.directory.fd).st_mode & 0o011 for each in (here, there))
    if not after & ~before:
        return False
    return any(links.is_link(entry.place, here.directory.fd) for entry in chosen)


def _in_one_space(here: Layout, there: Layout) -> bool:
    return fs.same_file(f"{here.directory.path}/..", f"{there.directory.path}/..", -1)


def _leave_sides(here: Layout, there: Layout, chosen: list[Entry]) -> bool:
    """Return whether a rename would take a message away from its side file, and with that from its body."""
    return any(entry.card is not None and entry.card.side for entry in chosen) and not _in_one_space(
        here, there
    )


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
    left, entered = set(), set()
    rooms = Rooms(target.layout.directory, sync=target.settings.sync)
    together = any(entry.card for entry in chosen) and _in_one_space(source.layout, target.layout)
    for entry in chosen:
        _check_fits(source, target, entry)
        place = _place(target, entry if together else entry._replace(card=None))
        if _rename(source, target, rooms, entry, place):
            moved.append(_id_of(place))
            left.add(names.folder_of(entry.place)[:-1] or ".")
            entered.add(names.folder_of(place)[:-1] or ".")
        step()
    if moved and (source.settings.sync or target.settings.sync):
        try:
            for directory in sorted(entered):
                _sync_if_there(target, directory)
            for directory in sorted(left):
                _sync_if_there(source, directory)
        except OSError as error:
            raise access_error(target.path, "flush a move to", error) from error
    return moved


def _sync_if_there(queue: Queue[Any], directory: str) -> None:
    try:
        queue.layout.directory.sync(directory)
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
        target._admission.bound.reserve(1, 0)  # noqa: SLF001


def _place(target: Queue[Any], entry: Entry) -> str:
    """Return where a message goes: what was delayed or delivered keeps its time and its attempts."""
    id = entry.id
    if target.settings.priorities != (entry.priority is not None):
        id = with_priority(id, target.settings.default_priority if target.settings.priorities else None)
    if entry.card is not None:
        now, dead = target.layout.directory.clock.now(), entry.state == states.DEAD
        card = entry.card.raised().text
        return names.free(id, now if dead else entry.until, 0 if dead else entry.attempts, card, now)
    if entry.state == states.DEAD or not entry.until:
        return id
    return names.later(id, entry.until, entry.attempts)


def _id_of(place: str) -> str:
    return place.rpartition("/")[2].partition(".")[0]


def _rename(source: Queue[Any], target: Queue[Any], rooms: Rooms, entry: Entry, place: str) -> bool:
    """Move one message by its exact name; return False if another process was faster."""
    fd = target.layout.directory.fd
    extras = source.layout.extras(entry)
    if extras is not None:  # CRASH: what is left of it in either queue is removed by its purge
        store = ExtrasStore(target.layout.directory, rooms, sync=target.settings.sync)
        extras = extras._replace(expires=0) if entry.state == states.DEAD else extras
        store.write(_id_of(place), extras)
    here = os.path.join(os.path.abspath(source.path), entry.place)
    try:
        if not _enter(here, place, fd, rooms):
            return False
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise
        raise access_error(target.path, f"move message {entry.id} to", error) from error
    if extras is not None:
        store.restore(_id_of(place), extras)
        fs.discard(place_of(entry.id), source.layout.directory.fd)
    _move_note(
        here,
        entry,
        fd,
        ""
        if place == _id_of(place) or entry.state == states.DEAD
        else f"{place.partition('.')[0]}.{names.ERROR}",
    )
    return True


def _enter(here: str, place: str, dir_fd: int, rooms: Rooms) -> bool:
    """Rename, and make the bucket if it is missing; return False if the message is gone."""
    for _ in range(TRIES):
        try:
            _rename_exclusively(here, place, dir_fd)
        except FileNotFoundError:
            if "/" not in place or not fs.exists(here, -1):
                return False
            rooms.make(
                names.folder_of(place)[:-1]
            )  # RACE: it may go again, as empty, before the message is in it
        else:
            return True
    raise OSError(errno.EBUSY, "the bucket is removed as fast as it is made", place)


def _rename_exclusively(here: str, place: str, dir_fd: int) -> None:
    try:
        fs.rename_noreplace(here, place, dir_fd)
    except NotImplementedError:
        # RACE: nobody else makes this id; only a copy made by hand can have it.
        if fs.exists(place, dir_fd):
            raise FileExistsError(errno.EEXIST, "the id is taken") from None
        fs.rename(here, place, dst_dir_fd=dir_fd)


def _move_note(here: str, entry: Entry, dir_fd: int, there: str) -> None:
    """Move the note of the last failure too, or remove it if the message becomes ready."""
    note = os.path.join(os.path.dirname(here), f"{entry.id}.{names.ERROR}")
    try:
        if there:
            fs.rename(note, there, dst_dir_fd=dir_fd)
        else:
            fs.unlink(note)
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
                with message.open() as body:
                    moved.append(_put(target, body, message.priority, message.extras))
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
            body = layout.stream(entry.place)
        except MessageNotFound:
            continue  # RACE: another process redrove it
        extras = layout.extras(entry)
        with body:
            moved.append(_put(target, body, entry.priority, extras and extras._replace(expires=0)))
        layout.remove(entry)
        step()
    return moved


def _put(target: Queue[Any], body: BinaryIO, priority: int | None, extras: Extras | None) -> str:
    """Put bytes as they are, whatever codec the queue was opened with; a long body is never in memory as a whole."""
    wanted = (priority or target.settings.default_priority) if target.settings.priorities else None
    producer = target.layout if extras is None else target.layout.carrying(extras)
    data = body.read(spool.AT_ONCE)
    if len(data) == spool.AT_ONCE and target.layout.name == "native":
        with spool.spooled(target, data, body) as path:
            target._admission.check(0, wanted, 0)  # noqa: SLF001
            return producer.put_path(path, delay=0, priority=wanted)
    data += body.read()
    if 0 < target.settings.max_size < len(data):
        text = f"a message of {len(data)} bytes does not fit: {target.path!r} takes at most {target.settings.max_size}"
        raise MessageTooLarge(text, message_id="", size=len(data), limit=target.settings.max_size)
    if target.settings.max_messages:
        target._admission.bound.reserve(1, 0)  # noqa: SLF001
    return producer.put(data, 0, wanted)
