"""The file server's clock: the one that all hosts sharing a directory agree on.

Layer: above fs, below layouts.
A lease is judged by server time, so that a host whose clock is wrong neither takes live leases nor lets dead ones
lie. The server's time is the mtime it gives a file; the difference to our clock is kept and refreshed.
"""

from __future__ import annotations

import time

from dirqueue.disk import fs, identity

#: For how long a measured difference is trusted.
TRUST_NS = 60 * 10**9
#: A difference below this is the granularity of file times, not a wrong clock.
NOISE = 0.05
#: A probe slower than this says little about the moment; it is repeated, then taken as it is.
SLOW = 0.5


class Clock:
    """Time as the filesystem of one directory tells it, in microseconds since the epoch."""

    def __init__(self, dir_fd: int) -> None:
        self._dir_fd = dir_fd
        #: Microseconds that the server is ahead of us.
        self.offset = 0
        #: From when until when that is trusted, in nanoseconds of our own clock.
        self.since = self.till = 0

    def now(self) -> int:
        """Return the server's time in microseconds."""
        here = time.time_ns()
        if not self.since <= here < self.till:  # also when our clock was set back
            self._measure()
            here = time.time_ns()
        return here // 1000 + self.offset

    def _measure(self) -> None:
        """Compare clocks. A directory we cannot write to keeps our own clock."""
        self.since = time.time_ns()
        self.till = self.since + TRUST_NS
        for _ in range(3):
            before = time.time()
            try:
                there = self._touch()
            except OSError:
                # Full, read-only or no permission: whatever comes next will say so better.
                self._readable()
                return
            after = time.time()
            if 0 <= after - before < SLOW:
                break
        # File times are those of the last tick: a server that agrees with us shows up to a tick less.
        difference = there - before if there < before else max(0.0, there - after)
        self.offset = 0 if abs(difference) < NOISE else int(difference * 1_000_000)
        self._readable()

    def _readable(self) -> None:
        """A clock that was never set must not make names that nobody can read; it runs on from 2001 instead."""
        if self.since // 1000 + self.offset < identity.MIN_TIME:
            self.offset = identity.MIN_TIME

    def _touch(self) -> float:
        name = f".clock-{identity.new_token()}"
        fd = fs.open(name, fs.CREATE, fs.FILE_MODE, dir_fd=self._dir_fd)
        try:
            # utime(None) asks the server for its own time; creation may be stamped by the client (NFS: delegations).
            fs.utime(fd)
            return fs.fstat(fd).st_mtime
        finally:
            try:
                fs.close(fd)
            finally:
                fs.discard(name, self._dir_fd)


class OwnClock(Clock):
    """Our own clock, for directories in which nothing of ours may lie; corrected by the times others' files show."""

    def _measure(self) -> None:
        self.since = time.time_ns()
        self.till = self.since + TRUST_NS

    def learn(self, mtime_ns: int) -> None:
        """Take note of the time that the server gave a file just now."""
        difference = mtime_ns // 1000 - time.time_ns() // 1000
        self.offset = 0 if abs(difference) < micros(NOISE) else difference


def micros(duration: float) -> int:
    """Return a duration in microseconds."""
    return int(duration * 1_000_000)
