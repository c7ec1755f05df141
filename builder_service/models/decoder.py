"""The one decoder: a spec as a torch module over the operators, to be traced by `builder_service.build.capture`.

Module paths give the canonical weight names. Shapes: T packed tokens, H hidden, R logits rows.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from builder_service.models.spec import DecoderSpec
from engine_ops import opset
from engine_ops.torch_ops import apply


class Batch(NamedTuple):
    """The tensor contract of one step, without token ids and logits rows; all int32."""

    positions: Tensor
    query_start: Tensor
    seq_lens: Tensor
    block_tables: Tensor


class Cache(NamedTuple):
    """One layer's pools, [N, num_kv_heads, block_size, head_dim]."""

    k: Tensor
    v: Tensor


class Linear(nn.Module):
    """[T, inputs] to [T, outputs]."""

    bias: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        (y,) = apply("linear", opset.Linear(), x, self.weight, self.bias)
        return y


class Weight(nn.Module):
    """A weight that its parent applies: an embedding, a norm or a head."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))


class Norm(Weight):
    """RMS norm; with a residual, of the sum of both, which is returned as the new residual."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size)
        self.attrs = opset.Norm(eps)

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            (y,) = apply("rms_norm", self.attrs, x, self.weight)
            return y, x
        y, residual = apply("add_rms_norm", self.attrs, x, residual, self.weight)
        return y, residual


class Attention(nn.Module):
    def __init__(self, spec: DecoderSpec, layer: int) -> None:
        super().__init__()
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.qkv = Linear(spec.hidden_size, spec.q_size + 2 * spec.kv_size, bias=spec.qkv_bias)
        self.q_norm = Weight(dim) if spec.qk_norm else None
        self.k_norm = Weight(dim) if spec.qk_norm else None
        self.o = Linear(spec.q_size, spec.hidden_size, bias=spec.o_bias)
        self.rope_kv = opset.QkvRopeKv(heads, kv_heads, dim, spec.rope, spec.norm_eps if spec.qk_norm else 0.0)
        self.attention = opset.PagedAttention(heads, kv_heads, dim, dim**-0.5, spec.windows[layer])

    def forward(self, x: Tensor, batch: Batch, cache: Cache) -> Tensor:
        where = (batch.positions, batch.query_start, batch.block_tables)
        norms = [norm.weight if norm is not None else None for norm in (self.q_norm, self.k_norm)]
        (q,) = apply("qkv_rope_kv", self.rope_kv, self.qkv(x), *where, *cache, *norms)
        (y,) = apply("paged_attention", self.attention, q, *batch[1:], *cache)
        return cast(Tensor, self.o(y))


class Mlp(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_up = Linear(spec.hidden_size, 2 * spec.intermediate_size, bias=spec.mlp_bias)
        self.down = Linear(spec.intermediate_size, spec.hidden_size, bias=spec.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        (y,) = apply("silu_and_mul", opset.NoAttrs(), self.gate_up(x))
        return cast(Tensor, self.down(y))


class Layer(nn.Module):
    def __init__(self, spec: DecoderSpec, layer: int) -> None:
        super().__init__()
        self.input_norm = Norm(spec.hidden_size, spec.norm_eps)
        self.attn = Attention(spec, layer)
        self.post_norm = Norm(spec.hidden_size, spec.norm_eps)
        self.mlp = Mlp(spec)

    def forward(self, x: Tensor, residual: Tensor | None, batch: Batch, cache: Cache) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm(x, residual)
        x, residual = self.post_norm(self.attn(x, batch, cache), residual)
        return self.mlp(x), residual


class Decoder(nn.Module):
    """The whole model. Its state dict has the names and shapes of `weight_parts(spec)`."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.embed = Weight(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(Layer(spec, layer) for layer in range(spec.num_layers))
        self.norm = Norm(spec.hidden_size, spec.norm_eps)
        self.head = None if spec.tied_head else Weight(spec.vocab_size, spec.hidden_size)

    def forward(self, token_ids: Tensor, batch: Batch, logits_rows: Tensor, caches: list[Cache]) -> Tensor:
        """Logits, float32 [R, vocab]; the caches are updated in place."""
        residual: Tensor | None = None
        (x,) = apply("embedding", opset.NoAttrs(), token_ids, self.embed.weight)
        for layer, cache in zip(self.layers, caches, strict=True):
            x, residual = layer(x, residual, batch, cache)
        x, _ = self.norm(x, residual)
        (x,) = apply("select_rows", opset.NoAttrs(), x, logits_rows)
        head = self.embed if self.head is None else self.head
        (logits,) = apply("linear", opset.Linear(out_dtype="float32"), x, head.weight)
        return logits
