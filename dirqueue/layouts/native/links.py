"""Short messages as symbolic links: the target is a colon and the body.

One call makes the name and the whole body, and one flush of the directory makes both durable. Nothing is ever followed:
a link is read by readlink, and one whose target does not begin with a colon is not ours.

Layer: layouts.  Touches: the names that it is given.
Invariant: a link is written only where the same body in a file could be read by everybody who can search the directory.
"""

from __future__ import annotations

import errno
import os
from stat import S_ISLNK, S_ISREG

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS, TIME_DIGITS
from dirqueue.layouts.native.names import ERROR, ERROR_NEW, Name

LEAD = b":"
#: Longer bodies are files: every filesystem has room for a target of this length.
LIMIT = 1000
#: For so many microseconds the modes that decide about privacy are trusted.
TRUSTED = 1_000_000
#: The filesystem has no links; this one cannot hold this body.
_NONE_HERE = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_NOT_THIS = (errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ)


class Linker:
    """Writes bodies as links where that is allowed."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        #: Ids below this one need no new look at the modes.
        self._until = ""
        self._allowed = False
        #: Whether a link may be made under its visible name.
        self._direct = False

    def shows(self, data: bytes, id: str, place: str) -> bool:
        """Make a link that is visible at once; False if the body has to be written in another way.

        NFS: a repeated call after a lost reply and a claim would publish twice, so there it is renamed like a file.
        """
        if len(data) > LIMIT or 0 in data:
            return False
        if id[-ID_DIGITS:] >= self._until:
            self._look(id)
        if not self._direct:
            return False
        try:
            fs.symlink(LEAD + data, place, dir_fd=self._directory.fd)
        except OSError as error:
            if not self._has_to_be_a_file(error):
                raise
            return False
        return True

    def wrote(self, data: bytes, path: str, dir_fd: int) -> bool:
        """Make a link where nobody looks yet; False if the body has to be a file."""
        if len(data) > LIMIT or 0 in data:
            return False
        id = path.rpartition("/")[2].partition(".")[0]
        if id[-ID_DIGITS:] >= self._until:
            self._look(id)
        if not self._allowed:
            return False
        try:
            fs.symlink(LEAD + data, path, dir_fd=dir_fd)
        except OSError as error:
            if not self._has_to_be_a_file(error):
                raise
            return False
        return True

    def _look(self, id: str) -> None:
        """Decide for a second whether bodies may be seen by everybody who can search the directory."""
        self._until = f"{int(id[-ID_DIGITS:][:TIME_DIGITS]) + TRUSTED}"
        mode, umask, mount = fs.fstat(self._directory.fd).st_mode, fs.umask(), self._directory.mount
        hidden = any(mode & search and umask & read for search, read in ((0o010, 0o040), (0o001, 0o004)))
        self._allowed = not hidden and not mount.no_symlinks
        self._direct = self._allowed and not mount.replies_can_be_lost

    def _has_to_be_a_file(self, error: OSError) -> bool:
        """Return whether a failed call says that this body, or every one, has to be a file here."""
        if error.errno in _NONE_HERE:
            self._directory.mount.no_symlinks = True
            self._until = ""
            return True
        return error.errno in _NOT_THIS


def read(name: str, dir_fd: int) -> bytes:
    """Return the body of a link; OSError with ELOOP if it is not one of ours, with EINVAL if it is no link."""
    target: bytes = fs.readlink(name.encode(), dir_fd=dir_fd)
    if target[:1] != LEAD:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return target[1:]


def load(name: str, dir_fd: int, guess: int = fs.CHUNK) -> bytes:
    """Return the body of a message, whatever its form."""
    try:
        return fs.read_file(name, dir_fd, guess)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return read(name, dir_fd)


def size_of(name: str, dir_fd: int) -> int:
    """Return the length of the body of a message, whatever its form."""
    facts = fs.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    return facts.st_size - len(LEAD) if S_ISLNK(facts.st_mode) else facts.st_size


def is_message(name: str, dir_fd: int) -> bool:
    """Return whether there is a file or a link of ours of that name; nothing else is ever a message."""
    try:
        mode = fs.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return S_ISREG(mode) or (S_ISLNK(mode) and is_link(name, dir_fd))


def is_link(name: str, dir_fd: int) -> bool:
    """Return whether a symbolic link is a message."""
    try:
        read(name, dir_fd)
    except OSError:
        return False
    return True


def is_foreign(name: str, dir_fd: int) -> bool:
    """Return whether it is surely a link of somebody else; False if it is gone or cannot be read."""
    try:
        read(name, dir_fd)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def fits(entry: os.DirEntry[str], name: Name, prefix: str, dir_fd: int, *, sure: bool = True) -> bool:
    """Return whether an entry is of a type that its name may have: messages are files or links of ours, notes files."""
    if name.kind in (ERROR, ERROR_NEW):
        return entry.is_file(follow_symlinks=False)
    return is_body(entry, prefix, dir_fd, sure=sure or name.card is not None)


def is_body(entry: os.DirEntry[str], prefix: str, dir_fd: int, *, sure: bool = True) -> bool:
    """Return whether an entry of a directory is a file or a link of ours.

    To be sure links are read, a call for each. Callers that read the body next find out then (see bodies.py).
    """
    return entry.is_file(follow_symlinks=False) or (
        entry.is_symlink() and (not sure or is_link(prefix + entry.name, dir_fd))
    )
