"""Queues read as a table: the driver finds the directories, the executors list and read them, nothing is claimed.

Layer: edges.  Touches: nothing.
The directories are found once, when Spark plans the read (of other layouts than native: the names are listed then). A
message that moves on before its body is read is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dirqueue import states
from dirqueue.errors import SettingsError
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.pins import Pins
from dirqueue.spark.columns import check_read, reads_bodies
from dirqueue.spark.options import PINNED, READ, Options, open_native, open_queue
from dirqueue.spark.partitions import LEAST, Folders, Lot, Messages, count_pinned, lots, plan, split
from dirqueue.spark.pieces import SHAPES


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
        self._records = options.flag("records", default=False)
        check_read(schema, pieces=options.choice("pieces", *SHAPES) == "columns", records=self._records)

    def partitions(self) -> Sequence[InputPartition]:
        options = Options(self._given, READ)
        if self._pinned is not None:
            return self._lot(options.path())
        found: list[InputPartition] = []
        for queue in options.queues():
            layout = open_queue(queue, layout=self._layout).layout
            if isinstance(layout, Native):
                found += plan(layout, queue, self._states, self._pieces, 1 if self._records else LEAST)
                continue
            entries = [entry for entry in layout.entries(self._states) if entry.state in self._states]
            entries.sort(key=lambda entry: (entry.priority or 0, entry.put, entry.id))
            found += split(queue, layout.name, entries, self._pieces)
        return found or [InputPartition(None)]

    def _lot(self, queue: str) -> Sequence[InputPartition]:
        consumer, _, lot = (self._pinned or "").partition("/")
        native = open_native(queue)
        pins = Pins(native.directory, native.settings, consumer)
        parts = pins.parts(int(lot))
        return lots(queue, consumer, parts, self._pieces, count_pinned(native.directory, parts))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, (Messages, Folders, Lot)):
            strict = isinstance(partition, Lot)
            yield from rows(partition, self._schema, records=self._records, strict=strict)


def rows(
    partition: Messages | Folders | Lot, schema: StructType, *, records: bool, strict: bool
) -> Iterator[Any]:
    """Yield what one task reads, as Arrow batches."""
    queue, layout, entries = partition.open(sure=not (records or reads_bodies(schema)))
    # COST: pyarrow, where rows are made only.
    from dirqueue.spark.records import RecordRows
    from dirqueue.spark.rows import Rows

    kind = RecordRows if records else Rows
    yield from kind(schema, layout, queue).batches(entries, strict=strict)


def _states(text: str) -> tuple[str, ...]:
    wanted = tuple(word.strip() for word in text.split(","))
    if wanted == ("all",):
        return states.VISIBLE
    if not set(wanted) <= set(states.VISIBLE):
        raise SettingsError(
            f"option state must be all, or one or several of {', '.join(states.VISIBLE)}, not {text!r:.60}"
        )
    return wanted
