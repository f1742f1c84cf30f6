"""Cleaning a queue, one purger at a time.

Layer: mechanisms.  What is removed is decided by the layout; two purgers at once would do no harm, only work twice.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from dirqueue.disk import fs
from dirqueue.errors import access_error
from dirqueue.layouts import signs
from dirqueue.layouts.base import Layout, Purged

LOCK = ".purge.lock"


def purge(layout: Layout, progress: Callable[[], None] | None = None) -> Purged:
    """Clean the queue unless somebody is at it; then say so with `busy`."""
    from filelock import FileLock, Timeout

    if not layout.directory.find():
        return Purged()
    if layout.name != "null":
        signs.need_queue(layout.directory.path, "purged")
    try:
        with FileLock(_lock_path(layout), timeout=0):
            return layout.purge(progress)
    except Timeout:
        return Purged(busy=1)
    except OSError as error:
        raise access_error(layout.directory.path, "purge", error) from error


def _lock_path(layout: Layout) -> str:
    if layout.name == "native":
        return os.path.join(layout.directory.path, LOCK)
    # COMPAT: other programs delete or count whatever else is in their directories.
    facts = fs.fstat(layout.directory.fd)
    return os.path.join(tempfile.gettempdir(), f"dirqueue-{os.getuid()}-{facts.st_dev}-{facts.st_ino}.lock")
