"""A GGUF file as a checkpoint: tensors are dequantised one at a time, llama's row order is undone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from builder_service.sources.base import Progress, TensorFile, assemble, broken, row_ranges
from builder_service.sources.digest import DigestCache
from builder_service.sources.gguf_config import PERMUTED, ROPE_FREQS, hugging_face_config, hugging_face_name
from builder_service.sources.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from builder_service.sources.gguf_tokenizer import eos_token_ids, token_id, write_gguf_tokenizer
from engine_store.manifest import Source
from enginehouse.errors import NotFound, Unimplemented

PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
REORDERED = tuple(f".self_attn.{part}_proj.{kind}" for part in "qk" for kind in ("weight", "bias"))
MAX_ROPE_FACTORS = 1 << 12
WORK_FACTOR = 4


class GgufCheckpoint:
    """One GGUF file. See `Checkpoint` for the methods.

    Raises:
        NotFound: no such file.
        FailedPrecondition: truncated or damaged.
        Unimplemented: an architecture, tensor, metadata key or tokenizer kind that is not read.
    """

    def __init__(self, path: Path, digests: DigestCache, origin: Source | None = None) -> None:
        if not path.is_file():
            what = "is a directory" if path.exists() else "does not exist"
            message = f"The GGUF file {path} {what}. The path is read on the builder's machine."
            raise NotFound(message, reason="SOURCE_NOT_FOUND", metadata={"path": path})
        self._path = path
        self._digests = digests
        self._header = read_gguf_header(path)
        self._file = TensorFile(path)
        self.config = hugging_face_config(self._header, self._rope_factors())
        self._permuted = self._header.metadata["general.architecture"] in PERMUTED
        self._gguf_names = self._map_names()
        self.generation_config = _generation_config(self._header)
        self.dtype = _dtype(self._header)
        self.notes: tuple[str, ...] = ()
        self.origin = origin or Source(kind="gguf", location=str(path))

    def names(self) -> frozenset[str]:
        return frozenset(self._gguf_names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def nbytes(self, name: str) -> int:
        return self._entry(name).nbytes

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        blocks = self._blocks(self._entry(name))
        if self._permuted and name.endswith(REORDERED):
            return iter([self._unpermute(name, assemble(self.shape(name), blocks))])
        return blocks

    def tensor(self, name: str) -> torch.Tensor:
        return assemble(self.shape(name), self.blocks(name))

    def write_tokenizer(self, destination: Path) -> None:
        write_gguf_tokenizer(self._header.metadata, self.generation_config, destination)

    def digest(self, progress: Progress) -> str:
        return self._digests.tree(self._path.parent, (self._path.name,), progress)

    def close(self) -> None:
        self._file.close()

    def _entry(self, name: str) -> GgufTensor:
        return self._header.tensors[self._gguf_names[name]]

    def _map_names(self) -> dict[str, str]:
        mapped = {name: hugging_face_name(name) for name in self._header.tensors}
        return {hf_name: name for name, hf_name in mapped.items() if hf_name is not None}

    def _rope_factors(self) -> npt.NDArray[np.float32] | None:
        entry = self._header.tensors.get(ROPE_FREQS)
        if entry is None:
            return None
        if entry.kind != GGMLQuantizationType.F32 or len(entry.shape) != 1 or entry.shape[0] > MAX_ROPE_FACTORS:
            message = f"The GGUF file's {ROPE_FREQS} is {entry.kind.name} {list(entry.shape)}, no short F32 vector."
            raise broken("CHECKPOINT_CORRUPT", message, file=self._path.name, tensor=ROPE_FREQS)
        return assemble(entry.shape, self._blocks(entry)).numpy()

    def _blocks(self, entry: GgufTensor) -> Iterator[torch.Tensor]:
        if entry.kind in PLAIN:
            yield from self._file.rows(entry.offset, entry.shape, PLAIN[entry.kind])
            return
        row = entry.nbytes // entry.shape[0]
        # Dequantising takes several times the memory of its result: small pieces.
        for rows in row_ranges(entry.shape, WORK_FACTOR * math.prod(entry.shape[1:]) * 4):
            data = self._file.read(entry.offset + rows.start * row, len(rows) * row)
            yield self._dequantize(entry, data.numpy().reshape(len(rows), *entry.shape[1:-1], -1))

    def _dequantize(self, entry: GgufTensor, raw: npt.NDArray[np.uint8]) -> torch.Tensor:
        try:
            return torch.from_numpy(np.ascontiguousarray(dequantize(raw, entry.kind), dtype=np.float32))
        except NotImplementedError:
            message = f"Tensors quantised as {entry.kind.name} are not read; use another quantisation of the model."
            metadata = {"quantization": entry.kind.name}
            raise Unimplemented(message, reason="UNSUPPORTED_QUANTIZATION", metadata=metadata) from None

    def _unpermute(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Rows of a head from interleaved pairs (x0, y0, x1, y1, ...) back to halves (x0, x1, ..., y0, y1, ...)."""
        heads = self.config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)


def _dtype(header: GgufHeader) -> str:
    """bfloat16 for a quantised file, otherwise the half type that a matrix has, or float32."""
    kinds = {tensor.kind for tensor in header.tensors.values() if len(tensor.shape) > 1}
    if not kinds <= PLAIN.keys():
        return "bfloat16"
    for kind in (GGMLQuantizationType.BF16, GGMLQuantizationType.F16):
        if kind in kinds:
            return str(PLAIN[kind]).removeprefix("torch.")
    return "float32"


def _generation_config(header: GgufHeader) -> dict[str, Any]:
    ids: dict[str, Any] = {
        "bos_token_id": token_id(header.metadata, "bos_token_id"),
        "eos_token_id": eos_token_ids(header.metadata),
        "pad_token_id": token_id(header.metadata, "padding_token_id"),
    }
    return {key: value for key, value in ids.items() if value not in (None, [])}
