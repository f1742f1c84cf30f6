"""The file server's clock: the one that all hosts sharing a directory agree on.

Layer: disk.
A lease is judged by server time, so that a host whose clock is wrong neither takes live leases nor lets dead ones
lie. The server's time is the mtime it gives a file; the difference to our clock is kept and refreshed.
"""

from __future__ import annotations

import time
import weakref
from typing import Protocol

from dirqueue.disk import fs, identity
from dirqueue.errors import QueueError

#: For how long a measured difference is trusted.
TRUST_NS = 60 * 10**9
#: A difference below this is the granularity of file times, not a wrong clock.
NOISE = 0.05
#: A probe slower than this says little about the moment; it is repeated, then taken as it is.
SLOW = 0.5
#: Nothing is removed because of its age where the clocks differ by more than two days.
PLAUSIBLE = 2 * 86400 * 1_000_000


class Located(Protocol):
    """What a clock needs of its directory."""

    path: str
    fd: int


class Clock:
    """Time as the filesystem of one directory gives it, in microseconds since the epoch."""

    def __init__(self, directory: Located) -> None:
        # Weak: the directory owns its clock, and its descriptor must go when the directory does.
        self._directory = weakref.proxy(directory)
        #: Microseconds that the server is ahead of us.
        self.offset = 0
        #: From when until when that is trusted, in nanoseconds of our own clock.
        self.since = self.till = 0

    def now(self) -> int:
        """Return the server's time in microseconds.

        Raises:
            QueueError: the clock shows a time before 2001, so that no name could be read again.
        """
        here = time.time_ns()
        if not self.since <= here < self.till:  # also when our clock was set back
            self._measure()
            here = time.time_ns()
        return here // 1000 + self.offset

    @property
    def plausible(self) -> bool:
        """Whether the clocks agree well enough to remove something because of its age.

        A server whose clock is far off may have been set while files were being written: all of them look old.
        """
        return abs(self.offset) <= PLAUSIBLE

    def _measure(self) -> None:
        """Compare the clocks. For a directory that we cannot write to, our own clock has to do."""
        since = time.time_ns()
        offset = self._compare()
        if since // 1000 + offset < identity.MIN_TIME:
            raise self._refusal(since // 1000 + offset, ours=not offset)
        self.offset, self.since, self.till = offset, since, since + TRUST_NS

    def _compare(self) -> int:
        """Return the microseconds that the server is ahead of us."""
        for _ in range(3):
            before = time.time()
            try:
                there = self._touch()
            except OSError:
                # Full, read-only or no permission: the call that follows reports it better.
                return self.offset
            after = time.time()
            if 0 <= after - before < SLOW:
                break
        # File times are those of the last tick: a server that agrees with us shows up to a tick less.
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
            # utime(None) asks the server for its own time; creation may be stamped by the client (NFS: delegations).
            fs.utime(fd)
            return fs.fstat(fd).st_mtime
        finally:
            try:
                fs.close(fd)
            finally:
                fs.discard(name, dir_fd)


class OwnClock(Clock):
    """Our own clock, for directories in which nothing of ours may lie; corrected by the times of peers' files."""

    def _compare(self) -> int:
        return self.offset

    def learn(self, mtime_ns: int) -> None:
        """Take note of the time that the server gave a file just now."""
        difference = mtime_ns // 1000 - time.time_ns() // 1000
        if mtime_ns // 1000 >= identity.MIN_TIME:
            self.offset = 0 if abs(difference) < micros(NOISE) else difference


def micros(duration: float) -> int:
    """Return a duration in microseconds."""
    return int(duration * 1_000_000)
