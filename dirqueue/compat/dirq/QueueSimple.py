"""The simple queue of dirq: elements are files.

Layer: edges.  What is on disk: layouts/simple_store.py.
"""

from __future__ import annotations

from dirqueue.compat.dirq.Exceptions import NotLockedError
from dirqueue.compat.dirq.QueueBase import QueueBase, refused
from dirqueue.disk import fs
from dirqueue.layouts.dirq.names import LOCK, TEMPORARY
from dirqueue.layouts.dirq.simple_store import SimpleStore

TEMPORARY_SUFFIX = TEMPORARY
LOCKED_SUFFIX = LOCK
#: An element written so many nanoseconds ago is locked without a touch: its own time is as good.
FRESH_NS = 30 * 10**9
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
        self._open(
            SimpleStore(
                self._directory(), sync=sync, granularity=granularity, digit=f"{self.rndhex:x}", umask=umask
            )
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
        """Return the data of a locked element."""
        return fs.read_file(self._checked(name) + LOCK, self._store.directory.fd, SHORT)

    get_ref = get

    def get_path(self, name: str) -> str:
        """Return the path of a locked element, for reading."""
        return f"{self.path}/{self._checked(name)}{LOCK}"

    def lock(self, name: str, permissive: bool = True) -> bool:
        """Lock an element; False, or with permissive=False an OSError, if somebody has it or it is gone."""
        time_ns = self._store.lock(self._checked(name), FRESH_NS)
        if time_ns is None:
            if permissive:
                return False
            raise refused(name, there=fs.exists(name, self._store.directory.fd))
        self._tokens[name] = str(time_ns)
        return True

    def unlock(self, name: str, permissive: bool = False) -> bool:
        """Unlock an element; False with permissive=True, or an OSError, if it is not locked (by us) any more."""
        if self._still_ours(name) and self._store.unlock(name):
            return True
        if permissive:
            return False
        raise NotLockedError(f"cannot unlock {name}: not locked, or not by us any more")

    def remove(self, name: str) -> None:
        """Remove a locked element."""
        if not self._still_ours(name):
            raise NotLockedError(f"cannot remove {name}: not locked, or not by us any more")
        if not self._store.remove(name):
            raise NotLockedError(f"cannot remove {name}: it is gone")
        if self._store.sync:
            try:
                self._store.directory.sync(name.rpartition("/")[0] or ".")
            except FileNotFoundError:
                pass  # the emptied directory was purged

    def _still_ours(self, name: str) -> bool:
        """Whether the lock is the one that we took, or, if somebody else took it for us, is there at all."""
        token = self._tokens.pop(self._checked(name), None)
        return self._store.facts(name) is not None if token is None else self._store.ours(name, token)

    def touch(self, ename: str) -> None:
        """Say that an element is still in use."""
        super().touch(ename)
        if ename in self._tokens:
            facts = self._store.facts(ename)
            if facts is not None:
                self._tokens[ename] = str(facts.st_mtime_ns)
