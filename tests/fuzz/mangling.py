"""Damages bytes the way files and wires do it, and worse: flipped, cut, repeated, spliced, with extreme integers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

INTERESTING = (0, 1, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32)
HUGE = ((1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 7, 100_000_001)


def mangle(dice: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """`data` after one to four damages. `other`: bytes of the same kind, for splices."""
    for _ in range(dice.choice((1, 1, 1, 2, 2, 4))):
        data = dice.choice(DAMAGES)(dice, data, other)
    return data


def unknown_field(dice: random.Random) -> bytes:
    """A protobuf field of a number that nobody has: a varint, bytes, a fixed number, nested groups, a bad wire type."""
    number = dice.choice((1000, 19_000, (1 << 29) - 1, 0))
    kind = dice.randrange(6)
    if kind == 0:
        return varint(number << 3) + varint(dice.choice(INTERESTING + HUGE))
    if kind == 1:
        size = dice.choice((0, 1, 5000))
        return varint(number << 3 | 2) + varint(size) + bytes(size)
    if kind == 2:
        return varint(number << 3 | 1) + bytes(8)
    if kind == 3:
        levels = dice.choice((1, 50, 20_000))
        return varint(number << 3 | 3) * levels + varint(number << 3 | 4) * levels
    if kind == 4:
        return varint(number << 3 | 3)
    return varint(number << 3 | dice.choice((6, 7)))


def varint(value: int) -> bytes:
    """The value as protobuf's variable-length integer."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _flip(dice: random.Random, data: bytes, other: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(dice.choice((1, 1, 2, 8))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _put_byte(dice: random.Random, data: bytes, other: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    changed[dice.randrange(len(changed))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B, 0x5B))
    return bytes(changed)


def _cut(dice: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _remove(dice: random.Random, data: bytes, other: bytes) -> bytes:
    begin, end = sorted((dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)))
    return data[:begin] + data[min(end, begin + 64) :]


def _insert(dice: random.Random, data: bytes, other: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.randbytes(dice.choice((1, 4, 8, 100))) + data[at:]


def _repeat(dice: random.Random, data: bytes, other: bytes) -> bytes:
    begin = dice.randrange(len(data) + 1)
    piece = data[begin : begin + dice.choice((1, 8, 64, 1000))]
    return data[:begin] + piece * dice.choice((2, 3, 50)) + data[begin:]


def _splice(dice: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _extend(dice: random.Random, data: bytes, other: bytes) -> bytes:
    return data + dice.choice((bytes(64), dice.randbytes(100), data[:1000], unknown_field(dice)))


def _put_integer(dice: random.Random, data: bytes, other: bytes) -> bytes:
    """An extreme integer over whatever is there; more often near the beginning, where headers are."""
    width, form = dice.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
    value = dice.choice(INTERESTING + HUGE) & ((1 << 8 * width) - 1)
    reach = max(1, len(data) - width)
    at = dice.randrange(min(reach, dice.choice((32, 1024, reach))))
    return data[:at] + struct.pack(form, value) + data[at + width :]


def _put_varint(dice: random.Random, data: bytes, other: bytes) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + varint(dice.choice(INTERESTING + HUGE)) + data[at + 1 :]


def _noise(dice: random.Random, data: bytes, other: bytes) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 10, 1000))) if dice.random() < 0.3 else data


DAMAGES: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    *(_flip, _put_byte, _cut, _remove, _insert, _repeat, _splice, _extend, _put_integer, _put_varint, _noise),
)
