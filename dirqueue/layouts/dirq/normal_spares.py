"""Emptied elements of dirq-normal, used again as locks.

Layer: layouts.  Touches: empty directories in obsolete/ that this process put there.
Invariant: a lock is still made by one call that fails if there is one, and is an empty directory as dirq makes it.
Crash: leaves an empty directory in obsolete/, which every purge removes.

A consumer that has just removed an element renames its emptied directory to the lock of the next one.
COST: to remove a directory and make another are the dearest calls of a filesystem with a journal. Without this, get
and ack take 4 % longer on tmpfs and 1.4 times as long, or longer, on ext4.
"""

from __future__ import annotations

import contextlib
import os

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory

#: How many are kept: about as many as there are threads at work.
KEPT = 8


class Spares:
    """The emptied directories of one queue object."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        #: Whether there are elements at hand to be locked next.
        self.wanted = False
        self._names: list[str] = []

    def __del__(self) -> None:
        with contextlib.suppress(BaseException):  # whatever it is, nobody is left to be told
            self.drop()

    def keep(self, name: str) -> bool:
        """Keep an emptied directory; False if there is no use for it."""
        # NFS: there is no rename that refuses to replace, and a plain one replaces the lock that another consumer has.
        if self._directory.mount.no_exclusive_rename or len(self._names) >= KEPT or not self.wanted:
            return False
        self._names.append(name)
        return True

    def become(self, lock: str) -> os.stat_result | None:
        """Make a kept directory the lock of that name; None if there is none left. FileExistsError if it is locked."""
        try:
            name = self._names.pop()
        except IndexError:
            return None
        fd = self._directory.fd
        try:
            fs.rename_noreplace(name, lock, fd)
        except FileExistsError:
            self._names.append(name)
            raise
        except (OSError, NotImplementedError):
            # COMPAT: the purge of Python's dirq removes it at any age. Or it is the element that is gone.
            fs.remove_quietly(name, fd)
            return None
        try:
            facts = fs.stat(lock, dir_fd=fd, follow_symlinks=False)
        except OSError:
            fs.remove_quietly(lock, fd)  # nobody would know that it is ours
            raise
        if facts.st_nlink == 2:
            return facts
        # COMPAT: names are a microsecond and one digit, and dirq renames what it removes onto an empty directory
        # without a word. So this is its element; or links are not counted here (btrfs), and nobody can tell.
        with contextlib.suppress(OSError, NotImplementedError):
            fs.rename_noreplace(lock, name, fd)
        fs.remove_quietly(name, fd)
        return None

    def drop(self) -> None:
        """Remove them all."""
        while self._names:
            try:
                name = self._names.pop()
            except IndexError:
                return  # RACE: another thread took the last one
            fs.remove_quietly(name, self._directory.fd)
