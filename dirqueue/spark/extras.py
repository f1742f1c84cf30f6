"""What rows carry beside the body: the columns attributes, ttl and expires_at of a write.

Layer: edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from dirqueue.admission import check_attributes
from dirqueue.disk.clock import micros
from dirqueue.message import Extras
from dirqueue.settings import check_seconds
from dirqueue.spark.columns import CARRIED


class Carried(NamedTuple):
    """What one row carries; rows that are equal in it may share a message of records."""

    attributes: tuple[tuple[str, str], ...]
    #: Seconds to live from the time of the write; 0 = not given.
    ttl: float = 0.0
    #: The end of its life in microseconds since the epoch; 0 = none.
    expires: int = 0

    def extras(self, now: int) -> Extras:
        """Return what its message carries if that is written now."""
        return Extras(dict(self.attributes), now + micros(self.ttl) if self.ttl else self.expires)


def carried_of(rows: pa.RecordBatch) -> list[Carried | None] | None:
    """Return what each row carries; None where there is no such column."""
    present = [name for name in CARRIED if name in rows.schema.names]
    if not present:
        return None
    columns = {name: _values(rows.column(name), name) for name in present}
    nothing: list[Any] = [None] * rows.num_rows
    return [_carried(*each) for each in zip(*(columns.get(name, nothing) for name in CARRIED), strict=True)]


def _values(column: pa.Array, name: str) -> list[Any]:
    if name == "expires_at":
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _carried(
    attributes: list[tuple[str, str]] | None, ttl: float | None, expires: int | None
) -> Carried | None:
    pairs = tuple(sorted(check_attributes(dict(attributes)).items())) if attributes else ()
    seconds = 0.0 if ttl is None else check_seconds("ttl", float(ttl), above=True)
    ends = 0 if expires is None else max(expires, 1)  # 0 is for ever
    return Carried(pairs, seconds, ends) if pairs or seconds or ends else None
