"""The config keys that every family spells alike."""

from __future__ import annotations

from builder_service.models.config import (
    Config,
    flag,
    integer,
    num_layers,
    read_positions,
    real,
    require,
    unsupported,
    window_size,
)
from builder_service.models.spec import DecoderSpec

Windows = tuple[int | None, ...]


def base_spec(
    config: Config,
    architecture: str,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    windows: Windows | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> DecoderSpec:
    """The spec of `config`; `num_kv_heads` and `head_dim` are the family's defaults where the config states none."""
    require(config, "hidden_act", ("silu", "swish"))
    hidden = integer(config, "hidden_size")
    heads = integer(config, "num_attention_heads")
    dim = integer(config, "head_dim", head_dim or hidden // heads)
    kv_heads = integer(config, "num_key_value_heads", num_kv_heads or heads)
    if heads % kv_heads:
        unsupported("num_key_value_heads", kv_heads, f"divisors of num_attention_heads = {heads}")
    if dim % 2:
        unsupported("head_dim", dim, "even head dimensions")
    layers = num_layers(config)
    positions = read_positions(config, dim)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=integer(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        norm_eps=real(config, "rms_norm_eps", 1e-6),
        rope=positions.rope,
        max_positions=positions.max_positions,
        windows=windows or (None,) * layers,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tied_head=flag(config, "tie_word_embeddings", False),
    )


def layer_windows(config: Config) -> Windows:
    """Windows from `layer_types`, or from `use_sliding_window` and `max_window_layers`."""
    layers = num_layers(config)
    window = window_size(config) if flag(config, "use_sliding_window", False) else None
    first_windowed = integer(config, "max_window_layers", 28, minimum=0)
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if i >= first_windowed else "full_attention" for i in range(layers)]
    known = isinstance(kinds, list) and all(kind in ("full_attention", "sliding_attention") for kind in kinds)
    if not known or len(kinds) != layers:
        unsupported("layer_types", kinds, f"full_attention and sliding_attention, {layers} of them")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
