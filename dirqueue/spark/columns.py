"""The columns that a read gives and that a write takes: their names and types.

Layer: edges.
COST: no pyarrow, which takes 80 ms to import: the Python that commits a write is started for each batch, without a row.
A schema given by the user may leave columns out: without `value` no body is read, and without `value` and `size` no
file is opened at all. The pieces of a dirq-normal element are a column `pieces` (a map), or columns of their own names.
"""

from __future__ import annotations

from collections.abc import Sequence

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

from dirqueue.errors import SettingsError

#: Rows in one Arrow batch, and the bytes after which it is closed early.
ROWS = 4096
BYTES = 16 << 20

_INTEGRAL = (ByteType, ShortType, IntegerType, LongType)
_NUMBER = (*_INTEGRAL, FloatType, DoubleType, DecimalType)


#: The columns of every read, and the types that each may have; the first is that of a read without a schema.
COLUMNS: dict[str, tuple[DataType, ...]] = {
    "id": (StringType(),),
    "value": (BinaryType(), StringType()),
    "enqueued_at": (TimestampType(),),
    "attempts": (IntegerType(),),
    "priority": (IntegerType(),),
    "size": (LongType(),),
    "state": (StringType(),),
    "queue": (StringType(),),
}
PIECES = "pieces"
#: Columns of a read that only a schema, or the option pieces, brings in.
EXTRA: dict[str, tuple[DataType, ...]] = {
    "error": (StringType(),),
    "token": (StringType(),),
    "until": (TimestampType(),),
    "attributes": (MapType(StringType(), StringType()),),
    "expires_at": (TimestampType(),),
    PIECES: (MapType(StringType(), BinaryType()), MapType(StringType(), StringType())),
}
#: The number of a record in its message: a column of reads with the option records alone.
RECORD = "record"
#: One piece as a column: binary, string, or a table.
PIECE = (BinaryType(), StringType(), MapType(StringType(), StringType()))

KNOWN = COLUMNS | EXTRA | {RECORD: (IntegerType(),)}


def read_schema(pieces: Sequence[str], *, records: bool = False) -> StructType:
    """Return the columns of a read without a schema: with the map of pieces, or a column for each piece."""
    fields = [StructField(name, kinds[0]) for name, kinds in COLUMNS.items()]
    fields += (StructField(name, KNOWN.get(name, PIECE)[0]) for name in pieces if name not in COLUMNS)
    if records:
        fields.insert(1, StructField(RECORD, KNOWN[RECORD][0]))
    return StructType(fields)


def check_read(schema: StructType, *, pieces: bool = False, records: bool = False) -> None:
    """Raise SettingsError for a column that no message has, or a type that the column cannot have."""
    if pieces and records:
        raise SettingsError("the options pieces and records do not go together: a piece holds no records")
    for field in schema.fields:
        if field.name == RECORD and not records:
            raise SettingsError('the column record needs option("records", "true")')
        kinds = KNOWN.get(field.name, PIECE if pieces else None)
        if kinds is None:
            raise SettingsError(
                f"a queue has no column {field.name!r}; it has {', '.join(KNOWN)}, and with the option pieces=columns "
                f"those of dirq-normal elements"
            )
        if field.dataType not in kinds:
            wanted = " or ".join(kind.simpleString() for kind in kinds)
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


#: What a row carries beside the body.
CARRIED = ("attributes", "ttl", "expires_at")


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


def carries(schema: StructType) -> bool:
    """Return whether rows of this schema carry anything beside the body."""
    return not set(CARRIED).isdisjoint(schema.fieldNames())


def reads_bodies(schema: StructType) -> bool:
    """Return whether Rows of this schema read the body of each message, and nothing else of it."""
    names = schema.fieldNames()
    return "value" in names and PIECES not in names and all(name in KNOWN for name in names)
