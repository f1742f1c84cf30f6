"""The null queue of dirq: what is added is gone.

Layer: edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn, Self

from dirqueue.compat.dirq.QueueBase import QueueBase
from dirqueue.disk import fs


class QueueNull(QueueBase):
    """A black hole; it may be in a set, and is always empty there."""

    def __init__(self) -> None:  # there is no directory, so nothing of the base is wanted
        self.path = self.id = "NULL"

    def add(self, data: object) -> str:
        """Forget the data."""
        return ""

    add_ref = add

    def add_path(self, path: str) -> str:
        """Remove the file."""
        fs.unlink(path)
        return ""

    def count(self) -> int:
        """Return 0."""
        return 0

    def purge(self, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Do nothing."""

    def first(self) -> str:
        """Return an empty string."""
        return ""

    def next(self) -> str:
        """Return an empty string."""
        return ""

    __next__ = next

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def copy(self) -> Self:
        """Return the same: there is nothing in it."""
        return self

    def get(self, name: str) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("unsupported method: get()")

    get_ref = get

    def get_path(self, name: str) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("unsupported method: get_path()")

    def lock(self, name: str, permissive: bool = True) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("unsupported method: lock()")

    def unlock(self, name: str, permissive: bool = False) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("unsupported method: unlock()")

    def remove(self, name: str) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("unsupported method: remove()")

    def touch(self, ename: str) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("unsupported method: touch()")
