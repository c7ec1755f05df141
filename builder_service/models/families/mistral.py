"""Mistral: every layer has the same window, 4096 where the config states none."""

from __future__ import annotations

from builder_service.models.config import Config, integer, require
from builder_service.models.families.common import base_spec
from builder_service.models.spec import DecoderSpec


def read(config: Config) -> DecoderSpec:
    require(config, "layer_types", (None,))
    layers = integer(config, "num_hidden_layers")
    off = "sliding_window" in config and config["sliding_window"] is None
    window = None if off else integer(config, "sliding_window", 4096)
    return base_spec(config, "MistralForCausalLM", num_kv_heads=8, windows=(window,) * layers)
