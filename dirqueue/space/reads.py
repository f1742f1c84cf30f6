"""Looking at a space: which queues there are, one message by its id, emptiness.

Layer: objects.  Touches: nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from dirqueue import states
from dirqueue.codecs import Codec
from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.errors import InvalidId, MessageNotFound, access_error
from dirqueue.layouts.native import names as native_names
from dirqueue.layouts.native.conditions import SPACE
from dirqueue.layouts.native.inspect import buckets
from dirqueue.layouts.native.names import LATER, LEASED_ROOM
from dirqueue.layouts.native.sight import lacks, names_below
from dirqueue.message import Message, age
from dirqueue.space import naming

if TYPE_CHECKING:
    from dirqueue.layouts.base import Layout
    from dirqueue.queue import Queue
    from dirqueue.space.ground import Ground
    from dirqueue.space.space import Space

#: How often the queues are looked at again that change while they are looked at.
TRIES = 100


def names(root: Directory) -> list[str]:
    """Return the names of the queues in a space."""
    if not root.find():
        return []
    try:
        found = [
            naming.decode(entry.name)
            for entry in fs.listing(".", root.fd)
            if entry.is_dir(follow_symlinks=False)
        ]
    except OSError as error:
        raise access_error(root.path, "list", error) from error
    return [name for name in found if name is not None]


def messages(queue: Queue[Any], codec: Codec[Any], limit: int | None) -> list[Message[Any]]:
    """Return what is waiting or held in a queue, in one pass over its names."""
    found = (entry for entry in queue.layout.entries(states.LIVE) if entry.state in states.LIVE)
    chosen = sorted(found, key=age) if limit is None else heapq.nsmallest(limit, found, key=age)
    return [Message(entry, queue.layout, codec) for entry in chosen]


def message(space: Space[Any], ground: Ground, id: str, queue: str | None) -> Message[Any]:
    """Return a message by its id; MessageNotFound if there is none."""
    wanted = ground.find_own(id)
    if wanted is None:
        try:
            wanted = native_names.check_id(id)
        except InvalidId:
            pass
    if wanted is not None:
        for name in (queue,) if queue is not None else space.names():
            found = _find(space.queue(name), wanted, space.codec)
            if found is not None:
                return found
    where = f"the queue {queue!r} of {space.path!r}" if queue is not None else repr(space.path)
    raise MessageNotFound(f"there is no message {id!r:.60} in {where}", message_id=str(id)[:60])


def _find(queue: Queue[Any], id: str, codec: Codec[Any]) -> Message[Any] | None:
    """Return a message of a queue; None if it is not in it.

    A priority is part of the id that a message has: one that came from another queue, or was given another priority,
    has the same time and unique digits, and other digits before them.
    """
    own = id[-ID_DIGITS:]
    for each in dict.fromkeys((id, own)):
        try:
            return queue.message(each)
        except MessageNotFound:
            continue
    for entry in queue.layout.entries(states.VISIBLE) if queue.settings.priorities else ():
        if entry.state in states.VISIBLE and entry.id[-ID_DIGITS:] == own:
            return Message(entry, queue.layout, codec)
    return None


def empty(space: Space[Any], queues: Iterable[str]) -> bool:
    """Return whether the queues were empty at one moment.

    Where times of directories tell of every change, they are read before and after: if none has changed, all listings
    are of one moment. A change of a name shows in the time of its directory, and a commit takes a name out of one.
    """
    layouts = [space.queue(name).layout for name in queues]
    for _ in range(TRIES):
        before = [times(layout) for layout in layouts]
        if any(_is_used(layout) for layout in layouts):
            return False
        if before == [times(layout) for layout in layouts] and not any(
            _is_used(layout) for layout in layouts
        ):
            return True
    return False


def _is_used(layout: Layout) -> bool:
    return any(entry.state in states.LIVE for entry in layout.entries(states.LIVE))


def times(layout: Layout) -> list[int]:
    """Return the times of the directories that live messages are in; they mean nothing where they are cached."""
    directory = layout.directory
    if not directory.find() or directory.mount.attributes_are_cached:
        return []
    found = []
    for name in (".", LEASED_ROOM, LATER, *(f"{LATER}/{each}" for each in buckets(directory, LATER))):
        try:
            found.append(fs.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mtime_ns)
        except FileNotFoundError:
            found.append(0)
    return found


class Sight(NamedTuple):
    """Every name in the queues of a space, as one walk has found them."""

    #: (directory with its slash, name) of every file.
    names: list[tuple[str, str]]
    #: 0 if they are those of one moment: what is not among them is not there. Otherwise something may have been missed,
    #: and this is for how many microseconds more nothing must change before a walk can tell.
    lacks: int


def sight(root: Directory) -> Sight:
    """Look at every name of a space."""
    begun, folders = root.clock.now(), ["."]
    found = list(every_name(root.fd, folders))
    return Sight(found, lacks(folders, begun, root))


def every_name(fd: int, folders: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield (directory with its slash, name) of every file in the queues of a space, whoever's it is.

    Args:
        fd: The directory of the space.
        folders: To which the directories are added that were listed.
    """
    queues = [entry.name for entry in list(fs.listing(".", fd)) if entry.is_dir(follow_symlinks=False)]
    for queue in queues:
        if queue != SPACE:
            yield from names_below(queue, fd, folders)
