"""Lowers a graph.json to a TensorRT RTX plan, from the graph alone: the contract's second target. Throw-away.

    python benchmarks/spike_rtx.py --out spike_rtx.json [--graph FILE] [--weights constants|inputs] [--plan FILE]

Native layers only. The paged KV cache is updated by IKVCacheUpdateLayer, each block standing for a slot, and read by
gathering a sequence's blocks; attention is padded, with an explicit mask and no causal flag. What the network needs
beyond the tensor contract is derived by the caller (`derive`). Builds without a GPU; running needs one.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import tensorrt_rtx as trt
import torch
from torch import Tensor

from builder_service.build.capture import capture
from builder_service.models import read_spec
from engine_ops.contract import resolve, torch_dtype
from engine_ops.graph import Graph, Node, decode
from engine_ops.opset import OPS, Linear, Norm, PagedAttention, QkvRopeKv, Rope
from engine_ops.rope import rope_tables

DTYPES = {"float32": trt.float32, "bfloat16": trt.bfloat16, "float16": trt.float16, "int32": trt.int32}
RANGES = {
    "T": (1, 64, 2048),
    "B": (1, 8, 64),
    "Q": (2, 9, 65),
    "R": (1, 8, 64),
    "M": (1, 16, 256),
    "N": (2, 512, 1 << 16),
}
RANGES |= {"N1": (3, 513, (1 << 16) + 1), "S": (1, 16, 2048)}
"""Profile of each symbol: min, opt, max. S: longest query of the step; N1 = N + 1."""
ROPE_POSITIONS = 8192
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}


def derive(graph: Graph, inputs: Mapping[str, Tensor], num_blocks: int) -> dict[str, Tensor]:
    """The network's own inputs from the contract's: padding of queries, tokens sorted by block, masks."""
    start, lengths = inputs["query_start"].tolist(), inputs["seq_lens"].tolist()
    tables, positions = inputs["block_tables.0"], inputs["positions"].long()
    block_size = next(iter(graph.pools.values())).tensor.shape[2]
    batch, longest = len(lengths), max(b - a for a, b in pairwise(start))
    gather, scatter = torch.zeros(batch, longest, dtype=torch.int32), torch.zeros(start[-1], dtype=torch.int32)
    at, sequence = torch.full((batch, longest), -1), torch.zeros(start[-1], dtype=torch.long)
    for b, (first, end) in enumerate(pairwise(start)):
        rows = torch.arange(first, end, dtype=torch.int32)
        gather[b, : end - first], scatter[first:end] = rows, rows - first + b * longest
        at[b, : end - first], sequence[first:end] = positions[first:end], b
    block, offset = tables[sequence, positions // block_size].long(), positions % block_size
    order = torch.argsort(block * block_size + offset)
    counts = torch.bincount(block, minlength=num_blocks)
    first_offset = torch.zeros(num_blocks, dtype=torch.int32)
    first_offset[block[order].flip(0)] = offset[order].flip(0).int()  # the first token of a block wins
    keys = torch.arange(tables.shape[1] * block_size)
    derived = {
        "query_gather": gather,
        "query_scatter": scatter,
        "token_order": order.int(),
        "block_start": torch.cat([torch.zeros(1), counts.cumsum(0)]).int(),
        "block_offset": first_offset,
    }
    for name, window in _masks(graph).items():
        seen = keys <= at[:, :, None]
        if window is not None:
            seen &= keys > at[:, :, None] - window
        seen |= (at < 0)[:, :, None]  # padding queries see everything, so that no row is empty
        derived[name] = seen[:, None]
    return derived


def _mask_name(window: int | None) -> str:
    return "mask" if window is None else f"mask.{window}"


def _masks(graph: Graph) -> dict[str, int | None]:
    windows = {node.attrs.get("window") for node in graph.nodes if node.op == "paged_attention"}
    return {_mask_name(window): window for window in windows}


class Lowering:
    """One network under construction. `constants` are kept alive: TensorRT holds them by reference until the build."""

    def __init__(self, network: Any, graph: Graph, weights: Mapping[str, Tensor] | None) -> None:
        self.network, self.graph = network, graph
        self.env: dict[str, Any] = {}
        self.constants: list[Tensor] = []
        self.shapes: dict[str, tuple[int | str, ...]] = {}
        self._tables: dict[Rope, tuple[Any, Any]] = {}
        block_size = next(iter(graph.pools.values())).tensor.shape[2]
        for name, tensor in graph.inputs.items():
            self.input(name, tensor.dtype, tensor.shape)
        for name, pool in graph.pools.items():
            self.input(name, pool.tensor.dtype, pool.tensor.shape)
        for name, shape in (
            ("query_gather", ("B", "S")),
            ("query_scatter", ("T",)),
            ("token_order", ("T",)),
            ("block_start", ("N1",)),
            ("block_offset", ("N",)),
        ):
            self.input(name, "int32", shape)
        for name in _masks(graph):
            self.input(name, "bool", ("B", 1, "S", f"{block_size}*M"))
        for name, tensor in graph.weights.items():
            if weights is None:
                self.input(name, tensor.dtype, tensor.shape)
            else:
                self.env[name] = self.constant(weights[name])

    def input(self, name: str, dtype: str, shape: tuple[int | str, ...]) -> None:
        kind = trt.bool if dtype == "bool" else DTYPES[dtype]
        dims = tuple(dim if isinstance(dim, int) else -1 for dim in shape)
        self.env[name] = self.network.add_input(name, kind, dims)
        self.shapes[name] = shape
        for axis, dim in enumerate(shape):
            if isinstance(dim, str) and "*" not in dim:
                self.env[name].set_dimension_name(axis, dim)

    def constant(self, tensor: Tensor) -> Any:
        tensor = tensor.contiguous()
        self.constants.append(tensor)
        kind = trt.int64 if tensor.dtype == torch.int64 else DTYPES[str(tensor.dtype).removeprefix("torch.")]
        weights = trt.Weights(kind, tensor.data_ptr(), tensor.numel())
        return self.out(self.network.add_constant(tuple(tensor.shape), weights))

    @staticmethod
    def out(layer: Any) -> Any:
        assert layer is not None, "TensorRT refused a layer; see its log"
        return layer.get_output(0)

    def shuffle(self, x: Any, shape: tuple[int, ...] | None = None, before: Any = None) -> Any:
        layer = self.network.add_shuffle(x)
        if before is not None:
            layer.first_transpose = trt.Permutation(list(before))
        if shape is not None:
            layer.reshape_dims = shape
        return layer.get_output(0)

    def binary(self, op: str, x: Any, y: Any) -> Any:
        return self.out(self.network.add_elementwise(x, y, getattr(trt.ElementWiseOperation, op)))

    def cast(self, x: Any, kind: Any) -> Any:
        return x if x.dtype == kind else self.out(self.network.add_cast(x, kind))

    def gather(self, x: Any, rows: Any) -> Any:
        return self.out(self.network.add_gather(x, rows, 0))

    def columns(self, x: Any, start: int, size: int) -> Any:
        layer = self.network.add_slice(x, (start,), (size,), (1,))
        layer.set_input(5, self.constant(torch.tensor([1], dtype=torch.int64)))
        return layer.get_output(0)

    def normalise(self, x: Any, weight: Any, eps: float) -> Any:
        rank = len(x.shape)
        x32 = self.cast(x, trt.float32)
        square = self.binary("PROD", x32, x32)
        mean = self.out(self.network.add_reduce(square, trt.ReduceOperation.AVG, 1 << (rank - 1), True))
        root = self.binary("SUM", mean, self.constant(torch.full((1,) * rank, eps)))
        for op in (trt.UnaryOperation.SQRT, trt.UnaryOperation.RECIP):
            root = self.out(self.network.add_unary(root, op))
        y = self.cast(self.binary("PROD", x32, root), x.dtype)
        return self.binary("PROD", y, self.shuffle(weight, (1,) * (rank - 1) + (-1,)))

    def rotate(self, x: Any, rope: Rope) -> Any:
        """x [T, heads, D], in float32 with float32 tables."""
        if rope not in self._tables:
            cos, sin = rope_tables(rope, ROPE_POSITIONS)
            self._tables[rope] = self.constant(torch.from_numpy(cos)), self.constant(torch.from_numpy(sin))
        _, heads, dim = x.shape
        x4 = self.cast(self.shuffle(x, (-1, heads, 1, dim)), trt.float32)
        layer = self.network.add_rotary_embedding(x4, *self._tables[rope], False, rope.dim)
        layer.set_input(3, self.shuffle(self.env["positions"], (-1, 1)))
        return self.cast(self.shuffle(layer.get_output(0), (-1, heads, dim)), x.dtype)

    def write(self, pool: Any, tokens: Any) -> Any:
        """`pool` with this step's tokens [T, NK, D] in it: blocks are slots, tokens stand sorted by block."""
        rows = self.gather(tokens, self.env["token_order"])
        layer = self.network.add_kv_cache_update(pool, rows, self.env["block_offset"], trt.KVCacheMode.LINEAR)
        layer.update_form = trt.AttentionIOForm.PACKED_NHD
        layer.update_lengths = self.env["block_start"]
        updated = layer.get_output(0)
        updated.name = f"{pool.name}.out"
        self.network.mark_output(updated)
        return updated

    def read(self, pool: Any, block_tables: Any, heads: int, dim: int) -> Any:
        """[B, NK, M * block_size, D]: the blocks of each sequence."""
        return self.shuffle(self.gather(pool, block_tables), (0, heads, -1, dim), before=(0, 2, 1, 3, 4))


