r"""What an element of dirq-normal is made of: named pieces of data, each in a file, each of a type.

    binary   bytes, as they are            string   text, as UTF-8
    table    text to text: one line `key TAB value LF` for each key, in the order of keys, where backslash, TAB and
             LF inside are written as \\, \t and \n
    ?        behind a type: the piece may be missing        *        behind a type: accepted, means nothing here

Layer: layouts.  Pure values, no I/O.
A Schema is also a codec, for queues whose bodies are whole elements: `Queue(..., schema=S, codec=Schema(S))`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

Element = dict[str, Any]

DEFAULT = {"body": "binary"}
#: A piece of that name would be taken for the lock.
LOCKED = "locked"
KEY = re.compile(r"[0-9a-zA-Z]+")
_TYPE = re.compile(r"(binary|string|table)([?*]{0,2})")
_LINE = re.compile(r"([^\t\n]*)\t([^\t\n]*)")
_SPECIAL = re.compile(r"[\\\t\n]")
_ESCAPED = re.compile(r"\\[\\tn]")
_ESCAPE = {"\\": r"\\", "\t": r"\t", "\n": r"\n"}
_UNESCAPE = {escape: char for char, escape in _ESCAPE.items()}


class Schema:
    """The types of the pieces; ValueError if the schema is invalid."""

    def __init__(self, given: Mapping[Any, Any]) -> None:
        self.types: dict[str, str] = {}
        self.mandatory: list[str] = []
        if not isinstance(given, Mapping):
            raise ValueError(f"invalid schema: {given!r:.60}")
        for key, kind in given.items():
            if not isinstance(key, str) or not KEY.fullmatch(key) or key == LOCKED:
                raise ValueError(f"invalid schema name: {key!r:.60} (letters and digits, not {LOCKED!r})")
            match = _TYPE.fullmatch(kind) if isinstance(kind, str) else None
            if match is None:
                raise ValueError(
                    f"invalid schema data type: {kind!r:.60} (binary, string or table; ? if optional)"
                )
            self.types[key] = match[1]
            if "?" not in match[2]:
                self.mandatory.append(key)
        if not self.mandatory:
            raise ValueError("invalid schema: no mandatory data")
        #: Whether a body is simply the one piece there is.
        self.plain = len(self.types) == 1 and "table" not in self.types.values()
        #: The one piece of a plain element.
        self.key, self.kind = next(iter(self.types.items()))

    # --- elements and files --------------------------------------------------------------------------------

    def files(self, element: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the files of an element; ValueError if it does not fit."""
        if not isinstance(element, Mapping):
            raise ValueError(f"an element is a dictionary, not {type(element).__name__}")
        for key in self.mandatory:
            if key not in element:
                raise ValueError(f"missing mandatory data: {key}")
        return {key: self._file(key, value) for key, value in element.items()}

    def _file(self, key: str, value: object) -> bytes:
        kind = self.types.get(key)
        if kind == "binary":
            if isinstance(value, (bytes, bytearray, memoryview)):
                return bytes(value)
        elif kind == "string":
            if isinstance(value, str):
                return _utf8(value)
        elif kind == "table":
            if isinstance(value, Mapping):
                return _utf8(write_table(value))
        else:
            raise ValueError(f"unexpected data: {key!r:.60}")
        wanted = {"binary": "bytes", "string": "str", "table": "a dictionary"}[kind]
        raise ValueError(f"unexpected {kind} data in {key}: {wanted} is needed, not {type(value).__name__}")

    def element(self, files: Mapping[str, bytes]) -> Element:
        """Return the element that these files hold; ValueError if it is damaged."""
        for key in self.mandatory:
            if key not in files:
                raise ValueError(f"missing data file: {key}")
        found: Element = {}
        for key, kind in self.types.items():
            if key in files:
                data = files[key]
                found[key] = (
                    data
                    if kind == "binary"
                    else data.decode()
                    if kind == "string"
                    else read_table(data.decode())
                )
        return found

    # --- elements and bodies -------------------------------------------------------------------------------

    def encode(self, value: Element, /) -> bytes:
        """Return an element as one body: the piece itself if there is only one, else JSON (binary as base64)."""
        return self.join(self.files(value))

    def decode(self, data: bytes, /) -> Element:
        """Return the element that a body holds."""
        return self.element(self.split(data))

    def join(self, files: Mapping[str, bytes]) -> bytes:
        """Return the files of an element as one body."""
        if self.plain:
            for data in files.values():
                return data
            raise ValueError(f"missing data file: {self.mandatory[0]}")
        pieces = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for key, value in self.element(files).items()
        }
        return json.dumps(pieces, ensure_ascii=False, separators=(",", ":")).encode()

    def split(self, data: bytes) -> dict[str, bytes]:
        """Return the files that a body stands for."""
        if self.plain:
            if self.kind == "string":
                data.decode()  # others will read it as text
            return {self.key: data}
        pieces = json.loads(data)
        if not isinstance(pieces, dict):
            raise ValueError(
                f"a body here is a JSON object with {', '.join(self.types)}; give the queue codec='json'"
            )
        for key, value in pieces.items():
            if self.types.get(key) == "binary":
                try:
                    pieces[key] = base64.b64decode(value, validate=True)
                except (binascii.Error, TypeError, ValueError):
                    raise ValueError(f"binary data in {key} must be base64 text in a JSON body") from None
        return self.files(pieces)


def write_table(table: Mapping[Any, Any]) -> str:
    """Return a table as text."""
    lines = []
    for key, value in sorted(table.items()):
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"a table maps text to text, not {key!r:.40} to {value!r:.40}")
        lines.append(f"{_SPECIAL.sub(_escape, key)}\t{_SPECIAL.sub(_escape, value)}\n")
    return "".join(lines)


def read_table(text: str) -> dict[str, str]:
    """Return the table that a text holds; blank lines around it are forgiven, as the last of two equal keys is kept."""
    table: dict[str, str] = {}
    text = text.strip("\n")
    for line in text.split("\n") if text else ():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"unexpected line in a table: {line!r:.60}")
        key, value = (_ESCAPED.sub(_unescape, part) for part in match.groups())
        table[key] = value
    return table


def _escape(match: re.Match[str]) -> str:
    return _ESCAPE[match[0]]


def _unescape(match: re.Match[str]) -> str:
    return _UNESCAPE[match[0]]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text that has no UTF-8 form: {error}") from None
