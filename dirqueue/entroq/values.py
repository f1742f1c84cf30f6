"""The values of tasks as JSON: what a JSON client sees of bytes, and the bytes that it stores.

A body that is JSON is shown as it is; an empty one is null; any other is shown as {"@bytes": base64}, and that is
stored as the bytes again. So a JSON client gets back what it put, and may hand on unchanged what others put.

Layer: edges.  Pure values, no I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any, NoReturn

from dirqueue.entroq.tasks import InvalidArgument

#: The only key of the object that stands for bytes.
BYTES = "@bytes"


def to_json(value: bytes) -> Any:
    """Return what a JSON client sees of a value."""
    if not value:
        return None
    try:
        return parse(value)
    except ValueError:
        return as_bytes(value)


def as_bytes(value: bytes) -> dict[str, str]:
    """Return the object that stands for bytes."""
    return {BYTES: base64.b64encode(value).decode()}


def from_json(value: Any) -> bytes:
    """Return what is stored for the JSON that a client gave; InvalidArgument if it has no UTF-8 or no number."""
    if value is None:
        return b""
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(BYTES), str):
        data = _bytes(value[BYTES])
        if data is not None:
            return data
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"the value is not JSON: {error}") from None


def parse(data: bytes | str) -> Any:
    """Return strict JSON in UTF-8 as values; ValueError if it is not: NaN, an infinite number, bottomless nesting."""
    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _bytes(text: str) -> bytes | None:
    """Return the bytes that an object stands for; None if it is an ordinary object that only looks like one."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if data and to_json(data) == {BYTES: text} and not _is_json(data) else None


def _is_json(data: bytes) -> bool:
    try:
        parse(data)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number
