"""read_spec: the forms of a config that mean the same, the defaults, and what is refused by name."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder_service.models import read_spec, weight_parts
from enginehouse.errors import EnginehouseError, InvalidArgument, Unimplemented

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
}
ROPE_WORDS = {"rope_type", "type", "factor", "rope_theta", "mscale", "mscale_all_dim", "beta_fast"}
MORE_KEYS = {
    *("rope_parameters", "rope_scaling", "rope_theta", "head_dim", "num_key_value_heads", "layer_types"),
    *("sliding_window", "use_sliding_window", "max_window_layers", "quantization_config", "tie_word_embeddings"),
}


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [architecture], **changes}


def test_the_old_and_the_new_rope_form_mean_the_same() -> None:
    old = config(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    mixed = config(rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 2.0})
    new = config(rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 2})
    assert read_spec(old) == read_spec(mixed) == read_spec(new)
    assert read_spec(new).rope.theta == 5e5
    assert read_spec(new).max_positions == 128


def test_defaults_are_those_of_the_configuration_class() -> None:
    spec = read_spec(config())
    assert (spec.num_kv_heads, spec.head_dim, spec.norm_eps) == (4, 8, 1e-6)
    assert (spec.rope.theta, spec.rope.kind, spec.tied_head, spec.qkv_bias) == (10000.0, "default", False, False)
    assert read_spec(config("MistralForCausalLM", num_attention_heads=8)).windows == (4096,) * 4
    assert read_spec(config("Qwen3ForCausalLM", num_key_value_heads=2)).head_dim == 128


def test_a_null_value_is_an_absent_one() -> None:
    nulls = config(rope_scaling=None, head_dim=None, num_key_value_heads=None, quantization_config=None)
    assert read_spec(nulls) == read_spec(config())


def test_the_model_type_decides_where_no_architecture_is_named() -> None:
    assert read_spec({**config(), "architectures": None}) == read_spec(config())


def test_windows_of_layers() -> None:
    qwen2 = config("Qwen2ForCausalLM", num_key_value_heads=2, sliding_window=16, max_window_layers=3)
    assert read_spec(qwen2).windows == (None,) * 4
    assert read_spec({**qwen2, "use_sliding_window": True}).windows == (None, None, None, 16)
    assert read_spec({**qwen2, "use_sliding_window": True, "sliding_window": None}).windows == (None,) * 4
    assert read_spec({**qwen2, "use_sliding_window": True, "max_window_layers": 0}).windows == (16,) * 4
    kinds = ["sliding_attention", "full_attention"] * 2
    assert read_spec({**qwen2, "use_sliding_window": True, "layer_types": kinds}).windows == (16, None, 16, None)
    assert read_spec(config("MistralForCausalLM", num_key_value_heads=2, sliding_window=None)).windows == (None,) * 4


def test_yarn_attention_factor_is_resolved() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
    assert read_spec(config(rope_parameters=yarn)).rope.attention_factor == pytest.approx(1.1386294)
    both = {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert read_spec(config(rope_parameters=both)).rope.attention_factor == 1.0
    assert read_spec(config(rope_parameters={**yarn, "attention_factor": 1.5})).rope.attention_factor == 1.5


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "UNSUPPORTED_MODEL_CONFIG", "rope_type"),
        ({"rope_scaling": {"type": "su"}}, "UNSUPPORTED_MODEL_CONFIG", "rope_type"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}},
            "UNSUPPORTED_MODEL_CONFIG",
            "rope_parameters.mrope_section",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "UNSUPPORTED_MODEL_CONFIG",
            "rope_parameters.full_attention",
        ),
        ({"partial_rotary_factor": 0.5}, "UNSUPPORTED_MODEL_CONFIG", "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "UNSUPPORTED_MODEL_CONFIG", "hidden_act"),
        ({"num_key_value_heads": 3}, "UNSUPPORTED_MODEL_CONFIG", "num_key_value_heads"),
        ({"num_hidden_layers": 10**9}, "UNSUPPORTED_MODEL_CONFIG", "num_hidden_layers"),
        ({"head_dim": 7}, "UNSUPPORTED_MODEL_CONFIG", "head_dim"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "REMOTE_CODE", "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "UNSUPPORTED_MODEL_CONFIG", "quantization_config"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(changes: dict[str, Any], reason: str, field: str) -> None:
    with pytest.raises(Unimplemented) as caught:
        read_spec(config(**changes))
    assert (caught.value.reason, caught.value.metadata["field"]) == (reason, field)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [1]}, "architectures"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, "factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": "x", "mscale_all_dim": 1.0}}, "mscale"),
    ],
)
def test_an_impossible_value_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_spec(config(**changes))
    assert (caught.value.reason, caught.value.metadata["field"]) == ("INVALID_MODEL_CONFIG", field)


@pytest.mark.parametrize("architectures", [["GPT2LMHeadModel"], ["Qwen3MoeForCausalLM"], [], None])
def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(architectures: list[str] | None) -> None:
    with pytest.raises(Unimplemented) as caught:
        read_spec({**LLAMA, "architectures": architectures, "model_type": "gpt2"})
    assert caught.value.reason == "UNSUPPORTED_ARCHITECTURE"
    assert "LlamaForCausalLM" in caught.value.message


def test_weight_parts_are_in_layer_order_and_stack_on_dimension_0() -> None:
    parts = weight_parts(read_spec(config(num_key_value_heads=2, attention_bias=True)))
    names = list(parts)
    assert names[0] == "embed.weight"
    assert names[-2:] == ["norm.weight", "head.weight"]
    assert parts["layers.3.attn.qkv.weight"].shape == (64, 32)
    assert parts["layers.3.attn.qkv.bias"].names == tuple(f"model.layers.3.self_attn.{x}_proj.bias" for x in "qkv")
    assert parts["layers.0.mlp.gate_up.weight"].shapes == ((48, 32), (48, 32))
    assert "head.weight" not in weight_parts(read_spec(config(tie_word_embeddings=True)))


ANYTHING = st.recursive(
    st.sampled_from([None, True, -1, 0, 1, 3, 10**9, 2**63, 10**400, 0.5, 1e308, float("nan"), "", "yarn", "linear"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(sorted(ROPE_WORDS)), inner, max_size=4),
    max_leaves=6,
)


@given(
    st.sampled_from(["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]),
    st.dictionaries(st.sampled_from(sorted(LLAMA.keys() | MORE_KEYS)), ANYTHING, min_size=1, max_size=2),
)
def test_any_config_is_read_or_refused(architecture: str, changes: dict[str, Any]) -> None:
    with contextlib.suppress(EnginehouseError):
        read_spec({**config(architecture), **changes})
