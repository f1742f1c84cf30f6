"""Unique names across processes, threads and hosts: ids of messages and tokens of leases.

Layer: disk.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time

#: An id is digits: [PRIORITY] + 16 of microseconds + 9 unique to the producing process.
TIME_DIGITS = 16
UNIQUE_DIGITS = 9
ID_DIGITS = TIME_DIGITS + UNIQUE_DIGITS
#: No message is older than 2001: before that, microseconds have fewer than 16 digits.
MIN_TIME = 10 ** (TIME_DIGITS - 1)


class Process:
    """What makes the names of this process unique: random values drawn at the start and again after a fork.

    `generation` changes with each fork, so that a handle can detect that it is in the wrong process without a
    system call.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._draw()

    def _draw(self) -> None:
        # Never two underscores in a row: they stand between a holder and the rest of its token.
        host = re.sub(r"[^A-Za-z0-9-]+", "_", os.uname().nodename.split(".")[0])[:32] or "host"
        self.pid = os.getpid()
        self.unique = f"{int.from_bytes(os.urandom(5)) % 10**UNIQUE_DIGITS:0{UNIQUE_DIGITS}d}"
        self.random = os.urandom(5).hex()
        self.stem = f"{host}-{self.pid}-{self.random}-"
        # If the clock was never set, ids must still be valid.
        self.last = MIN_TIME
        self.count = itertools.count(1)
        # Reentrant: a signal handler may put while it interrupts a put.
        self.lock = threading.RLock()

    def forked(self) -> None:
        """Become another process: same memory, new names."""
        self.generation += 1
        self._draw()


PROCESS = Process()
os.register_at_fork(after_in_child=PROCESS.forked)


def new_id() -> str:
    """Return an id that no other call, thread, process or host returns; increasing within a process."""
    process = PROCESS
    with process.lock:  # and nothing else: a signal handler or a cancelled thread may raise at any line
        now = time.time_ns() // 1000
        if now <= process.last:
            now = process.last + 1
        process.last = now
    return f"{now}{process.unique}"


def new_token() -> str:
    """Return the name of one lease: host, pid, random, count. Never the same twice."""
    process = PROCESS
    return f"{process.stem}{next(process.count)}"
