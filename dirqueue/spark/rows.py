"""Messages as rows: entries of a queue turned into Arrow batches.

Layer: edges.  Touches: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dirqueue.disk import fs
from dirqueue.errors import CodecError, MessageNotFound, access_error
from dirqueue.layouts.base import Layout
from dirqueue.layouts.dirq.schema import read_table
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.bodies import Bodies
from dirqueue.layouts.native.inspect import moved_on
from dirqueue.message import Entry, Extras
from dirqueue.spark.columns import BYTES, KNOWN, PIECES, ROWS
from dirqueue.spark.partitions import gone
from dirqueue.spark.pieces import element, files_of

#: What most messages carry beside the body.
NOTHING = Extras({})
_ARROW: dict[type[DataType], pa.DataType] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
}


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
                name: fs.read_file(f"{element(entry)}/{name}", self._layout.directory.fd)
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


def arrow_type(field: StructField) -> pa.DataType:
    """Return the Arrow type of a column."""
    if isinstance(field.dataType, MapType):
        return pa.map_(pa.string(), _ARROW[type(field.dataType.valueType)])
    return _ARROW[type(field.dataType)]


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
