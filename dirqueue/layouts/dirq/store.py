"""What the two dirq formats share: the top directory, its intermediate directories, modes, counting.

Layer: layouts.  Touches: the queue's directory and its intermediate directories.
Invariant: nothing is made but names that dirq itself makes. Raises plain OSError; the layout adds the context.
"""

from __future__ import annotations

import errno
import os
import time

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.dirq import names

#: How long the purge of a layout leaves an emptied directory, for producers that chose it and have yet to write.
GRACE = 60.0
#: How often an add starts anew when a name is taken or a directory goes away under it.
TRIES = 100


class Store:
    """The files of one dirq queue, by name: `DIRECTORY/ELEMENT`; the two formats define what an element is."""

    def __init__(
        self, directory: Directory, *, sync: bool, digit: str = "", umask: int | None = None
    ) -> None:
        self.directory = directory
        self.sync = sync
        self.digit = digit or names.digit()
        self.umask = umask
        directory.umask = umask
        #: What files are made with. COMPAT: the process's umask applies unless we have our own, which is never set for
        #: the process: threads share that.
        self.file_mode = fs.FILE_MODE & ~(umask or 0)
        #: The mode of directories, and whether the process's umask takes bits of it; once known.
        self._directory_mode = 0
        self._widens: bool | None = None
        #: An empty directory that changed within so many seconds is left alone by purge.
        self.grace = 0.0

    def make(self) -> None:
        """Make the queue's directory if it is not there."""
        self.directory.make()

    def count(self) -> int:
        """Return how many elements there are, locked or not."""
        raise NotImplementedError

    def token(self, name: str) -> str | None:
        """Return what tells the lock that is there from any other; None if there is none."""
        raise NotImplementedError

    def ours(self, name: str, token: str) -> bool:
        """Return whether that lock is still there."""
        raise NotImplementedError

    def unlock(self, name: str) -> bool:
        """Take the lock away. Return False if there was none."""
        raise NotImplementedError

    def purge(self, old_temporary_ns: int, old_lock_ns: int) -> tuple[int, int, int]:
        """Remove what was last touched before these times (0: nothing of that kind), and empty directories.

        Returns how many unfinished elements, locks and directories went.
        """
        raise NotImplementedError

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
        try:
            self.mkdir(name)
        except FileExistsError:
            return
        if self.sync:
            self.directory.sync()

    def mkdir(self, name: str) -> None:
        """Make a directory for all whom the queue's own directory lets in, whatever the umask of the process."""
        mode = self._directory_mode or self._learn_mode()
        fd = self.directory.fd
        fs.mkdir(name, mode, dir_fd=fd)
        if self._widens is None:
            self._widens = bool(mode & ~fs.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
        if self._widens:
            fs.widen(name, mode, fd)

    def _learn_mode(self) -> int:
        if self.umask is None:
            self._directory_mode = fs.fstat(self.directory.fd).st_mode & 0o777 | 0o700
        else:
            self._directory_mode = fs.DIR_MODE & ~self.umask
        return self._directory_mode

    def remove_empty(self, directories: list[str]) -> int:
        """Remove the empty ones of the intermediate directories, never the last. Return the number removed."""
        return sum(self.remove_if_empty(name) for name in directories[:-1])

    def remove_if_empty(self, name: str) -> bool:
        """Remove an intermediate directory if it is empty. Return whether it went."""
        # RACE: a producer may be about to write there. We would make it again; COMPAT: other programs fail, and lose
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
