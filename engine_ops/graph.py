"""The graph format: `graph.json`, a flat list of operators over named values.

A value is a graph input, a weight, a pool, or the output of one node. Shapes are tuples of integers and symbols.
The operators and their attributes are in `engine_ops.opset`; the tensor contract is in docs/engine-format.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

OPSET = 1

DType = Literal["float32", "bfloat16", "float16", "int32"]
Dim = int | str
"""An integer, or a symbol: T tokens, B sequences, Q = B + 1, R logits rows, M blocks a sequence, N blocks in a pool."""


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Type of a value."""

    dtype: DType
    shape: tuple[Dim, ...]


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A KV cache pool, updated in place. Shape [N, num_kv_heads, block_size, head_dim]; block 0 is never allocated:
    padding tokens write there."""

    group: int
    layer: int
    kind: Literal["k", "v"]
    tensor: Tensor


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operator application. `inputs` maps the operator's parameter names to value names; an optional parameter
    that is not given is absent. `name` is the module path in the model, for messages."""

    op: str
    name: str
    inputs: dict[str, str]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = {}


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole model for one rank. `nodes` are in a valid execution order."""

    format: Literal["enginehouse.graph"]
    opset: int
    name: str
    inputs: dict[str, Tensor]
    pools: dict[str, Pool]
    weights: dict[str, Tensor]
    nodes: tuple[Node, ...]
    values: dict[str, Tensor]
    outputs: dict[str, str]
