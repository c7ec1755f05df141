"""Damaged files of the formats that the builder and the store read: bytes, and structure where there is one."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .mangling import HUGE, INTERESTING, mangle

Damage = Callable[[random.Random, bytes], bytes]

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 2**64, 10**40, "", "\0", "a" * 5000),
    *("F32", "I64", "../../../etc/passwd", "\u202e", "1", [], {}, [[]], [0], [-1, 5], {"a": 1}, [2**62, 2**62], ["x"]),
)


def damaged_bytes(dice: random.Random, data: bytes) -> bytes:
    """For files of any format."""
    return mangle(dice, data, data)


def damaged_json(dice: random.Random, data: bytes) -> bytes:
    """A JSON file with values that no writer would have written there; or damaged as bytes."""
    if dice.random() < 0.2:
        return mangle(dice, data, data)
    value = json.loads(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        value = _damaged_value(dice, value)
    text = json.dumps(value)
    for _ in range(dice.choice((0, 0, 0, 1))):
        text = dice.choice((_nested, _repeated_keys, _odd_numbers))(dice, text)
    return text.encode(errors="surrogatepass")


def _hostile(dice: random.Random) -> Any:
    return copy.deepcopy(dice.choice(HOSTILE))


def _nested(dice: random.Random, text: str) -> str:
    levels = dice.choice((100, 1500, 100_000))
    inner = dice.choice(("[" * levels + "]" * levels, '{"a":' * levels + "0" + "}" * levels))
    return text[:-1] + f', "nested": {inner}}}' if text.endswith("}") and len(text) > 2 else inner


def _repeated_keys(dice: random.Random, text: str) -> str:
    return text[:-1] + ", " + text[1:] if text.startswith("{") and len(text) > 2 else text


def _odd_numbers(dice: random.Random, text: str) -> str:
    at = dice.randrange(len(text))
    number = dice.choice(("NaN", "Infinity", "1e999", "-0", "0x10", "1" * 5000, "\\ud800", "1.0e+"))
    return text[:at] + number + text[at:]


def _damaged_value(dice: random.Random, value: Any) -> Any:
    """One value somewhere in the tree is replaced, removed, renamed, doubled or swapped with another."""
    spots = [spot for spot in _spots(value) if isinstance(spot.value, dict | list) and spot.value]
    if not spots or dice.random() < 0.02:
        return _hostile(dice)
    holder = dice.choice(spots).value
    key = dice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    what = dice.randrange(6)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[dice.choice((f"{key}x", "", "a" * 3000, "__metadata__", "auto_map", "\0"))] = holder.pop(key)
    elif what == 2:
        other = dice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key], holder[other] = holder[other], holder[key]
    elif what == 3 and isinstance(holder[key], int):
        holder[key] = dice.choice((holder[key] + 1, holder[key] - 1, holder[key] * 2, -holder[key], holder[key] << 32))
    else:
        holder[key] = _hostile(dice)
    return value


class _Spot(NamedTuple):
    value: Any


def _spots(value: Any) -> Iterator[_Spot]:
    yield _Spot(value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _spots(part)


def damaged_safetensors(dice: random.Random, data: bytes) -> bytes:
    """The JSON header damaged, its length right or wrong; or the file damaged as bytes."""
    if dice.random() < 0.3:
        return mangle(dice, data, data)
    length = struct.unpack("<Q", data[:8])[0]
    header = damaged_json(dice, data[8 : 8 + length])
    stated = len(header) if dice.random() < 0.8 else dice.choice((*INTERESTING, *HUGE, len(header) + 1))
    body = data[8 + length :] if dice.random() < 0.9 else mangle(dice, data[8 + length :], data)
    return struct.pack("<Q", stated) + header + body


class Span(NamedTuple):
    """A number in a GGUF header: where it stands, and its struct format."""

    at: int
    form: str


class GgufMap(NamedTuple):
    """A valid GGUF file taken apart: its numbers, its entries (metadata, then tensors) and where its header ends."""

    numbers: list[Span]
    keys: list[bytes]
    tensors: list[bytes]
    end: int


_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def map_gguf(data: bytes) -> GgufMap:
    """Takes a valid file apart."""
    walk = _Walk(data)
    walk.position = 4
    walk.number("<I")
    num_tensors, num_keys = walk.number("<Q"), walk.number("<Q")
    keys = [walk.entry(walk.key_value) for _ in range(num_keys)]
    tensors = [walk.entry(walk.tensor) for _ in range(num_tensors)]
    return GgufMap(walk.numbers, keys, tensors, walk.position)


class _Walk:
    def __init__(self, data: bytes) -> None:
        self.data, self.position, self.numbers = data, 0, list[Span]()

    def number(self, form: str) -> int:
        self.numbers.append(Span(self.position, form))
        value = struct.unpack_from(form, self.data, self.position)[0]
        self.position += struct.calcsize(form)
        return int(value) if form not in ("<f", "<d") else 0

    def entry(self, read: Callable[[], None]) -> bytes:
        start = self.position
        read()
        return self.data[start : self.position]

    def key_value(self) -> None:
        self.string()
        self.value(self.number("<I"))

    def value(self, kind: int) -> None:
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            inner = self.number("<I")
            for _ in range(self.number("<Q")):
                self.value(inner)
        else:
            self.number(_SCALARS[kind])

    def string(self) -> None:
        length = self.number("<Q")
        self.position += length

    def tensor(self) -> None:
        self.string()
        for _ in range(self.number("<I")):
            self.number("<Q")
        self.number("<I")
        self.number("<Q")


def damaged_gguf(dice: random.Random, data: bytes) -> bytes:
    """Numbers of the header changed, entries doubled, dropped and reordered; or the file damaged as bytes."""
    what = dice.random()
    if what < 0.25:
        return mangle(dice, data, data)
    whole = map_gguf(data)
    return _changed_numbers(dice, data, whole) if what < 0.7 else _shuffled(dice, data, whole)


def _changed_numbers(dice: random.Random, data: bytes, whole: GgufMap) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        at, form = dice.choice(whole.numbers[:8] if dice.random() < 0.2 else whole.numbers)
        width = struct.calcsize(form)
        old = int.from_bytes(data[at : at + width], "little")
        new = dice.choice((*INTERESTING, *HUGE, old + 1, old - 1, old * 2, dice.randrange(14)))
        changed[at : at + width] = (new & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return bytes(changed)


def _shuffled(dice: random.Random, data: bytes, whole: GgufMap) -> bytes:
    keys, tensors = list(whole.keys), list(whole.tensors)
    for entries in (keys, tensors):
        for _ in range(dice.choice((0, 1, 1, 3))):
            at, other = dice.randrange(len(entries)), dice.randrange(len(entries))
            change = dice.randrange(4)
            if change == 0 and len(entries) > 1:
                del entries[at]
            elif change == 1:
                entries.insert(other, entries[at])
            elif change == 2:
                entries[at] = mangle(dice, entries[at], entries[other])
            else:
                entries[at], entries[other] = entries[other], entries[at]
    counts = (len(tensors), len(keys)) if dice.random() < 0.9 else (dice.choice(HUGE), len(keys))
    header = data[:8] + struct.pack("<QQ", *counts) + b"".join(keys) + b"".join(tensors)
    padding = bytes(-len(header) % 32)
    return header + padding + data[whole.end + (-whole.end % 32) :]
