"""The normal queue of dirq: elements are directories, with a schema.

Layer: edges.  What is on disk: layouts/normal_store.py and layouts/schema.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dirqueue.compat.dirq.Exceptions import NotLockedError, QueueError, QueueLockError
from dirqueue.compat.dirq.QueueBase import QueueBase, refused
from dirqueue.compat.dirq.QueueSet import QueueSet
from dirqueue.disk import fs
from dirqueue.layouts.dirq.names import NAME
from dirqueue.layouts.dirq.normal_store import OBSOLETE, TEMPORARY, NormalStore
from dirqueue.layouts.dirq.schema import LOCKED, Schema

TEMPORARY_DIRECTORY = TEMPORARY
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
        store = NormalStore(
            self._directory(), sync=sync, maxelts=maxelts, digit=f"{self.rndhex:x}", umask=umask
        )
        store.keys = tuple(self.type)
        self._open(store)

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
        """Lock an element; False, or with permissive=False an OSError, if somebody has it or it is gone."""
        token = self._store.take(self._checked(ename))
        if token is not None:
            self._tokens[ename] = token
            return True
        if permissive:
            return False
        raise refused(ename, there=fs.exists(ename, self._store.directory.fd))

    def unlock(self, ename: str, permissive: bool = False) -> bool:
        """Unlock an element; False with permissive=True, or an OSError, if it is not locked (by us) any more."""
        token = self._tokens.pop(self._checked(ename), None)
        if (token is None or self._store.ours(ename, token)) and self._store.unlock(ename):
            return True
        if permissive:
            return False
        raise NotLockedError(f"cannot unlock {ename}: not locked, or not by us any more")

    def _token(self, ename: str, doing: str) -> str:
        """Return the token of the lock that is there; an error if it is not the one that we took."""
        token = self._store.token(self._checked(ename))
        if token is None or token != self._tokens.get(ename, token):
            self._tokens.pop(ename, None)
            raise NotLockedError(f"cannot {doing} {ename}: not locked, or not by us any more")
        return token

    def get(self, ename: str) -> dict[str, Any]:
        """Return the data of a locked element."""
        schema = self._known()
        token = self._token(ename, "get")
        files = self._store.read(ename, schema.types)
        if len(files) < len(schema.types) and not self._store.ours(ename, token):
            # RACE: somebody else removed it while we read, so that what is missing is not what was left out.
            raise NotLockedError(f"cannot get {ename}: the lock was lost while it was read")
        try:
            return schema.element(files)
        except ValueError as error:
            raise QueueError(f"cannot get {ename}: {error}") from None

    def remove(self, ename: str) -> None:
        """Remove a locked element."""
        self._token(ename, "remove")
        self._tokens.pop(ename, None)
        left = self._store.removed(ename)
        if left is None:
            raise NotLockedError(f"cannot remove {ename}: it is gone")
        if self._store.sync:
            try:
                self._store.directory.sync(ename[:8])
            except FileNotFoundError:
                pass  # the emptied directory was purged
        if left:
            raise QueueError(f"unexpected file in {left}")

    def dequeue(self, ename: str, permissive: bool = True) -> dict[str, Any]:
        """Lock, get and remove an element; QueueLockError if it cannot be locked."""
        element = self._locked(ename, permissive)
        self.remove(ename)
        return element

    def get_element(self, ename: str, permissive: bool = True) -> dict[str, Any]:
        """Lock, get and unlock an element; QueueLockError if it cannot be locked."""
        element = self._locked(ename, permissive)
        self.unlock(ename, permissive=permissive)
        return element

    def _locked(self, ename: str, permissive: bool) -> dict[str, Any]:
        if not self.lock(ename, permissive=permissive):
            raise QueueLockError(f"couldn't lock element: {ename}")
        try:
            return self.get(ename)
        except BaseException:
            self.unlock(ename, permissive=True)
            raise
