"""Qwen2 and Qwen2.5: biases on q, k and v; a window on the upper layers where it is switched on."""

from __future__ import annotations

from builder_service.models.config import Config
from builder_service.models.families.common import base_spec, layer_windows
from builder_service.models.spec import DecoderSpec


def read(config: Config) -> DecoderSpec:
    return base_spec(config, "Qwen2ForCausalLM", num_kv_heads=32, qkv_bias=True, windows=layer_windows(config))
