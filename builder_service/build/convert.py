"""From a checkpoint's tensors to the engine's weights file, one block of a tensor in memory at a time."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from builder_service.models import WeightParts
from builder_service.sources.base import Checkpoint, Progress, broken
from enginehouse.errors import FailedPrecondition, Unimplemented

DTYPES = {
    "float32": (torch.float32, "F32"),
    "bfloat16": (torch.bfloat16, "BF16"),
    "float16": (torch.float16, "F16"),
}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Constants that older checkpoints carry and that follow from the config."""


class Layout(NamedTuple):
    """The weights file before its data: the header's bytes, and the size of the data section."""

    header: bytes
    data_bytes: int


def check_parameters(checkpoint: Checkpoint, parts: Mapping[str, WeightParts], tied_head: bool) -> None:
    """Every parameter is in the checkpoint once, with the shape that the config implies, and nothing is left over.

    Raises:
        FailedPrecondition: a tensor is missing or has another shape, or a tied head differs from the embedding.
        Unimplemented: the checkpoint has a tensor that the engine would leave out.
    """
    present = checkpoint.names()
    for part in parts.values():
        for name, shape in zip(part.names, part.shapes, strict=True):
            if name not in present:
                message = f"The checkpoint lacks tensor {name}, which its config implies; download it again."
                raise broken("CHECKPOINT_MISSING_TENSOR", message, tensor=name)
            if checkpoint.shape(name) != shape:
                found = list(checkpoint.shape(name))
                message = f"Tensor {name} has shape {found}; the config implies {list(shape)}. The files do not match."
                raise broken("CHECKPOINT_SHAPE_MISMATCH", message, tensor=name, shape=found, expected=list(shape))
    if tied_head and HEAD in present and not _equal(checkpoint, HEAD, EMBEDDING):
        message = (
            f"The config ties the head to the embedding, and {HEAD} differs from {EMBEDDING}; set "
            "`tie_word_embeddings` to false in config.json if the head is meant."
        )
        raise broken("CHECKPOINT_HEAD_DIFFERS", message, tensor=HEAD)
    used = {name for part in parts.values() for name in part.names}
    for name in sorted(present - used):
        if name.endswith(IGNORED_SUFFIXES) or (tied_head and name == HEAD):
            continue
        message = f"The checkpoint has tensor {name}, which an engine of its architecture does not use."
        raise Unimplemented(message, reason="UNSUPPORTED_TENSOR", metadata={"tensor": name})


def _equal(checkpoint: Checkpoint, one: str, other: str) -> bool:
    if checkpoint.shape(one) != checkpoint.shape(other):
        return False
    pairs = zip(checkpoint.blocks(one), checkpoint.blocks(other), strict=False)
    return all(torch.equal(a, b) for a, b in pairs)


def plan_layout(parts: Mapping[str, WeightParts], dtype: str) -> Layout:
    """The safetensors header for the weights in `dtype`, in the order of `parts`."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position, width = 0, DTYPES[dtype][0].itemsize
    for name, part in parts.items():
        end = position + math.prod(part.shape) * width
        entries[name] = {"dtype": DTYPES[dtype][1], "shape": part.shape, "data_offsets": (position, end)}
        position = end
    raw = msgspec.json.encode(entries)
    raw += b" " * (-len(raw) % 8)
    return Layout(struct.pack("<Q", len(raw)) + raw, position)


def convert(
    checkpoint: Checkpoint, parts: Mapping[str, WeightParts], dtype: str, path: Path, progress: Progress
) -> None:
    """Writes the weights file: fused, cast, in the order of `parts`. Holds one block of a tensor at a time.

    Args:
        dtype: "float32", "bfloat16" or "float16".
        path: a new file.
        progress: called with the bytes written and the bytes of the file's data.

    Raises:
        FailedPrecondition: a weight is not finite, or does not fit the dtype.
    """
    layout = plan_layout(parts, dtype)
    done = 0
    with path.open("xb") as file:
        file.write(layout.header)
        for name in (name for part in parts.values() for name in part.names):
            for block in checkpoint.blocks(name):
                done += file.write(_cast(name, block, dtype).view(torch.uint8).numpy().data)
                progress(done, layout.data_bytes)
    assert done == layout.data_bytes, f"wrote {done} bytes of {layout.data_bytes}"


def _cast(name: str, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """A block of a tensor as the engine holds it, flat."""
    cast = tensor.to(DTYPES[dtype][0]).contiguous().flatten()
    low, high = (float(value) for value in torch.aminmax(cast))
    if math.isfinite(low) and math.isfinite(high):
        return cast
    message = (
        f"Tensor {name} has values that are not finite in {dtype}; choose another dtype (bfloat16 holds what float32 "
        "holds), or check the checkpoint."
    )
    raise FailedPrecondition(message, reason="WEIGHT_NOT_FINITE", metadata={"tensor": name, "dtype": dtype})
