"""How a body becomes bytes and back: bytes, text and json are built in.

Layer: pure values, no I/O.
"""

from __future__ import annotations

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


class Json(Generic[T]):
    """JSON. With a dataclass as `type`, bodies are its instances; what cannot be read back as one is refused."""

    def __init__(self, type: type[T] | None = None) -> None:
        self.type = type

    def encode(self, value: T, /) -> bytes:
        import json

        data = json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode()
        if self.type is not None:
            # Else a consumer would find out, and move the message to dead/.
            try:
                self.decode(data)
            except Exception as error:
                given, wanted = type(value).__name__, self.type.__name__
                raise ValueError(f"{given} cannot be read back as {wanted}: {error}") from error
        return data

    def decode(self, data: bytes, /) -> T:
        import json

        value: Any = json.loads(data)
        if self.type is None:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, got {value!r:.60}")
        return self.type(**value)


def _plain(value: Any) -> Any:
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


BYTES: Codec[Any] = Bytes()


def find(codec: str | type | Codec[Any]) -> Codec[Any]:
    """Return the codec for a name (bytes, text, json), a dataclass, or an object with encode() and decode()."""
    import dataclasses

    if isinstance(codec, str):
        if codec not in _BUILT_IN:
            raise SettingsError(f"there is no codec {codec!r}; there are {', '.join(_BUILT_IN)}")
        return _BUILT_IN[codec]
    if isinstance(codec, type) and dataclasses.is_dataclass(codec):
        return Json(codec)
    if callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None)):
        return codec  # type: ignore[return-value]
    raise SettingsError(
        f"codec must be bytes, text, json, a dataclass, or have encode() and decode(), not {codec!r:.60}"
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
