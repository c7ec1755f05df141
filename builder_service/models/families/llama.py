"""Llama, and what is published in its form (SmolLM2, TinyLlama, ...)."""

from __future__ import annotations

from builder_service.models.config import Config, flag
from builder_service.models.families.common import base_spec
from builder_service.models.spec import DecoderSpec


def read(config: Config) -> DecoderSpec:
    attention_bias = flag(config, "attention_bias", False)
    return base_spec(
        config,
        "LlamaForCausalLM",
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=flag(config, "mlp_bias", False),
    )
