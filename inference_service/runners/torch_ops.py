"""Opset 1 in plain torch operators, for any device: correct everywhere, fast where torch is.

Each entry of `FACTORIES` turns an instruction into a closure over its weights, called as kernel(values, data) once a
step; `values` are the activation slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine_ops.opset import Linear, Norm, PagedAttention, QkvRopeKv
from inference_service.runners.base import Step
from inference_service.runners.engine import Engine
from inference_service.runners.plan import Instruction, make_plan
from inference_service.runners.step_data import StepData

Values = list[torch.Tensor]
Kernel = Callable[[Values, StepData], None]
Factory = Callable[[Instruction, Engine], Kernel]


def embedding(instruction: Instruction, engine: Engine) -> Kernel:
    weight, (out,), dtype = engine.stored_weight(instruction, "weight"), instruction.outputs, engine.dtype

    def run(values: Values, data: StepData) -> None:
        values[out] = F.embedding(data.token_ids, weight).to(dtype)

    return run


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rms_norm(instruction: Instruction, engine: Engine) -> Kernel:
    attrs, weight = engine.attrs(instruction, Norm), engine.weight(instruction, "weight")
    x, (out,) = instruction.slot("x"), instruction.outputs

    def run(values: Values, data: StepData) -> None:
        values[out] = _normed(values[x], weight, attrs.eps)

    return run


def add_rms_norm(instruction: Instruction, engine: Engine) -> Kernel:
    attrs, weight = engine.attrs(instruction, Norm), engine.weight(instruction, "weight")
    x, residual, (out, residual_out) = instruction.slot("x"), instruction.slot("residual"), instruction.outputs

    def run(values: Values, data: StepData) -> None:
        total = values[x] + values[residual]
        values[residual_out] = total
        values[out] = _normed(total, weight, attrs.eps)

    return run


def linear(instruction: Instruction, engine: Engine) -> Kernel:
    attrs, weight = engine.attrs(instruction, Linear), engine.weight(instruction, "weight")
    bias = engine.optional_weight(instruction, "bias")
    x, (out,), wide = instruction.slot("x"), instruction.outputs, attrs.out_dtype == "float32"

    def run(values: Values, data: StepData) -> None:
        y = F.linear(values[x], weight, bias)
        values[out] = y.float() if wide else y

    return run


def add(instruction: Instruction, engine: Engine) -> Kernel:
    x, y, (out,) = instruction.slot("x"), instruction.slot("y"), instruction.outputs

    def run(values: Values, data: StepData) -> None:
        values[out] = values[x] + values[y]

    return run


def silu_and_mul(instruction: Instruction, engine: Engine) -> Kernel:
    x, (out,) = instruction.slot("x"), instruction.outputs

    def run(values: Values, data: StepData) -> None:
        gate, up = values[x].chunk(2, dim=-1)
        values[out] = F.silu(gate) * up

    return run


def select_rows(instruction: Instruction, engine: Engine) -> Kernel:
    x, (out,) = instruction.slot("x"), instruction.outputs

    def run(values: Values, data: StepData) -> None:
        values[out] = values[x].index_select(0, data.logits_rows)

    return run


class _Rotation(NamedTuple):
    cos: torch.Tensor
    sin: torch.Tensor


def _rotate(x: torch.Tensor, rotation: _Rotation) -> torch.Tensor:
    """Half-split rotation of the first 2 * half dimensions, in float32. x [T, heads, D], cos and sin [T, 1, half]."""
    half = rotation.cos.shape[-1]
    x1, x2 = x[..., :half].float(), x[..., half : 2 * half].float()
    cos, sin = rotation
    rotated = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).to(x.dtype)
    return torch.cat([rotated, x[..., 2 * half :]], dim=-1)


def qkv_rope_kv(instruction: Instruction, engine: Engine) -> Kernel:
    attrs = engine.attrs(instruction, QkvRopeKv)
    q_norm, k_norm = engine.optional_weight(instruction, "q_norm"), engine.optional_weight(instruction, "k_norm")
    k_pool, v_pool = engine.pool(instruction, "k_pool"), engine.pool(instruction, "v_pool")
    group = engine.group(instruction)
    cos, sin = engine.rope(attrs.rope)
    qkv, (out,) = instruction.slot("qkv"), instruction.outputs
    heads = [attrs.num_heads, attrs.num_kv_heads, attrs.num_kv_heads]
    kv_heads = torch.arange(attrs.num_kv_heads, device=engine.device)

    def run(values: Values, data: StepData) -> None:
        q, k, v = values[qkv].view(-1, sum(heads), attrs.head_dim).split_with_sizes(heads, dim=1)
        if q_norm is not None:
            q = _normed(q, q_norm, attrs.norm_eps)
        if k_norm is not None:
            k = _normed(k, k_norm, attrs.norm_eps)
        rotation = _Rotation(cos[data.positions][:, None], sin[data.positions][:, None])
        where = (data.blocks[group][:, None], kv_heads, data.offsets[group][:, None])
        k_pool[where] = _rotate(k, rotation)
        v_pool[where] = v
        values[out] = _rotate(q, rotation)

    return run


def paged_attention(instruction: Instruction, engine: Engine) -> Kernel:
    attrs = engine.attrs(instruction, PagedAttention)
    pools = _Pools(engine.pool(instruction, "k_pool"), engine.pool(instruction, "v_pool"))
    group = engine.group(instruction)
    q, (out,) = instruction.slot("q"), instruction.outputs

    def run(values: Values, data: StepData) -> None:
        query = values[q]
        result = torch.empty_like(query)
        if data.decode_max_len:
            _decode(attrs, pools, group, query, result, data)
        for row in data.prefill_rows:
            _prefill(attrs, pools, group, query, result, data, row)
        values[out] = result.view(len(query), -1)

    return run


class _Pools(NamedTuple):
    k: torch.Tensor
    v: torch.Tensor

    def gather(self, blocks: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B, NK, length, D] of block tables [B, M]."""
        k, v = (pool[blocks].transpose(1, 2).flatten(2, 3)[:, :, :length] for pool in self)
        return k, v


