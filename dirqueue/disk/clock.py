"""The clock of the file server, which all hosts that share a directory agree on.

Layer: disk.
Leases are judged by server time, so that a host with a wrong clock neither claims live leases nor ignores expired
ones. Server time is the mtime that the server gives a file; its difference to the local clock is cached and refreshed.
"""

from __future__ import annotations

import time
import weakref
from typing import Protocol

from dirqueue.disk import fs, identity
from dirqueue.errors import QueueError

#: How long a measured difference is trusted.
TRUST_NS = 60 * 10**9
#: A difference below this is the granularity of file times, not a wrong clock.
NOISE = 0.05
#: A probe slower than this is imprecise; it is repeated, and finally accepted.
SLOW = 0.5
#: Nothing is removed because of its age where the clocks differ by more than two days.
PLAUSIBLE = 2 * 86400 * 1_000_000


class Located(Protocol):
    """The attributes of a directory that a clock uses."""

    path: str
    fd: int


class Clock:
    """Time as the filesystem of one directory gives it, in microseconds since the epoch."""

    def __init__(self, directory: Located) -> None:
        # Weak: the directory owns its clock, and its descriptor must be closed together with it.
        self._directory = weakref.proxy(directory)
        #: Microseconds that the server is ahead of the local clock.
        self.offset = 0
        #: The period in which that is trusted, in nanoseconds of the local clock.
        self.since = self.till = 0

    def now(self) -> int:
        """Return the server's time in microseconds.

        Raises:
            QueueError: the clock shows a time before 2001, which names cannot express.
        """
        here = time.time_ns()
        if not self.since <= here < self.till:  # also when our clock was set back
            self._measure()
            here = time.time_ns()
        return here // 1000 + self.offset

    @property
    def plausible(self) -> bool:
        """Whether the clocks agree well enough to remove something because of its age.

        If the clock of a server is far off, it may have been set while files were being written: all of them look old.
        """
        return abs(self.offset) <= PLAUSIBLE

    def _measure(self) -> None:
        """Compare the clocks. If the directory is not writable, the local clock is used."""
        since = time.time_ns()
        offset = self._compare()
        if since // 1000 + offset < identity.MIN_TIME:
            raise self._refusal(since // 1000 + offset, ours=not offset)
        self.offset, self.since, self.till = offset, since, since + TRUST_NS

    def _compare(self) -> int:
        """Return the microseconds that the server is ahead of the local clock."""
        for _ in range(3):
            before = time.time()
            try:
                there = self._touch()
            except OSError:
                # Full, read-only or no permission: the next call reports it with more context.
                return self.offset
            after = time.time()
            if 0 <= after - before < SLOW:
                break
        # File times are those of the last tick: they lag by up to a tick even if the clocks agree.
        difference = there - before if there < before else max(0.0, there - after)
        return 0 if abs(difference) < NOISE else int(difference * 1_000_000)

    def _refusal(self, shown: int, *, ours: bool) -> QueueError:
        path = self._directory.path
        whose = "of this machine" if ours else "of the file server"
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(shown / 1_000_000))
        return QueueError(
            f"cannot use {path!r}: the clock {whose} shows {when} UTC, but leases need a time after 2001; "
            "set that clock",
            path=path,
        )

    def _touch(self) -> float:
        name = f".clock-{identity.new_token()}"
        dir_fd = self._directory.fd
        fd = fs.open(name, fs.CREATE, fs.FILE_MODE, dir_fd=dir_fd)
        try:
            # utime(None) sets the time of the server; at creation the client may set its own (NFS: delegations).
            fs.utime(fd)
            return fs.fstat(fd).st_mtime
        finally:
            try:
                fs.close(fd)
            finally:
                fs.discard(name, dir_fd)


class OwnClock(Clock):
    """The local clock, for directories in which no probe may be created; corrected by the times of peers' files."""

    def _compare(self) -> int:
        return self.offset

    def learn(self, mtime_ns: int) -> None:
        """Correct the clock by the time that the server has just given a file."""
        difference = mtime_ns // 1000 - time.time_ns() // 1000
        if mtime_ns // 1000 >= identity.MIN_TIME:
            self.offset = 0 if abs(difference) < micros(NOISE) else difference


def micros(duration: float) -> int:
    """Return a duration in microseconds."""
    return int(duration * 1_000_000)
