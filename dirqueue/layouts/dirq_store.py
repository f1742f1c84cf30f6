"""What the two dirq formats share: the top directory, its intermediate directories, modes, counting.

Layer: layouts.  Touches: the queue's directory and its intermediate directories.
Invariant: nothing is made but names that dirq itself makes. Raises bare OSError: who calls knows the words for it.
"""

from __future__ import annotations

import errno
import os

from dirqueue import fs
from dirqueue.home import Home
from dirqueue.layouts import dirq_names

#: How often an add starts anew when a name is taken or a directory goes away under it.
TRIES = 100


class Store:
    """The files of one dirq queue, by name: `DIRECTORY/ELEMENT`."""

    def __init__(self, home: Home, *, sync: bool, digit: str = "", umask: int | None = None) -> None:
        self.home = home
        self.sync = sync
        self.digit = digit or dirq_names.digit()
        self.umask = umask

    def make(self) -> None:
        """Make the queue's directory if it is not there."""
        if self.umask is None or self.home.find():
            self.home.make()
            return
        self.home.make()
        self._chmod(".", fs.DIR_MODE)

    def directories(self) -> list[str]:
        """Return the intermediate directories, sorted."""
        return dirq_names.directories(fs.names_in(".", self.home.fd))

    def elements(self, directory: str) -> list[str]:
        """Return the elements of one intermediate directory, in no order; none if it is gone, or is none."""
        try:
            return dirq_names.elements(fs.names_in(directory, self.home.fd))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directory(self, name: str) -> None:
        """Make a directory; one that is there is good."""
        if fs.make_directory(name, self.home.fd):
            self._chmod(name, fs.DIR_MODE)
            if self.sync:
                self.home.sync()

    def _chmod(self, name: str, mode: int) -> None:
        # The process's umask is nobody's but the process's: threads share it, so ours is applied afterwards.
        if self.umask is not None:
            fs.chmod(name, mode & ~self.umask, dir_fd=self.home.fd)

    def remove_empty(self, directories: list[str]) -> int:
        """Remove those of the intermediate directories that are empty, never the last; how many went."""
        # RACE: somebody may be about to write there. They make it again; ENOTEMPTY says that they have already.
        return sum(fs.remove_directory(name, self.home.fd) for name in directories[:-1])


def taken() -> OSError:
    """Return the error for names that stay taken however often one tries."""
    return OSError(errno.EEXIST, f"{TRIES} new names in a row were taken: {os.strerror(errno.EEXIST)}")
