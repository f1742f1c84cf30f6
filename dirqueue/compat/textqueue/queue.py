"""Text files as queues, with the interface of textqueue 1.1.

Layer: edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self, cast

from dirqueue.codecs import BYTES
from dirqueue.compat.textqueue.item import STATUS, MessageStatus, QueueItem, VariableItem
from dirqueue.errors import DirQueueError
from dirqueue.layouts.text import items
from dirqueue.layouts.text.grammar import Item, digest
from dirqueue.layouts.text.grammar import items as parsed
from dirqueue.layouts.text.layout import Text
from dirqueue.lease import RENEW_AT, Lease
from dirqueue.queue import Queue
from dirqueue.renewer import RENEWER

#: Seconds that a message is held after the process died.
LEASE = 60.0


class Input:
    """One file: where this reader is in it, and what it holds."""

    def __init__(self, filename: str, lease: float) -> None:
        self._queue = Queue(filename, layout="text", create=False, lease=lease, max_attempts=0, sync=False)
        self.layout = cast("Text", self._queue.layout)
        self._seconds = lease
        self._held: list[Lease[bytes]] = []
        #: What was read and not yet given out; where it ends; and which file it was.
        self._ahead: Iterator[Item] = iter(())
        self._at = 0
        self._file: tuple[int, int] | None = None

    def next(self) -> Item | None:
        """Return the next item of the file, in whatever state; None at the end."""
        item = next(self._ahead, None)
        if item is None:
            data, self._at, self._file = self.layout.read_from(self._at, self._file)
            self._ahead = parsed(data, 0, self._at)
            item = next(self._ahead, None)
        if item is not None:
            self._at = item.end
        return item

    def take(self, item: Item) -> Lease[bytes] | None:
        """Claim a message; None if somebody has it or it was finished meanwhile."""
        claim = items.take(self.layout, item.offset, digest(item.text), self._seconds)
        if claim is None:
            return None
        lease = Lease(self.layout, claim, self._seconds, BYTES)
        self._held.append(lease)
        RENEWER.watch(lease, self._seconds * RENEW_AT)
        return lease

    def forget(self, lease: Lease[bytes]) -> None:
        """Stop keeping a lease alive."""
        RENEWER.forget(lease)
        if lease in self._held:
            self._held.remove(lease)

    def close(self) -> None:
        """Give back what is held, and close the file."""
        for lease in list(self._held):
            self.forget(lease)
            try:
                lease.release()
            except DirQueueError:
                pass  # it is somebody else's by now, or the file is gone; at the latest the lease runs out
        self._queue.close()


class TextQueue:
    """Files whose queued messages are given out one after the other, the first file's first."""

    def __init__(self, lease: float = LEASE) -> None:
        self.input_files: list[tuple[str, Input]] = []
        self._lease = lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_input(self, filename: str) -> None:
        """Add a file, which must exist."""
        self.input_files.append((filename, Input(filename, self._lease)))

    def get_next(self) -> QueueItem | None:
        """Return the next queued message of any file; None if there is none now."""
        for index in range(len(self.input_files)):
            item = self.get_next_in_file(index)
            if item is not None:
                return item
        return None

    def get_next_in_file(
        self,
        file_index: int,
        include_cleared_items: bool = False,
        include_comment_items: bool = False,
        include_critical_items: bool = False,
    ) -> QueueItem | None:
        """Return the next item of one file: queued messages, and those that are asked for; None at its end.

        Raises:
            ValueError: a line begins with a character that the format does not have; the next call goes on behind it.
        """
        wanted = {MessageStatus.queued}
        wanted |= {MessageStatus.cleared} if include_cleared_items else set()
        wanted |= {MessageStatus.comment} if include_comment_items else set()
        wanted |= {MessageStatus.critical} if include_critical_items else set()
        filename, source = self.input_files[file_index]
        while (item := source.next()) is not None:
            if item.foreign:
                line = item.text.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
                raise ValueError(f"Unexpected Control Character '{line[0]}' on line '{line}'")
            status = STATUS[item.control]
            if status not in wanted:
                continue
            lease = source.take(item) if status is MessageStatus.queued else None
            if status is MessageStatus.queued and lease is None:
                continue  # another reader has it
            variables = [VariableItem(_text(each.value), each.offset) for each in item.variables]
            return QueueItem(filename, source, item.offset, _text(item.text), status, variables, item, lease)
        return None

    def append(self, filename: str, value: str, variables: tuple[str, ...] = ()) -> None:
        """Put a message at the end of a file, which is made if it does not exist.

        Raises:
            ValueError: the format cannot hold the value or a variable.
        """
        if "\r" in value or "\0" in value:
            raise ValueError("a message of a text queue holds neither a carriage return nor a NUL")
        if any("\n" in each or "\r" in each for each in variables):
            raise ValueError("a variable has one line")
        encoded = tuple(each.encode() for each in variables)
        with Queue(filename, layout="text", sync=False) as queue:
            items.append(cast("Text", queue.layout), value.encode(), encoded)

    def close(self) -> None:
        """Give back what is held and not marked, and close all files."""
        for _, source in self.input_files:
            source.close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
