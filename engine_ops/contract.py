"""Building the tensor contract's inputs for one step from plain sequences; used by verification and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_ops.graph import Graph


class Chunk(NamedTuple):
    """What one sequence adds in a step: `token_ids` from position `start`, over the sequence's `blocks` (block ids
    in order, enough for start + len(token_ids) tokens)."""

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]


def step_inputs(chunks: Sequence[Chunk], rows: Sequence[int] | None = None) -> dict[str, Tensor]:
    """The graph inputs, int32, of a step over `chunks`. `rows`: packed rows whose logits are wanted; None: all."""
    lengths = [len(chunk.token_ids) for chunk in chunks]
    width = max(1, *(len(chunk.blocks) for chunk in chunks))
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    data = {
        "token_ids": tokens,
        "positions": [chunk.start + i for chunk, length in zip(chunks, lengths, strict=True) for i in range(length)],
        "query_start": [sum(lengths[:i]) for i in range(len(lengths) + 1)],
        "seq_lens": [chunk.start + length for chunk, length in zip(chunks, lengths, strict=True)],
        "block_tables.0": [[*chunk.blocks, *[0] * (width - len(chunk.blocks))] for chunk in chunks],
        "logits_rows": list(range(len(tokens)) if rows is None else rows),
    }
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in data.items()}


def make_pools(graph: Graph, num_blocks: int, device: str = "cpu") -> dict[str, Tensor]:
    """Zeroed pools of `num_blocks` blocks (the null block included)."""
    return {
        name: torch.zeros(
            resolve(pool.tensor.shape, {"N": num_blocks}), dtype=torch_dtype(pool.tensor.dtype), device=device
        )
        for name, pool in graph.pools.items()
    }


def resolve(shape: Sequence[int | str], symbols: Mapping[str, int]) -> tuple[int, ...]:
    """`shape` with its symbols replaced."""
    return tuple(symbols[dim] if isinstance(dim, str) else dim for dim in shape)


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of a graph's dtype name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype
