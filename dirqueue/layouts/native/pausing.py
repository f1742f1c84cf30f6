"""Pausing: while the file `paused` is at the top of a queue, nothing is claimed from it.

Layer: layouts.  Touches: paused.
A person may make it with `touch` and remove it with `rm`: only the name counts. What is in it is for people.
Crash: it is there or not; one that is empty pauses as well.
"""

from __future__ import annotations

from typing import NamedTuple

from dirqueue.disk import fs, identity
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.layouts.native.names import PAUSED


class Sign(NamedTuple):
    """Where the file is; in other layouts it may be elsewhere."""

    name: str
    dir_fd: int
    #: The directory that it is in, for its flush.
    folder: str


def inside(directory: Directory) -> Sign:
    """Return the name in the queue."""
    return Sign(PAUSED, directory.fd, ".")


def is_paused(directory: Directory, sign: Sign | None = None) -> bool:
    """Return whether the queue is paused: one call."""
    name, dir_fd, _ = sign or inside(directory)
    try:
        return fs.is_file(name, dir_fd)
    except OSError as error:
        raise access_error(directory.path, "look at", error) from error


def pause(directory: Directory, sign: Sign | None = None, *, sync: bool) -> bool:
    """Pause the queue; return False if it was paused."""
    import json

    directory.need()
    name, dir_fd, folder = sign or inside(directory)
    record = {"since": directory.clock.now(), "by": identity.new_token()}
    try:
        fs.create(name, json.dumps(record).encode() + b"\n", dir_fd, sync=sync)
        if sync:
            fs.sync_directory(folder, dir_fd)
    except FileExistsError:
        return False
    except OSError as error:
        raise access_error(directory.path, "pause", error) from error
    return True


def resume(directory: Directory, sign: Sign | None = None, *, sync: bool) -> bool:
    """End the pause; return False if there was none."""
    directory.need()
    name, dir_fd, folder = sign or inside(directory)
    try:
        fs.unlink(name, dir_fd=dir_fd)
        if sync:
            fs.sync_directory(folder, dir_fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise access_error(directory.path, "resume", error) from error
    return True
