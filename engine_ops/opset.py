"""Opset 1: the operators, their parameters and their typed attributes. `OPS` is the one table of them.

Operators stand at the granularity that a fast kernel wants. A signature lists parameters as `name dtype[shape]`:
`name?` is optional, `name!` is updated in place. dtypes: `a` activations, `c` cache, `i` int32, `o` output (float32
where the attributes say so, else `a`). Shape names are local to one application and must agree within it; those that
attributes fix come from `Attrs.dims`. Weights are [out, in]. The definition of each operator is its function in
`engine_ops.reference`; a kernel may keep intermediate values in float32 where the definition rounds.

embedding        y = weight[token_ids]
rms_norm         y = x / sqrt(mean(x^2) + eps) * weight
add_rms_norm     residual_out = x + residual; y = rms_norm(residual_out)
linear           y = x weight^T + bias
qkv_rope_kv      splits qkv, norms and rotates q and k, writes k and v into the pools, returns q
paged_attention  causal (optionally windowed) attention of packed rows over paged keys and values
silu_and_mul     y = silu(x[:, :F]) * x[:, F:]
add              z = x + y
select_rows      y = x[rows]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec


class Attrs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all attribute records."""

    def dims(self) -> dict[str, int]:
        """Shape names of the operator's signature whose extents the attributes fix."""
        return {}

    def output_dtype(self) -> str | None:
        """dtype of outputs marked `o`; None: that of the activations."""
        return None


class NoAttrs(Attrs, frozen=True):
    """An operator without attributes."""


class Norm(Attrs, frozen=True):
    """y = x / sqrt(mean(x^2) + eps) * weight, the mean in float32 (Zhang & Sennrich, arXiv:1910.07467)."""

    eps: float


class Linear(Attrs, frozen=True):
    """y = x @ weight.T + bias. `out_dtype` float32 makes the logits float32."""

    out_dtype: Literal["float32"] | None = None

    def output_dtype(self) -> str | None:
        return self.out_dtype


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

    def dims(self) -> dict[str, int]:
        heads, kv_heads, dim = self.num_heads, self.num_kv_heads, self.head_dim
        return {"NQ": heads, "NK": kv_heads, "D": dim, "QKV": (heads + 2 * kv_heads) * dim}

    def __post_init__(self) -> None:
        _check_heads(self.num_heads, self.num_kv_heads)
        if self.rope.dim % 2 or not 0 < self.rope.dim <= self.head_dim:
            raise ValueError(f"rope.dim {self.rope.dim} is not even and within head_dim {self.head_dim}")


class PagedAttention(Attrs, frozen=True):
    """softmax(q k^T * scale) v. Token t of sequence b at query offset i sits at position
    p = seq_lens[b] - query_len[b] + i and sees keys j with max(0, p - window + 1) <= j <= p."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None

    def dims(self) -> dict[str, int]:
        return {"NQ": self.num_heads, "NK": self.num_kv_heads, "D": self.head_dim, "QD": self.num_heads * self.head_dim}

    def __post_init__(self) -> None:
        _check_heads(self.num_heads, self.num_kv_heads)
        if self.window is not None and self.window < 1:
            raise ValueError(f"window {self.window} is below 1")


def _check_heads(num_heads: int, num_kv_heads: int) -> None:
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")


@dataclass(frozen=True)
class Param:
    """One parameter or output: `shape` holds integers' names, a leading factor as in "2F", see `parse`."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    optional: bool = False
    mutable: bool = False


def parse(signature: str) -> tuple[Param, ...]:
    """Reads "x a[T,H]; bias? a[N]; k_pool! c[P,NK,S,D]"."""
    params = []
    for part in signature.split(";"):
        name, kind = part.split()
        dtype, shape = kind.rstrip("]").split("[")
        params.append(Param(name.rstrip("?!"), dtype, tuple(shape.split(",")), "?" in name, "!" in name))
    return tuple(params)


@dataclass(frozen=True)
class Operator:
    """An operator's attribute record and signature. Parameters stand in call order, optional ones last."""

    attrs: type[Attrs]
    takes: str
    gives: str

    @cached_property
    def inputs(self) -> tuple[Param, ...]:
        return parse(self.takes)

    @cached_property
    def outputs(self) -> tuple[Param, ...]:
        return parse(self.gives)


OPS: dict[str, Operator] = {
    "embedding": Operator(NoAttrs, "token_ids i[T]; weight a[V,H]", "y a[T,H]"),
    "rms_norm": Operator(Norm, "x a[T,H]; weight a[H]", "y a[T,H]"),
    "add_rms_norm": Operator(Norm, "x a[T,H]; residual a[T,H]; weight a[H]", "y a[T,H]; residual_out a[T,H]"),
    "linear": Operator(Linear, "x a[T,K]; weight a[N,K]; bias? a[N]", "y o[T,N]"),
    "qkv_rope_kv": Operator(
        QkvRopeKv,
        "qkv a[T,QKV]; positions i[T]; query_start i[Q]; block_tables i[B,M];"
        "k_pool! c[P,NK,S,D]; v_pool! c[P,NK,S,D]; q_norm? a[D]; k_norm? a[D]",
        "q a[T,NQ,D]",
    ),
    "paged_attention": Operator(
        PagedAttention,
        "q a[T,NQ,D]; query_start i[Q]; seq_lens i[B]; block_tables i[B,M]; k_pool c[P,NK,S,D]; v_pool c[P,NK,S,D]",
        "y a[T,QD]",
    ),
    "silu_and_mul": Operator(NoAttrs, "x a[T,2F]", "y a[T,F]"),
    "add": Operator(NoAttrs, "x a[T,H]; y a[T,H]", "z a[T,H]"),
    "select_rows": Operator(NoAttrs, "x a[T,H]; rows i[R]", "y a[R,H]"),
}
ATTRS: dict[str, type[Attrs]] = {name: operator.attrs for name, operator in OPS.items()}
