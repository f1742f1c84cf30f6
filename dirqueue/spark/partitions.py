"""What one task reads: directories of messages, parts of a pinned lot, or names, as the driver sends them.

Layer: edges.
The native layout is read by directory: the driver finds the directories, and each task lists its own (see
layouts/native/folders.py). Of the other layouts the driver lists the names. COST: a name travels in 13 to 20 bytes
(leased: 45), where a pickled Entry takes 122 (156); packing takes 0.5 µs (1.2 µs) for each message
(tests/spark/test_partitions.py). Spark refuses a task of more than 128 MiB.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import InputPartition

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import LeaseLost, QueueError
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import Native, folders
from dirqueue.layouts.native import parts as inside
from dirqueue.layouts.native.folders import Folder
from dirqueue.message import Entry
from dirqueue.spark.options import open_native, open_queue

#: Below this many messages another task costs more than it saves.
LEAST = 64
#: One task gets at most this many messages: some 2 MB of names, or 20 MB if every name were as long as can be.
MOST = 100_000
#: With fewer parts than this for each task, every task reads a share of every part.
FEW = 4


class Messages(InputPartition):
    """Messages of one queue."""

    def __init__(self, queue: str, layout: str, entries: Sequence[Entry]) -> None:
        rows = pickle.dumps([tuple(entry) for entry in entries])
        super().__init__((queue, layout, zlib.compress(rows, 1)))

    def open(self, *, sure: bool) -> tuple[str, Layout, Iterator[Entry]]:
        """Return the path of the queue, its layout and the messages."""
        queue, layout, rows = self.value
        entries = pickle.loads(zlib.decompress(rows))  # noqa: S301 - Spark unpickles the partition itself
        return queue, open_queue(queue, layout=layout).layout, (Entry(*entry) for entry in entries)


class Folders(InputPartition):
    """Directories of one queue in the native layout, or shares of them."""

    def __init__(self, queue: str, states: Sequence[str], now: int, found: Sequence[Folder]) -> None:
        super().__init__((queue, tuple(states), now, [tuple(each) for each in found]))

    def open(self, *, sure: bool) -> tuple[str, Layout, Iterator[Entry]]:
        """Return the path of the queue, its layout and the messages, listed now; those of one directory in order.

        Args:
            sure: Look at each link whether it is a message, which whoever reads the bodies need not.
        """
        queue, states, now, found = self.value
        native = open_native(queue)
        native.directory.need()  # QueueNotFound, and not an empty table, if it vanished
        mine = [Folder(*each) for each in found]
        return queue, native, _listed(native, frozenset(states), now, mine, sure=sure)


def _listed(
    native: Native, states: frozenset[str], now: int, found: Sequence[Folder], *, sure: bool
) -> Iterator[Entry]:
    for folder in found:
        entries = list(folders.read(native.directory, folder, states, now, sure=sure))
        entries.sort(key=lambda entry: (entry.priority or 0, entry.put, entry.id))
        yield from entries


def plan(native: Native, queue: str, states: Sequence[str], wanted: int, least: int) -> list[InputPartition]:
    """Return the tasks that read a queue: about `wanted`, of directories that each task lists."""
    now = native.directory.clock.now()
    found = list(folders.find(native.directory, frozenset(states), now))
    each = min(max(-(-sum(folder.weight for folder in found) // wanted), least), MOST)
    tasks: list[list[Folder]] = []
    room = 0
    for folder in found:
        for some in _shares(folder, each):
            if not tasks or some.weight > room:
                tasks.append([])
                room = each
            tasks[-1].append(some)
            room -= some.weight
    return [Folders(queue, states, now, mine) for mine in tasks]


def _shares(folder: Folder, each: int) -> list[Folder]:
    """Return a directory as shares of at most so many messages."""
    shares = -(-folder.weight // each)
    weight = -(-folder.weight // shares)
    return [folder._replace(share=index, shares=shares, weight=weight) for index in range(shares)]


class Lot(InputPartition):
    """Parts of a pinned lot, or a share of each."""

    def __init__(
        self, queue: str, consumer: str, parts: Sequence[str], share: int = 0, shares: int = 1
    ) -> None:
        super().__init__((queue, consumer, list(parts), share, shares))

    def open(self, *, sure: bool) -> tuple[str, Layout, Iterator[Entry]]:
        """Return the path of the queue, its layout and the messages, always in the same order."""
        queue, consumer, parts, share, shares = self.value
        native = open_native(queue)
        return queue, native, _pinned(native.directory, consumer, parts, share, shares)


def _pinned(
    directory: Directory, consumer: str, parts: Sequence[str], share: int, shares: int
) -> Iterator[Entry]:
    for part in parts:
        if not fs.exists(part, directory.fd):
            raise LeaseLost(
                f"the messages that {consumer} had claimed of {directory.path!r} are not there any more: they were "
                f"acknowledged or went back to the queue. A DataFrame of claim() works inside its `with` block only",
                message_id="",
                token=consumer,
                reason="gone",
            )
        yield from inside.read(directory, part, 0, consumer, share, shares)


def gone(queue: str, what: str) -> QueueError:
    """Return the error for something that is missing in a lot, which nobody but its consumer may change."""
    return QueueError(
        f"{what} of {queue!r} disappeared after this query had claimed them: it was stopped for longer than "
        f"claimTimeout, or files were removed. failOnDataLoss=false goes on without them",
        path=queue,
    )


def count_pinned(directory: Directory, parts: Sequence[str]) -> int:
    """Return the number of messages in parts of a lot."""
    return sum(inside.count(directory, part) for part in parts)


def lots(queue: str, consumer: str, parts: Sequence[str], wanted: int, messages: int) -> list[InputPartition]:
    """Return the tasks that read a lot: at most `wanted`, and no more than there are messages."""
    wanted = max(1, min(wanted, messages))
    if len(parts) < FEW * wanted:
        return [Lot(queue, consumer, parts, index, wanted) for index in range(wanted)]
    return [Lot(queue, consumer, some) for some in share(parts, wanted)]


def split(queue: str, layout: str, entries: Sequence[Entry], wanted: int) -> list[InputPartition]:
    """Return the tasks for these messages: about `wanted`, but none too small to be worth it or too large to send."""
    pieces = max(1, min(wanted, -(-len(entries) // LEAST)), -(-len(entries) // MOST))
    size = -(-len(entries) // pieces) or 1
    return [Messages(queue, layout, entries[start : start + size]) for start in range(0, len(entries), size)]


def share(parts: Sequence[str], pieces: int) -> list[list[str]]:
    """Return the parts of each task, in order, for at most `pieces` tasks."""
    pieces = max(1, min(pieces, len(parts)))
    size, more = divmod(len(parts), pieces)
    shares, start = [], 0
    for index in range(pieces):
        end = start + size + (index < more)
        shares.append(list(parts[start:end]))
        start = end
    return shares
