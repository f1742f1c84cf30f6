"""Rows packed into messages of records, and rows again: from Arrow to Arrow, with no Python object for a row.

Layer: edges.  The format is that of dirqueue/records.py.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from dirqueue.errors import CodecError
from dirqueue.layouts.base import Layout
from dirqueue.message import Entry
from dirqueue.records import AROUND, EACH, check, is_records, pack
from dirqueue.spark.columns import BYTES, RECORD, ROWS
from dirqueue.spark.rows import Rows, arrow_type, not_text

if TYPE_CHECKING:
    from dirqueue.spark.write import Packing

#: Columns that differ from record to record; the others are those of the message.
OWN = ("value", RECORD, "size")
#: Rows of so many kinds wait for others of their kind; one more, and all of them are written.
KINDS = 1000


class Packer:
    """Packs the rows of one task. Rows that share a message are of one kind: priority, delay, what they carry."""

    def __init__(self, packing: Packing, max_size: int) -> None:
        self._records = packing.records
        self._size = min(packing.size, max_size) if max_size else packing.size
        self._waiting: dict[Any, pa.Array] = {}

    def add(self, kind: Any, rows: pa.Array) -> list[bytes]:
        """Take more rows; return the bodies that are full."""
        waiting = self._waiting.pop(kind, None)
        if waiting is not None:
            rows = pa.concat_arrays([waiting, rows])
        bodies, start, offsets = [], 0, _offsets(rows)
        while end := self._end(offsets, start):
            bodies.append(_packed(rows.slice(start, end - start)))
            start = end
        if start < len(rows):
            self._waiting[kind] = rows.slice(start)
        return bodies

    def rest(self, most: int = 0) -> Iterator[tuple[Any, bytes]]:
        """Yield the kind and the body of what waits for more rows, if it is of more than `most` kinds."""
        if len(self._waiting) > most:
            for kind, rows in self._waiting.items():
                yield kind, _packed(rows)
            self._waiting = {}

    def _end(self, offsets: memoryview, start: int) -> int:
        """Return where the message that begins at this row ends; 0 if more rows would fit into it."""
        ends = range(start + 1, len(offsets))
        room = self._size - AROUND
        fits = bisect.bisect_right(
            ends, room, key=lambda end: offsets[end] - offsets[start] + EACH * (end - start)
        )
        if self._records is not None and fits >= self._records:
            return start + self._records
        return start + max(fits, 1) if fits < len(ends) else 0


def _offsets(rows: pa.Array) -> memoryview:
    """Return where each row begins in the data of an array, and where the last one ends."""
    if not len(rows):
        return memoryview(b"")
    wide = pa.types.is_large_binary(rows.type)
    return memoryview(rows.buffers()[1]).cast("q" if wide else "i")[rows.offset : rows.offset + len(rows) + 1]


def _packed(rows: pa.Array) -> bytes:
    offsets = _offsets(rows)
    lengths = _lengths(rows).cast(pa.uint32())
    data = memoryview(rows.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    return pack(len(rows), memoryview(lengths.buffers()[1])[: EACH * len(rows)], data)


def _lengths(rows: pa.Array) -> pa.Array:
    # COST: 0.1 s of CPU at the first use; a stream starts six processes that pack nothing.
    from pyarrow.compute import binary_length

    return binary_length(rows)


def unpacked(body: bytes) -> pa.Array:
    """Return the records of a body as an array over the same memory; ValueError if it is damaged."""
    from pyarrow.compute import cumulative_sum_checked

    count, start, end = check(body)
    memory = pa.py_buffer(body)
    lengths = pa.Array.from_buffers(
        pa.uint32(), count, [None, memory.slice(start - EACH * count, EACH * count)]
    )
    ends = cumulative_sum_checked(lengths.cast(pa.int32()))
    if (ends[-1].as_py() if count else 0) != end - start:
        raise ValueError("the records are damaged: their lengths do not add up")
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.Array.from_buffers(
        pa.binary(), count, [None, offsets.buffers()[1], memory.slice(start, end - start)]
    )


class RecordRows:
    """Turns entries of one queue into Arrow batches with a row for each record.

    A message that holds no records is one row whose `record` is null.
    """

    def __init__(self, schema: StructType, layout: Layout, queue: str) -> None:
        self._queue = queue
        self._schema = pa.schema([(field.name, arrow_type(field)) for field in schema.fields])
        self._outer = Rows(
            StructType([field for field in schema.fields if field.name not in OWN]), layout, queue
        )

    def batches(self, entries: Iterable[Entry], *, strict: bool = False) -> Iterator[pa.RecordBatch]:
        """Read the messages; those that moved on meanwhile are left out, or an error if `strict`."""
        kept: list[Entry] = []
        arrays: list[pa.Array] = []
        numbered: list[bool] = []
        rows = size = 0
        for entry, body in self._outer.bodies(entries, strict=strict):
            kept.append(entry)
            numbered.append(is_records(body))
            arrays.append(self._unpack(entry, body) if numbered[-1] else pa.array([body], pa.binary()))
            rows += len(arrays[-1])
            size += len(body)
            if rows >= ROWS or size >= BYTES:
                yield self._batch(kept, arrays, numbered)
                kept, arrays, numbered, rows, size = [], [], [], 0, 0
        if kept:
            yield self._batch(kept, arrays, numbered)

    def _unpack(self, entry: Entry, body: bytes) -> pa.Array:
        try:
            return unpacked(body)
        except ValueError as error:
            raise CodecError(
                f"message {entry.id} of {self._queue!r}: {error}. Without the option records it is read as it is",
                message_id=entry.id,
            ) from None

    def _batch(self, entries: list[Entry], arrays: list[pa.Array], numbered: list[bool]) -> pa.RecordBatch:
        # Once for each message, then repeated for each of its records.
        outer = self._outer.batch(entries)
        which = pa.concat_arrays([pa.repeat(index, len(array)) for index, array in enumerate(arrays)])
        values = pa.concat_arrays(arrays)
        columns = []
        for field in self._schema:
            if field.name == "value":
                columns.append(self._values(values, field.type, entries, which))
            elif field.name == RECORD:
                columns.append(_numbers(arrays, numbered))
            elif field.name == "size":
                columns.append(_lengths(values).cast(pa.int64()))
            else:
                columns.append(outer.column(field.name).take(which))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _values(self, values: pa.Array, kind: pa.DataType, entries: list[Entry], which: pa.Array) -> pa.Array:
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            for index, value in enumerate(values):
                try:
                    value.as_py().decode()
                except UnicodeDecodeError:
                    id = entries[which[index].as_py()].id
                    raise not_text("a record", id, self._queue, "value") from None
            raise


def _numbers(arrays: list[pa.Array], numbered: list[bool]) -> pa.Array:
    counting = pa.array(range(max(map(len, arrays))), pa.int32())
    nothing = pa.nulls(1, pa.int32())
    return pa.concat_arrays(
        [
            counting.slice(0, len(array)) if some else nothing
            for array, some in zip(arrays, numbered, strict=True)
        ]
    )
