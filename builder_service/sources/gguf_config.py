"""GGUF metadata as a Hugging Face config, and GGUF tensor names as Hugging Face names.

Every key of the architecture's own section must be understood: an unknown one may change the arithmetic and is
refused by name.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from builder_service.sources.base import broken
from builder_service.sources.gguf_header import GgufHeader
from builder_service.sources.gguf_tokenizer import token_id
from enginehouse.errors import EnginehouseError, Unimplemented

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PERMUTED = frozenset({"llama"})
"""Architectures whose q and k rows llama.cpp's converter reorders for the interleaved form of rope."""

ROPE_FREQS = "rope_freqs.weight"
GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MAX_FLOAT = float(np.finfo(np.float32).max)
_LAYER = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.(weight|bias)")

READ_KEYS = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)


NEUTRAL = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "rope.scaling.attn_factor": 1.0}
"""Keys that are honoured at these values only."""


def hugging_face_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one that is no parameter (`rope_freqs.weight`).

    Raises:
        Unimplemented: a tensor that none of the supported architectures has.
    """
    if name == ROPE_FREQS:
        return None
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in LAYER_NAMES:
        message = f"The GGUF file has the tensor {name}, which the builder does not know for this architecture."
        raise Unimplemented(message, reason="UNSUPPORTED_TENSOR", metadata={"tensor": name})
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


def hugging_face_config(header: GgufHeader, rope_factors: npt.NDArray[np.float32] | None) -> dict[str, Any]:
    """The config.json that the file describes. `rope_factors`: the content of rope_freqs.weight.

    Raises:
        Unimplemented: an architecture or a metadata key that is not supported.
        FailedPrecondition: a needed key is absent.
    """
    _refuse_parts(header.metadata)
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        message = f"GGUF architecture {architecture!r} is not supported; the builder reads {known}."
        raise Unimplemented(message, reason="UNSUPPORTED_ARCHITECTURE", metadata={"architecture": architecture})
    section = _Section(header.metadata, architecture)
    heads = section.count("attention.head_count")
    hidden = section.count("embedding_length")
    head_dim = section.count("attention.key_length", hidden // max(heads, 1))
    context = section.count("context_length")
    window = section.count("attention.sliding_window", 0)
    _refuse_unequal(section, "attention.value_length", head_dim)
    _refuse_unequal(section, "rope.dimension_count", head_dim)
    config: dict[str, Any] = {
        "model_type": architecture,
        "architectures": [ARCHITECTURES[architecture]],
        "hidden_act": "silu",
        "vocab_size": header.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in header.tensors else 0,
        "hidden_size": hidden,
        "intermediate_size": section.count("feed_forward_length"),
        "num_hidden_layers": section.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": section.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": _short(section.number("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(section, head_dim, context, rope_factors),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": architecture != "qwen2" and "blk.0.attn_q.bias" in header.tensors,
        "bos_token_id": token_id(header.metadata, "bos_token_id"),
        "eos_token_id": token_id(header.metadata, "eos_token_id"),
        "pad_token_id": token_id(header.metadata, "padding_token_id"),
    }
    if architecture == "llama":
        config |= _llama_extras(header, window)
    elif window:
        raise _unsupported(f"{architecture}.attention.sliding_window", window)
    section.refuse_unknown()
    return config


def _refuse_parts(metadata: dict[str, Any]) -> None:
    """Refuses what is not a whole model in one file."""
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        message = (
            f"The GGUF file is one of {parts} parts; join them with llama.cpp's "
            "`llama-gguf-split --merge` and give the result."
        )
        raise Unimplemented(message, reason="UNSUPPORTED_SPLIT", metadata={"key": "split.count"})
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise _unsupported("general.type", kind)


def _llama_extras(header: GgufHeader, window: int) -> dict[str, Any]:
    """llama.cpp has one architecture for Llama and Mistral; only a sliding window tells them apart."""
    extras: dict[str, Any] = {"mlp_bias": "blk.0.ffn_up.bias" in header.tensors}
    if window:
        extras |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    return extras


class _Section:
    """The keys of one architecture."""

    def __init__(self, metadata: dict[str, Any], architecture: str) -> None:
        prefix = f"{architecture}."
        self.prefix = prefix
        self.values = {key[len(prefix) :]: value for key, value in metadata.items() if key.startswith(prefix)}

    def count(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise self._bad(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_FLOAT:  # nor NaN
            raise self._bad(key, value)
        return float(value)

    def refuse_unknown(self) -> None:
        for key, value in sorted(self.values.items()):
            if key not in READ_KEYS and (key not in NEUTRAL or value != NEUTRAL[key]):
                raise _unsupported(f"{self.prefix}{key}", value)

    def _bad(self, key: str, value: object) -> EnginehouseError:
        name = f"{self.prefix}{key}"
        shown = "a list" if isinstance(value, list) else repr(value)[:80]
        message = f"The GGUF file's metadata key {name} is {shown}; the builder needs one number."
        return broken("UNSUPPORTED_METADATA", message, key=name, value=shown)


def _unsupported(key: str, value: object) -> Unimplemented:
    message = f"The GGUF file's metadata key {key} = {str(value)[:80]} is not supported."
    return Unimplemented(message, reason="UNSUPPORTED_METADATA", metadata={"key": key})


def _refuse_unequal(section: _Section, key: str, expected: int) -> None:
    if section.count(key, expected) != expected:
        raise _unsupported(f"{section.prefix}{key}", section.values[key])


def _short(value: float) -> float:
    """A float32 of the file as the decimal that was written: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope(section: _Section, head_dim: int, context: int, factors: npt.NDArray[np.float32] | None) -> dict[str, Any]:
    theta = _short(section.number("rope.freq_base", 10000.0))
    kind = section.values.get("rope.scaling.type", "none")
    if factors is not None:
        if kind not in ("none", "linear"):
            raise _unsupported(f"{section.prefix}rope.scaling.type", kind)
        return _llama3_rope(theta, head_dim, factors)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise _unsupported(f"{section.prefix}rope.scaling.type", kind)
    rope = {"rope_type": kind, "rope_theta": theta, "factor": _short(section.number("rope.scaling.factor"))}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = section.count("rope.scaling.original_context_length", context)
        rope["beta_fast"] = _short(section.number("rope.scaling.yarn_beta_fast", 32.0))
        rope["beta_slow"] = _short(section.number("rope.scaling.yarn_beta_slow", 1.0))
    return rope


def _llama3_rope(theta: float, head_dim: int, factors: npt.NDArray[np.float32]) -> dict[str, Any]:
    """Llama 3's rope from the divisors that its GGUF carries. The file states only the divisors; Llama 3.1 to 3.3
    share all parameters but the factor, and anything that these do not reproduce is refused."""
    if not np.isfinite(factors).all() or not (factors > 0).all():
        raise _unsupported(ROPE_FREQS, "not all above 0")
    factor = float(np.round(factors.max(), 4))
    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = llama3_factors(theta, head_dim, factor)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise _unsupported(ROPE_FREQS, "other than Llama 3's divisors")
    return rope


def llama3_factors(theta: float, head_dim: int, factor: float) -> npt.NDArray[np.float32]:
    """Llama 3's divisors of the rope frequencies [head_dim / 2], as llama.cpp's converter writes them."""
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high, original = 1.0, 4.0, 8192
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
