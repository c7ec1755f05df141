"""A checkpoint without weights: the config is real, the tensors are random. For benchmarks."""

from __future__ import annotations

import hashlib
import math
import zlib
from pathlib import Path
from typing import Any

import msgspec
import torch

from builder_service.models import read_spec, weight_parts
from builder_service.sources.base import Progress
from builder_service.sources.huggingface import read_config, read_json
from builder_service.tokenizer_files import copy_tokenizer
from engine_store.manifest import Source
from enginehouse.errors import NotFound

DISTINCT = 1 << 22
"""Random numbers drawn for one tensor; a larger one repeats them, which no benchmark can tell."""
DTYPES = ("float32", "bfloat16", "float16")


class DummyCheckpoint:
    """A directory with a config.json (and perhaps a tokenizer), its weights seeded by their names.

    Norms are ones, matrices normal with deviation 0.02, biases zero. See `Checkpoint` for the methods.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            message = f"The directory {path} does not exist; `weights: dummy` needs one with a config.json."
            raise NotFound(message, reason="SOURCE_NOT_FOUND", metadata={"path": path})
        self._path = path
        self.config: dict[str, Any] = read_config(path)
        self.generation_config = read_json(path, "generation_config.json") or {}
        parts = weight_parts(read_spec(self.config)).values()
        self._shapes = {name: shape for part in parts for name, shape in zip(part.names, part.shapes, strict=True)}
        stated = self.config.get("dtype", self.config.get("torch_dtype"))
        self.dtype = stated if stated in DTYPES else "bfloat16"
        self.notes: tuple[str, ...] = ()
        self.origin = Source(kind="dummy", location=str(path))

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def nbytes(self, name: str) -> int:
        return math.prod(self._shapes[name]) * 4

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
        count = math.prod(shape)
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        block = torch.empty(min(count, DISTINCT)).normal_(0, 0.02, generator=random)
        return block.repeat(-(-count // len(block)))[:count].view(shape)

    def write_tokenizer(self, destination: Path) -> None:
        copy_tokenizer(self._path, destination)

    def digest(self, progress: Progress) -> str:
        content = msgspec.json.encode(["dummy", self.config, self.generation_config], order="deterministic")
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def close(self) -> None:
        pass
