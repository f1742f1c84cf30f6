"""The normal queue of dirq: elements are directories, with a schema.

Layer: edges.  What is on disk: layouts/dirq/normal_store.py and schema.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dirqueue.compat.dirq.Exceptions import QueueError, QueueLockError
from dirqueue.compat.dirq.QueueBase import QueueBase, not_locked, refused
from dirqueue.compat.dirq.QueueSet import QueueSet
from dirqueue.disk import fs
from dirqueue.layouts.dirq.names import NAME, OBSOLETE, STAGING
from dirqueue.layouts.dirq.normal_store import NormalStore
from dirqueue.layouts.dirq.schema import LOCKED, Schema

TEMPORARY_DIRECTORY = STAGING
OBSOLETE_DIRECTORY = OBSOLETE
LOCKED_DIRECTORY = LOCKED

__all__ = ["Queue", "QueueError", "QueueLockError", "QueueSet"]


class Queue(QueueBase):
    """A queue of dictionaries.

    Args:
        path: The queue's directory, made if it is not there.
        umask: The umask for files and directories; the process's own if None.
        rndhex: The last digit of new names; any if None.
        maxelts: Elements in one intermediate directory.
        schema: The type of each key: binary, string or table, with ? if it is optional. Needed to add and to get.
        sync: Whether an add is on disk when it returns (dirq never waits for that).
    """

    _store: NormalStore

    def __init__(
        self,
        path: str | bytes,
        umask: int | None = None,
        rndhex: int | None = None,
        maxelts: int = 16000,
        schema: Mapping[str, str] | None = None,
        *,
        sync: bool = True,
    ) -> None:
        super().__init__(path, umask=umask, rndhex=rndhex)
        if type(maxelts) is not int:
            raise TypeError("'maxelts' should be int or long")
        self.maxelts = maxelts
        try:
            self._schema = Schema(schema) if schema else None
        except ValueError as error:
            raise QueueError(str(error)) from None
        self.type: dict[str, str] = dict(self._schema.types) if self._schema else {}
        self.mandatory = dict.fromkeys(self._schema.mandatory, True) if self._schema else {}
        self._store = NormalStore(
            self._store.directory, sync=sync, maxelts=maxelts, digit=f"{self.rndhex:x}", umask=umask
        )
        self._store.keys = tuple(self.type)
        self._store.make()

    def _known(self) -> Schema:
        if self._schema is None:
            raise QueueError("unknown schema")
        return self._schema

    def _checked(self, name: Any) -> str:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise QueueError(f"invalid element name: {name!r}")
        return name

    def add(self, data: Mapping[str, Any]) -> str:
        """Add an element that fits the schema; return its name."""
        try:
            files = self._known().files(data)
        except ValueError as error:
            raise QueueError(str(error)) from None
        return self._store.add(files)

    enqueue = add

    def lock(self, ename: str, permissive: bool = True) -> bool:
        """Lock an element; False, or with permissive=False an OSError, if it is locked already or gone."""
        token = self._store.lock(self._checked(ename))
        if token is not None:
            self._locked(ename, token)
            return True
        if permissive:
            return False
        raise refused(ename, there=fs.exists(ename, self._store.directory.fd))

    def unlock(self, ename: str, permissive: bool = False) -> bool:
        """Unlock an element; False with permissive=True, or an OSError, if it is not locked, or not by us any more."""
        return self._unlock(ename, permissive)

    def get(self, ename: str) -> dict[str, Any]:
        """Return the data of a locked element; QueueLockError if it is not locked, or not by us any more."""
        schema = self._known()
        token = self._check_lock(ename, "get")
        files = self._store.read(ename, schema.types)
        if len(files) < len(schema.types) and not self._store.ours(ename, token):
            # RACE: another process removed it while we read, so that what is missing is not what was left out.
            raise not_locked(ename, "get")
        try:
            return schema.element(files)
        except ValueError as error:
            raise QueueError(f"cannot get {ename}: {error}") from None

    def remove(self, ename: str) -> None:
        """Remove a locked element; QueueLockError if it is not locked, or not by us any more."""
        self._check_lock(ename, "remove")
        left = self._store.removed(ename)
        if left is None:
            raise not_locked(ename, "remove")
        self._tokens.pop(ename, None)
        if self._store.sync:
            try:
                self._store.directory.sync(ename[:8])
            except FileNotFoundError:
                pass  # the emptied directory was purged
        if left:
            raise QueueError(f"unexpected file in {left}")

    def dequeue(self, ename: str, permissive: bool = True) -> dict[str, Any]:
        """Lock, get and remove an element; QueueLockError if it cannot be locked."""
        element = self._lock_and_get(ename, permissive)
        self.remove(ename)
        return element

    def get_element(self, ename: str, permissive: bool = True) -> dict[str, Any]:
        """Lock, get and unlock an element; QueueLockError if it cannot be locked."""
        element = self._lock_and_get(ename, permissive)
        self.unlock(ename, permissive=permissive)
        return element

    def _lock_and_get(self, ename: str, permissive: bool) -> dict[str, Any]:
        if not self.lock(ename, permissive=permissive):
            raise QueueLockError(f"couldn't lock element: {ename}")
        try:
            return self.get(ename)
        except BaseException:
            self.unlock(ename, permissive=True)
            raise
