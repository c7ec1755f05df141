"""The graph format: `graph.json`, a flat list of operators over named values.

A value is a graph input, a weight, a pool, or the output of one node. Shapes are tuples of integers and symbols.
The operators and their attributes are in `engine_ops.opset`; the tensor contract is in docs/engine-format.md.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import msgspec

from engine_ops.opset import OPS, Attrs
from engine_ops.signature import Mismatch, Shaped, infer
from enginehouse.errors import FailedPrecondition, InvalidArgument

OPSET = 1
SUPPORTED_OPSETS = (1,)
MAX_BYTES = 64 << 20
"""Largest graph.json that `decode` reads."""

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

    def typed_attrs(self) -> Attrs:
        """`attrs` as the operator's record. Raises InvalidArgument where they are not that."""
        if self.op not in OPS:
            _invalid(f"operator `{self.op}` is not in opset {OPSET}", node=self.name, op=self.op)
        try:
            return msgspec.convert(self.attrs, OPS[self.op].attrs)
        except msgspec.ValidationError as error:
            _invalid(f"attributes of `{self.op}`: {error}", node=self.name, op=self.op)


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole model for one rank. `nodes` are in a valid execution order. `values` holds the type of every node
    output; `outputs` maps the name of a graph output to the value that it is."""

    format: Literal["enginehouse.graph"]
    opset: int
    name: str
    inputs: dict[str, Tensor]
    pools: dict[str, Pool]
    weights: dict[str, Tensor]
    nodes: tuple[Node, ...]
    values: dict[str, Tensor]
    outputs: dict[str, str]


def encode(graph: Graph) -> bytes:
    """The bytes of graph.json: the same graph gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(graph), indent=1)


def decode(data: bytes) -> Graph:
    """Reads and validates graph.json.

    Raises:
        InvalidArgument: the bytes are no valid graph (reason INVALID_GRAPH).
        FailedPrecondition: the graph needs an opset that this version does not run (reason UNSUPPORTED_OPSET).
    """
    if len(data) > MAX_BYTES:
        _invalid(f"graph of {len(data)} bytes is larger than {MAX_BYTES}", size=len(data))
    try:
        graph = msgspec.json.decode(data, type=Graph)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"Not a graph: {error}.", reason="INVALID_GRAPH") from error
    validate(graph)
    return graph


def validate(graph: Graph) -> None:
    """Checks that every node is well-typed and that values are defined before they are used.

    Raises:
        InvalidArgument: names the node and the value at fault (reason INVALID_GRAPH).
        FailedPrecondition: the opset is not supported (reason UNSUPPORTED_OPSET).
    """
    if graph.opset not in SUPPORTED_OPSETS:
        supported = ", ".join(map(str, SUPPORTED_OPSETS))
        raise FailedPrecondition(
            f"The graph needs opset {graph.opset}; this version runs {supported}. Rebuild the engine or upgrade.",
            reason="UNSUPPORTED_OPSET",
            metadata={"opset": graph.opset, "supported": supported},
        )
    types: dict[str, Tensor] = {}
    pools = {name: pool.tensor for name, pool in graph.pools.items()}
    for kind in (graph.inputs, pools, graph.weights):
        for value, tensor in kind.items():
            _define(types, value, tensor, node="")
    for node in graph.nodes:
        _check_node(graph, node, types)
    for output, value in graph.outputs.items():
        if value not in types:
            _invalid(f"output `{output}` is undefined value `{value}`", value=value)
    if unused := set(graph.values) - set(types):
        _invalid(f"value `{min(unused)}` has a type and no node that gives it", value=min(unused))


def _check_node(graph: Graph, node: Node, types: dict[str, Tensor]) -> None:
    attrs = node.typed_attrs()
    operator = OPS[node.op]
    params = {param.name: param for param in operator.inputs}
    for name, value in node.inputs.items():
        if name not in params:
            _invalid(f"`{node.op}` has no input `{name}`", node=node.name, input=name)
        if value not in types:
            _invalid(f"input `{name}` is undefined value `{value}`", node=node.name, value=value)
        if params[name].mutable and value not in graph.pools:
            _invalid(f"input `{name}` is updated in place; `{value}` is not a pool", node=node.name, value=value)
    if missing := [p.name for p in operator.inputs if not p.optional and p.name not in node.inputs]:
        _invalid(f"`{node.op}` lacks input `{missing[0]}`", node=node.name, input=missing[0])
    try:
        given = {name: Shaped(types[value].dtype, types[value].shape) for name, value in node.inputs.items()}
        inferred = infer(node.op, attrs, given)
    except Mismatch as error:
        value = node.inputs[error.param]
        _invalid(f"input `{error.param}` = `{value}` {error}", node=node.name, value=value)
    if len(node.outputs) != len(inferred):
        _invalid(f"`{node.op}` has {len(inferred)} outputs, not {len(node.outputs)}", node=node.name)
    for value, shaped in zip(node.outputs, inferred.values(), strict=True):
        declared = graph.values.get(value)
        if declared is None or (declared.dtype, declared.shape) != shaped:
            _invalid(
                f"value `{value}` is declared as {declared}, `{node.op}` gives {shaped}", node=node.name, value=value
            )
        _define(types, value, declared, node.name)


def _define(types: dict[str, Tensor], value: str, tensor: Tensor, node: str) -> None:
    if value in types:
        _invalid(f"value `{value}` is defined twice", node=node, value=value)
    if any(isinstance(dim, int) and dim < 1 for dim in tensor.shape):
        _invalid(f"value `{value}` has an extent below 1: {tensor.shape}", node=node, value=value)
    types[value] = tensor


def _invalid(problem: str, **metadata: object) -> NoReturn:
    place = f" at node `{metadata['node']}`" if metadata.get("node") else ""
    raise InvalidArgument(f"Invalid graph{place}: {problem}.", reason="INVALID_GRAPH", metadata=metadata)