def _decode(
    attrs: PagedAttention, pools: _Pools, group: int, query: torch.Tensor, result: torch.Tensor, data: StepData
) -> None:
    """All sequences with one query token, padded to the longest."""
    length = data.decode_max_len
    blocks = -(-length // pools.k.shape[2])
    k, v = pools.gather(data.block_tables[group][data.decode_rows, :blocks], length)
    seen = data.key_positions[:length] < data.decode_lens[:, None]
    if attrs.window is not None:
        seen &= data.key_positions[:length] >= data.decode_lens[:, None] - attrs.window
    # A freed block may hold a NaN, which neither a score of -inf nor a weight of zero would silence.
    k, v = (x.masked_fill(~seen[:, None, :, None], 0) for x in (k, v))
    q = query[data.decode_tokens][:, :, None]
    y = F.scaled_dot_product_attention(q, k, v, seen[:, None, None], scale=attrs.scale, enable_gqa=True)
    result[data.decode_tokens] = y[:, :, 0]


def _prefill(
    attrs: PagedAttention,
    pools: _Pools,
    group: int,
    query: torch.Tensor,
    result: torch.Tensor,
    data: StepData,
    row: int,
) -> None:
    """One sequence's chunk of query tokens against all its keys so far."""
    start, end = (int(i) for i in data.step.query_start[row : row + 2])
    length = int(data.step.seq_lens[row])
    blocks = -(-length // pools.k.shape[2])
    k, v = pools.gather(data.block_tables[group][row : row + 1, :blocks], length)
    keys, positions = data.key_positions[:length], data.key_positions[length - (end - start) : length, None]
    seen = keys <= positions
    if attrs.window is not None:
        seen &= keys > positions - attrs.window
    q = query[None, start:end].transpose(1, 2)
    y = F.scaled_dot_product_attention(q, k, v, seen, scale=attrs.scale, enable_gqa=True)
    result[start:end] = y[0].transpose(0, 1)


FACTORIES: dict[str, Factory] = {
    "embedding": embedding,
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "linear": linear,
    "qkv_rope_kv": qkv_rope_kv,
    "paged_attention": paged_attention,
    "silu_and_mul": silu_and_mul,
    "add": add,
    "select_rows": select_rows,
}


class TorchProgram:
    """A graph as a list of closures over torch operators, on the engine's device."""

    def __init__(self, engine: Engine) -> None:
        plan = make_plan(engine.graph)
        self._engine = engine
        self._kernels = [FACTORIES[i.node.op](i, engine) for i in plan.instructions]
        self._values: Values = [torch.empty(0)] * len(plan.slots)
        self._output = plan.logits

    def run(self, step: Step) -> torch.Tensor:
        data = StepData(step, self._engine.block_sizes, self._engine.device)
        for kernel in self._kernels:
            kernel(self._values, data)
        return self._values[self._output]
