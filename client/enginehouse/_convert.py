"""Between the wire's messages and our dataclasses, field by field under the same names.

An absent field is None, or the dataclass's default. Enums are lower-case words ("ready"), timestamps datetimes in UTC,
durations seconds; a field `x_ms` of ours is a Duration `x` on the wire.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Hashable
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def to_proto(source: Any, message: M) -> M:
    """Writes a dataclass into a message and returns it. None, and what equals the default, stays absent."""
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        if value is None or (field.default is not dataclasses.MISSING and value == field.default):
            continue
        _write(message, field.name, value)
    return message


def _write(message: Message, name: str, value: Any) -> None:
    if name.endswith("_ms") and name not in message.DESCRIPTOR.fields_by_name:
        getattr(message, name.removesuffix("_ms")).FromMilliseconds(value)
        return
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.type == FieldDescriptor.TYPE_ENUM:
        setattr(message, name, enum_number(field.enum_type, name, value))
    elif dataclasses.is_dataclass(value):
        target = getattr(message, name)
        target.SetInParent()
        to_proto(value, target)
    elif isinstance(value, dict):
        getattr(message, name).update(value)
    elif isinstance(value, list | tuple):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def enum_number(enum: Any, name: str, value: str) -> Any:
    """The number of an enum's word. Raises ValueError that lists the words."""
    prefix = _prefix(enum)
    word = prefix + value.upper().replace("-", "_")
    if word not in enum.values_by_name or word.endswith("_UNSPECIFIED"):
        words = [item.removeprefix(prefix).lower() for item in enum.values_by_name if not item.endswith("_UNSPECIFIED")]
        raise ValueError(f"{name} must be one of {', '.join(words)}, not {value!r}")
    return enum.values_by_name[word].number


def enum_word(enum: Any, number: int) -> str:
    """The word of an enum's number: "" for unspecified, the number itself for one from a newer server."""
    known = enum.values_by_number.get(number)
    if known is None:
        return str(number)
    word = known.name.removeprefix(_prefix(enum)).lower()
    return "" if word == "unspecified" else word


def _prefix(enum: Any) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper() + "_"


def from_proto(cls: type[T], message: Message) -> T:
    """The dataclass that a message stands for. Fields of ours that the message lacks keep their defaults."""
    values = {}
    for name, inner in _shape(typing.cast(Hashable, cls)).items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and not (field.has_presence and not message.HasField(name)):
            values[name] = _read(field, getattr(message, name), inner)
    return cls(**values)


def _read(field: Any, value: Any, inner: type | None) -> Any:
    if field.is_repeated:
        return dict(value) if hasattr(value, "items") else tuple(_read_one(field, item, inner) for item in value)
    return _read_one(field, value, inner)


def _read_one(field: Any, value: Any, inner: type | None) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return enum_word(field.enum_type, value)
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value.ToNanoseconds() / 1e9, UTC)
    if isinstance(value, Duration):
        return value.ToNanoseconds() / 1e9
    return from_proto(inner, value) if inner is not None else value


@cache
def _shape(cls: Hashable) -> dict[str, type | None]:
    """The dataclass's fields; for one that holds dataclasses (alone, optional or in a tuple) their class."""
    return {name: _inner(hint) for name, hint in typing.get_type_hints(cls).items()}


def _inner(hint: Any) -> type | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for part in typing.get_args(hint) if (found := _inner(part)) is not None), None)
