"""The simple queue of dirq: elements are files.

Layer: edges.  What is on disk: layouts/dirq/simple_store.py.
"""

from __future__ import annotations

from dirqueue.compat.dirq.QueueBase import QueueBase, not_locked, refused
from dirqueue.disk import fs
from dirqueue.layouts.dirq.names import LOCK, TEMPORARY
from dirqueue.layouts.dirq.simple_store import SimpleStore

TEMPORARY_SUFFIX = TEMPORARY
LOCKED_SUFFIX = LOCK
#: Most elements are shorter than this: to make room for more takes longer than to read them.
SHORT = 4096


class QueueSimple(QueueBase):
    """A queue of byte strings.

    Args:
        path: The queue's directory, made if it is not there.
        umask: The umask for files and directories; the process's own if None.
        rndhex: The last digit of new names; any if None.
        granularity: Seconds for which new elements share a directory.
        sync: Whether an add is on disk when it returns (dirq never waits for that).
    """

    _store: SimpleStore

    def __init__(
        self,
        path: str | bytes,
        umask: int | None = None,
        rndhex: int | None = None,
        granularity: int = 60,
        *,
        sync: bool = True,
    ) -> None:
        super().__init__(path, umask=umask, rndhex=rndhex)
        if not isinstance(granularity, int):
            raise TypeError("granularity should be integer.")
        self.granularity = granularity
        self._store = SimpleStore(
            self._store.directory,
            sync=sync,
            granularity=granularity,
            digit=f"{self.rndhex:x}",
            umask=umask,
        )

    def add(self, data: bytes | str) -> str:
        """Add an element (text as UTF-8); return its name."""
        if isinstance(data, str):
            data = data.encode()
        elif not isinstance(data, bytes):
            raise TypeError(f"an element is bytes or str, not {type(data).__name__}")
        return self._store.add(data)

    add_ref = add

    def add_path(self, path: str) -> str:
        """Move a file of the same filesystem in; return its name as an element."""
        return self._store.add_path(path)

    def get(self, name: str) -> bytes:
        """Return the data of an element that this object locked; QueueLockError if it did not, or lost the lock.

        An element that was locked elsewhere and handed over is read at `get_path(name)`.
        """
        if self._checked(name) not in self._tokens:
            raise not_locked(name, "get")
        self._check_lock(name, "get")
        try:
            return fs.read_file(name + LOCK, self._store.directory.fd, SHORT)
        except FileNotFoundError:
            raise not_locked(name, "get") from None

    get_ref = get

    def get_path(self, name: str) -> str:
        """Return the path of a locked element, for reading."""
        return f"{self.path}/{self._checked(name)}{LOCK}"

    def lock(self, name: str, permissive: bool = True) -> bool:
        """Lock an element; False, or with permissive=False an OSError, if it is locked already or gone."""
        time_ns = self._store.lock(self._checked(name))
        if time_ns is None:
            if permissive:
                return False
            raise refused(name, there=fs.exists(name, self._store.directory.fd))
        self._locked(name, str(time_ns))
        return True

    def unlock(self, name: str, permissive: bool = False) -> bool:
        """Unlock an element; False with permissive=True, or an OSError, if it is not locked, or not by us any more."""
        return self._unlock(name, permissive)

    def remove(self, name: str) -> None:
        """Remove a locked element; QueueLockError if it is not locked, or not by us any more."""
        self._check_lock(name, "remove")
        if not self._store.remove(name):
            raise not_locked(name, "remove")
        self._tokens.pop(name, None)
        if self._store.sync:
            try:
                self._store.directory.sync(name.rpartition("/")[0] or ".")
            except FileNotFoundError:
                pass  # the emptied directory was purged

    def touch(self, ename: str) -> None:
        """Say that an element is still in use; QueueLockError if we locked it and lost the lock."""
        token = self._tokens.get(self._checked(ename))
        if token is None:
            super().touch(ename)
            return
        # The time is what tells our lock from the next holder's, and theirs must not be touched.
        renewed = self._store.renew(ename, token)
        if renewed is None:
            raise not_locked(ename, "touch")
        self._tokens[ename] = renewed[0]
