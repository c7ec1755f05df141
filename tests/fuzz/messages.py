"""Messages for any protobuf descriptor: plausible ones, ones with hostile values, and mangled bytes.

Every choice comes from the `random.Random` that is given, so a seed gives the same messages again as long as the
words are the same.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from .mangling import mangle, unknown_field

MAX_DEPTH = 5
MAX_BYTES = 4 << 20
"""What a hostile message is cut to: the servers take 32 MiB, but the machine that fuzzes has other work."""
RECURSIVE = frozenset({"Struct", "Value", "ListValue"})

_SIGNED_32 = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM)
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
FLOATS = (math.nan, math.inf, -math.inf, -0.0, -1.0, 5e-324, 1e-45, 1e-38, 3e38, sys.float_info.max, -1e300)
TEXTS = (
    "",
    "\0",
    "a\0b",
    "\x1b[31m\x07\x7f",
    "\u202e\ufeff\u200d",
    "\U0001f4a5" * 5000,
    "e\u0301" * 3000,
    "../../../../etc/passwd",
    "/proc/self/environ",
    "engines/" + "/" * 2000,
    "engines/../versions/1",
    "engines/prey/versions/" + "9" * 400,
    "%s%n{0}{}${HOME}$(id)`id`",
    "{{ 7 * 7 }}{% for i in range(10 ** 9) %}x{% endfor %}",
    "'; DROP TABLE builds; --",
    "-" * 64,
    "\u0661",
    "operations/" + "f" * 5000,
    "{" * 3000,
    "[" * 3000,
)


class Words:
    """What is known to be meaningful, by field ("Message.field", or "field" in any message)."""

    def __init__(self, known: Mapping[str, Sequence[Any]], honoured: Mapping[str, frozenset[str]]) -> None:
        """`honoured`: of messages with fields that are refused by name, those that are not; by the message's name."""
        self._known = {key: list(values) for key, values in known.items()}
        self._honoured = honoured
        self._learned: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=30))

    def of(self, field: FieldDescriptor) -> list[Any]:
        """Values that this field may plausibly have; empty when none is known."""
        precise = f"{field.containing_type.name}.{field.name}"
        key = precise if precise in self._known else field.name
        return [*self._known.get(key, ()), *self._learned.get(key, ())]

    def refused(self, field: FieldDescriptor) -> bool:
        """Whether setting the field is enough to be refused."""
        message = field.containing_type.name
        return message in self._honoured and field.name not in self._honoured[message]

    def reach(self, field: FieldDescriptor, depth: int = 0) -> bool:
        """Whether values are known for the field, or for any field of the message that it holds."""
        if self.of(field):
            return True
        parts = field.message_type.fields if field.message_type is not None and depth < MAX_DEPTH else ()
        return any(self.reach(part, depth + 1) for part in parts)

    def learn(self, field: str, value: Any) -> None:
        """Remembers a value that a server gave, for fields of this name. Of many, the latest."""
        if value not in self._learned[field]:
            self._learned[field].append(value)


class Spot(NamedTuple):
    """A field of a message in a tree of messages, set or not."""

    message: Message
    field: FieldDescriptor


