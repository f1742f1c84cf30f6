"""Many records in one body: a table of lengths, the records, a checksum. docs/records.md describes the format.

Layer: pure values, no I/O.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

MAGIC = b"DQR1"
_HEAD = struct.Struct("<4sI")
_SUM = struct.Struct("<I")
#: Bytes of a body beside its records: the head and the checksum; and for each record.
AROUND = _HEAD.size + _SUM.size
#: Bytes that tell how many records there are.
HEAD = _HEAD.size
EACH = 4


class Span(NamedTuple):
    """Where things are in a body that was checked: the lengths begin at byte 8, the records follow."""

    records: int
    #: The byte at which the records begin, and the one after the last.
    start: int
    end: int


class Records:
    """The codec `records`: a body is a list of byte strings. Text becomes UTF-8."""

    def __repr__(self) -> str:
        return "records"

    def encode(self, value: Iterable[bytes | str], /) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview, str, dict)):
            raise TypeError(f"the records codec takes a list of byte strings, not {type(value).__name__}")
        records = [_record(each) for each in value]
        lengths = list(map(len, records))
        return pack(len(records), struct.pack(f"<{len(lengths)}I", *lengths), b"".join(records))

    def decode(self, data: bytes, /) -> list[bytes]:
        count, start, end = check(data)
        lengths = struct.unpack_from(f"<{count}I", data, _HEAD.size)
        if start + sum(lengths) != end:
            raise _broken(f"its lengths add up to {sum(lengths)} bytes, but {end - start} are there")
        return [data[low:high] for low, high in pairwise(accumulate(lengths, initial=start))]


RECORDS = Records()


def pack(count: int, lengths: bytes | memoryview, records: bytes | memoryview) -> bytes:
    """Return a body of lengths and records that lie in memory as they do in the body."""
    body = b"".join((_HEAD.pack(MAGIC, count), lengths, records))
    return body + _SUM.pack(zlib.crc32(body))


def is_records(data: bytes) -> bool:
    """Return whether a body says that it holds records."""
    return data[: len(MAGIC)] == MAGIC


def check(data: bytes) -> Span:
    """Return where the lengths and the records are; ValueError unless the checksum agrees."""
    if not is_records(data):
        raise ValueError(f"a body of records begins with {MAGIC.decode()}, not with {data[:4]!r}")
    if len(data) < AROUND:
        raise _broken(f"it ends after {len(data)} bytes")
    _, count = _HEAD.unpack_from(data)
    start, end = _HEAD.size + EACH * count, len(data) - _SUM.size
    if start > end:
        raise _broken(f"it ends after {len(data)} bytes, before its {count} lengths do")
    if _SUM.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[:end]):
        raise _broken("its checksum does not agree")
    return Span(count, start, end)


def count_of(head: bytes) -> int:
    """Return the number of records that the first 8 bytes of a body tell; 1 for a body that holds none."""
    return int(_HEAD.unpack_from(head)[1]) if is_records(head) and len(head) >= _HEAD.size else 1


def _record(value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a record is bytes or str, not {type(value).__name__}")


def _broken(why: str) -> ValueError:
    return ValueError(f"the records are damaged: {why}")
