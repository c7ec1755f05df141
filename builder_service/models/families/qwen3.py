"""Qwen3: RMS norm on each head of q and k, and its own head dimension."""

from __future__ import annotations

from builder_service.models.config import Config, flag
from builder_service.models.families.common import base_spec, layer_windows
from builder_service.models.spec import DecoderSpec


def read(config: Config) -> DecoderSpec:
    attention_bias = flag(config, "attention_bias", False)
    return base_spec(
        config,
        "Qwen3ForCausalLM",
        num_kv_heads=32,
        head_dim=128,
        qk_norm=True,
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        windows=layer_windows(config),
    )
