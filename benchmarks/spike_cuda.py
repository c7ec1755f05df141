"""One decode step of a graph on CUDA with plain torch operators and a CUDA graph: the contract's third target.

    python benchmarks/spike_cuda.py --out spike_cuda.json

Captures the Llama-3.1-8B shape (or reads `--graph FILE`), fills it with dummy weights, and for each batch size times
the replay of one captured step at a context of 200 tokens. `--device cpu --shape tiny` tries the same code anywhere.
Needs torch, numpy, msgspec and the client's dependencies (grpcio, grpcio-status, googleapis-common-protos, protobuf,
tqdm).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine_ops.contract import Chunk, make_pools, resolve, step_inputs, torch_dtype
from engine_ops.graph import Graph, decode
from engine_ops.opset import Norm, PagedAttention, QkvRopeKv, Rope
from engine_ops.reference import REFERENCES, Outputs, rms_norm
from engine_ops.rope import rope_tables
from engine_ops.run import run_graph

BLOCK_SIZE = 32
SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 512,
    },
}


@lru_cache(maxsize=8)
def device_tables(rope: Rope, num_positions: int, device: str) -> tuple[Tensor, Tensor]:
    """cos and sin [num_positions, 1, dim / 2] on the device."""
    cos, sin = rope_tables(rope, num_positions)
    return torch.from_numpy(cos)[:, None].to(device), torch.from_numpy(sin)[:, None].to(device)


def rotate(rope: Rope, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = (table[positions] for table in device_tables(rope, 512, str(x.device)))
    a, b = x[..., : rope.dim].float().chunk(2, dim=-1)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
    return torch.cat([rotated, x[..., rope.dim :]], dim=-1) if rope.dim < x.shape[-1] else rotated


def qkv_rope_kv(
    attrs: QkvRopeKv,
    qkv: Tensor,
    positions: Tensor,
    query_start: Tensor,
    block_tables: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> Outputs:
    """The operator without a host synchronisation, so that a CUDA graph can hold it."""
    heads = [attrs.num_heads, attrs.num_kv_heads, attrs.num_kv_heads]
    q, k, v = qkv.view(len(qkv), sum(heads), attrs.head_dim).split(heads, dim=1)
    if q_norm is not None and k_norm is not None:
        (q,), (k,) = rms_norm(Norm(attrs.norm_eps), q, q_norm), rms_norm(Norm(attrs.norm_eps), k, k_norm)
    q, k = rotate(attrs.rope, q, positions), rotate(attrs.rope, k, positions)
    rows = torch.arange(len(qkv), device=qkv.device, dtype=torch.int32)
    sequence = torch.searchsorted(query_start, rows, right=True) - 1
    block, offset = block_tables[sequence, positions // BLOCK_SIZE], positions % BLOCK_SIZE
    k_pool[block, :, offset] = k
    v_pool[block, :, offset] = v
    return (q,)


def decode_attention(
    attrs: PagedAttention,
    q: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> Outputs:
    """paged_attention for one query a sequence (T = B): gather the blocks, mask, two batched products."""
    batch, kv_heads = len(seq_lens), attrs.num_kv_heads
    k, v = (pool[block_tables].transpose(1, 2).flatten(2, 3) for pool in (k_pool, v_pool))  # [B, NK, M * block, D]
    grouped = q.view(batch, kv_heads, attrs.num_heads // kv_heads, attrs.head_dim)
    scores = (grouped @ k.transpose(2, 3)).float() * attrs.scale
    keys = torch.arange(k.shape[2], device=q.device)
    hidden = keys >= seq_lens[:, None]
    if attrs.window is not None:
        hidden |= keys < seq_lens[:, None] - attrs.window
    weights = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1).to(q.dtype)
    return ((weights @ v).reshape(batch, -1),)


OPERATORS = {**REFERENCES, "qkv_rope_kv": qkv_rope_kv, "paged_attention": decode_attention}


def captured_graph(shape: str, device: str) -> Graph:
    from builder_service.build.capture import capture  # not needed with --graph
    from builder_service.models import read_spec

    spec = read_spec({"architectures": ["LlamaForCausalLM"], **SHAPES[shape]})
    return capture(spec, "float32" if device == "cpu" else "bfloat16", BLOCK_SIZE)


def dummy_weights(graph: Graph, device: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    weights = {}
    for name, tensor in graph.weights.items():
        weight = torch.empty(resolve(tensor.shape, {}), dtype=torch_dtype(tensor.dtype), device=device)
        weights[name] = weight.fill_(1.0) if "norm" in name else weight.normal_(std=0.02)
    return weights


def decode_inputs(batch: int, context: int, device: str) -> tuple[dict[str, Tensor], int]:
    """Inputs of a step where `batch` sequences each add token `context`, and the number of blocks they need."""
    per_sequence = -(-context // BLOCK_SIZE)
    chunks = [
        Chunk([100 + b], context - 1, range(1 + b * per_sequence, 1 + (b + 1) * per_sequence)) for b in range(batch)
    ]
    return {name: t.to(device) for name, t in step_inputs(chunks).items()}, 1 + batch * per_sequence


def cuda_graph(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """`step` captured, and the tensor that a replay writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return graph, output


def milliseconds(call: Callable[[], object], repeats: int = 50) -> float:
    """Median over `repeats`, each between two CUDA events."""
    times = []
    for index in range(repeats + 10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if index >= 10:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure(graph: Graph, weights: dict[str, Tensor], batch: int, context: int, device: str) -> dict[str, Any]:
    inputs, num_blocks = decode_inputs(batch, context, device)
    pools = make_pools(graph, num_blocks, device)
    for pool in pools.values():
        pool.normal_()

    def step() -> Tensor:
        return run_graph(graph, weights, inputs, pools, OPERATORS)["logits"]

    eager = step().clone()
    result: dict[str, Any] = {"batch": batch, "context": context, "finite": bool(eager.isfinite().all())}
    if device == "cpu":
        reference = run_graph(graph, weights, inputs, pools)["logits"]
        return {**result, "max_diff_to_reference": (eager - reference).abs().max().item()}
    captured, output = cuda_graph(step)
    output.zero_()
    captured.replay()
    torch.cuda.synchronize()
    return {
        **result,
        "replay_equals_eager": bool(torch.equal(output, eager)),
        "max_diff": (output - eager).abs().max().item(),
        "replay_ms": milliseconds(captured.replay),
        "eager_ms": milliseconds(step, 10),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graph", type=Path, help="a graph.json instead of capturing one")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, default=200)
    args = parser.parse_args()
    begin = time.perf_counter()
    graph = decode(args.graph.read_bytes()) if args.graph else captured_graph(args.shape, args.device)
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "nodes": len(graph.nodes),
        "graph_seconds": round(time.perf_counter() - begin, 2),
        "steps": [],
    }
    weights = dummy_weights(graph, args.device)
    for batch in args.batches:
        report["steps"].append(measure(graph, weights, batch, args.context, args.device))
        print(report["steps"][-1], flush=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
