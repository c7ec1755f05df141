"""The definition of each operator: one pure torch function, `f(attrs, *tensors) -> outputs`.

Parameters stand in the order of the operator's signature in `engine_ops.opset`. Written to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from engine_ops.opset import Linear, NoAttrs, Norm, PagedAttention, QkvRopeKv, Rope
from engine_ops.rope import RopeTables, rope_tables

Outputs = tuple[Tensor, ...]


def embedding(attrs: NoAttrs, token_ids: Tensor, weight: Tensor) -> Outputs:
    return (functional.embedding(token_ids, weight),)


def rms_norm(attrs: Norm, x: Tensor, weight: Tensor) -> Outputs:
    return (_normalise(x, weight, attrs.eps),)


def add_rms_norm(attrs: Norm, x: Tensor, residual: Tensor, weight: Tensor) -> Outputs:
    total = x + residual
    return _normalise(total, weight, attrs.eps), total


def linear(attrs: Linear, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Outputs:
    y = functional.linear(x, weight, bias)
    return (y.float() if attrs.out_dtype == "float32" else y,)


def silu_and_mul(attrs: NoAttrs, x: Tensor) -> Outputs:
    gate, up = x.chunk(2, dim=-1)
    return (functional.silu(gate) * up,)


def add(attrs: NoAttrs, x: Tensor, y: Tensor) -> Outputs:
    return (x + y,)


def select_rows(attrs: NoAttrs, x: Tensor, rows: Tensor) -> Outputs:
    return (x.index_select(0, rows),)


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
    heads = [attrs.num_heads, attrs.num_kv_heads, attrs.num_kv_heads]
    q, k, v = torch.split(qkv.reshape(len(qkv), sum(heads), attrs.head_dim), heads, dim=1)
    if q_norm is not None:
        q = _normalise(q, q_norm, attrs.norm_eps)
    if k_norm is not None:
        k = _normalise(k, k_norm, attrs.norm_eps)
    q, k = _rotate(attrs.rope, q, positions), _rotate(attrs.rope, k, positions)
    block_size = k_pool.shape[2]
    sequence = torch.searchsorted(query_start, torch.arange(len(qkv), device=qkv.device), right=True) - 1
    block, offset = block_tables[sequence, positions // block_size], positions % block_size
    k_pool[block, :, offset] = k.to(k_pool.dtype)
    v_pool[block, :, offset] = v.to(v_pool.dtype)
    return (q,)


def paged_attention(
    attrs: PagedAttention,
    q: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
) -> Outputs:
    y = torch.zeros_like(q)
    starts = query_start.tolist()
    for sequence, length in enumerate(seq_lens.tolist()):
        start, end = starts[sequence], starts[sequence + 1]
        if start == end:
            continue
        keys, values = (_gather(pool, block_tables[sequence], length, attrs) for pool in (k_pool, v_pool))
        scores = torch.einsum("qhd,hjd->hqj", q[start:end].float(), keys) * attrs.scale
        visible = _visible(end - start, length, attrs.window).to(q.device)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        y[start:end] = torch.einsum("hqj,hjd->qhd", weights, values).to(q.dtype)
    return (y.flatten(1),)


def _gather(pool: Tensor, blocks: Tensor, length: int, attrs: PagedAttention) -> Tensor:
    """The first `length` tokens of a sequence, one copy for each query head: float32 [NQ, length, D]."""
    count = -(-length // pool.shape[2])
    tokens = pool[blocks[:count]].transpose(0, 1).flatten(1, 2)[:, :length].float()
    return tokens.repeat_interleave(attrs.num_heads // attrs.num_kv_heads, dim=0)


def _visible(queries: int, length: int, window: int | None) -> Tensor:
    """bool [queries, length]: which keys each of the last `queries` positions sees."""
    p = torch.arange(length - queries, length)[:, None]
    j = torch.arange(length)[None]
    return (j <= p) if window is None else (j <= p) & (j > p - window)


def _normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rotate(rope: Rope, x: Tensor, positions: Tensor) -> Tensor:
    """Rotates the first `rope.dim` dimensions of x [T, heads, D] in float32."""
    rows = positions.cpu()
    tables = _tables(rope, 1 << max(8, int(rows.max()).bit_length()))
    cos, sin = (torch.from_numpy(table)[rows][:, None].to(x.device) for table in tables)
    a, b = x[..., : rope.dim].float().chunk(2, dim=-1)
    rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([rotated.to(x.dtype), x[..., rope.dim :]], dim=-1)


@lru_cache(maxsize=8)
def _tables(rope: Rope, num_positions: int) -> RopeTables:
    return rope_tables(rope, num_positions)


REFERENCES: dict[str, Callable[..., Outputs]] = {
    function.__name__: function
    for function in (
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
