"""What one task reads: names of messages, or parts of a pinned lot, as the driver sends them.

Layer: edges.
Spark refuses a task of more than 128 MiB. COST: a name travels in 13 to 20 bytes (leased: 45), where a pickled Entry
takes 122 (156); packing takes 0.5 µs (1.2 µs) for each message (tests/spark/test_partitions.py).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import InputPartition

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import LeaseLost
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import Name
from dirqueue.layouts.native.pins import leased
from dirqueue.message import Entry
from dirqueue.spark.options import open_native, open_queue

#: Below this many messages another task costs more than it saves.
LEAST = 64
#: One task gets at most this many messages: some 2 MB of names, or 20 MB if every name were as long as can be.
MOST = 100_000


class Messages(InputPartition):
    """Messages of one queue."""

    def __init__(self, queue: str, layout: str, entries: Sequence[Entry]) -> None:
        rows = pickle.dumps([tuple(entry) for entry in entries])
        super().__init__((queue, layout, zlib.compress(rows, 1)))

    def open(self) -> tuple[str, Layout, Iterator[Entry]]:
        """Return the path of the queue, its layout and the messages."""
        queue, layout, rows = self.value
        entries = pickle.loads(zlib.decompress(rows))  # noqa: S301 - Spark unpickles the partition itself
        return queue, open_queue(queue, layout=layout).layout, (Entry(*entry) for entry in entries)


class Lot(InputPartition):
    """Parts of a pinned lot."""

    def __init__(self, queue: str, consumer: str, parts: Sequence[str]) -> None:
        super().__init__((queue, consumer, list(parts)))

    def open(self) -> tuple[str, Layout, Iterator[Entry]]:
        """Return the path of the queue, its layout and the messages, always in the same order."""
        queue, consumer, parts = self.value
        native = open_native(queue)
        return queue, native, _pinned(native.directory, consumer, parts)


def _pinned(directory: Directory, consumer: str, parts: Sequence[str]) -> Iterator[Entry]:
    for part in parts:
        try:
            found = _messages(directory, part)
        except FileNotFoundError:
            raise LeaseLost(
                f"the messages that {consumer} had claimed of {directory.path!r} are not there any more: they were "
                f"acknowledged or went back to the queue. A DataFrame of claim() works inside its `with` block only",
                message_id="",
                token=consumer,
                reason="gone",
            ) from None
        for name in sorted(found, key=lambda name: names.order_key(name.id)):
            yield leased(name, part, name.until, consumer)


def count_pinned(directory: Directory, parts: Sequence[str]) -> int:
    """Return the number of messages in parts of a lot."""
    return sum(len(_messages(directory, part)) for part in parts)


def _messages(directory: Directory, part: str) -> list[Name]:
    found = [names.parse(entry.name) for entry in fs.listing(part, directory.fd)]
    return [name for name in found if name is not None and name.kind in (names.READY, names.DELAYED)]


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
