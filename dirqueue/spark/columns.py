"""Messages as rows: the columns that a read gives and that a write takes.

Layer: edges.
A schema of the user's own may leave columns out: without `value` no body is read, without `value` and `size` no file
is touched at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dirqueue import fs
from dirqueue.errors import DirQueueError, MessageNotFound, SettingsError
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native.look import moved_on
from dirqueue.message import Entry

#: Rows in one Arrow batch, and the bytes after which it is closed early.
ROWS = 4096
BYTES = 16 << 20

_INTEGRAL = (ByteType, ShortType, IntegerType, LongType)
_NUMBER = (*_INTEGRAL, FloatType, DoubleType, DecimalType)


class Column(NamedTuple):
    """One column of a read."""

    spark: tuple[DataType, ...]
    arrow: pa.DataType


COLUMNS: dict[str, Column] = {
    "id": Column((StringType(),), pa.string()),
    "value": Column((BinaryType(), StringType()), pa.binary()),
    "enqueued_at": Column((TimestampType(),), pa.timestamp("us", tz="UTC")),
    "attempts": Column((IntegerType(),), pa.int32()),
    "priority": Column((IntegerType(),), pa.int32()),
    "size": Column((LongType(),), pa.int64()),
    "state": Column((StringType(),), pa.string()),
    "queue": Column((StringType(),), pa.string()),
}
PIECES = "pieces"
PIECES_COLUMN = Column(
    (MapType(StringType(), BinaryType()), MapType(StringType(), StringType())),
    pa.map_(pa.string(), pa.binary()),
)
#: Columns of a read that are asked for by name only.
EXTRA: dict[str, Column] = {
    "error": Column((StringType(),), pa.string()),
    "token": Column((StringType(),), pa.string()),
    "until": Column((TimestampType(),), pa.timestamp("us", tz="UTC")),
}


def read_schema(*, pieces: bool) -> StructType:
    """Return the columns of a read when the user names none."""
    fields = [StructField(name, column.spark[0]) for name, column in COLUMNS.items()]
    if pieces:
        fields.append(StructField(PIECES, PIECES_COLUMN.spark[0]))
    return StructType(fields)


def check_read(schema: StructType) -> None:
    """Refuse columns that no message has, and types that they have not."""
    known = COLUMNS | EXTRA | {PIECES: PIECES_COLUMN}
    for field in schema.fields:
        column = known.get(field.name)
        if column is None:
            raise SettingsError(f"a queue has no column {field.name!r}; it has {', '.join(known)}")
        if field.dataType not in column.spark:
            wanted = " or ".join(kind.simpleString() for kind in column.spark)
            raise SettingsError(
                f"column {field.name!r} is {wanted}, not {field.dataType.simpleString()}: cast it after reading"
            )


def check_write(schema: StructType) -> None:
    """Refuse columns that a put has no use for, and types that it cannot take."""
    allowed: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        "value": ((StringType, BinaryType), "a string or binary"),
        "priority": (_INTEGRAL, "a whole number"),
        "delay": (_NUMBER, "a number of seconds"),
    }
    for field in schema.fields:
        if field.name not in allowed:
            raise SettingsError(
                f"a put has no column {field.name!r}; it takes value, priority and delay: drop it, or put it into "
                f"value (to_json(struct(*)) AS value)"
            )
        kinds, wanted = allowed[field.name]
        if not isinstance(field.dataType, kinds):
            raise SettingsError(
                f"column {field.name!r} must be {wanted}, not {field.dataType.simpleString()}"
            )
    if "value" not in schema.fieldNames():
        raise SettingsError("a put needs a column value (string or binary): select(... AS value)")


class Rows:
    """Turns entries of one queue into Arrow batches with the columns of a schema."""

    def __init__(self, schema: StructType, layout: Layout, queue: str) -> None:
        self._layout = layout
        self._queue = queue
        self._names = schema.fieldNames()
        known = COLUMNS | EXTRA | {PIECES: PIECES_COLUMN}
        self._text = {
            field.name
            for field in schema.fields
            if isinstance(field.dataType, StringType) and known[field.name].arrow == pa.binary()
        }
        kinds = [pa.string() if name in self._text else known[name].arrow for name in self._names]
        self._schema = pa.schema(list(zip(self._names, kinds, strict=True)))
        self._reads = bool({"value", PIECES} & set(self._names))
        self._plain = [
            (self._names.index(name), take) for name, take in _BY_NAME.items() if name in self._names
        ]

    def batches(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        """Read the messages; those that moved on meanwhile are left out."""
        load = self._load
        kept: list[Entry] = []
        bodies: list[Any] = []
        size = 0
        for entry in entries:
            if self._reads:
                try:
                    body = load(entry)
                except MessageNotFound:
                    continue
                size += len(body) if isinstance(body, bytes) else sum(map(len, body.values()))
                bodies.append(body)
            kept.append(entry)
            if len(kept) == ROWS or size >= BYTES:
                yield self._batch(kept, bodies)
                kept, bodies, size = [], [], 0
        if kept:
            yield self._batch(kept, bodies)

    def _load(self, entry: Entry) -> Any:
        if PIECES in self._names and self._layout.name == "dirq-normal":
            return self._pieces(entry)
        return self._layout.load(entry.place)

    def _pieces(self, entry: Entry) -> dict[str, bytes]:
        """Return every file of an element, whatever its schema."""
        fd = self._layout.home.fd
        try:
            names = sorted(name for name in fs.names_in(entry.place, fd) if name != "locked")
            return {name: fs.read_file(f"{entry.place}/{name}", fd) for name in names}
        except FileNotFoundError:
            raise moved_on(entry.id) from None

    def _batch(self, entries: list[Entry], bodies: list[Any]) -> pa.RecordBatch:
        columns: list[Any] = [None] * len(self._names)
        for index, take in self._plain:
            columns[index] = [take(entry) for entry in entries]
        for index, name in enumerate(self._names):
            if name == "queue":
                columns[index] = [self._queue] * len(entries)
            elif name == "value":
                columns[index] = [body if isinstance(body, bytes) else body.get("body") for body in bodies]
            elif name == PIECES:
                columns[index] = [
                    list(body.items()) if isinstance(body, dict) else [("body", body)] for body in bodies
                ]
            elif name == "size":
                columns[index] = self._sizes(entries, bodies)
            elif name == "error":
                columns[index] = [self._error(entry) for entry in entries]
            elif name == "until":
                columns[index] = [entry.until or None for entry in entries]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, self._schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _sizes(self, entries: list[Entry], bodies: list[Any]) -> list[int | None]:
        if self._reads:
            return [len(body) if isinstance(body, bytes) else sum(map(len, body.values())) for body in bodies]
        sizes: list[int | None] = []
        for entry in entries:
            try:
                sizes.append(self._layout.size(entry.place))
            except MessageNotFound:
                sizes.append(None)
        return sizes

    def _error(self, entry: Entry) -> str | None:
        failure = self._layout.failure(entry)
        return failure.error if failure else None


_BY_NAME: dict[str, Callable[[Entry], Any]] = {
    "id": lambda entry: entry.id,
    "enqueued_at": lambda entry: entry.put,
    "attempts": lambda entry: entry.attempts,
    "priority": lambda entry: entry.priority,
    "state": lambda entry: entry.state,
    "token": lambda entry: entry.token or None,
}


def bodies_of(batch: pa.RecordBatch) -> list[bytes]:
    """Return the bodies of an Arrow batch that is to be put."""
    column = batch.column("value")
    if column.null_count:
        raise DirQueueError("column value holds a null: a message has a body; filter such rows out first")
    if not pa.types.is_large_binary(column.type) and not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    bodies: list[bytes] = column.to_pylist()
    return bodies
