"""Finding the queues under a root.

Layer: tools.  Touches: nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from stat import S_ISLNK

from dirqueue.disk import fs
from dirqueue.errors import QueueError, QueueNotFound, access_error
from dirqueue.layouts import signs
from dirqueue.layouts.native.conditions import SPACE
from dirqueue.tools import conversion

#: How deep queues are looked for below a root.
DEPTH = 8
#: How deep, and how many, to tell whoever named the directory above them.
NEAR, SOME = 3, 100
#: What mkfs puts into the root of a filesystem, for its owner only.
NO_QUEUE = "lost+found"


def find(root: str, depth: int = DEPTH, *, linked: bool = True) -> Iterator[str]:
    """Yield the paths of the queues at or under a root, in order; with `linked` also where symbolic links lead.

    A directory that cannot be read is among them, because it may be one: opening it raises the reason. So is a
    queue that an interrupted conversion has taken from its path. An empty directory under the root is an empty queue.
    """
    try:
        facts = fs.stat(root)
        found = signs.contents(root)
    except FileNotFoundError:
        raise QueueNotFound(f"there is no directory {root!r}", path=root) from None
    except NotADirectoryError as error:
        if not signs.is_text(root):
            raise access_error(root, "look for queues in", error) from error
        yield root
        return
    except OSError as error:
        raise access_error(root, "look for queues in", error) from error
    if found.kind == signs.QUEUE:
        yield root
    yield from (os.path.join(root, name) for name in found.files)
    yield from _below(root, found.below, depth, {(facts.st_dev, facts.st_ino)}, linked)


def _below(
    path: str, inner: list[str], depth: int, seen: set[tuple[int, int]], linked: bool
) -> Iterator[str]:
    for name in inner:
        each = os.path.join(path, name)
        queue = conversion.queue_of(each)
        if queue is not None:
            if not fs.exists(os.path.abspath(queue), -1):
                yield queue
            continue
        try:
            facts = fs.stat(each, follow_symlinks=linked)
            if S_ISLNK(facts.st_mode):
                continue
            found = signs.contents(each)
        except (FileNotFoundError, NotADirectoryError):
            continue  # RACE: gone meanwhile
        except OSError:
            if name != NO_QUEUE:
                yield each
            continue
        if (facts.st_dev, facts.st_ino) in seen:
            continue  # a link to what was seen already, or to a directory above
        seen.add((facts.st_dev, facts.st_ino))
        if found.kind != signs.OTHER:
            yield each
        yield from (os.path.join(each, name) for name in found.files)
        if depth > 1:
            yield from _below(each, found.below, depth - 1, seen, linked)


def need_queue(path: str) -> None:
    """Raise QueueError if there is a directory that is not a queue; the message names the queues below it."""
    if not fs.exists(os.path.abspath(path), -1) or signs.is_queue(path):
        return
    below = _said_below(path) or "no queue is below it either"
    raise QueueError(f"{path!r} is not a queue: nothing in it is dirqueue's; {below}", path=path)


def refuse_root(path: str) -> None:
    """Raise QueueError if there is a directory that is not a queue but holds some: a message is meant for one of them.

    COST: up to 4,096 names are read.
    """
    if holds_queues(path):
        need_queue(path)


def need_space(path: str) -> None:
    """Raise QueueError if there is a queue: its messages are no queues, and what is put there would lie among them."""
    try:
        found = signs.contents(path)
    except OSError:
        return  # missing, or it may not be read: whoever opens it says so
    if found.kind == signs.QUEUE and not (_has(path, SPACE) or holds_queues(path)):
        raise QueueError(
            f"{path!r} is a queue, not a directory of queues: name the directory that it lies in", path=path
        )


def holds_queues(path: str, *, linked: bool = True) -> bool:
    """Return whether queues that were used are below a directory; with `linked` also where symbolic links lead."""
    try:
        found = itertools.islice(find(path, NEAR, linked=linked), SOME)
        return any(each != path and _is_used(each) for each in found)
    except (QueueError, OSError):
        return False  # there is none, or it may not be read: whoever opens it next says so


def _has(path: str, name: str) -> bool:
    return fs.exists(os.path.join(os.path.abspath(path), name), -1)


def _is_used(path: str) -> bool:
    try:
        return signs.contents(path).kind == signs.QUEUE
    except NotADirectoryError:
        return True  # a text file
    except OSError:
        return False


def _said_below(path: str) -> str:
    """Return half a sentence that counts the queues below a directory and names some; empty if there are none."""
    try:
        paths = (each for each in find(path, NEAR) if each != path)
        found = [os.path.relpath(each, path) for each in itertools.islice(paths, SOME)]
    except (QueueNotFound, OSError):
        return ""  # RACE: gone meanwhile
    if not found:
        return ""
    many = (
        "one queue" if len(found) == 1 else f"{'' if len(found) < SOME else 'at least '}{len(found)} queues"
    )
    shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return f"there {'is' if len(found) == 1 else 'are'} {many} below it: {shown}"