def embedding(low: Lowering, attrs: Any, token_ids: Any, weight: Any) -> tuple[Any, ...]:
    return (low.gather(weight, token_ids),)


def rms_norm(low: Lowering, attrs: Norm, x: Any, weight: Any) -> tuple[Any, ...]:
    return (low.normalise(x, weight, attrs.eps),)


def add_rms_norm(low: Lowering, attrs: Norm, x: Any, residual: Any, weight: Any) -> tuple[Any, ...]:
    total = low.binary("SUM", x, residual)
    return low.normalise(total, weight, attrs.eps), total


def linear(low: Lowering, attrs: Linear, x: Any, weight: Any, bias: Any = None) -> tuple[Any, ...]:
    none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    y = low.out(low.network.add_matrix_multiply(x, none, weight, transpose))
    if bias is not None:
        y = low.binary("SUM", y, low.shuffle(bias, (1, -1)))
    return (low.cast(y, DTYPES[attrs.out_dtype]) if attrs.out_dtype else y,)


def qkv_rope_kv(
    low: Lowering, attrs: QkvRopeKv, qkv: Any, *rest: Any, q_norm: Any = None, k_norm: Any = None
) -> tuple[Any, ...]:
    dim, start, parts = attrs.head_dim, 0, []
    for heads, norm in ((attrs.num_heads, q_norm), (attrs.num_kv_heads, k_norm), (attrs.num_kv_heads, None)):
        x = low.shuffle(low.columns(qkv, start * dim, heads * dim), (-1, heads, dim))
        parts.append(x if norm is None else low.normalise(x, norm, attrs.norm_eps))
        start += heads
    q, k, v = low.rotate(parts[0], attrs.rope), low.rotate(parts[1], attrs.rope), parts[2]
    for pool, tokens in zip(rest[-2:], (k, v), strict=True):
        low.env[pool.name] = low.write(pool, tokens)
    return (q,)


