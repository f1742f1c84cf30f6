"""How a body becomes bytes and back: bytes, text, json, records, and the types that Python programs have.

Layer: pure values, no I/O.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from dirqueue.errors import CodecError, SettingsError

T = TypeVar("T")


class Codec(Protocol[T]):
    """Anything with `encode(value) -> bytes` and `decode(bytes) -> value`; either may raise ValueError."""

    def encode(self, value: T, /) -> bytes: ...
    def decode(self, data: bytes, /) -> T: ...


class Bytes:
    """The body unchanged. put() also takes text, which becomes UTF-8."""

    def __repr__(self) -> str:
        return "bytes"

    def encode(self, value: bytes | str, /) -> bytes:
        kind = type(value)
        if kind is bytes:
            return value  # type: ignore[return-value]
        if kind is str:
            return value.encode()  # type: ignore[union-attr]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
        raise TypeError(
            f"a body is bytes or str, not {kind.__name__}; for other types give the queue a codec"
        )

    def decode(self, data: bytes, /) -> bytes:
        return data


class Text:
    """UTF-8 text."""

    def encode(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"the text codec takes str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class Json:
    """JSON: what Python's json module makes of a value. Dataclasses become objects, and are read back as dicts."""

    def encode(self, value: Any, /) -> bytes:
        import json

        return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes, /) -> Any:
        import json

        return json.loads(data)


def _plain(value: Any) -> Any:
    from dirqueue.structures import plain

    return plain(value)


class Typed(Generic[T]):
    """Bodies of one type. What could not be read back is refused when it is encoded.

    Else a consumer would find out, long after the producer could have known, and move the message to dead/.
    """

    def __init__(
        self,
        kind: type[T],
        write: Callable[[Any], bytes],
        read: Callable[[bytes], T],
        same: Callable[[Any, T], bool] | None = None,
        *,
        others: bool = False,
    ) -> None:
        self.type = kind
        self._write = write
        self._read = read
        #: Whether what was read is what was written; if None, their bytes are compared.
        self._same = same
        #: Whether a value of another type is good if its bytes can be read as one of this.
        self._others = others

    def __repr__(self) -> str:
        return self.type.__name__

    def encode(self, value: Any, /) -> bytes:
        given, wanted = type(value).__name__, self.type.__name__
        mine = isinstance(value, self.type)
        if not mine and not self._others:
            raise TypeError(f"{given} is not {wanted}")
        data = self._write(value)
        try:
            again = self._read(data)
        except Exception as error:
            raise ValueError(f"{given} cannot be read back as {wanted}: {error}") from error
        same = self._same(value, again) if self._same else self._write(again) == data
        if mine and not same:
            raise ValueError(f"{given} cannot be read back as {wanted}: it would come back as {again!r:.200}")
        return data

    def decode(self, data: bytes, /) -> T:
        return self._read(data)


def _dataclass(kind: type[T]) -> Typed[T]:
    from dirqueue.structures import reader, same

    try:
        read = reader(kind)
    except TypeError as error:
        raise SettingsError(f"codec {kind.__name__} cannot be read back from JSON: {error}") from None
    json = _BUILT_IN["json"]
    return Typed(kind, json.encode, lambda data: read(json.decode(data), ""), same, others=True)


def _struct(kind: type[T]) -> Typed[T]:
    import msgspec

    compares = kind.__struct_config__.eq  # type: ignore[attr-defined]
    return Typed(
        kind, msgspec.json.encode, msgspec.json.Decoder(kind).decode, operator.eq if compares else None
    )


def _model(kind: Any) -> Typed[Any]:
    return Typed(kind, lambda value: value.model_dump_json().encode(), kind.model_validate_json)


BYTES: Codec[Any] = Bytes()


def find(codec: str | type | Codec[Any]) -> Codec[Any]:
    """Return the codec for a name (bytes, text, json, records), a type, or an object with encode() and decode().

    Types are dataclasses, structs of msgspec, and models with model_dump_json() and model_validate_json() (pydantic).
    """
    import dataclasses

    if codec == "records":
        from dirqueue.records import RECORDS  # zlib and struct: not for everybody

        return RECORDS
    if isinstance(codec, str):
        if codec not in _BUILT_IN:
            raise SettingsError(f"there is no codec {codec!r}; there are {', '.join(_BUILT_IN)}, records")
        return _BUILT_IN[codec]
    if isinstance(codec, type):
        if hasattr(codec, "model_validate_json") and hasattr(codec, "model_dump_json"):
            return _model(codec)
        if hasattr(codec, "__struct_fields__"):
            return _struct(codec)
        if dataclasses.is_dataclass(codec):
            return _dataclass(codec)
    if callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None)):
        return codec  # type: ignore[return-value]
    raise SettingsError(
        f"codec must be bytes, text, json, records, a dataclass, a msgspec struct, a pydantic model, or have encode() "
        f"and decode(), not {codec!r:.60}"
    )


_BUILT_IN: dict[str, Codec[Any]] = {"bytes": BYTES, "text": Text(), "json": Json()}


def encode(codec: Codec[Any], value: Any) -> bytes:
    """Return the bytes of a body; anything the codec refuses is a CodecError."""
    try:
        data = codec.encode(value)
    except Exception as error:
        raise CodecError(f"the body cannot be encoded: {error}", message_id="") from error
    if not isinstance(data, bytes):
        raise CodecError(f"the codec returned {type(data).__name__}, not bytes", message_id="")
    return data


def decode(codec: Codec[Any], data: bytes, message_id: str) -> Any:
    """Return the body; anything the codec raises on these bytes is a CodecError."""
    try:
        return codec.decode(data)
    except Exception as error:
        text = f"the body of {message_id} cannot be decoded: {type(error).__name__}: {error}"
        raise CodecError(text, message_id=message_id) from error
