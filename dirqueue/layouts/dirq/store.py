"""What the two dirq formats share: the top directory, its intermediate directories, modes, counting.

Layer: layouts.  Touches: the queue's directory and its intermediate directories.
Invariant: nothing is made but names that dirq itself makes. Raises bare OSError: who calls knows the words for it.
"""

from __future__ import annotations

import errno
import os
import time
from abc import abstractmethod

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.dirq import names

#: How long the purge of a layout leaves an emptied directory, for producers that chose it and have yet to write.
GRACE = 60.0
#: How often an add starts anew when a name is taken or a directory goes away under it.
TRIES = 100


class Store:
    """The files of one dirq queue, by name: `DIRECTORY/ELEMENT`."""

    def __init__(
        self, directory: Directory, *, sync: bool, digit: str = "", umask: int | None = None
    ) -> None:
        self.directory = directory
        self.sync = sync
        self.digit = digit or names.digit()
        self.umask = umask
        #: An empty directory that changed within so many seconds is left alone by purge.
        self.grace = 0.0

    def make(self) -> None:
        """Make the queue's directory if it is not there."""
        if self.umask is None or self.directory.find():
            self.directory.make()
            return
        self.directory.make()
        self._chmod(".", fs.DIR_MODE)

    @abstractmethod
    def count(self) -> int:
        """Return how many elements there are, locked or not."""

    @abstractmethod
    def purge(self, old_temporary_ns: int, old_lock_ns: int) -> tuple[int, int, int]:
        """Remove what was last touched before these times (0: nothing of that kind), and empty directories.

        Returns how many unfinished elements, locks and directories went.
        """

    def directories(self) -> list[str]:
        """Return the intermediate directories, sorted."""
        return names.directories(fs.names_in(".", self.directory.fd))

    def elements(self, folder: str) -> list[str]:
        """Return the elements of one intermediate directory, in no order; none if it is gone, or is none."""
        try:
            return names.elements(fs.names_in(folder, self.directory.fd))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directory(self, name: str) -> None:
        """Make a directory; one that is there is good."""
        if fs.make_directory(name, self.directory.fd):
            self._chmod(name, fs.DIR_MODE)
            if self.sync:
                self.directory.sync()

    def _chmod(self, name: str, mode: int) -> None:
        # The process's umask is nobody's but the process's: threads share it, so ours is applied afterwards.
        if self.umask is not None:
            fs.chmod(name, mode & ~self.umask, dir_fd=self.directory.fd)

    def remove_empty(self, directories: list[str]) -> int:
        """Remove those of the intermediate directories that are empty, never the last; how many went."""
        return sum(self.remove_if_empty(name) for name in directories[:-1])

    def remove_if_empty(self, name: str) -> bool:
        """Remove an intermediate directory if it is empty; whether it went."""
        # RACE: somebody may be about to write there. We would make it again; COMPAT: other programs fail, and lose
        # what they were adding, so a directory that was in use a moment ago is given some time.
        try:
            if self.grace and fs.mtime_of(name, self.directory.fd) > time.time() - self.grace:
                return False
        except FileNotFoundError:
            return False
        return fs.remove_directory(name, self.directory.fd)


def taken() -> OSError:
    """Return the error for names that stay taken however often one tries."""
    return OSError(errno.EEXIST, f"{TRIES} new names in a row were taken: {os.strerror(errno.EEXIST)}")
