"""Messages as rows: the columns that a read gives and that a write takes.

Layer: edges.
A schema given by the user may leave columns out: without `value` no body is read, and without `value` and `size` no
file is opened at all. The pieces of a dirq-normal element are a column `pieces` (a map), or columns of their own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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

from dirqueue.disk import fs
from dirqueue.errors import (
    CodecError,
    DirQueueError,
    MessageNotFound,
    QueueError,
    SettingsError,
    access_error,
)
from dirqueue.layouts.base import Layout
from dirqueue.layouts.dirq.schema import KEY, LOCKED, read_table
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.bodies import Bodies
from dirqueue.layouts.native.inspect import moved_on
from dirqueue.message import Entry, Extras

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
#: What most messages carry beside the body.
NOTHING = Extras({})
PIECES = "pieces"
PIECES_COLUMN = Column(
    (MapType(StringType(), BinaryType()), MapType(StringType(), StringType())),
    pa.map_(pa.string(), pa.binary()),
)
#: Columns of a read that only a schema brings in.
EXTRA: dict[str, Column] = {
    "error": Column((StringType(),), pa.string()),
    "token": Column((StringType(),), pa.string()),
    "until": Column((TimestampType(),), pa.timestamp("us", tz="UTC")),
    "attributes": Column((MapType(StringType(), StringType()),), pa.map_(pa.string(), pa.string())),
    "expires_at": Column((TimestampType(),), pa.timestamp("us", tz="UTC")),
}
#: The number of a record in its message: a column of reads with the option records alone.
RECORD = "record"
RECORD_COLUMN = Column((IntegerType(),), pa.int32())

KNOWN = COLUMNS | EXTRA | {PIECES: PIECES_COLUMN, RECORD: RECORD_COLUMN}
#: One piece as a column: binary, string, or a table.
PIECE = (BinaryType(), StringType(), MapType(StringType(), StringType()))
PIECE_COLUMN = Column(PIECE, pa.binary())


def read_schema(pieces: Sequence[str], *, records: bool = False) -> StructType:
    """Return the columns of a read without a schema: with the map of pieces, or a column for each piece."""
    fields = [StructField(name, column.spark[0]) for name, column in COLUMNS.items()]
    kinds = KNOWN | {name: PIECE_COLUMN for name in pieces if name not in KNOWN}
    fields += (StructField(name, kinds[name].spark[0]) for name in pieces if name not in COLUMNS)
    if records:
        fields.insert(1, StructField(RECORD, RECORD_COLUMN.spark[0]))
    return StructType(fields)


def check_read(schema: StructType, *, pieces: bool = False, records: bool = False) -> None:
    """Raise SettingsError for a column that no message has, or a type that the column cannot have."""
    if pieces and records:
        raise SettingsError("the options pieces and records do not go together: a piece holds no records")
    for field in schema.fields:
        if field.name == RECORD and not records:
            raise SettingsError('the column record needs option("records", "true")')
        column = KNOWN.get(field.name)
        if column is None and pieces:
            column = PIECE_COLUMN
        if column is None:
            raise SettingsError(
                f"a queue has no column {field.name!r}; it has {', '.join(KNOWN)}, and with the option pieces=columns "
                f"those of dirq-normal elements"
            )
        if field.dataType not in column.spark:
            wanted = " or ".join(kind.simpleString() for kind in column.spark)
            raise SettingsError(
                f"column {field.name!r} is {wanted}, not {field.dataType.simpleString()}: cast it after reading"
            )


#: The columns of a write, the types that each may have, and how an error names them.
PUT: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "value": ((StringType, BinaryType), "a string or binary"),
    "priority": (_INTEGRAL, "a whole number"),
    "delay": (_NUMBER, "a number of seconds"),
    "attributes": ((MapType,), "map<string,string>"),
    "ttl": (_NUMBER, "a number of seconds"),
    "expires_at": ((TimestampType,), "a timestamp"),
}


def check_write(schema: StructType) -> None:
    """Raise SettingsError for a column that put cannot use, or a type that it cannot take."""
    for field in schema.fields:
        if field.name not in PUT:
            raise SettingsError(
                f"a put has no column {field.name!r}; it takes {', '.join(PUT)}: drop it, or put it into "
                f"value (to_json(struct(*)) AS value)"
            )
        kinds, wanted = PUT[field.name]
        if not isinstance(field.dataType, kinds) or not _is_text_map(field.dataType):
            raise SettingsError(
                f"column {field.name!r} must be {wanted}, not {field.dataType.simpleString()}"
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise SettingsError("a put needs a column value (string or binary): select(... AS value)")
    if "ttl" in names and "expires_at" in names:
        raise SettingsError("the columns ttl and expires_at both say when a message ends: drop one of them")


def _is_text_map(kind: DataType) -> bool:
    """Return whether a type that may be a map is one of text to text."""
    return not isinstance(kind, MapType) or all(
        isinstance(each, StringType) for each in (kind.keyType, kind.valueType)
    )


def reads_bodies(schema: StructType) -> bool:
    """Return whether Rows of this schema read the body of each message, and nothing else of it."""
    names = schema.fieldNames()
    return "value" in names and PIECES not in names and all(name in KNOWN for name in names)


class Rows:
    """Turns entries of one queue into Arrow batches with the columns of a schema."""

    def __init__(self, schema: StructType, layout: Layout, queue: str) -> None:
        self._layout = layout
        self._queue = queue
        self._names = schema.fieldNames()
        self._schema = pa.schema([(field.name, arrow_type(field)) for field in schema.fields])
        self._pieces = [name for name in self._names if name not in KNOWN]
        self._whole = PIECES in self._names or bool(self._pieces)
        self._reads = self._whole or "value" in self._names
        self._bodies = Bodies(layout.directory) if isinstance(layout, Native) else layout
        self._plain = [
            (self._names.index(name), take) for name, take in _BY_NAME.items() if name in self._names
        ]

    def batches(self, entries: Iterable[Entry], *, strict: bool = False) -> Iterator[pa.RecordBatch]:
        """Read the messages; those that moved on meanwhile are left out, or an error if `strict`."""
        found = self.bodies(entries, strict=strict) if self._reads else ((entry, b"") for entry in entries)
        kept: list[Entry] = []
        bodies: list[Any] = []
        size = 0
        for entry, body in found:
            size += _length(body)
            bodies.append(body)
            kept.append(entry)
            if len(kept) == ROWS or size >= BYTES:
                yield self.batch(kept, bodies)
                kept, bodies, size = [], [], 0
        if kept:
            yield self.batch(kept, bodies)

    def bodies(self, entries: Iterable[Entry], *, strict: bool) -> Iterator[tuple[Entry, Any]]:
        """Yield each message with its body, or with its pieces; those that moved on are left out, or an error.

        A link that turns out to be no message is left out.
        """
        load = self._load_pieces if self._whole else self._load
        for entry in entries:
            try:
                body = load(entry)
            except MessageNotFound:
                if strict:
                    raise gone(self._queue, f"1 message ({entry.id})") from None
                continue
            if body is not None:
                yield entry, body

    def _load(self, entry: Entry) -> bytes | None:
        try:
            return self._bodies.load(entry.place)
        except CodecError as error:
            text = f"{self._queue!r}: {error}; the option pieces=true reads whatever an element is made of"
            raise CodecError(text, message_id=entry.id) from None

    def _load_pieces(self, entry: Entry) -> dict[str, bytes]:
        """Return every file of an element, whatever its schema; other layouts have the body alone."""
        if self._layout.name != "dirq-normal":
            return {"body": self._layout.load(entry.place)}
        try:
            found = {
                name: fs.read_file(f"{_element(entry)}/{name}", self._layout.directory.fd)
                for name in files_of(self._layout, entry)
            }
        except FileNotFoundError:
            raise moved_on(entry.id) from None
        except OSError as error:
            raise access_error(self._queue, f"read the element {entry.id} of", error) from error
        if not found:
            raise moved_on(entry.id)
        return found

    def batch(self, entries: list[Entry], bodies: Sequence[Any] = ()) -> pa.RecordBatch:
        """Return messages as rows."""
        columns: list[Any] = [None] * len(self._names)
        for index, take in self._plain:
            columns[index] = [take(entry) for entry in entries]
        for index, name in enumerate(self._names):
            if name == "queue":
                columns[index] = [self._queue] * len(entries)
            elif name == "value":
                columns[index] = [body.get("body") for body in bodies] if self._whole else bodies
            elif name == PIECES:
                columns[index] = [list(body.items()) for body in bodies]
            elif name == "size":
                columns[index] = self._sizes(entries, bodies)
            elif name == "error":
                columns[index] = [self._error(entry) for entry in entries]
            elif name == "until":
                columns[index] = [entry.until or None for entry in entries]
            elif name == "attributes":
                columns[index] = [list(self._extras(entry).attributes.items()) for entry in entries]
            elif name == "expires_at":
                columns[index] = [self._extras(entry).expires or None for entry in entries]
            elif name in self._pieces:
                columns[index] = self._piece(name, self._schema.types[index], entries, bodies)
        arrays = [
            self._array(each, values, entries) for each, values in zip(self._schema, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, values: list[Any], entries: list[Entry]) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except pa.ArrowInvalid:
            ids = [
                entry.id for entry, value in zip(entries, values, strict=True) if not _fits(value, field.type)
            ]
            raise not_text(f"the {field.name}", ids[0], self._queue, field.name) from None

    def _piece(
        self, name: str, kind: pa.DataType, entries: list[Entry], bodies: Sequence[dict[str, bytes]]
    ) -> list[Any]:
        """Return one piece of each element, None where it is missing; a table as pairs."""
        if not pa.types.is_map(kind):
            return [body.get(name) for body in bodies]
        found: list[Any] = []
        for entry, body in zip(entries, bodies, strict=True):
            try:
                found.append(list(read_table(body[name].decode()).items()) if name in body else None)
            except ValueError as error:
                raise CodecError(
                    f"{self._queue!r}: the piece {name} of {entry.id} is not a table ({error}): read it as binary",
                    message_id=entry.id,
                ) from None
        return found

    def _sizes(self, entries: list[Entry], bodies: Sequence[Any]) -> list[int | None]:
        if self._reads:
            return [_length(body) for body in bodies]
        sizes: list[int | None] = []
        for entry in entries:
            try:
                sizes.append(self._layout.size(entry.place))
            except MessageNotFound:
                sizes.append(None)
        return sizes

    def _extras(self, entry: Entry) -> Extras:
        return self._layout.extras(entry) or NOTHING

    def _error(self, entry: Entry) -> str | None:
        failure = self._layout.failure(entry)
        return failure.error if failure else None


def files_of(layout: Layout, entry: Entry) -> list[str]:
    """Return the names of the pieces of an element; an empty list if it is gone."""
    try:
        found = fs.names_in(_element(entry), layout.directory.fd)
    except FileNotFoundError:
        return []
    return sorted(name for name in found if KEY.fullmatch(name) and name != LOCKED)


def _element(entry: Entry) -> str:
    return entry.place.partition("@")[
        0
    ]  # COMPAT: what follows is the lock's owner at the time of the listing


def arrow_type(field: StructField) -> pa.DataType:
    """Return the Arrow type of a column."""
    kind = KNOWN.get(field.name, PIECE_COLUMN).arrow
    if field.name in KNOWN and field.name != "value":
        return kind
    if isinstance(field.dataType, MapType):
        return pa.map_(pa.string(), pa.string())
    return pa.string() if isinstance(field.dataType, StringType) else kind


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except pa.ArrowInvalid:
        return False
    return True


def not_text(what: str, id: str, queue: str, column: str) -> CodecError:
    """Return the error for bytes that are to be read as text and are none."""
    return CodecError(
        f"{what} of message {id} in {queue!r} is not UTF-8 text: read {column} as binary, e.g. "
        f"schema('id string, {column} binary')",
        message_id=id,
    )


def gone(queue: str, what: str) -> QueueError:
    """Return the error for something that is missing in a lot, which nobody but its consumer may change."""
    return QueueError(
        f"{what} of {queue!r} disappeared after this query had claimed them: it was stopped for longer than "
        f"claimTimeout, or files were removed. failOnDataLoss=false goes on without them",
        path=queue,
    )


def _length(body: Any) -> int:
    return sum(map(len, body.values())) if isinstance(body, dict) else len(body)


_BY_NAME: dict[str, Callable[[Entry], Any]] = {
    "id": lambda entry: entry.id,
    "enqueued_at": lambda entry: entry.put,
    "attempts": lambda entry: entry.attempts,
    "priority": lambda entry: entry.priority,
    "state": lambda entry: entry.state,
    "token": lambda entry: entry.token or None,
}


def bodies_of(batch: pa.RecordBatch) -> pa.Array:
    """Return the bodies of an Arrow batch that is to be put, as an array of bytes."""
    column = batch.column("value")
    if column.null_count:
        raise DirQueueError(
            "column value holds a null, but every message has a body: filter such rows out first"
        )
    if not pa.types.is_large_binary(column.type) and not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    return column
