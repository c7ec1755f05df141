"""Reading a safetensors header with every number checked against the file before it is used."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from builder_service.sources.base import broken
from enginehouse.errors import EnginehouseError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
LFS_POINTER = b"version https://git-lfs"
DTYPES = {"F32": ("float32", 4), "BF16": ("bfloat16", 2), "F16": ("float16", 2)}


class TensorInfo(NamedTuple):
    """A tensor's type, shape, and half-open byte range within the data section."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, by name.

    Raises:
        FailedPrecondition: the file is truncated, is a Git LFS pointer, or its header is damaged.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            raise broken(
                "CHECKPOINT_LFS_POINTER",
                f"{path.name} is a Git LFS pointer, not the weights; run `git lfs pull` in the checkpoint's directory.",
                file=path.name,
            )
        length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
        if length > MAX_HEADER_BYTES or 8 + length > size:
            raise _truncated(path, size, 8 + length)
        file.seek(8)
        raw = file.read(length)
    header = _decode(path, raw)
    infos = {name: _tensor_info(path, name, entry) for name, entry in header.items() if name != "__metadata__"}
    _check_layout(path, infos, size - 8 - length)
    return infos


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
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, "it is not JSON") from error


def _tensor_info(path: Path, name: str, entry: Any) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"tensor {name} has no dtype, shape or data_offsets", tensor=name) from error
    if dtype not in DTYPES:
        message = (
            f"Tensor {name} of {path.name} has type {dtype}; the builder reads {', '.join(DTYPES)}. "
            "Use an unquantised checkpoint."
        )
        raise broken("UNSUPPORTED_TENSOR_TYPE", message, file=path.name, tensor=name, dtype=dtype)
    numbers = (*shape, begin, end)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _damaged(path, f"tensor {name} has a shape or offset that is no count", tensor=name)
    dtype_name, width = DTYPES[dtype]
    if end - begin != math.prod(shape) * width:
        raise _damaged(path, f"tensor {name} of shape {list(shape)} has {end - begin} bytes", tensor=name)
    return TensorInfo(dtype_name, shape, begin, end)


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
