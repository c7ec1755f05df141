"""What a decoder-only model is, in numbers, and where its weights come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine_ops.opset import Rope

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SourceNames:
    """Tensor names in the checkpoint; `{i}` is the layer. A linear layer's name lacks `.weight` and `.bias`."""

    embed: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    input_norm: str = "model.layers.{i}.input_layernorm"
    post_norm: str = "model.layers.{i}.post_attention_layernorm"
    qkv: tuple[str, str, str] = (
        "model.layers.{i}.self_attn.q_proj",
        "model.layers.{i}.self_attn.k_proj",
        "model.layers.{i}.self_attn.v_proj",
    )
    q_norm: str = "model.layers.{i}.self_attn.q_norm"
    k_norm: str = "model.layers.{i}.self_attn.k_norm"
    o: str = "model.layers.{i}.self_attn.o_proj"
    gate_up: tuple[str, str] = ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj")
    down: str = "model.layers.{i}.mlp.down_proj"


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A decoder with RMS norm, rotary positions, grouped attention and a gated SiLU MLP.

    `max_positions`: the longest sequence that the checkpoint was made for, its rope scaling included.
    `windows`: for each layer, how many keys a token sees (itself included); None: all.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    max_positions: int
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False
    names: SourceNames = field(default_factory=SourceNames)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


class WeightParts(NamedTuple):
    """A canonical weight: the checkpoint's tensors `names`, of `shapes`, concatenated on dimension 0 in this order."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]

    @property
    def shape(self) -> Shape:
        """Shape of the canonical weight."""
        return (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])


def weight_parts(spec: DecoderSpec) -> dict[str, WeightParts]:
    """Every weight of the engine by canonical name, in layer order."""
    names, hidden = spec.names, spec.hidden_size
    parts = _part("embed", (names.embed,), ((spec.vocab_size, hidden),))
    for layer in range(spec.num_layers):
        parts |= _layer_parts(spec, layer)
    parts |= _part("norm", (names.norm,), ((hidden,),))
    if not spec.tied_head:
        parts |= _part("head", (names.head,), ((spec.vocab_size, hidden),))
    return parts


def _layer_parts(spec: DecoderSpec, layer: int) -> dict[str, WeightParts]:
    names, hidden, inner = spec.names, spec.hidden_size, spec.intermediate_size
    qkv = ((spec.q_size, hidden), (spec.kv_size, hidden), (spec.kv_size, hidden))
    parts = _part("input_norm", (names.input_norm,), ((hidden,),))
    parts |= _part("attn.qkv", names.qkv, qkv, bias=spec.qkv_bias)
    if spec.qk_norm:
        parts |= _part("attn.q_norm", (names.q_norm,), ((spec.head_dim,),))
        parts |= _part("attn.k_norm", (names.k_norm,), ((spec.head_dim,),))
    parts |= _part("attn.o", (names.o,), ((hidden, spec.q_size),), bias=spec.o_bias)
    parts |= _part("post_norm", (names.post_norm,), ((hidden,),))
    parts |= _part("mlp.gate_up", names.gate_up, ((inner, hidden), (inner, hidden)), bias=spec.mlp_bias)
    parts |= _part("mlp.down", (names.down,), ((hidden, inner),), bias=spec.mlp_bias)
    return {
        f"layers.{layer}.{name}": part._replace(names=tuple(source.format(i=layer) for source in part.names))
        for name, part in parts.items()
    }


def _part(
    canonical: str, sources: tuple[str, ...], shapes: tuple[Shape, ...], bias: bool = False
) -> dict[str, WeightParts]:
    parts = {f"{canonical}.weight": WeightParts(tuple(f"{source}.weight" for source in sources), shapes)}
    if bias:
        biases = tuple(shape[:1] for shape in shapes)
        parts[f"{canonical}.bias"] = WeightParts(tuple(f"{source}.bias" for source in sources), biases)
    return parts
