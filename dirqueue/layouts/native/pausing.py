"""Pausing: while the file `paused` is at the top of a queue, nothing is claimed from it.

Layer: layouts.  Touches: paused.
A person may make it with `touch` and remove it with `rm`: only the name counts. What is in it is for people.
Crash: it is there or not; one that is empty pauses as well.
"""

from __future__ import annotations

from dirqueue.disk import fs, identity
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.layouts.native.names import PAUSED


def is_paused(directory: Directory) -> bool:
    """Return whether the queue is paused: one call."""
    try:
        return fs.is_file(PAUSED, directory.fd)
    except OSError as error:
        raise access_error(directory.path, "look at", error) from error


def pause(directory: Directory, *, sync: bool) -> bool:
    """Pause the queue; return False if it was paused."""
    import json

    directory.need()
    record = {"since": directory.clock.now(), "by": identity.new_token()}
    try:
        fs.create(PAUSED, json.dumps(record).encode() + b"\n", directory.fd, sync=sync)
        if sync:
            directory.sync()
    except FileExistsError:
        return False
    except OSError as error:
        raise access_error(directory.path, "pause", error) from error
    return True


def resume(directory: Directory, *, sync: bool) -> bool:
    """End the pause; return False if there was none."""
    directory.need()
    try:
        fs.unlink(PAUSED, dir_fd=directory.fd)
        if sync:
            directory.sync()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise access_error(directory.path, "resume", error) from error
    return True
