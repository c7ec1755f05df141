"""A GGUF file's metadata and tensor table, read in Python integers with every count checked against the file.

Nothing is allocated from a number in the file before that number is known to fit: the counterpart of the heap
overflows that other readers of this format have had. Format: ggml/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from builder_service.sources.base import broken, reading
from builder_service.sources.json_files import is_lfs_pointer, lfs_pointer
from enginehouse.errors import EnginehouseError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME = 1 << 10
MAX_DIMS = 4
MAX_HEADER_BYTES = 1 << 27
MAX_ELEMENTS = 1 << 22
"""Of all lists together: four times the largest vocabulary known, with types, scores and merges."""
SMALLEST = 24
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GgufTensor(NamedTuple):
    """A tensor's place. `shape` is in torch order; `offset` counts from the start of the file."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufHeader(NamedTuple):
    """All of a GGUF file but its tensor data."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Entry(NamedTuple):
    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks a header.

    Raises:
        FailedPrecondition: no GGUF file, truncated, or damaged; the message names the key or tensor.
    """
    if is_lfs_pointer(path):
        raise lfs_pointer(path.name)
    with reading(path.name), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < SMALLEST:
            raise broken("NOT_A_CHECKPOINT", f"{path.name} is too short for a GGUF file.", file=path.name)
        return _Reader(path.name, file, size).header()


class _Reader:
    """A cursor over the file."""

    def __init__(self, name: str, file: BinaryIO, size: int) -> None:
        self._name = name
        self._file = file
        self._size = size
        self._position = 0
        self._elements = 0
        self._where = "the header"

    def header(self) -> GgufHeader:
        magic = self._take(4)
        if magic != MAGIC:
            raise broken("NOT_A_CHECKPOINT", f"{self._name} is no GGUF file. Download it again.", file=self._name)
        version = self._number("I")
        if version not in VERSIONS:
            message = f"{self._name} is GGUF version {version}; the builder reads versions 2 and 3, little-endian."
            raise broken("UNSUPPORTED_GGUF_VERSION", message, file=self._name, version=version)
        num_tensors = self._count("Q", MAX_TENSORS, "tensors")
        num_keys = self._count("Q", MAX_KEYS, "metadata keys")
        metadata = self._metadata(num_keys)
        entries = self._entries(num_tensors)
        return GgufHeader(metadata, self._tensors(entries, self._alignment(metadata)))

    def _metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            self._where = "the metadata"
            key = self._string(MAX_NAME)
            self._where = f"metadata key {key}"
            if key in metadata:
                raise self._corrupt("is given twice", key=key)
            metadata[key] = self._value(self._number("I"))
        return metadata

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._string(MAX_HEADER_BYTES)
        if kind == ARRAY:
            return self._array(self._number("I"))
        raise self._corrupt(f"has the unknown type {kind}")

    def _array(self, kind: int) -> list[Any]:
        count = self._count("Q", MAX_ELEMENTS - self._elements, "more elements of lists")
        self._elements += count
        if kind in SCALARS:
            form = SCALARS[kind]
            return list(struct.unpack(f"<{count}{form}", self._take(count * struct.calcsize(form))))
        if kind == STRING:
            self._need(count * 8)
            return [self._string(MAX_HEADER_BYTES) for _ in range(count)]
        raise self._corrupt(f"is an array of type {kind}, which is not read")

    def _entries(self, count: int) -> list[_Entry]:
        entries: list[_Entry] = []
        for _ in range(count):
            self._where = "the tensor table"
            name = self._string(MAX_NAME)
            self._where = f"tensor {name}"
            dims = self._count("I", MAX_DIMS, "dimensions")
            shape = tuple(self._number("Q") for _ in range(dims))
            kind = self._number("I")
            try:
                quantization = GGMLQuantizationType(kind)
            except ValueError:
                raise self._corrupt(f"has the unknown type {kind}", tensor=name) from None
            # ggml lists the fastest dimension first, torch the slowest.
            entries.append(_Entry(name, quantization, shape[::-1], self._number("Q")))
        return entries

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            self._where = "metadata key general.alignment"
            raise self._corrupt(f"is {alignment}, no power of two")
        return alignment

    def _tensors(self, entries: list[_Entry], alignment: int) -> dict[str, GgufTensor]:
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for entry in entries:
            self._where = f"tensor {entry.name}"
            if entry.name in tensors:
                raise self._corrupt("is given twice", tensor=entry.name)
            nbytes = self._tensor_bytes(entry)
            if entry.offset % alignment:
                raise self._corrupt(f"has offset {entry.offset}, not aligned to {alignment}", tensor=entry.name)
            end = data_start + entry.offset + nbytes
            if end > self._size:
                raise self._truncated(end, tensor=entry.name)
            tensors[entry.name] = GgufTensor(entry.kind, entry.shape, data_start + entry.offset, nbytes)
        self._check_layout(tensors, alignment)
        return tensors

    def _tensor_bytes(self, entry: _Entry) -> int:
        if not entry.shape or 0 in entry.shape:
            raise self._corrupt(f"has the empty shape {list(entry.shape)}", tensor=entry.name)
        block, block_bytes = GGML_QUANT_SIZES[entry.kind]
        if entry.shape[-1] % block:
            raise self._corrupt(f"has rows of {entry.shape[-1]}, no multiple of the block {block}", tensor=entry.name)
        return int(math.prod(entry.shape) // block * block_bytes)

    def _check_layout(self, tensors: dict[str, GgufTensor], alignment: int) -> None:
        end = 0
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
            self._where = f"tensor {name}"
            if tensor.offset < end:
                raise self._corrupt("overlaps another tensor", tensor=name)
            if end and tensor.offset - end >= alignment:
                raise self._corrupt(f"begins {tensor.offset - end} bytes after the one before it", tensor=name)
            end = tensor.offset + tensor.nbytes

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(form)))[0]

    def _count(self, form: str, limit: int, what: str) -> int:
        count: int = self._number(form)
        if count > limit:
            raise self._corrupt(f"states {count} {what}; at most {limit} are read")
        return count

    def _string(self, limit: int) -> str:
        length = self._count("Q", limit, "bytes in a string")
        raw = self._take(length)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._corrupt("is no valid UTF-8") from None

    def _need(self, count: int) -> None:
        if self._position + count > self._size:
            raise self._truncated(self._position + count)
        if self._position + count > MAX_HEADER_BYTES:
            raise self._corrupt(f"ends after {MAX_HEADER_BYTES} bytes, where no header is read any more")

    def _take(self, count: int) -> bytes:
        self._need(count)
        raw = self._file.read(count)
        if len(raw) < count:
            raise self._truncated(self._position + count)
        self._position += count
        return raw

    def _corrupt(self, what: str, **metadata: object) -> EnginehouseError:
        message = f"{self._name} is damaged: {self._where} {what}. Download the file again."
        return broken("CHECKPOINT_CORRUPT", message, file=self._name, **metadata)

    def _truncated(self, needed: int, **metadata: object) -> EnginehouseError:
        message = (
            f"{self._name} has {self._size} bytes and {self._where} needs {needed}; the file is truncated. "
            "Download it again."
        )
        facts = {"size_bytes": self._size, "needed_bytes": needed, **metadata}
        return broken("CHECKPOINT_TRUNCATED", message, file=self._name, **facts)
