"""Frozen dataclasses to plain data and back.

In: a dataclass instance whose fields are texts, numbers, bools, tuples, mappings from texts, unions
and dataclasses of these; or plain data and the class it stands for. Out: the other of the two.
Reading is strict: a missing field, an unknown one or a value of another type is `InvalidPlan` with
its place. Fields that are None are left out of the data.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from fuser.errors import InvalidPlan, did_you_mean

Record = TypeVar("Record")


def encode(record: Any) -> Any:
    """The record as dicts, lists and plain values, fields in the order of the class."""
    if dataclasses.is_dataclass(record):
        kind: Any = type(record)
        found = {name: getattr(record, name) for name in _fields(kind)}
        return {name: encode(value) for name, value in found.items() if value is not None}
    if isinstance(record, Mapping):
        return {key: encode(value) for key, value in record.items()}
    if isinstance(record, tuple):
        return [encode(item) for item in record]
    return record


def decode(kind: type[Record], data: Any, place: str = "") -> Record:
    """The record of `kind` that the data stands for."""
    if not isinstance(data, dict):
        raise _wrong(place, "an object", data)
    hashable: Any = kind
    fields = _fields(hashable)
    for name in data:
        if name not in fields:
            raise InvalidPlan(
                reason=f"unknown field {name!r}.{did_you_mean(name, fields)}", location=place
            )
    found = {}
    for name, (hint, is_needed) in fields.items():
        if name in data:
            found[name] = _value(hint, data[name], f"{place}.{name}" if place else name)
        elif is_needed:
            raise InvalidPlan(reason=f"there is no field {name!r}.", location=place)
    return kind(**found)


def _value(hint: Any, data: Any, place: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return decode(hint, data, place)  # type: ignore[arg-type]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong(place, "a list", data)
        return tuple(_value(arguments[0], item, f"{place}[{k}]") for k, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _wrong(place, "an object", data)
        return {key: _value(arguments[1], item, f"{place}.{key}") for key, item in data.items()}
    if origin is types.UnionType:
        some = [option for option in arguments if option is not types.NoneType]
        if len(some) == 1:
            return _value(some[0], data, place)
        for option in some:
            if _is(option, data):
                return data
        raise _wrong(place, " or ".join(option.__name__ for option in some), data)
    if hint is float and _is(int, data):
        return float(data)
    if not _is(hint, data):
        raise _wrong(place, hint.__name__, data)
    return data


def _is(kind: type, data: Any) -> bool:
    # To Python, True is an int; in a plan it is not a number.
    return isinstance(data, kind) and (kind is bool or not isinstance(data, bool))


def _wrong(place: str, wanted: str, data: Any) -> InvalidPlan:
    shown = repr(data)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return InvalidPlan(reason=f"{shown} stands where {wanted} is expected.", location=place)


@cache
def _fields(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Field name to its type and whether data must have it."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: (
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    }
