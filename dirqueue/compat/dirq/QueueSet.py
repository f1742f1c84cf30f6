"""The set of queues of dirq: several queues walked as one, in the order of insertion.

Layer: edges.
"""

from __future__ import annotations

from collections.abc import Iterator

from dirqueue.compat.dirq.Exceptions import QueueError
from dirqueue.compat.dirq.QueueBase import QueueBase
from dirqueue.layouts.dirq.names import ELEMENT_LENGTH

Pair = tuple[QueueBase, str]


class QueueSet:
    """Any number of queues, given one by one or as lists."""

    def __init__(self, *queues: QueueBase | list[QueueBase] | tuple[QueueBase, ...]) -> None:
        self.qset: list[QueueBase] = []
        #: The next name of each queue, by the queue's id.
        self._heads: dict[str, str] = {}
        self._add(*queues)

    def _add(self, *queues: QueueBase | list[QueueBase] | tuple[QueueBase, ...]) -> None:
        wanted: list[QueueBase] = []
        for each in queues:
            wanted.extend(each if isinstance(each, (list, tuple)) else [each])
        known = {queue.id for queue in self.qset}
        for queue in wanted:
            if not isinstance(queue, QueueBase):
                raise TypeError("QueueBase objects expected.")
            if queue.id in known:
                raise QueueError(f"queue already in the set: {queue.path}")
            known.add(queue.id)
        self.qset.extend(queue.copy() for queue in wanted)

    def add(self, *queues: QueueBase | list[QueueBase] | tuple[QueueBase, ...]) -> None:
        """Add queues; the walk begins anew."""
        self._add(*queues)
        self._reset()

    def remove(self, given_queue: QueueBase) -> None:
        """Take a queue out; the walk goes on over the others."""
        if not isinstance(given_queue, QueueBase):
            raise TypeError("QueueBase objects expected.")
        self.qset = [queue for queue in self.qset if queue.id != given_queue.id]
        self._heads.pop(given_queue.id, None)

    def _reset(self) -> None:
        self._heads = {queue.id: queue.first() for queue in self.qset}

    def first(self) -> Pair | tuple[None, None]:
        """Return the queue and the name of the first element of all, or (None, None)."""
        self._reset()
        return self.next()

    def next(self) -> Pair | tuple[None, None]:
        """Return the queue and the name of the next element of all, or (None, None)."""
        best: QueueBase | None = None
        name = ""
        for queue in self.qset:
            if queue.id not in self._heads:
                self._heads[queue.id] = queue.next()
            head = self._heads[queue.id]
            if head and (best is None or head[-ELEMENT_LENGTH:] < name[-ELEMENT_LENGTH:]):
                best, name = queue, head
        if best is None:
            return None, None
        self._heads[best.id] = best.next()
        return best, name

    __next__ = next

    def __iter__(self) -> Iterator[Pair]:
        """Yield the queues and names of all elements, whatever first() and next() are doing."""
        import heapq

        def stream(index: int, queue: QueueBase) -> Iterator[tuple[str, int, str]]:
            for name in queue:
                yield name[-ELEMENT_LENGTH:], index, name

        queues = list(self.qset)
        for _, index, name in heapq.merge(*(stream(i, queue) for i, queue in enumerate(queues))):
            if queues[index] in self.qset:
                yield queues[index], name

    def names(self) -> Iterator[Pair]:
        """Yield the queues and names of all elements."""
        return iter(self)

    def count(self) -> int:
        """Return the number of elements in all queues."""
        return sum(queue.count() for queue in self.qset)
