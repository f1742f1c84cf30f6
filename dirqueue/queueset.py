"""Several queues as one: claim from any of them, look at all of them in one order.

Layer: public objects.  Touches: nothing that the queues do not.
"""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NoReturn

from dirqueue.consumer import Consumer
from dirqueue.errors import Empty, SettingsError
from dirqueue.lease import Lease
from dirqueue.message import Message
from dirqueue.queue import Queue
from dirqueue.settings import check_seconds
from dirqueue.stats import Stats
from dirqueue.waiting import Waiter

ORDERS = ("fair", "given", "time")
#: For how many seconds one look at the oldest messages is trusted.
FRESH_SECONDS = 0.1

Pair = tuple[Queue[Any], Message[Any]]


class QueueSet(Consumer[Any]):
    """A set of queues of any layouts.

    Args:
        queues: Queue objects or paths.
        order: Which queue `get` asks first: "fair" goes round, "given" always begins with the first queue (the others
            get their turn when it is empty), "time" asks the queue with the oldest message.
    """

    def __init__(
        self,
        queues: Iterable[Queue[Any] | str | os.PathLike[str]] = (),
        *,
        order: Literal["fair", "given", "time"] = "fair",
    ) -> None:
        if order not in ORDERS:
            raise SettingsError(f"order must be one of {', '.join(ORDERS)}, not {order!r:.60}")
        self.order = order
        self._queues: list[Queue[Any]] = []
        #: The same by the real paths of their directories.
        self._places: dict[str, Queue[Any]] = {}
        self._turn = 0
        self._oldest: list[tuple[int, str, Queue[Any]]] = []
        self._fresh_until = 0.0
        for queue in [queues] if isinstance(queues, (str, Queue)) else queues:
            self.add(queue)

    def __repr__(self) -> str:
        return f"QueueSet({[queue.path for queue in self._queues]!r}, order={self.order!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a QueueSet cannot be pickled: send the paths of its queues, and open QueueSet(paths) where it is used"
        )

    @property
    def queues(self) -> tuple[Queue[Any], ...]:
        """The queues, in the order they were given."""
        return tuple(self._queues)

    def add(self, queue: Queue[Any] | str | os.PathLike[str]) -> None:
        """Add a queue; one directory can be in a set only once."""
        if not isinstance(queue, Queue):
            queue = Queue(queue)
        where = os.path.realpath(queue.path)
        if where in self._places:
            raise SettingsError(f"{queue.path!r} is in the set already")
        self._places[where] = queue
        self._queues.append(queue)
        self._fresh_until = 0.0

    def remove(self, queue: Queue[Any] | str | os.PathLike[str]) -> None:
        """Remove a queue from the set; leases from it stay valid."""
        where = os.path.realpath(queue.path if isinstance(queue, Queue) else queue)
        gone = self._places.pop(where, None)
        if gone is None:
            raise SettingsError(f"{where!r} is not in the set")
        self._queues = [each for each in self._queues if each is not gone]
        self._fresh_until = 0.0

    # --- getting -------------------------------------------------------------------------------------------

    def get(
        self, *, timeout: float | None = None, lease: float | None = None, holder: str | None = None
    ) -> Lease[Any]:
        """Claim the next message of any queue; `owner` tells which.

        Args:
            timeout: Seconds to wait before Empty is raised; without limit if None, one look if 0.
            lease: Seconds to hold it; the setting of its queue if None.
            holder: Who holds it, as of `Queue.get`.
        """
        if timeout is not None:
            timeout = check_seconds("timeout", timeout)
        claimed = self._look(lease, holder)
        if claimed is None and timeout != 0:
            with Waiter((queue.layout for queue in self._queues), timeout) as waiter:
                while (claimed := self._look(lease, holder)) is None and waiter.pause():
                    pass
        if claimed is None:
            raise Empty(f"nothing to get from any of {len(self._queues)} queues", path="")
        return claimed

    def refresh(self) -> bool:
        """Have each queue go by the settings that it keeps now; return whether any have changed."""
        return sum(queue.refresh() for queue in self._queues) > 0

    def _look(self, lease: float | None, holder: str | None) -> Lease[Any] | None:
        for turn, queue in self._candidates():
            try:
                claimed = queue.get(timeout=0, lease=lease, holder=holder)
            except Empty:
                continue
            self._turn = turn + 1
            return claimed
        return None

    def _candidates(self) -> Iterator[tuple[int, Queue[Any]]]:
        """Yield the queues and their places in the set, in the order to ask them."""
        queues = self._queues  # RACE: remove() makes another list
        count = len(queues)
        start = self._turn % count if self.order == "fair" and count else 0
        first = self._next_oldest() if self.order == "time" and count > 1 else None
        if first in queues:
            yield 0, first
        for turn in itertools.chain(range(start, count), range(start)):
            if queues[turn] is not first:
                yield turn, queues[turn]

    def _next_oldest(self) -> Queue[Any] | None:
        """Return the queue whose turn it is by time, from one look at all of them that serves for many claims."""
        if not self._oldest or time.monotonic() > self._fresh_until:
            began = time.monotonic()
            seen = [(m.entry.put, m.id, queue) for queue in self._queues for m in queue.peek("ready")]
            seen.sort(key=lambda each: each[:2], reverse=True)
            self._oldest = seen
            self._fresh_until = time.monotonic() + max(FRESH_SECONDS, 20 * (time.monotonic() - began))
        try:
            return self._oldest.pop()[2]
        except IndexError:
            return None  # nothing is there, or RACE: another thread took the last one

    def owner(self, lease: Lease[Any]) -> Queue[Any]:
        """Return the queue that a lease came from."""
        for queue in self._queues:
            if queue.layout.directory is lease.layout.directory:
                return queue
        raise SettingsError("the lease is not from a queue of this set")

    # --- looking -------------------------------------------------------------------------------------------

    def peek(self, state: str = "ready", limit: int | None = None) -> Iterator[Pair]:
        """Yield pairs of a queue and a message in that state, the oldest of all first, without claiming them."""
        streams = [_stream(index, queue, state, limit) for index, queue in enumerate(self._queues)]
        for count, (_, _, queue, message) in enumerate(heapq.merge(*streams, key=lambda each: each[:2])):
            if limit is not None and count >= limit:
                return
            yield queue, message

    def stats(self) -> dict[str, Stats]:
        """Return the counts of each queue, by its path."""
        return {queue.path: queue.stats() for queue in self._queues}

    def __len__(self) -> int:
        """Return the number of messages that are waiting or leased, in all queues."""
        return sum(len(queue) for queue in self._queues)

    def __bool__(self) -> bool:
        """Return True, even for an empty set."""
        return True

    def close(self) -> None:
        """Let go of the descriptors of all queues."""
        for queue in self._queues:
            queue.close()


def _stream(
    index: int, queue: Queue[Any], state: str, limit: int | None
) -> Iterator[tuple[int, int, Queue[Any], Message[Any]]]:
    for message in queue.peek(state, limit):
        yield message.entry.put, index, queue, message