class MessageMaker:
    """Makes messages of one seed."""

    def __init__(self, dice: random.Random, words: Words) -> None:
        self._dice, self._words = dice, words
        self._lean = False  # leaves out what nothing is known about, as most of it is refused

    def encoded(self, kind: Descriptor) -> bytes:
        """A message on the wire, of any sort: plausible, hostile or mangled."""
        sort = self._dice.random()
        if sort < 0.4:
            return self.plausible(kind).SerializeToString()
        if sort < 0.75:
            return self._hostile_bytes(kind)
        other = self.plausible(kind).SerializeToString()
        return mangle(self._dice, self.plausible(kind).SerializeToString(), other)

    def plausible(self, kind: Descriptor) -> Message:
        """Fields as a caller might set them; nothing says that a server must like the combination."""
        message = GetMessageClass(kind)()
        self._lean = self._dice.random() < 0.85
        self._fill(message, 0)
        return message

    def hostile(self, kind: Descriptor) -> Message:
        """A plausible message with a few fields that no honest caller would send."""
        message = self.plausible(kind)
        for _ in range(self._dice.choice((1, 1, 2, 4))):
            spots = list(_spots(message))
            if spots:
                self._spoil(self._dice.choice(spots))
        return message

    def _hostile_bytes(self, kind: Descriptor) -> bytes:
        try:
            data = self.hostile(kind).SerializeToString()
        except Exception:  # too deep for the encoder: the plausible one with a deep unknown field instead
            data = self.plausible(kind).SerializeToString() + unknown_field(self._dice)
        if self._dice.random() < 0.1:
            data += unknown_field(self._dice)
        return data if len(data) <= MAX_BYTES else data[:MAX_BYTES]

    # Plausible values

    def _fill(self, message: Any, depth: int) -> None:
        fields = message.DESCRIPTOR.fields
        for field in fields:
            if field.containing_oneof is None and self._dice.random() < self._chance(field, len(fields), depth):
                self._set(message, field, depth)
        for oneof in message.DESCRIPTOR.oneofs:
            likely = [self._chance(field, len(fields), depth) for field in oneof.fields]
            if self._dice.random() < (0.95 if len(likely) > 1 else likely[0]) and any(likely):
                self._set(message, self._dice.choices(oneof.fields, likely)[0], depth)

    def _chance(self, field: FieldDescriptor, siblings: int, depth: int) -> float:
        if field.message_type is not None and depth >= MAX_DEPTH:
            return 0.0
        if field_behavior_pb2.REQUIRED in field.GetOptions().Extensions[field_behavior_pb2.field_behavior]:
            return 0.97
        if self._lean and self._words.refused(field):
            return 0.002
        if self._words.reach(field):
            return 0.75
        return 0.02 if self._lean else min(0.5, 2.0 / siblings)

    def _set(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        if _is_map(field):
            for _ in range(self._dice.randrange(4)):
                self._add_pair(message, field, depth)
        elif field.is_repeated:
            for _ in range(self._dice.choice((0, 1, 1, 1, 1, 1, 2, 3))):
                self._add(message, field, depth)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            self._fill(part, depth + 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _add(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        entries = getattr(message, field.name)
        if field.message_type is not None:
            self._fill(entries.add(), depth + 1)
        else:
            entries.append(self._scalar(field))

    def _add_pair(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        entries = getattr(message, field.name)
        name = self._scalar(key)
        if value.message_type is not None:
            self._fill(entries[name], depth + 1)
        else:
            entries[name] = self._scalar(value)

    def _scalar(self, field: FieldDescriptor) -> Any:
        if words := self._words.of(field):
            return self._dice.choice(words)
        if field.enum_type is not None:
            return self._dice.choice(field.enum_type.values).number
        plain: dict[int, Callable[[], Any]] = {
            FieldDescriptor.CPPTYPE_BOOL: lambda: self._dice.random() < 0.5,
            FieldDescriptor.CPPTYPE_STRING: self._text,
            FieldDescriptor.CPPTYPE_DOUBLE: lambda: self._dice.choice((0.0, 0.5, 1.0, 2.0)),
            FieldDescriptor.CPPTYPE_FLOAT: lambda: self._dice.choice((0.0, 0.5, 1.0, 2.0)),
        }
        make = plain.get(field.cpp_type, lambda: self._dice.choice((0, 1, 2, 7, 32)))
        value = make()
        return value.encode() if field.type == FieldDescriptor.TYPE_BYTES else value

    def _text(self) -> str:
        return self._dice.choice(("", "a", "prey", "the quick brown fox", "été \U0001f336"))

    # Hostile values

    def _spoil(self, spot: Spot) -> None:
        message, field = spot
        if _is_map(field):
            self._crowd_map(message, field)
        elif field.is_repeated:
            self._crowd(message, field)
        elif field.message_type is None:
            setattr(message, field.name, self._hostile_scalar(field))
        elif field.message_type.name in RECURSIVE:
            deepen(getattr(message, field.name), self._dice.choice((20, 45, 90)))
        elif self._dice.random() < 0.5:
            message.ClearField(field.name)
        else:
            part = getattr(message, field.name)
            part.Clear()
            part.SetInParent()

    def _hostile_scalar(self, field: FieldDescriptor) -> Any:
        if field.cpp_type in INTEGERS:
            low, high = INTEGERS[field.cpp_type]
            near = (low, low + 1, -1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**53, high - 1, high, 999)
            return self._dice.choice([number for number in near if low <= number <= high])
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return True
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            return self._dice.choice(FLOATS)
        if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
            return self._dice.choice([number for number in FLOATS if not 3.5e38 < abs(number) < math.inf])
        text = self._hostile_text()
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text

    def _hostile_text(self) -> str:
        if self._dice.random() < 0.15:
            return self._dice.choice(("a", "é", "\0", "/", "9")) * self._dice.choice((64, 4097, 70_000, 1 << 20))
        return self._dice.choice(TEXTS)

    def _crowd(self, message: Any, field: FieldDescriptor) -> None:
        entries = getattr(message, field.name)
        if field.message_type is not None:
            for _ in range(self._dice.choice((1, 100, 3000))):
                entries.add()
            return
        value, count = self._hostile_scalar(field), self._dice.choice((1, 70, 2000, 100_000))
        width = len(value) + 1 if isinstance(value, str | bytes) else 1
        entries.extend([value] * min(count, 1 + MAX_BYTES // 4 // width))

    def _crowd_map(self, message: Any, field: FieldDescriptor) -> None:
        key = field.message_type.fields_by_name["key"]
        entries, text = getattr(message, field.name), key.cpp_type == FieldDescriptor.CPPTYPE_STRING
        for number in range(self._dice.choice((1, 65, 5000))):
            name = f"{number}{self._hostile_text()[:100]}" if text else number
            self._set_pair(entries, name, field.message_type.fields_by_name["value"])

    def _set_pair(self, entries: Any, name: Any, value: FieldDescriptor) -> None:
        if value.message_type is not None:
            entries[name].SetInParent()
        else:
            spoiled = self._hostile_scalar(value)
            entries[name] = spoiled[:200] if isinstance(spoiled, str | bytes) else spoiled


def deepen(part: Any, levels: int) -> None:
    """Nests a Struct, Value or ListValue so deep."""
    for _ in range(levels):
        name = part.DESCRIPTOR.name
        if name == "Struct":
            part = part.fields["a"]
        elif name == "ListValue":
            part = part.values.add()
        else:
            part = part.list_value
            part.SetInParent()


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _spots(message: Message, depth: int = 0) -> Iterator[Spot]:
    """Every field of the message, and of the messages in it that are set."""
    for field in message.DESCRIPTOR.fields:
        yield Spot(message, field)
    for field, value in message.ListFields() if depth < MAX_DEPTH else ():
        if field.message_type is not None and not _is_map(field):
            for part in _parts(field, value):
                yield from _spots(part, depth + 1)


def _parts(field: FieldDescriptor, value: Any) -> Iterable[Message]:
    return value[:5] if field.is_repeated else (value,)
