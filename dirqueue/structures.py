"""Dataclasses as JSON and back: values by their annotations, nested as deeply as they are.

Layer: pure values, no I/O.
`plain` makes of a value what JSON can hold; `reader` makes of an annotation the function that reads such a value back
and refuses any other, with the place where it is wrong.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

#: Reads a JSON value; the text says where it is, for errors.
Reader = Callable[[Any, str], Any]

#: Types that are text in JSON: how they are written, and read.
_TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time_of_day: (time_of_day.isoformat, time_of_day.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, Decimal),
}
_KINDS: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    bool: (bool,),
    dict: (dict,),
    list: (list,),
    type(None): (type(None),),
    None: (type(None),),
}
_COLLECTIONS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    Sequence: list,
    set: set,
    AbstractSet: set,
    frozenset: frozenset,
}


def plain(value: Any) -> Any:
    """Return what JSON can hold instead of a value that it cannot; for the `default` of json.dumps."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # the same set, the same bytes
    for kind, (write, _) in _TEXTS.items():
        if type(value) is kind:
            return write(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def same(one: Any, other: Any) -> bool:
    """Return whether what was read back is what was written, whether or not its class can compare."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        names = [each.name for each in dataclasses.fields(one) if each.init]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other) or (isinstance(one, float) and one != one and other != other)  # noqa: PLR0124 - NaN


def reader(kind: Any, known: dict[Any, Reader] | None = None) -> Reader:
    """Return the function that reads values of a type; TypeError if JSON has no way to hold them.

    `known` are the dataclasses on the way here: one may hold others of its own kind.
    """
    known = {} if known is None else known
    if kind in (Any, object):
        return lambda value, _: value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind, known)
    if kind in _KINDS:
        return _scalar(kind)
    if kind in _TEXTS:
        return _text(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _called(kind, kind.__name__)
    if isinstance(kind, typing.NewType):
        return reader(kind.__supertype__, known)
    return _generic(kind, typing.get_origin(kind) or kind, typing.get_args(kind), known)


def _generic(kind: Any, origin: Any, arguments: tuple[Any, ...], known: dict[Any, Reader]) -> Reader:
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return reader(arguments[0], known)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, known)
    if origin in _COLLECTIONS:
        return _collection(reader(arguments[0] if arguments else Any, known), _COLLECTIONS[origin])
    if origin is tuple:
        if not arguments or arguments[1:] == (...,):
            return _collection(reader(arguments[0] if arguments else Any, known), tuple)
        return _tuple([reader(each, known) for each in arguments])
    if origin in (dict, Mapping) and arguments[:1] in ((), (str,)):
        return _mapping(reader(arguments[1] if arguments else Any, known))
    raise TypeError(f"{_name(kind)} has no JSON form")


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _wrong(where: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{where + ': ' if where else ''}expected {wanted}, got {value!r:.60}")


def _scalar(kind: Any) -> Reader:
    kinds, wanted = _KINDS[kind], _name(kind) if kind is not None else "None"

    def read(value: Any, where: str) -> Any:
        # A bool is an int for Python, and is not for JSON.
        if type(value) not in kinds:
            raise _wrong(where, wanted, value)
        return value

    return read


def _text(kind: type) -> Reader:
    read_text = _called(_TEXTS[kind][1], kind.__name__)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise _wrong(where, f"a {kind.__name__} as text", value)
        return read_text(value, where)

    return read


def _called(call: Callable[[Any], Any], wanted: str) -> Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return call(value)
        except (ValueError, TypeError, ArithmeticError):
            raise _wrong(where, f"a {wanted}", value) from None

    return read


def _literal(allowed: tuple[Any, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not any(value == each and type(value) is type(each) for each in allowed):
            raise _wrong(where, f"one of {', '.join(map(repr, allowed))}", value)
        return value

    return read


def _union(kinds: tuple[Any, ...], known: dict[Any, Reader]) -> Reader:
    readers = [reader(each, known) for each in kinds]

    def read(value: Any, where: str) -> Any:
        reasons = []
        for each in readers:
            try:
                return each(value, where)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(" or ".join(reasons))

    return read


def _collection(item: Reader, make: Callable[[Iterable[Any]], Any]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return make(item(each, f"{where}[{index}]") for index, each in enumerate(value))

    return read


def _tuple(items: list[Reader]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise _wrong(where, f"a list of {len(items)}", value)
        return tuple(
            item(each, f"{where}[{index}]")
            for index, (item, each) in enumerate(zip(items, value, strict=True))
        )

    return read


def _mapping(item: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {key: item(each, f"{where}[{key!r}]") for key, each in value.items()}

    return read


def _dataclass(kind: Any, known: dict[Any, Reader]) -> Reader:
    if kind in known:
        return known[kind]
    known[kind] = lambda value, where: read(value, where)  # noqa: PLW0108 - made below; a field may be of this kind
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{kind.__name__} is annotated with a name that is not defined here: {error.name}"
        ) from None
    fields: dict[str, Reader] = {}
    for each in dataclasses.fields(kind):
        if each.init:
            try:
                fields[each.name] = reader(hints[each.name], known)
            except TypeError as error:
                raise TypeError(f"{kind.__name__}.{each.name}: {error}") from None

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, "a JSON object", value)
        prefix = f"{where}." if where else ""
        for name in value:
            if name not in fields:
                raise ValueError(f"{where + ': ' if where else ''}{kind.__name__} has no field {name!r:.60}")
        arguments = {name: fields[name](each, prefix + name) for name, each in value.items()}
        try:
            return kind(**arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where + ': ' if where else ''}{error}") from error

    return read
