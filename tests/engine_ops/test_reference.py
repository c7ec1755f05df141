"""The packed, paged operators against a naive dense computation, one sequence at a time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine_ops.contract import Chunk, step_inputs
from engine_ops.opset import Linear, NoAttrs, Norm, PagedAttention, QkvRopeKv, Rope
from engine_ops.reference import REFERENCES
from engine_ops.rope import rope_tables

NUM_BLOCKS = 40


class Case(NamedTuple):
    """Sequences as (tokens already cached, new tokens), and the shape of the heads."""

    sequences: list[tuple[int, int]]
    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_dim: int
    window: int | None
    qk_norm: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from([1, 2, 4, 5]))
    length = st.sampled_from([0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size])
    sequences = draw(st.lists(st.tuples(length, length), min_size=1, max_size=3))
    if not any(new for _, new in sequences):
        sequences.append((draw(length), 1))
    num_kv_heads, group = draw(st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3)]))
    return Case(
        sequences=sequences,
        block_size=block_size,
        num_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=(head_dim := draw(st.sampled_from([4, 6]))),
        rope_dim=draw(st.sampled_from([2, 4, head_dim])),
        window=draw(st.sampled_from([None, 1, 3, 100])),
        qk_norm=draw(st.booleans()),
        seed=draw(st.integers(0, 1 << 16)),
    )


def dense(
    case: Case, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, new: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention output of the last `new` positions of one sequence, and its rotated k, and v: loops, no paging."""
    length, heads, kv_heads, dim = len(qkv), case.num_heads, case.num_kv_heads, case.head_dim
    cos, sin = (torch.from_numpy(t) for t in rope_tables(rope_of(case), max(1, length)))
    x = qkv.view(length, heads + 2 * kv_heads, dim).clone()
    for p in range(length):
        for h in range(heads + kv_heads):
            norm = q_norm if h < heads else k_norm
            if norm is not None:
                x[p, h] = x[p, h] / (x[p, h].square().mean() + 1e-5).sqrt() * norm
            for i in range(half := case.rope_dim // 2):
                a, b = x[p, h, i].clone(), x[p, h, i + half].clone()
                x[p, h, i] = a * cos[p, i] - b * sin[p, i]
                x[p, h, i + half] = b * cos[p, i] + a * sin[p, i]
    q, k, v = x[:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :]
    out = torch.zeros(new, heads, dim)
    for i, p in enumerate(range(length - new, length)):
        first = 0 if case.window is None else max(0, p - case.window + 1)
        for h in range(heads):
            kv = h // (heads // kv_heads)
            weights = torch.softmax(k[first : p + 1, kv] @ q[p, h] * dim**-0.5, 0)
            out[i, h] = weights @ v[first : p + 1, kv]
    return out.flatten(1), k, v


def rope_of(case: Case) -> Rope:
    return Rope("default", 100.0, case.rope_dim, 64)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_packed_paged_attention_equals_dense_attention(case: Case) -> None:
    torch.manual_seed(case.seed)
    width = (case.num_heads + 2 * case.num_kv_heads) * case.head_dim
    data = [torch.randn(cached + new, width) for cached, new in case.sequences]
    norms = [torch.rand(case.head_dim) + 0.5 for _ in range(2)] if case.qk_norm else [None, None]
    attrs = QkvRopeKv(case.num_heads, case.num_kv_heads, case.head_dim, rope_of(case), 1e-5 if case.qk_norm else 0.0)
    attention = PagedAttention(case.num_heads, case.num_kv_heads, case.head_dim, case.head_dim**-0.5, case.window)
    shape = (NUM_BLOCKS, case.num_kv_heads, case.block_size, case.head_dim)
    pools = [torch.full(shape, torch.nan) for _ in range(2)]  # what was never written must not be read
    ids = iter((torch.randperm(NUM_BLOCKS - 1) + 1).tolist())
    blocks = [[next(ids) for _ in range(-(-len(rows) // case.block_size))] for rows in data]
    for cut in ("cached", "new"):
        chunks, rows = [], []
        for sequence, (cached, new) in enumerate(case.sequences):
            start, count = (0, cached) if cut == "cached" else (cached, new)
            chunks.append(Chunk([0] * count, start, blocks[sequence]))
            rows.append(data[sequence][start : start + count])
        if not sum(map(len, rows)):
            continue
        step = step_inputs(chunks)
        where = (step["positions"], step["query_start"], step["block_tables.0"])
        (q,) = REFERENCES["qkv_rope_kv"](attrs, torch.cat(rows), *where, *pools, *norms)
        tables = (step["query_start"], step["seq_lens"], step["block_tables.0"])
        (y,) = REFERENCES["paged_attention"](attention, q, *tables, *pools)
    parts = y.split([new for _, new in case.sequences])
    for sequence, (_, new) in enumerate(case.sequences):
        expected, k, v = dense(case, data[sequence], *norms, new)
        assert torch.allclose(parts[sequence], expected, atol=2e-5)
        for pool, tokens in zip(pools, (k, v), strict=True):
            stored = pool[blocks[sequence]].transpose(1, 2).flatten(0, 1)[: len(tokens)]
            assert torch.allclose(stored, tokens, atol=1e-5)
    used = [0, *(block for table in blocks for block in table)]
    untouched = [block for block in range(NUM_BLOCKS) if block not in used]
    assert all(pool[untouched].isnan().all() for pool in pools)


def test_padding_sequences_write_to_the_null_block_alone() -> None:
    case = Case([(0, 3)], 4, 2, 1, 4, 4, None, False, 0)
    attrs = QkvRopeKv(2, 1, 4, rope_of(case))
    pools = [torch.full((3, 1, 4, 4), torch.nan) for _ in range(2)]
    step = step_inputs([Chunk([0] * 3, 0, [2]), Chunk([0], 0, []), Chunk([0], 0, [])])
    REFERENCES["qkv_rope_kv"](
        attrs, torch.randn(5, 16), step["positions"], step["query_start"], step["block_tables.0"], *pools
    )
    assert pools[0][1].isnan().all()
    assert not pools[0][0, :, 0].isnan().any()
    assert not pools[0][2, :, :3].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_rms_norm_is_the_norm_of_the_rounded_sum(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 8, dtype=dtype), torch.randn(5, 8, dtype=dtype), torch.rand(8, dtype=dtype)
    y, total = REFERENCES["add_rms_norm"](Norm(1e-5), x, residual, weight)
    (z,) = REFERENCES["add"](NoAttrs(), x, residual)
    (expected,) = REFERENCES["rms_norm"](Norm(1e-5), z, weight)
    assert torch.equal(total, z)
    assert torch.equal(y, expected)


def test_rms_norm_equals_torch() -> None:
    x, weight = torch.randn(7, 12), torch.rand(12)
    (y,) = REFERENCES["rms_norm"](Norm(1e-6), x, weight)
    assert torch.allclose(y, torch.nn.functional.rms_norm(x, (12,), weight, 1e-6), atol=1e-6)


def test_linear_adds_bias_and_gives_float32_logits_on_demand() -> None:
    x, weight, bias = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((3, 4), (5, 4), (5,)))
    (y,) = REFERENCES["linear"](Linear(), x, weight, bias)
    (logits,) = REFERENCES["linear"](Linear(out_dtype="float32"), x, weight)
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y.float(), x.float() @ weight.float().T + bias.float(), atol=5e-2)
    assert logits.dtype == torch.float32


def test_silu_and_mul_takes_the_gate_first() -> None:
    gate, up = torch.randn(3, 4), torch.randn(3, 4)
    (y,) = REFERENCES["silu_and_mul"](NoAttrs(), torch.cat([gate, up], 1))
    assert torch.allclose(y, gate * gate.sigmoid() * up, atol=1e-6)


def test_select_rows_keeps_the_order_asked_for() -> None:
    x = torch.randn(4, 2)
    (y,) = REFERENCES["select_rows"](NoAttrs(), x, torch.tensor([3, 0, 3], dtype=torch.int32))
    assert torch.equal(y, x[[3, 0, 3]])
