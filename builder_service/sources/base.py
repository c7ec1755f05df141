"""What a checkpoint is to the builder, whatever its file format."""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from engine_store.manifest import Source
from enginehouse.errors import FailedPrecondition

Progress = Callable[[int, int], None]
"""Called with (done, total) in bytes."""
BLOCK_BYTES = 32 << 20
"""Of a tensor that is read at once."""


class Checkpoint(Protocol):
    """A readable checkpoint. Tensors carry Hugging Face names and are read one at a time.

    `config` is the model's config.json; `generation_config` may be empty. `dtype` is the checkpoint's own type, the
    meaning of "auto": "float32", "bfloat16" or "float16". `notes` are lines for a person: files that were left out.
    `origin` says where it came from; its digest is empty until `digest` is called.
    """

    config: dict[str, Any]
    generation_config: dict[str, Any]
    dtype: str
    notes: tuple[str, ...]
    origin: Source

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, read from the header alone."""
        ...

    def nbytes(self, name: str) -> int:
        """Bytes that a tensor occupies in the file, for progress."""
        ...

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """The tensor in pieces along its first dimension, in order, each of about BLOCK_BYTES, in the checkpoint's
        dtype (dequantised to float32 where it was quantised)."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor."""
        ...

    def write_tokenizer(self, destination: Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json, generation_config.json and the chat template into an existing
        directory. A checkpoint without a tokenizer writes only generation_config.json."""
        ...

    def digest(self, progress: Progress) -> str:
        """sha256 over every file that is read."""
        ...

    def close(self) -> None:
        """Releases file handles. Idempotent."""
        ...


def assemble(shape: tuple[int, ...], blocks: Iterator[torch.Tensor]) -> torch.Tensor:
    """The tensor whose pieces along its first dimension are `blocks`."""
    block = next(blocks)
    if block.shape == shape:
        return block
    whole = torch.empty(shape, dtype=block.dtype)
    start = 0
    while True:
        whole[start : start + len(block)] = block
        start += len(block)
        if start == shape[0]:
            return whole
        block = next(blocks)


def row_ranges(shape: tuple[int, ...], row_bytes: int) -> Iterator[range]:
    """The rows of a tensor in ranges of about BLOCK_BYTES; `row_bytes` of one row."""
    step = max(1, BLOCK_BYTES // max(row_bytes, 1))
    for start in range(0, shape[0], step):
        yield range(start, min(start + step, shape[0]))


class TensorFile:
    """A file of tensors. It is read and never mapped: a mapped file that is cut while it is read kills the process.

    `close()` may be called more than once; the file is closed when this object goes, too.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        with reading(path.name):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)

    def read(self, offset: int, count: int) -> torch.Tensor:
        """uint8 [count] from `offset`."""
        data = torch.empty(count, dtype=torch.uint8)
        view, done = data.numpy().data, 0
        with reading(self._name):
            while done < count:
                got = os.preadv(self._fd, [view[done:]], offset + done)
                if got == 0:
                    message = f"{self._name} became shorter while it was read; build again when nothing writes to it."
                    raise broken("CHECKPOINT_TRUNCATED", message, file=self._name, needed_bytes=offset + count)
                done += got
        return data

    def rows(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """The row-major tensor at `offset` in pieces along its first dimension."""
        row = math.prod(shape[1:]) * dtype.itemsize
        if not shape or 0 in shape:
            yield self.read(offset, math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            return
        for rows in row_ranges(shape, row):
            data = self.read(offset + rows.start * row, len(rows) * row)
            yield data.view(dtype).view(len(rows), *shape[1:])


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Names the file that the system cannot read."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            raise
        why = os.strerror(error.errno) if error.errno else "input/output error"
        message = f"{name} cannot be read ({why}); check the file and its permissions, then build again."
        raise broken("CHECKPOINT_UNREADABLE", message, file=name) from error


def write_whole(path: Path, content: bytes) -> None:
    """Writes a small file of the builder's cache: a reader, in any process, sees all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def broken(reason: str, message: str, **metadata: object) -> FailedPrecondition:
    """The refusal of a checkpoint whose files are incomplete, damaged or of a kind that is never read."""
    return FailedPrecondition(message, reason=reason, metadata=metadata)