def paged_attention(
    low: Lowering, attrs: PagedAttention, q: Any, query_start: Any, seq_lens: Any, tables: Any, k: Any, v: Any
) -> tuple[Any, ...]:
    heads, kv_heads, dim = attrs.num_heads, attrs.num_kv_heads, attrs.head_dim
    scaled = low.binary("PROD", q, low.cast(low.constant(torch.full((1, 1, 1), attrs.scale)), q.dtype))
    padded = low.gather(scaled, low.env["query_gather"])  # [B, S, NQ, D]
    layer = low.network.add_attention_v2(
        low.shuffle(padded, before=(0, 2, 1, 3)),
        low.read(k, tables, kv_heads, dim),
        low.read(v, tables, kv_heads, dim),
        trt.AttentionNormalizationOp.SOFTMAX,
        trt.CausalMaskKind.NONE,
    )
    layer.mask = low.env[_mask_name(attrs.window)]
    assert layer.mask is not None, "the mask was refused; see the log"
    layer.decomposable = True
    rows = low.shuffle(low.out(layer), (-1, heads * dim), before=(0, 2, 1, 3))
    return (low.gather(rows, low.env["query_scatter"]),)


def silu_and_mul(low: Lowering, attrs: Any, x: Any) -> tuple[Any, ...]:
    half = x.shape[1] // 2
    gate, up = low.columns(x, 0, half), low.columns(x, half, half)
    sigmoid = low.out(low.network.add_activation(gate, trt.ActivationType.SIGMOID))
    return (low.binary("PROD", low.binary("PROD", gate, sigmoid), up),)


