"""Mistral: every layer has the same window, 4096 where the config states none."""

from __future__ import annotations

from builder_service.models.config import Config, num_layers, require, window_size
from builder_service.models.families.common import base_spec
from builder_service.models.spec import DecoderSpec


def read(config: Config) -> DecoderSpec:
    require(config, "layer_types", (None,))
    windows = (window_size(config),) * num_layers(config)
    return base_spec(config, "MistralForCausalLM", num_kv_heads=8, windows=windows)
