"""A checkpoint without weights: the config is real, the tensors are random. For benchmarks."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from builder_service.build.tokenizer_files import copy_tokenizer
from builder_service.models import read_spec, weight_parts
from builder_service.sources.base import Progress, assemble, row_ranges
from builder_service.sources.huggingface import read_config
from builder_service.sources.json_files import read_json
from builder_service.sources.preflight import refuse_code
from engine_store.manifest import Source
from enginehouse.errors import NotFound

DISTINCT = 1 << 22
"""Random numbers drawn for one tensor; a larger one repeats them, which no benchmark can tell."""
DTYPES = ("float32", "bfloat16", "float16")


class DummyCheckpoint:
    """A directory with a config.json (and perhaps a tokenizer), its weights drawn from `seed` and their names.

    Norms are ones, matrices normal with deviation 0.02, biases zero. See `Checkpoint` for the methods.
    """

    def __init__(self, path: Path, seed: int = 0, origin: Source | None = None) -> None:
        if not path.is_dir():
            message = f"The directory {path} does not exist; `weights: dummy` needs one with a config.json."
            raise NotFound(message, reason="SOURCE_NOT_FOUND", metadata={"path": path})
        self._path, self._seed = path, seed
        refuse_code(path)
        self.config: dict[str, Any] = read_config(path)
        self.generation_config = read_json(path, "generation_config.json") or {}
        parts = weight_parts(read_spec(self.config)).values()
        self._shapes = {name: shape for part in parts for name, shape in zip(part.names, part.shapes, strict=True)}
        stated = self.config.get("dtype", self.config.get("torch_dtype"))
        self.dtype = stated if stated in DTYPES else "bfloat16"
        self.notes: tuple[str, ...] = ()
        self.origin = Source(
            kind="dummy",
            location=origin.location if origin else str(path),
            revision=origin.revision if origin else "",
        )

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def nbytes(self, name: str) -> int:
        return math.prod(self._shapes[name]) * 4

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        shape = self._shapes[name]
        random = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}/{name}".encode()))
        row = math.prod(shape[1:])
        drawn = torch.empty(min(shape[0] * row, DISTINCT)).normal_(0, 0.02, generator=random)
        for rows in row_ranges(shape, row * 4):
            block = torch.empty(len(rows), *shape[1:])
            if len(shape) == 1:
                yield block.fill_(0.0 if name.endswith(".bias") else 1.0)
                continue
            _repeat(drawn, rows.start * row, block.view(-1))
            yield block

    def tensor(self, name: str) -> torch.Tensor:
        return assemble(self.shape(name), self.blocks(name))

    def write_tokenizer(self, destination: Path) -> None:
        copy_tokenizer(self._path, destination)

    def digest(self, progress: Progress) -> str:
        content = msgspec.json.encode(["dummy", self._seed, self.config, self.generation_config], order="deterministic")
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def close(self) -> None:
        pass


def _repeat(drawn: torch.Tensor, start: int, into: torch.Tensor) -> None:
    """Fills `into` from the endless repetition of `drawn`, from its number `start`."""
    done = 0
    while done < len(into):
        place = (start + done) % len(drawn)
        count = min(len(drawn) - place, len(into) - done)
        into[done : done + count] = drawn[place : place + count]
        done += count