def add(low: Lowering, attrs: Any, x: Any, y: Any) -> tuple[Any, ...]:
    return (low.binary("SUM", x, y),)


def select_rows(low: Lowering, attrs: Any, x: Any, rows: Any) -> tuple[Any, ...]:
    return (low.gather(x, rows),)


LOWERINGS: dict[str, Callable[..., tuple[Any, ...]]] = {
    f.__name__: f
    for f in (
        embedding,
        rms_norm,
        add_rms_norm,
        linear,
        qkv_rope_kv,
        paged_attention,
        silu_and_mul,
        add,
        select_rows,
    )
}


def lower(network: Any, graph: Graph, weights: Mapping[str, Tensor] | None) -> Lowering:
    """Fills `network`. `weights` None: they become network inputs."""
    low = Lowering(network, graph, weights)
    for node in graph.nodes:
        arguments = {name: low.env[value] for name, value in node.inputs.items()}
        optional = {name: arguments.pop(name) for name in ("q_norm", "k_norm") if name in arguments}
        outputs = LOWERINGS[node.op](low, node.typed_attrs(), *_ordered(node, arguments), **optional)
        low.env.update(zip(node.outputs, outputs, strict=True))
    for name, value in graph.outputs.items():
        low.env[value].name = name
        network.mark_output(low.env[value])
    return low


def _ordered(node: Node, arguments: dict[str, Any]) -> list[Any]:
    return [arguments[p.name] for p in OPS[node.op].inputs if p.name in arguments]


def add_profile(builder: Any, config: Any, low: Lowering) -> None:
    profile = builder.create_optimization_profile()
    for name, shape in low.shapes.items():
        bounds = [tuple(_extent(dim, index) for dim in shape) for index in range(3)]
        if any(isinstance(dim, str) for dim in shape):
            profile.set_shape(name, *bounds)
    assert config.add_optimization_profile(profile) >= 0, "the profile was refused; see the log"


def _extent(dim: int | str, index: int) -> int:
    if isinstance(dim, int):
        return dim
    factor, _, symbol = dim.rpartition("*")
    return int(factor or 1) * RANGES[symbol][index]


class Log(trt.ILogger):  # type: ignore[misc]
    """Keeps errors; the driver's complaints on a machine without a GPU are left out."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity <= trt.ILogger.ERROR and "cudaError 35" not in message:
            self.errors.append(message)
            print("TensorRT:", message[:400], flush=True)


def build(
    graph: Graph, weights: Mapping[str, Tensor] | None, capabilities: list[str]
) -> tuple[bytes | None, dict[str, Any]]:
    """The plan (None: refused) and what was measured."""
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    begin = time.perf_counter()
    low = lower(network, graph, weights)
    lowered = time.perf_counter()
    config = builder.create_builder_config()
    add_profile(builder, config, low)
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    plan = builder.build_serialized_network(network, config)
    report = {
        "weights": "inputs" if weights is None else "constants",
        "capabilities": capabilities,
        "layers": network.num_layers,
        "lower_seconds": round(lowered - begin, 2),
        "build_seconds": round(time.perf_counter() - lowered, 2),
        "plan_bytes": plan.nbytes if plan else None,
        "weight_bytes": sum(t.numel() * t.element_size() for t in (weights or {}).values()),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "errors": log.errors,
    }
    return (bytes(plan) if plan else None), report


def dummy_weights(graph: Graph) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {name: (resolve(t.shape, {}), torch_dtype(t.dtype)) for name, t in graph.weights.items()}
    return {name: torch.randn(shape).mul_(0.02).to(dtype) for name, (shape, dtype) in shapes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graph", type=Path, help="a graph.json; without it a tiny one is captured")
    parser.add_argument("--weights", choices=("constants", "inputs"), default="constants")
    parser.add_argument("--capabilities", nargs="+", default=["SM86", "SM89", "SM120"])
    parser.add_argument("--plan", type=Path)
    args = parser.parse_args()
    graph = decode(args.graph.read_bytes()) if args.graph else capture(read_spec(TINY), "bfloat16", 32)
    weights = dummy_weights(graph) if args.weights == "constants" else None
    plan, report = build(graph, weights, args.capabilities)
    report["operators"] = dict(Counter(node.op for node in graph.nodes))
    if plan and args.plan:
        args.plan.write_bytes(plan)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
