"""What follows from `get`: many messages at once, and one after the other.

Layer: mechanisms.  Shared by Queue and QueueSet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from dirqueue.errors import DirQueueError, Empty
from dirqueue.lease import Lease
from dirqueue.settings import check_count

T = TypeVar("T")

#: Whoever consumes for longer looks this often whether settings were changed.
FRESH_SECONDS = 0.5


class Consumer(Generic[T]):
    """Anything that leases can be got from."""

    def get(self, *, timeout: float | None = None, lease: float | None = None) -> Lease[T]:
        """Claim the next message."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Go by the settings that were changed meanwhile; return whether there are any."""
        raise NotImplementedError

    def get_many(self, n: int, *, timeout: float | None = None, lease: float | None = None) -> list[Lease[T]]:
        """Claim up to `n` messages: wait for the first as `get` does, then claim what is there without waiting."""
        check_count("n", n, 1)
        leases = [self.get(timeout=timeout, lease=lease)]
        try:
            while len(leases) < n:
                leases.append(self.get(timeout=0, lease=lease))
        except Empty:
            pass
        except BaseException:
            give_back(leases)  # else nobody knows of them until they run out
            raise
        return leases

    def consume(
        self, timeout: float | None = None, limit: int | None = None, *, lease: float | None = None
    ) -> Iterator[Lease[T]]:
        """Yield leases until there was no message for `timeout` seconds (None: wait without limit), at most `limit`."""
        if limit is not None:
            check_count("limit", limit)
        done, looked = 0, time.monotonic()
        while limit is None or done < limit:
            try:
                claimed = self.get(timeout=timeout, lease=lease)
            except Empty:
                return
            done += 1
            if time.monotonic() - looked > FRESH_SECONDS:
                self.refresh()  # after a wait: what failed is judged by the settings of now
                looked = time.monotonic()
            yield claimed


def give_back(leases: Iterable[Lease[Any]]) -> None:
    """Release leases that nobody is going to work on; one that cannot be released runs out by itself."""
    for lease in leases:
        try:
            lease.release()
        except (DirQueueError, OSError):
            pass
