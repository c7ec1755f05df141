"""What a checkpoint is to the builder, whatever its file format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from engine_store.manifest import Source
from enginehouse.errors import FailedPrecondition

Progress = Callable[[int, int], None]
"""Called with (done, total) in bytes."""


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

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, in the checkpoint's dtype (dequantised to float32 where it was quantised)."""
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


def broken(reason: str, message: str, **metadata: object) -> FailedPrecondition:
    """The refusal of a checkpoint whose files are incomplete, damaged or of a kind that is never read."""
    return FailedPrecondition(message, reason=reason, metadata=metadata)
