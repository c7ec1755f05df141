"""From a spec to a graph: torch.export traces the decoder on meta tensors, and its nodes become ours."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Node as FxNode

from builder_service.models.decoder import Batch, Cache, Decoder
from builder_service.models.spec import DecoderSpec, weight_parts
from engine_ops.graph import OPSET, DType, Graph, Node, Pool, Tensor, validate
from engine_ops.opset import OPS
from engine_ops.signature import Shaped, infer
from engine_ops.torch_ops import NAMESPACE, decode_attrs
from enginehouse.errors import InvalidArgument

INPUTS: dict[str, Tensor] = {
    "token_ids": Tensor("int32", ("T",)),
    "positions": Tensor("int32", ("T",)),
    "query_start": Tensor("int32", ("Q",)),
    "seq_lens": Tensor("int32", ("B",)),
    "block_tables.0": Tensor("int32", ("B", "M")),
    "logits_rows": Tensor("int32", ("R",)),
}
DTYPES = ("float32", "bfloat16", "float16")
_SAMPLE = {"T": 7, "Q": 4, "B": 3, "M": 5, "R": 2, "N": 6}
"""Extents while tracing: no 0 or 1, which torch.export specialises on, and no two alike."""


def capture(spec: DecoderSpec, dtype: str, block_size: int) -> Graph:
    """The graph of `spec` with activations, weights and cache in `dtype`. Takes no memory for weights.

    The same arguments give the same graph, byte for byte.
    """
    if dtype not in DTYPES:
        raise InvalidArgument(f"No engine in {dtype}; choose one of {', '.join(DTYPES)}.", metadata={"field": "dtype"})
    pools = _pools(spec, dtype, block_size)
    weights = {name: _tensor(dtype, part.shape) for name, part in weight_parts(spec).items()}
    with torch.device("meta"):
        model = Decoder(spec).to(getattr(torch, dtype)).eval().requires_grad_(False)
    types = {**INPUTS, **{name: pool.tensor for name, pool in pools.items()}}
    program = _export(model, types)
    reader = _Reader(_placeholders(program, types), {**types, **weights})
    for fx_node in program.graph.nodes:
        reader.read(fx_node)
    graph = Graph(
        format="enginehouse.graph",
        opset=OPSET,
        name=spec.architecture,
        inputs=INPUTS,
        pools=pools,
        weights=weights,
        nodes=tuple(reader.nodes),
        values=reader.values,
        outputs={"logits": reader.output},
    )
    validate(graph)
    return graph


def _pools(spec: DecoderSpec, dtype: str, block_size: int) -> dict[str, Pool]:
    tensor = _tensor(dtype, ("N", spec.num_kv_heads, block_size, spec.head_dim))
    return {
        f"{kind}_pool.{layer}": Pool(group=0, layer=layer, kind=kind, tensor=tensor)
        for layer in range(spec.num_layers)
        for kind in ("k", "v")
    }


def _tensor(dtype: str, shape: tuple[Any, ...]) -> Tensor:
    return Tensor(cast(DType, dtype), shape)


def _export(model: Decoder, types: dict[str, Tensor]) -> ExportedProgram:
    """`types`: the inputs, then each layer's pools, in the order of `Decoder.forward`'s flattened arguments."""
    dims = {symbol: Dim(symbol, min=1, max=1 << 20) for symbol in _SAMPLE}
    samples = [_sample(tensor) for tensor in types.values()]
    dynamic = [{axis: dims[d] for axis, d in enumerate(t.shape) if isinstance(d, str)} for t in types.values()]
    return torch.export.export(model, _arguments(samples), dynamic_shapes=_arguments(dynamic), strict=False)


def _sample(tensor: Tensor) -> torch.Tensor:
    shape = [_SAMPLE[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
    return torch.empty(shape, dtype=getattr(torch, tensor.dtype), device="meta")


def _arguments(flat: list[Any]) -> tuple[Any, ...]:
    """The arguments of `Decoder.forward` from their flattened form."""
    pools = flat[len(INPUTS) :]
    return flat[0], Batch(*flat[1:5]), flat[5], [Cache(k, v) for k, v in zip(pools[::2], pools[1::2], strict=True)]


def _placeholders(program: ExportedProgram, types: dict[str, Tensor]) -> dict[str, str]:
    """Names in the graph of torch.export's placeholders: weights by their module path, the rest in order."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **dict(zip(signature.user_inputs, types, strict=True))}


class _Reader:
    """Turns traced nodes into ours, one at a time."""

    def __init__(self, placeholders: dict[str, str], types: dict[str, Tensor]) -> None:
        self.nodes: list[Node] = []
        self.values: dict[str, Tensor] = {}
        self.output = ""
        self._placeholders = placeholders
        self._types = types
        self._names: dict[FxNode, tuple[str, ...]] = {}

    def read(self, fx_node: FxNode) -> None:
        arguments: Any = fx_node.args
        if fx_node.op == "placeholder":
            self._names[fx_node] = (self._placeholders[fx_node.name],)
        elif fx_node.op == "output":
            ((logits,),) = arguments
            (self.output,) = self._names[logits]
        elif str(fx_node.target).startswith(f"{NAMESPACE}."):
            self._operator(fx_node)
        elif "getitem" in str(fx_node.target):
            source, index = arguments
            self._names[fx_node] = (self._names[source][index],)
        else:
            raise AssertionError(f"the decoder applies {fx_node.target}, which is no operator of the opset")

    def _operator(self, fx_node: FxNode) -> None:
        op = str(fx_node.target).split(".")[1]
        arguments: Any = fx_node.args
        *tensors, encoded = arguments
        given = zip(OPS[op].inputs, tensors, strict=True)
        inputs = {param.name: self._names[tensor][0] for param, tensor in given if tensor is not None}
        attrs = decode_attrs(op, encoded)
        path = _module_path(fx_node)
        prefix = f"{path}.{op}" if path else op
        shaped = infer(op, attrs, {name: self._shaped(value) for name, value in inputs.items()})
        outputs = {f"{prefix}.{name}": _tensor(*kind) for name, kind in shaped.items()}
        assert not outputs.keys() & self.values.keys(), f"{prefix} is applied twice"
        self.values.update(outputs)
        self._types.update(outputs)
        self._names[fx_node] = tuple(outputs)
        self.nodes.append(Node(op, prefix, inputs, tuple(outputs), msgspec.to_builtins(attrs)))

    def _shaped(self, value: str) -> Shaped:
        return Shaped(self._types[value].dtype, self._types[value].shape)


def _module_path(fx_node: FxNode) -> str:
    """The module that applied the operator, as in "layers.0.attn"; "" for the decoder itself."""
    stack = fx_node.meta.get("nn_module_stack") or {"": ("", None)}
    return str(list(stack.values())[-1][0])
