"""Reading queues as a table: a snapshot of names, bodies read by the executors; nothing is taken.

Layer: edges.  Touches: nothing.
The names are listed once, when Spark plans the read; a message that moves on before its body is read is left out.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dirqueue import states
from dirqueue.errors import SettingsError
from dirqueue.layouts.native import names
from dirqueue.layouts.native.pins import Pins, leased
from dirqueue.message import Entry
from dirqueue.spark.columns import PIECES, Rows, check_read, files_of
from dirqueue.spark.options import PINNED, READ, SOURCE, Opened, Options, open_queue

#: Below this many messages another task costs more than it saves.
LEAST = 64
#: How the pieces of dirq-normal elements are given: not at all, as a map, as columns.
SHAPES = ("false", "true", "columns")
#: So many elements are looked at to learn what pieces there are.
SAMPLE = 100


class Messages(InputPartition):
    """Messages of one queue, as a task gets them."""

    def __init__(self, queue: str, layout: str, entries: Sequence[Entry]) -> None:
        super().__init__((queue, layout, [tuple(entry) for entry in entries]))

    def open(self) -> tuple[str, Opened, Iterator[Entry]]:
        """Return the queue and the messages in it."""
        queue, layout, entries = self.value
        return queue, open_queue(queue, layout=layout), (Entry(*entry) for entry in entries)


class Lot(InputPartition):
    """Parts of a pinned lot, as a task gets them."""

    def __init__(self, queue: str, consumer: str, parts: Sequence[str]) -> None:
        super().__init__((queue, consumer, list(parts)))

    def open(self) -> tuple[str, Opened, Iterator[Entry]]:
        """Return the queue and the messages in the parts."""
        queue, consumer, parts = self.value
        opened = open_queue(queue)
        return queue, opened, pinned(opened, consumer, parts)


def pinned(opened: Opened, consumer: str, parts: Sequence[str]) -> Iterator[Entry]:
    """Yield the messages of parts of a lot, always in the same order."""
    from dirqueue.disk import fs

    for part in parts:
        found = [names.parse(entry.name) for entry in fs.listing(part, opened.layout.directory.fd)]
        kept = [name for name in found if name is not None and name.kind in (names.READY, names.DELAYED)]
        for name in sorted(kept, key=lambda name: names.order_key(name.id)):
            yield leased(name, part, name.until, consumer)


def share(parts: Sequence[str], pieces: int) -> list[list[str]]:
    """Deal parts out to at most so many tasks, in order."""
    pieces = max(1, min(pieces, len(parts)))
    size, more = divmod(len(parts), pieces)
    shares, start = [], 0
    for index in range(pieces):
        end = start + size + (index < more)
        shares.append(list(parts[start:end]))
        start = end
    return shares


class Reader(DataSourceReader):
    """One `load()`. Pickled to the executors, so it holds plain values only."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        options = Options(given, READ)
        self._given = given
        self._schema = schema
        self._pieces = options.whole("numPartitions") or os.cpu_count() or 1
        self._states = _states(options.text("state", "ready") or "ready")
        self._layout = options.text("layout", "auto") or "auto"
        self._pinned = options.text(PINNED)
        check_read(schema, pieces=options.choice("pieces", *SHAPES) == "columns")

    def partitions(self) -> Sequence[InputPartition]:
        options = Options(self._given, READ)
        if self._pinned is not None:
            return self._lot(options.path())
        found: list[InputPartition] = []
        for queue in options.queues():
            opened = open_queue(queue, layout=self._layout)
            entries = [entry for entry in opened.layout.entries(self._states) if entry.state in self._states]
            entries.sort(key=lambda entry: (entry.priority or 0, entry.put, entry.id))
            pieces = max(1, min(self._pieces, -(-len(entries) // LEAST)))
            size = -(-len(entries) // pieces)
            found += (
                Messages(queue, opened.layout.name, entries[start : start + size])
                for start in range(0, len(entries), size or 1)
            )
        return found or [InputPartition(None)]

    def _lot(self, queue: str) -> Sequence[InputPartition]:
        consumer, _, lot = (self._pinned or "").partition("/")
        native = open_queue(queue).native
        pins = Pins(native.directory, native.settings, consumer)
        return [Lot(queue, consumer, some) for some in share(pins.parts(int(lot)), self._pieces)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, (Messages, Lot)):
            return
        queue, opened, entries = partition.open()
        yield from Rows(self._schema, opened.layout, queue).batches(entries)


def piece_names(given: dict[str, str]) -> list[str]:
    """Return the columns for pieces when the user names none: none, the map, or those the first elements have."""
    options = Options(given, READ + SOURCE)  # asked for streams too
    shape = options.choice("pieces", *SHAPES)
    if shape != "columns":
        return [PIECES] if shape == "true" else []
    found: set[str] = set()
    for queue in options.queues():
        opened = open_queue(queue, layout=options.text("layout", "auto") or "auto")
        if opened.layout.name == "dirq-normal":
            looked = itertools.islice(opened.layout.entries(states.VISIBLE), SAMPLE)
            found.update(
                *(files_of(opened.layout, entry) for entry in looked if entry.state in states.VISIBLE)
            )
    return sorted(found)


def _states(text: str) -> tuple[str, ...]:
    wanted = tuple(word.strip() for word in text.split(","))
    if wanted == ("all",):
        return states.VISIBLE
    if not set(wanted) <= set(states.VISIBLE):
        raise SettingsError(
            f"option state must be all, or one or several of {', '.join(states.VISIBLE)}, not {text!r:.60}"
        )
    return wanted
