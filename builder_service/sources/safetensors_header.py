"""Reading a safetensors header with every number checked against the file before it is used."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from builder_service.sources.base import broken, reading
from builder_service.sources.json_files import decode_unique, is_lfs_pointer, lfs_pointer
from enginehouse.errors import EnginehouseError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_VALUES = 1 << 21
"""JSON values in a header, so that its objects are not many times its bytes: room for 200 000 tensors."""
MAX_NAME, MAX_DIMS = 512, 8
DTYPES = {"F32": ("float32", 4), "BF16": ("bfloat16", 2), "F16": ("float16", 2)}


class TensorInfo(NamedTuple):
    """A tensor's type, shape, and half-open byte range within the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, by name.

    Raises:
        FailedPrecondition: the file is truncated, is a Git LFS pointer, or its header is damaged.
    """
    if is_lfs_pointer(path):
        raise lfs_pointer(path.name)
    with reading(path.name), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= MAX_HEADER_BYTES or 8 + length > size:
            raise _truncated(path, size, 8 + length)
        raw = file.read(length)
    header = _decode(path, raw)
    _check_metadata(path, header.pop("__metadata__", {}))
    infos = {name: _tensor_info(path, name, entry) for name, entry in header.items()}
    _check_layout(path, infos, size - 8 - length)
    first = 8 + length
    return {name: info._replace(begin=first + info.begin, end=first + info.end) for name, info in infos.items()}


def _truncated(path: Path, size: int, needed: int) -> EnginehouseError:
    return broken(
        "CHECKPOINT_TRUNCATED",
        f"{path.name} has {size} bytes and its header needs {needed}; the file is truncated or no safetensors file. "
        "Download it again.",
        file=path.name,
        size_bytes=size,
        needed_bytes=needed,
    )


def _damaged(path: Path, what: str, **metadata: object) -> EnginehouseError:
    message = f"The header of {path.name} is damaged: {what}. Download the file again."
    return broken("CHECKPOINT_CORRUPT", message, file=path.name, **metadata)


def _decode(path: Path, raw: bytes) -> dict[str, Any]:
    if raw.count(b",") + raw.count(b"{") + raw.count(b"[") > MAX_VALUES:
        raise _damaged(path, f"it has more than {MAX_VALUES} values")
    try:
        return decode_unique(raw)
    except ValueError as error:
        raise _damaged(path, f"it {error}") from error


def _check_metadata(path: Path, metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "__metadata__ is no object of strings")


def _tensor_info(path: Path, name: str, entry: Any) -> TensorInfo:
    if not name.isprintable() or len(name) > MAX_NAME:
        raise _damaged(path, f"it names a tensor {name[:MAX_NAME]!r}", tensor=name[:MAX_NAME])
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor {name} has not exactly a dtype, a shape and data_offsets", tensor=name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        message = (
            f"Tensor {name} of {path.name} has type {dtype}; the builder reads {', '.join(DTYPES)}. "
            "Use an unquantised checkpoint."
        )
        raise broken("UNSUPPORTED_TENSOR_TYPE", message, file=path.name, tensor=name, dtype=dtype)
    if not _counts(shape, MAX_DIMS) or not _counts(offsets, 2) or len(offsets) != 2:
        raise _damaged(path, f"tensor {name} has a shape or offset that is no count", tensor=name)
    dtype_name, width = DTYPES[dtype]
    begin, end = offsets
    if end - begin != math.prod(shape) * width:
        raise _damaged(path, f"tensor {name} of shape {shape} has {end - begin} bytes", tensor=name)
    return TensorInfo(dtype_name, tuple(shape), begin, end)


def _counts(values: Any, most: int) -> bool:
    """Whether it is a list of at most `most` numbers of things that a file may hold."""
    known = isinstance(values, list) and len(values) <= most
    return known and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _check_layout(path: Path, infos: dict[str, TensorInfo], data_bytes: int) -> None:
    """The tensors tile the data section: no gap, no overlap, nothing left over."""
    position = 0
    for name, info in sorted(infos.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != position:
            raise _damaged(path, f"tensor {name} begins at {info.begin}, expected {position}", tensor=name)
        position = info.end
    if position > data_bytes:
        header = path.stat().st_size - data_bytes
        raise _truncated(path, header + data_bytes, header + position)
    if position < data_bytes:
        raise _damaged(path, f"{data_bytes - position} bytes follow the last tensor")
