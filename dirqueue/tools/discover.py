"""Finding the queues under a root.

Layer: tools.  Touches: nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dirqueue.disk import fs
from dirqueue.errors import QueueNotFound, access_error
from dirqueue.layouts import signs
from dirqueue.tools import conversion

#: How deep queues are looked for below a root.
DEPTH = 8
#: What mkfs puts into the root of a filesystem, for its owner only.
NO_QUEUE = "lost+found"


def find(root: str, depth: int = DEPTH) -> Iterator[str]:
    """Yield the paths of the queues at or under a root, in order.

    A directory that cannot be read is among them, because it may be one: opening it raises the reason. So is a
    queue that an interrupted conversion has taken from its path. An empty directory under the root is an empty queue.
    """
    try:
        facts = fs.stat(root)
        found = signs.contents(root)
    except FileNotFoundError:
        raise QueueNotFound(f"there is no directory {root!r}", path=root) from None
    except OSError as error:
        raise access_error(root, "look for queues in", error) from error
    if found.kind == signs.QUEUE:
        yield root
    yield from _below(root, found.below, depth, {(facts.st_dev, facts.st_ino)})


def _below(path: str, inner: list[str], depth: int, seen: set[tuple[int, int]]) -> Iterator[str]:
    for name in inner:
        each = os.path.join(path, name)
        queue = conversion.queue_of(each)
        if queue is not None:
            if not fs.exists(os.path.abspath(queue), -1):
                yield queue
            continue
        try:
            facts = fs.stat(each)
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
        if depth > 1:
            yield from _below(each, found.below, depth - 1, seen)
