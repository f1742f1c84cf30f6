"""The files of dirq's Normal format: a directory for each element, a directory in it for its lock.

    temporary/ELEMENT/        being added           DIR/ELEMENT/          an element; DIR is a counter, not a time
    obsolete/ELEMENT/         being removed         DIR/ELEMENT/KEY       one piece of its data
                                                    DIR/ELEMENT/locked/   its lock

Layer: layouts.  Touches: exactly these names, and empty DIR.
Invariant: a visible element is complete; a lock is taken away only by an atomic rename, and looked at after that.
Crash: leaves a directory in temporary/ or obsolete/, or a lock that is honoured until it is stale.

The making of `locked` sets the time of the element's directory, and that is the time of the lock. The number and
the time of `locked` itself tell one holder from the next.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.dirq.names import DIRECTORY, OBSOLETE, STAGING, element, elements
from dirqueue.layouts.dirq.normal_spares import Spares
from dirqueue.layouts.dirq.schema import KEY, LOCKED
from dirqueue.layouts.dirq.store import TRIES, Store, taken

FIRST = "00000000"
#: How many adds, and for how many seconds, the directory chosen for them is taken for granted.
TRUST_ADDS = 256
TRUST_SECONDS = 1.0
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
#: The files of an element: what each is to hold, or the path of a file to give that name to.
Pieces = Mapping[str, bytes | str]


class NormalStore(Store):
    """The files of one queue."""

    def __init__(
        self, directory: Directory, *, sync: bool, maxelts: int, digit: str = "", umask: int | None = None
    ) -> None:
        super().__init__(directory, sync=sync, digit=digit, umask=umask)
        self.maxelts = maxelts
        #: Files that elements are known to have: removed without a listing.
        self.keys: tuple[str, ...] = ()
        #: Emptied elements to make locks of, for a consumer that removes one element after the other.
        self.spares: Spares | None = None
        self._where = ""
        self._room = 0
        self._until = 0.0
        self._links: bool | None = None

    def make(self) -> None:
        """Make the queue's directory and the two for what is in between, if they are not there."""
        super().make()
        for name in (STAGING, OBSOLETE):
            self.make_directory(name)

    # --- adding --------------------------------------------------------------------------------------------

    def add(self, files: dict[str, bytes]) -> str:
        """Write one element; return its name."""
        return self._add(files)

    def add_file(self, key: str, source: str) -> str:
        """Add an element whose one piece is a file of the same filesystem; the file stays, as a second name of it."""
        return self._add({key: source})

    def _add(self, pieces: Pieces) -> str:
        if self.directory.fd < 0:
            self.make()
        for _ in range(TRIES):
            staging = self._stage(pieces)
            if staging is None:
                continue
            try:
                name = self._show(staging)
            except BaseException:
                self.discard(staging)
                raise
            if name is not None:
                return name
        raise taken()

    def _stage(self, pieces: Pieces) -> str | None:
        """Write the files where nobody reads; None if the directory was taken away under us."""
        directory, fd, sync = self.directory, self.directory.fd, self.sync
        staging = f"{STAGING}/{element(self.digit)}"
        try:
            self.mkdir(staging)
        except FileExistsError:
            return None
        except FileNotFoundError:
            directory.remake()
            self.make()
            return None
        try:
            for key, data in pieces.items():
                name = f"{staging}/{key}"
                if isinstance(data, str):
                    fs.link(data, name, dst_dir_fd=fd, follow_symlinks=False)
                else:
                    fs.create(name, data, fd, sync, self.file_mode)
                    if self.umask is not None:
                        fs.widen(name, self.file_mode, fd)
            if sync:
                directory.sync(staging)
        except (FileNotFoundError, FileExistsError):
            # COMPAT: the purge of Python's dirq removes what is in here at any age, as long as it is empty.
            # NFS: made, reply lost, asked again: then it exists.
            self.discard(staging)
            return None
        except BaseException:
            self.discard(staging)
            raise
        return staging

    def _show(self, staging: str) -> str | None:
        """Rename a complete element to a visible name; None if it was taken away under us."""
        fd = self.directory.fd
        for _ in range(TRIES):
            where = self._insertion()
            name = f"{where}/{element(self.digit)}"
            try:
                fs.rename(staging, name, src_dir_fd=fd, dst_dir_fd=fd)
            except FileNotFoundError:
                # RACE: the directory we chose was empty and is purged, or the staged element itself was.
                self._room = 0
                if not fs.exists(staging, fd):
                    return None
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            else:
                if self.sync:
                    self.directory.sync(where)
                return name
        raise taken()

    def _insertion(self) -> str:
        """Return the directory to add to: the last one, or the next if that is full."""
        if self._room > 0 and time.monotonic() < self._until:
            self._room -= 1
            return self._where
        found = self.directories()
        where = found[-1] if found else FIRST
        room = self.maxelts - (self._entries(where) if found else 0)
        if not found or room <= 0:
            where = f"{int(where, 16) + 1:08x}" if found else where
            self.make_directory(where)
            room = self.maxelts
        self._where, self._room = where, min(room, TRUST_ADDS) - 1
        self._until = time.monotonic() + TRUST_SECONDS
        return where

    def _entries(self, where: str) -> int:
        """Return about how many elements a directory holds: maxelts is a soft limit, so the link count is enough."""
        try:
            links = fs.stat(where, dir_fd=self.directory.fd).st_nlink
            return links - 2 if links > 2 else len(fs.names_in(where, self.directory.fd))
        except FileNotFoundError:
            return self.maxelts  # purged meanwhile: the next one, so that names go on increasing

    # --- locking -------------------------------------------------------------------------------------------

    def lock(self, name: str) -> str | None:
        """Lock an element; return the token of the lock, or None if we cannot have it."""
        fd, lock = self.directory.fd, f"{name}/{LOCKED}"
        try:
            if (facts := self.spares.become(lock) if self.spares else None) is None:
                self.mkdir(lock)
                facts = fs.stat(lock, dir_fd=fd, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            return None
        return f"{facts.st_ino}-{facts.st_mtime_ns}"

    def token(self, name: str) -> str | None:
        try:
            facts = fs.stat(f"{name}/{LOCKED}", dir_fd=self.directory.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{facts.st_ino}-{facts.st_mtime_ns}"

    def ours(self, name: str, token: str) -> bool:
        return self.token(name) == token

    def break_lock(self, name: str, limit_ns: int) -> bool:
        """Take a stale lock away. Return whether it was stale.

        RACE: after we looked the holder may unlock and another consumer lock anew. So the lock is first renamed to a
        new name, which only one can do, and looked at again there; a live one is put back.
        """
        fd = self.directory.fd
        token = self.token(name)
        if token is None or not self.older(name, limit_ns):
            return False
        spare = f"{STAGING}/{element(self.digit)}"
        try:
            fs.rename(f"{name}/{LOCKED}", spare, src_dir_fd=fd, dst_dir_fd=fd)
            facts = fs.stat(spare, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        if f"{facts.st_ino}-{facts.st_mtime_ns}" == token:
            fs.remove_directory(spare, fd)
            return True
        try:
            fs.rename_noreplace(spare, f"{name}/{LOCKED}", fd)
        except (OSError, NotImplementedError):
            fs.remove_directory(spare, fd)
        return False

    def older(self, name: str, limit_ns: int) -> bool:
        """Return whether an element's directory was last changed before that time."""
        try:
            return fs.stat(name, dir_fd=self.directory.fd, follow_symlinks=False).st_mtime_ns < limit_ns
        except FileNotFoundError:
            return False

    def locked_at(self, name: str) -> int | None:
        """Return when a lock was taken or renewed, in microseconds; None if there is none."""
        try:
            if self.token(name) is None:
                return None
            return fs.stat(name, dir_fd=self.directory.fd, follow_symlinks=False).st_mtime_ns // 1000
        except FileNotFoundError:
            return None

    def renew(self, name: str, token: str, shift_ns: int = 0) -> tuple[str, int] | None:
        """Make a lock new; return its token and its time in microseconds, or None if it is not there."""
        if not self.ours(name, token):
            return None
        try:
            self.touch(name, shift_ns)
        except FileNotFoundError:
            return None
        when = self.locked_at(name)
        return None if when is None else (token, when)

    def touch(self, name: str, shift_ns: int = 0) -> None:
        """Set the time of an element to now, or to some time before or after."""
        fd = self.directory.fd
        if shift_ns:
            when = time.time_ns() + shift_ns
            try:
                fs.utime(name, ns=(when, when), dir_fd=fd, follow_symlinks=False)
                return
            except PermissionError:
                pass  # not our directory: only "now" is allowed
        fs.utime(name, dir_fd=fd, follow_symlinks=False)

    def unlock(self, name: str) -> bool:
        try:
            fs.rmdir(f"{name}/{LOCKED}", dir_fd=self.directory.fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    # --- reading and removing ------------------------------------------------------------------------------

    def read(self, name: str, keys: dict[str, str]) -> dict[str, bytes]:
        """Return those of the files that are there."""
        files = {}
        for key in keys:
            try:
                files[key] = fs.read_file(f"{name}/{key}", self.directory.fd)
            except FileNotFoundError:
                pass
        return files

    def remove(self, name: str) -> bool:
        """Remove an element; False if it is gone already."""
        return self.removed(name) is not None

    def removed(self, name: str) -> str | None:
        """Remove an element; return what is left of it (empty if nothing is), or None if it is gone already."""
        fd = self.directory.fd
        for _ in range(TRIES):
            obsolete = f"{OBSOLETE}/{element(self.digit)}"
            try:
                # CRASH: from here on it is removed; what is left lies in obsolete/ until some purge.
                fs.rename(name, obsolete, src_dir_fd=fd, dst_dir_fd=fd)
            except FileNotFoundError:
                if fs.exists(OBSOLETE, fd):
                    return None
                self.make_directory(OBSOLETE)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            else:
                return "" if self.discard(obsolete, self.keys) else obsolete
        raise taken()

    def discard(self, folder: str, keys: tuple[str, ...] = ()) -> bool:
        """Remove a staged or obsolete element. Return whether all of it went: what is not dirq's stays."""
        fd = self.directory.fd
        try:
            for key in keys:
                fs.unlink(f"{folder}/{key}", dir_fd=fd)
            fs.rmdir(f"{folder}/{LOCKED}", dir_fd=fd)
            if not keys or self.spares is None or not self.spares.keep(folder):
                fs.rmdir(folder, dir_fd=fd)
            return True
        except OSError:
            pass  # a piece that is optional, an element without a lock, or somebody else at it
        for _ in range(3):
            # RACE: others may lock, unlock or purge it meanwhile: what they did need not be done.
            try:
                fs.remove_directory(f"{folder}/{LOCKED}", fd)
                if fs.remove_directory(folder, fd) or not fs.exists(folder, fd):
                    return True
                for key in fs.names_in(folder, fd):
                    if KEY.fullmatch(key) and key != LOCKED:
                        fs.discard(f"{folder}/{key}", fd)
            except FileNotFoundError:
                return True
            except OSError:
                break  # an error that others will meet too: purge tries again
        return False

    # --- looking and cleaning ------------------------------------------------------------------------------

    def look(self, where: str) -> tuple[list[str], list[str]]:
        """Return the elements of a directory; which of them are locked only a try can tell."""
        return elements(fs.names_in(where, self.directory.fd)), []

    def count(self) -> int:
        fd = self.directory.fd
        links = self._counts_links()
        total = 0
        for where in fs.names_in(".", fd):
            if len(where) != 8 or not DIRECTORY.fullmatch(where):
                continue
            inside = fs.stat(where, dir_fd=fd).st_nlink - 2 if links else -1
            total += inside if inside >= 0 else len(self.elements(where))
        return total

    def _counts_links(self) -> bool:
        """Return whether this filesystem counts sub-directories in link counts, by the queue's own directory."""
        if self._links is None:
            inside = sum(each.is_dir(follow_symlinks=False) for each in fs.listing(".", self.directory.fd))
            self._links = inside > 0 and fs.fstat(self.directory.fd).st_nlink == inside + 2
        return self._links

    def purge(self, old_temporary_ns: int, old_lock_ns: int) -> tuple[int, int, int]:
        directories = self.directories()
        gone = self.remove_empty(directories)
        temporary = locks = 0
        if old_temporary_ns:
            temporary = self._purge_volatile(STAGING, old_temporary_ns)
            temporary += self._purge_volatile(OBSOLETE, old_temporary_ns)
        if old_lock_ns:
            locks = sum(self._purge_locks(where, old_lock_ns) for where in directories)
        return temporary, locks, gone

    def _purge_volatile(self, where: str, limit_ns: int) -> int:
        gone = 0
        for name in self.elements(where):
            path = f"{where}/{name}"
            if self._all_older(path, limit_ns):
                gone += self.discard(path)
        return gone

    def _all_older(self, path: str, limit_ns: int) -> bool:
        """Return whether nothing was written in there since: a long write changes the time of the file alone."""
        try:
            return self.older(path, limit_ns) and all(
                self.older(f"{path}/{name}", limit_ns) for name in fs.names_in(path, self.directory.fd)
            )
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _purge_locks(self, where: str, limit_ns: int) -> int:
        links = self._counts_links()
        fd, stat, broken = self.directory.fd, fs.stat, 0
        for name in self.elements(where):
            path = f"{where}/{name}"
            try:
                facts: os.stat_result = stat(path, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if facts.st_mtime_ns < limit_ns and not (links and facts.st_nlink == 2):
                broken += self.break_lock(path, limit_ns)
        return broken
