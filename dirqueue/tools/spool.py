"""Putting a body that need not fit into memory.

Layer: tools.  Touches: `ID.new` in a native queue, which is what an unfinished message is called there.
CRASH: what is left of a put that was cut short is removed by a purge, as after any other.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any, Protocol

from dirqueue.bounds import too_large
from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
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
    limit = queue.settings.max_size
    made: list[str] = []
    try:
        try:
            size = _write(made, head, source, directory, limit)
        except OSError as error:
            raise access_error(directory.path, "write a message to", error) from error
        if 0 < limit < size:
            raise too_large(size, limit)
        yield os.path.join(directory.path, made[-1])
    finally:
        for name in made:
            fs.discard(name, directory.fd)  # gone already, unless the put failed


def _write(made: list[str], head: bytes, source: Source, directory: Directory, limit: int) -> int:
    """Write a new file, which is the last of `made`; stop beyond `limit`, if there is one. Return the bytes written.

    RACE: a source may be silent for longer than `stale`, or we may be stopped; then a purge takes the file, and nobody
    can read the source again. What was written is still open, and is copied.
    """
    fd = _new(made, directory.fd)
    try:
        if directory.mount.closes_late:  # HDFS: nobody reads what is being written
            size = _fill(fd, head, source, limit)
        else:
            with _open(made[-1], directory.fd) as copy:
                size = _fill(fd, head, source, limit)
                if fs.fstat(copy.fileno()).st_nlink == 0:
                    gone, fd = fd, _new(made, directory.fd)
                    fs.close(gone)
                    _fill(fd, b"", copy, 0)
    except BaseException:
        fs.close_quietly(fd)
        raise
    fs.close(fd)  # NFS: a write may fail as late as here
    return size


def _new(made: list[str], dir_fd: int) -> int:
    name = f"{new_id()}.new"
    fd = fs.open(name, fs.CREATE, fs.FILE_MODE, dir_fd=dir_fd)
    made.append(name)
    return fd


def _open(name: str, dir_fd: int) -> io.BufferedReader:
    return io.BufferedReader(io.FileIO(fs.open(name, fs.READ, dir_fd=dir_fd), "rb"))


def _fill(fd: int, data: bytes, source: Source, limit: int) -> int:
    size = 0
    data = data or source.read(AT_ONCE)
    while data:
        size += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[fs.write(fd, rest) :]
        data = b"" if 0 < limit < size else source.read(AT_ONCE)
    return size
