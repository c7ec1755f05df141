"""Tiny random checkpoints of each family, made by transformers, and their weights in canonical form."""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers

from builder_service.models import DecoderSpec, read_spec, weight_parts

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 10000.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("Llama", {}),
    "llama-mqa-tied": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-head-dim": ("Llama", {"head_dim": 12}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    **{f"llama-{kind}": ("Llama", {"rope_parameters": rope}) for kind, rope in ROPES.items()},
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2-full": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias-layer-types": (
        "Qwen3",
        {
            "head_dim": 12,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


def make_model(case: str, **changes: Any) -> Any:
    """A transformers model in float32, every parameter random (norms and biases too). `changes` are of its config."""
    family, options = CASES[case]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options, **changes})
    model_class = getattr(transformers, f"{family}ForCausalLM")
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model


def spec_of(model: Any) -> DecoderSpec:
    """The spec read from the config as transformers would write it."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    return read_spec({**config, "architectures": [type(model).__name__]})


def canonical(spec: DecoderSpec, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fused weights from a checkpoint's tensors, shapes checked."""
    weights = {}
    for name, part in weight_parts(spec).items():
        tensors = [state[source] for source in part.names]
        assert tuple(tuple(t.shape) for t in tensors) == part.shapes, name
        weights[name] = torch.cat(tensors)
    return weights
