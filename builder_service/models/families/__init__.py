"""The families that can be built: one small file each, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from builder_service.models.families import llama, mistral, qwen2, qwen3
from builder_service.models.spec import DecoderSpec


class Family(NamedTuple):
    """`model_type` and `architecture` as config.json states them, and how to read that config."""

    model_type: str
    architecture: str
    read: Callable[[Mapping[str, Any]], DecoderSpec]


FAMILIES = (
    Family("llama", "LlamaForCausalLM", llama.read),
    Family("mistral", "MistralForCausalLM", mistral.read),
    Family("qwen2", "Qwen2ForCausalLM", qwen2.read),
    Family("qwen3", "Qwen3ForCausalLM", qwen3.read),
)
