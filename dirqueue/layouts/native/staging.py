"""What a producer needs while nobody can see yet what it writes: when it began, a beat, and files that are whole.

Layer: layouts.  Touches: the time of a staging directory.
Purge takes what was not written to for the queue's `stale` seconds for a leftover, and its producer may only be slow.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.settings import Settings

#: NFS, HDFS: how long to wait for a closed file to show its full length.
SETTLE_SECONDS = 10.0
#: Part of `stale` after which a missing ID.new may have been removed as a leftover, and in which a staging is renewed.
SOON = 0.25


class Start(NamedTuple):
    """When a put began: by the monotonic clock, which nobody sets, and by the server's, which counts every sleep."""

    monotonic: float
    #: Microseconds of our own clock, and what the server's is ahead of it; None if that was not measured yet.
    here: int
    offset: int | None

    @classmethod
    def now(cls, directory: Directory) -> Start:
        """Return this moment, without a call to the server."""
        clock = directory.clock
        return cls(time.monotonic(), time.time_ns() // 1000, clock.offset if clock.till else None)

    def is_recent(self, directory: Directory, settings: Settings) -> bool:
        """Return whether too little time has passed for anybody to have removed what was written since."""
        limit = settings.stale * SOON
        passed = directory.clock.now() - directory.clock.offset - self.here
        if self.offset is not None:
            passed += directory.clock.offset - self.offset
        return time.monotonic() - self.monotonic < limit and 0 <= passed < micros(limit)


class Beat:
    """Keeps a staging directory alive from a thread, while its writer waits for the caller's next body."""

    def __init__(self, directory: Directory, staging: str, every: float) -> None:
        self._directory = directory
        self._staging = staging
        self._every = max(every, 0.01)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dirqueue-staging", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                fs.utime(self._staging, dir_fd=self._directory.fd)
            except OSError:
                pass  # the next write of its writer meets the same, and reports it


def settle(directory: Directory, written: Iterable[tuple[str, int]]) -> None:
    """Wait until closed files have their full length for everybody (HDFS closes in its own time)."""
    deadline = time.monotonic() + SETTLE_SECONDS
    for name, size in written:
        while fs.served_size(name, directory.fd) != size:
            if time.monotonic() > deadline:
                raise OSError(errno.EIO, f"{name} did not reach its length in {SETTLE_SECONDS:g} s")
            time.sleep(0.01)


def replace(directory: Directory, name: str, data: bytes, *, sync: bool) -> None:
    """Replace a small file: readers see the old one or the new one, and all of it. Raises plain OSError.

    COMPAT: where the filesystem replaces no file, readers find none for a moment. CRASH: then none is left.
    """
    fd, new = directory.fd, f"{name}.new"
    if not directory.mount.closes_late:
        return fs.replace_file(name, data, fd, sync=sync)
    fs.discard(new, fd)
    fs.create(new, data, fd, sync=sync)
    settle(directory, [(new, len(data))])
    try:
        fs.rename_in(new, name, fd)
    except OSError as error:
        if not is_refused(directory, error, name):
            raise
        fs.unlink(name, dir_fd=fd)
        fs.move(new, name, fd)


def is_refused(directory: Directory, error: OSError, name: str) -> bool:
    """Return whether a rename failed because the filesystem replaces no file, and there is one of that name."""
    return error.errno == errno.EIO and directory.mount.may_not_replace and fs.exists(name, directory.fd)
