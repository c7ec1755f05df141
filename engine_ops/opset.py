"""Opset 1: the operators and their typed attributes.

Operators stand at the granularity that a fast kernel wants. Parameter names are the keys of `Node.inputs`; those
ending in `?` are optional. x, y: activations in the graph's dtype. Weights are [out, in].

op              inputs                                                                  outputs
embedding       token_ids[T], weight[V,H]                                               y[T,H]
rms_norm        x[T,H], weight[H]                                                       y[T,H]
add_rms_norm    x[T,H], residual[T,H], weight[H]                                        y[T,H], residual_out[T,H]
linear          x[T,K], weight[N,K], bias?[N]                                           y[T,N]
qkv_rope_kv     qkv[T,(NQ+2NK)D], positions[T], query_start[Q], block_tables[B,M],      q[T,NQ,D]; writes k, v of each
                k_pool, v_pool, q_norm?[D], k_norm?[D]                                  token into the pools
paged_attention q[T,NQ,D], query_start[Q], seq_lens[B], block_tables[B,M], k_pool, v_pool   y[T,NQ*D]
silu_and_mul    x[T,2F] (gate, up)                                                      y[T,F]
add             x[T,H], y[T,H]                                                          z[T,H]
select_rows     x[T,H], rows[R]                                                         y[R,H]
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Attrs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all attribute records."""


class NoAttrs(Attrs, frozen=True):
    """An operator without attributes."""


class Norm(Attrs, frozen=True):
    """y = x / sqrt(mean(x^2) + eps) * weight, the mean in float32 (Zhang & Sennrich, arXiv:1910.07467)."""

    eps: float


class Linear(Attrs, frozen=True):
    """y = x @ weight.T + bias. `out_dtype` float32 makes the logits float32."""

    out_dtype: Literal["float32"] | None = None


class Rope(Attrs, frozen=True):
    """Rotary position embedding, half-split ("neox") form, over the first `dim` of the head's dimensions.

    `kind` and its parameters follow transformers' `rope_parameters`; `engine_ops.rope.rope_tables` turns the record
    into cos and sin tables. `dynamic`: the row of position p uses the base for a length of p + 1 tokens, so that a
    token's rotation never depends on how its sequence was chunked.
    """

    kind: Literal["default", "linear", "dynamic", "llama3", "yarn"]
    theta: float
    dim: int
    original_max_position: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    """Multiplies cos and sin (yarn); already resolved from mscale by the builder."""
    truncate: bool = True
    """yarn: round the correction range to whole dimensions."""


class QkvRopeKv(Attrs, frozen=True):
    """Splits qkv, applies q/k RMS norm over head_dim where weights are given, rotates q and k, writes k and v to the
    pools at (block_tables[b, position // block_size], position % block_size), returns q."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    norm_eps: float = 0.0


class PagedAttention(Attrs, frozen=True):
    """softmax(q k^T * scale) v. Token t of sequence b at query offset i sits at position
    p = seq_lens[b] - query_len[b] + i and sees keys j with max(0, p - window + 1) <= j <= p."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


ATTRS: dict[str, type[Attrs]] = {
    "embedding": NoAttrs,
    "rms_norm": Norm,
    "add_rms_norm": Norm,
    "linear": Linear,
    "qkv_rope_kv": QkvRopeKv,
    "paged_attention": PagedAttention,
    "silu_and_mul": NoAttrs,
    "add": NoAttrs,
    "select_rows": NoAttrs,
}
