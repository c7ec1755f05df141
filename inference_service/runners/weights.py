"""The weights file of an engine version, read within its bounds whatever is in it.

It is opened once, so one loader never mixes two files. Nothing is mapped while it is loaded: a file that is cut short
meanwhile is a short read and a typed error, where a mapping would end the process.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from engine_ops.graph import Graph
from enginehouse.errors import DataLoss

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED_AS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def damaged(file: str, why: str = "cannot be read") -> DataLoss:
    """The error of an engine's file that is not what it must be."""
    return DataLoss(
        f"{file} of the engine {why}; verify the store and build the engine again.",
        reason="ENGINE_DAMAGED",
        metadata={"file": file},
    )


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the file's header. The offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class StoredWeights:
    """The tensors of `weights/rank0.safetensors`, which has exactly the graph's names, types and shapes.

    Raises DataLoss (reason ENGINE_DAMAGED) where it has not, and where it cannot be read.
    """

    FILE = "weights/rank0.safetensors"

    def __init__(self, directory: Path, graph: Graph) -> None:
        self._tensors = graph.weights
        try:
            self._fd = os.open(directory / self.FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise damaged(self.FILE) from error
        self._closer = weakref.finalize(self, os.close, self._fd)
        size = os.fstat(self._fd).st_size
        header, self._start = self._read_header(size)
        self._check(header, size - self._start)
        self._offsets = {name: self._start + entry.data_offsets[0] for name, entry in header.items()}

    def close(self) -> None:
        """Nothing can be read any more; mapped tensors stay. Idempotent."""
        self._closer()

    def in_file_order(self, names: Iterable[str]) -> list[str]:
        """`names` in the order in which a disk reads them fastest."""
        return sorted(names, key=self._offsets.__getitem__)

    def scratch(self, names: Iterable[str]) -> torch.Tensor:
        """Memory in which each of `names` has room, for `read`. uint8."""
        return torch.empty(max((self._num_bytes(name) for name in names), default=0), dtype=torch.uint8)

    def read(self, name: str, scratch: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor as it is stored, on the CPU, in memory of its own or in `scratch`, until that is used again."""
        size = self._num_bytes(name)
        data = torch.empty(size, dtype=torch.uint8) if scratch is None else scratch[:size]
        self._read_into(data.numpy().data, self._offsets[name])
        return data.view(DTYPES[self._tensors[name].dtype]).view(self._shape(name))

    def map(self, name: str) -> torch.Tensor:
        """The tensor as it is stored, in the file: only what is looked at takes memory. Keeps the file mapped."""
        start, dtype, shape = self._offsets[name], DTYPES[self._tensors[name].dtype], self._shape(name)
        skipped = start % mmap.ALLOCATIONGRANULARITY
        length = skipped + self._num_bytes(name)
        memory = mmap.mmap(self._fd, length, access=mmap.ACCESS_COPY, offset=start - skipped)
        return torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=skipped).view(shape)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(dim) for dim in self._tensors[name].shape)

    def _num_bytes(self, name: str) -> int:
        return prod(self._shape(name)) * DTYPES[self._tensors[name].dtype].itemsize

    def _read_header(self, size: int) -> tuple[dict[str, _Entry], int]:
        """The tensors by name, and where their data begins."""
        prefix = bytearray(8)
        self._read_into(memoryview(prefix), 0)
        (length,) = struct.unpack("<Q", prefix)
        if length > min(_MAX_HEADER_BYTES, size - len(prefix)):
            raise damaged(self.FILE, "is cut short or has no header")
        raw = bytearray(length)
        self._read_into(memoryview(raw), len(prefix))
        try:
            entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            entries.pop("__metadata__", None)
            return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}, 8 + length
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise damaged(self.FILE, "has a header that cannot be read") from error

    def _check(self, header: dict[str, _Entry], data_bytes: int) -> None:
        if header.keys() != self._tensors.keys():
            raise damaged(self.FILE, f"differs from the graph in {sorted(header.keys() ^ self._tensors.keys())[:3]}")
        for name, tensor in self._tensors.items():
            entry = header[name]
            if (entry.dtype, entry.shape) != (_STORED_AS.get(tensor.dtype), tensor.shape):
                raise damaged(self.FILE, f"has another shape or type for {name} than the graph")
            begin, end = entry.data_offsets
            if not 0 <= begin <= end <= data_bytes or end - begin != self._num_bytes(name):
                raise damaged(self.FILE, f"has no room for {name}")

    def _read_into(self, view: memoryview, offset: int) -> None:
        try:
            while view:
                count = os.preadv(self._fd, [view], offset)
                if count == 0:
                    self._cut_short()
                view, offset = view[count:], offset + count
        except OSError as error:
            raise damaged(self.FILE) from error

    def _cut_short(self) -> NoReturn:
        raise damaged(self.FILE, "is cut short")
