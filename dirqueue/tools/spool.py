"""Putting a body that need not fit into memory.

Layer: tools.  Touches: `ID.new` in a native queue, which is what an unfinished message is called there.
CRASH: what is left of a put that was cut short is removed by a purge, as after any other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

from dirqueue.bounds import too_large
from dirqueue.disk import fs
from dirqueue.disk.identity import new_id
from dirqueue.errors import access_error
from dirqueue.queue import Queue


class Source(Protocol):
    """What can be read piece by piece."""

    def read(self, size: int = ..., /) -> bytes: ...


#: A body below this size is put from memory.
AT_ONCE = 1 << 20


def put_stream(queue: Queue[Any], source: Source, **how: Any) -> str:
    """Put what a stream yields as one message; `how` as in `Queue.put`. Return its id.

    A native queue takes a body of any size in constant memory. The other layouts read it whole.
    """
    head = source.read(AT_ONCE)
    if len(head) < AT_ONCE:
        return queue.put(head, **how)
    if queue.layout.name != "native":
        return queue.put(head + source.read(), **how)
    with spooled(queue, head, source) as path:
        return queue.put_path(path, **how)


@contextlib.contextmanager
def spooled(queue: Queue[Any], head: bytes, source: Source) -> Iterator[str]:
    """Write a long body beside the messages of a native queue, and yield the path of the file for `put_path`."""
    directory = queue.layout.directory
    directory.make()
    name = f"{new_id()}.new"
    try:
        size = _write(name, head, source, directory.fd, queue.settings.max_size)
    except OSError as error:
        raise access_error(directory.path, "write a message to", error) from error
    try:
        if 0 < queue.settings.max_size < size:
            raise too_large(size, queue.settings.max_size)
        yield os.path.join(directory.path, name)
    finally:
        fs.discard(name, directory.fd)  # gone already, unless the put failed


def _write(name: str, head: bytes, source: Source, dir_fd: int, limit: int) -> int:
    """Write a new file completely or leave none; stop beyond `limit`, if there is one. Return the bytes written."""
    fd = fs.open(name, fs.CREATE, fs.FILE_MODE, dir_fd=dir_fd)
    size, data = 0, head
    try:
        while data:
            size += len(data)
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, rest) :]
            data = b"" if 0 < limit < size else source.read(AT_ONCE)
    except BaseException:
        fs.close_quietly(fd)
        fs.discard(name, dir_fd)
        raise
    try:
        fs.close(fd)
    except OSError:
        fs.discard(name, dir_fd)  # NFS: a write may fail as late as here
        raise
    return size
