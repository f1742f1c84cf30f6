"""The registers of this process: their directory, the numbers of its transactions, and what is still to be forgotten.

    .space/txn/P/     made once by one process, never again; P is an id

Layer: objects.  Touches: .space/txn/P/ and the registers in it.
Invariant: a register is removed only after every name of its transaction has come to its end, durably if the
transaction was durable.
Crash: registers stay, and are removed by a purge of the space.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.fork import renew_in_child
from dirqueue.disk.identity import new_id
from dirqueue.layouts.native.conditions import MAX_NUMBER, REGISTERS, SPACE
from dirqueue.layouts.native.register import Register

#: Durable transactions whose registers are removed together, after one fsync of each directory, and the seconds that
#: they wait for each other.
TOGETHER = 64
SECONDS = 1.0


class Owner:
    """What one process owns in one space."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.register = Register(directory, REGISTERS)
        self.reset()
        renew_in_child(self.reset)

    def reset(self) -> None:
        """Own nothing. In a forked child: what the parent owns is the parent's."""
        self._lock = threading.RLock()
        self._process = ""
        self._number = 0
        #: Registers to remove when these directories have been flushed.
        self._pending: list[str] = []
        self._folders: set[str] = set()
        self._since = 0.0

    def begin(self) -> tuple[str, str]:
        """Return the name of a new transaction, and the path of its register. Raises plain OSError."""
        with self._lock:
            if not self._process or self._number >= MAX_NUMBER:
                self._make()
            self._number = number = self._number + 1
            process = self._process
        return f"{process}-{number}", f"{REGISTERS}/{process}/{number}"

    def _make(self) -> None:
        fd = self.directory.fd
        process = new_id()
        for path in (SPACE, REGISTERS):
            fs.make_inner(path, fd)
        fs.make_inner(f"{REGISTERS}/{process}", fd)
        # A committed register must not be lost with the directory that it is in.
        self.directory.sync(REGISTERS, SPACE, ".")
        self._process, self._number = process, 0

    def fenced(self, txn: str) -> None:
        """Begin another directory: a purge took the one of this transaction for that of a dead process."""
        with self._lock:
            if txn.startswith(f"{self._process}-"):
                self._process = ""

    def forget(self, register: str, folders: Iterable[str]) -> None:
        """Remove a register when these directories are durable: every name of its transaction is at its end."""
        with self._lock:
            if not self._pending:
                self._since = time.monotonic()
            self._pending.append(register)
            self._folders.update(folders)
            if len(self._pending) >= TOGETHER or time.monotonic() - self._since >= SECONDS:
                self.flush()

    def flush(self) -> None:
        """Make durable what durable transactions have changed, and forget them."""
        with self._lock:
            pending, folders = self._pending, self._folders
            self._pending, self._folders = [], set()
        fd = self.directory.fd
        for folder in sorted(folders):
            try:
                self.directory.sync(folder)
            except FileNotFoundError:
                continue  # emptied and removed since
            except OSError:
                return  # their registers stay: a purge will settle their names again
        for register in pending:
            fs.discard(register, fd)

    def leave(self) -> None:
        """Forget what can be forgotten, and remove the directory if nothing is left in it."""
        with self._lock:
            process, self._process = self._process, ""
            if process and self.directory.fd >= 0:
                self.flush()
                fs.remove_quietly(f"{REGISTERS}/{process}", self.directory.fd)
