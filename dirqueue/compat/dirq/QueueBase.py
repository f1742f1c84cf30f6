"""What all queues of dirq have in common: the path, the names, the cursor.

Layer: edges.
"""

from __future__ import annotations

import copy
import errno
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

from dirqueue.compat.dirq.Exceptions import NotLockedError, QueueError
from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.dirq import names
from dirqueue.layouts.dirq.store import Store

#: How many locks one queue object remembers; the oldest are forgotten.
REMEMBERED = 100_000


class QueueBase:
    """A queue by name: first() and next() walk it, and so does `for`, each on its own."""

    _store: Store

    def __init__(self, path: str | bytes, umask: int | None = None, rndhex: int | None = None) -> None:
        if not isinstance(path, (str, bytes)):
            raise TypeError("'path' should be str or unicode")
        if umask is not None and not isinstance(umask, int):
            raise TypeError("'umask' should be integer")
        if rndhex is not None and not isinstance(rndhex, int):
            raise TypeError("'rndhex' should be integer")
        self.path = os.fsdecode(path)
        self.umask = umask
        self.rndhex = int(names.digit(rndhex), 16)
        #: What the cursor has yet to look into, and to return.
        self.dirs: deque[str] = deque()
        self.elts: deque[str] = deque()
        #: The locks that we took, and those that we lost since: what tells ours from the next holder's.
        self._tokens: dict[str, str] = {}
        directory = Directory(self.path)
        directory.lend()
        self._store = Store(directory, sync=True, digit=f"{self.rndhex:x}", umask=umask)
        self._store.make()
        facts = fs.fstat(directory.fd)
        self.id = f"{facts.st_dev}:{facts.st_ino}"

    def __del__(self) -> None:
        store = getattr(self, "_store", None)
        if store is not None:
            store.directory.close()

    # --- names ---------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        try:
            self.dirs = deque(self._store.directories())
        except FileNotFoundError:
            self.dirs = deque()
        self.elts = deque()

    def first(self) -> str:
        """Return the name of the first element, or an empty string; the next ones are remembered."""
        self._reset()
        return self.next()

    def next(self) -> str:
        """Return the name of the next element, or an empty string when there is none."""
        while not self.elts:
            if not self.dirs:
                return ""
            where = self.dirs.popleft()
            self.elts.extend(f"{where}/{name}" for name in sorted(self._store.elements(where)))
        return self.elts.popleft()

    __next__ = next

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the elements, whatever first() and next() are doing."""
        try:
            directories = self._store.directories()
        except FileNotFoundError:
            return
        for where in directories:
            for name in sorted(self._store.elements(where)):
                yield f"{where}/{name}"

    def names(self) -> Iterator[str]:
        """Yield the names of the elements."""
        return iter(self)

    def copy(self) -> Self:
        """Return another object for the same queue, at the same place of its walk and with the same locks."""
        other = copy.copy(self)
        other._store = copy.copy(self._store)
        other._store.directory = Directory(self.path)
        other._store.directory.lend()
        other._store.directory.make()
        other.dirs, other.elts, other._tokens = deque(self.dirs), deque(self.elts), dict(self._tokens)
        return other

    def count(self) -> int:
        """Return the number of elements, whatever their state."""
        return self._store.count()

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Remove unfinished elements, locks and directories that were left behind; 0 means never."""
        now = time.time()
        old = [int((now - limit) * 1e9) if limit else 0 for limit in (maxtemp, maxlock)]
        self._store.purge(*old)

    def touch(self, ename: str) -> None:
        """Say that an element is still in use."""
        path = self._checked(ename)
        try:
            fs.utime(path, dir_fd=self._store.directory.fd, follow_symlinks=False)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot utime({path}, None): {os.strerror(error.errno or 0)}"
            ) from error

    # --- locks ---------------------------------------------------------------------------------------------

    def _unlock(self, name: str, permissive: bool) -> bool:
        try:
            self._check_lock(name, "unlock")
            if not self._store.unlock(name):
                raise not_locked(name, "unlock")
        except NotLockedError:
            if permissive:
                return False
            raise
        self._tokens.pop(name, None)
        return True

    def _locked(self, name: str, token: str) -> None:
        """Remember a lock that we took."""
        if len(self._tokens) >= REMEMBERED:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[name] = token

    def _check_lock(self, name: Any, doing: str) -> str:
        """Return the token of the lock that is there; an error if there is none, or not the one that we took.

        A lock that this object did not take can be ended: in dirq, one program may lock for another. A lock that we
        lost stays remembered, so that nothing after that is done to its next holder's.
        """
        token = self._tokens.get(self._checked(name))
        if token is None:
            token = self._store.token(name)
        elif not self._store.ours(name, token):
            token = None
        if token is None:
            raise not_locked(name, doing)
        return token

    def _checked(self, name: Any) -> str:
        """Return a name if it stays inside the queue."""
        if (
            not isinstance(name, str)
            or "\0" in name
            or any(part in ("", ".", "..") for part in name.split("/"))
        ):
            raise QueueError(f"invalid element name: {name!r}")
        return name


def not_locked(name: str, doing: str) -> NotLockedError:
    """Return the error for an element that is not locked, or whose lock another process has taken."""
    return NotLockedError(f"cannot {doing} {name}: not locked by this object, or not any more")


def refused(name: str, *, there: bool) -> OSError:
    """Return the error for a lock that is taken, or for an element that is not there."""
    code = errno.EEXIST if there else errno.ENOENT
    return OSError(code, os.strerror(code), name)
