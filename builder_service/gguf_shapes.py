"""The shapes of a GGUF file's tensors, and nothing else of it: for an estimate in the daemon, whose memory a hostile
file must not fill. `builder_service.sources.gguf_header` is the real reader; it runs in the build's process."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

MAX_TENSORS, MAX_KEYS, MAX_STRINGS, MAX_NAME, MAX_DIMS = 1 << 14, 1 << 12, 1 << 20, 256, 4
_STRING, _ARRAY = 8, 9
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

Shape = tuple[int, ...]


def read_shapes(path: Path) -> dict[str, Shape]:
    """The tensors' shapes as the file lists them, the fastest dimension first. Metadata is skipped, not read.

    Raises:
        ValueError: it is no GGUF file, damaged, or larger in its header than any model's.
    """
    with path.open("rb") as file:  # not mapped: a file that is cut meanwhile would end the daemon
        try:
            return _Cursor(file).shapes()
        except (struct.error, OverflowError) as error:
            raise ValueError("the file ends within its header") from error


class _Cursor:
    """Goes over the header; a position beyond the file's end fails at the next read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        self._position = self._strings = 0

    def shapes(self) -> dict[str, Shape]:
        if self._take(4) != b"GGUF":
            raise ValueError("no GGUF file")
        self._position = 8
        tensors, keys = self._bounded(MAX_TENSORS), self._bounded(MAX_KEYS)
        for _ in range(keys):
            self._skip_string()
            self._skip_value(self._number("I"))
        found = dict(self._tensor() for _ in range(tensors))
        if self._position > self._size:
            raise ValueError("the file ends within its header")
        return found

    def _tensor(self) -> tuple[str, Shape]:
        length = self._bounded(MAX_NAME)
        name = self._take(length).decode(errors="replace")
        shape = tuple(self._number("Q") for _ in range(self._bounded(MAX_DIMS, "I")))
        self._position += 12  # type and offset
        return name, shape

    def _skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self._skip_string()
        elif kind == _ARRAY:
            kind, count = self._number("I"), self._number("Q")
            if kind == _STRING:
                for _ in range(count):
                    self._skip_string()
            else:
                self._position += _size(kind) * count
        else:
            self._position += _size(kind)

    def _skip_string(self) -> None:
        self._strings += 1
        if self._strings > MAX_STRINGS:
            raise ValueError("more strings than any model has")
        length = self._number("Q")
        self._position += length

    def _bounded(self, most: int, form: str = "Q") -> int:
        value = self._number(form)
        if value > most:
            raise ValueError(f"{value} is more than any model has")
        return value

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))
        return int(value)

    def _take(self, count: int) -> bytes:
        self._file.seek(min(self._position, self._size))
        self._position += count
        return self._file.read(count)


def _size(kind: int) -> int:
    if kind not in _BYTES:
        raise ValueError(f"unknown type {kind}")
    return _BYTES[kind]
