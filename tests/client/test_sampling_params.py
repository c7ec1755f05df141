"""SamplingParams: TensorRT-LLM's fields and defaults, checked here, and on the wire only where set."""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np
import pytest

from enginehouse import (
    AdditionalModelOutput,
    GuidedDecodingParams,
    LookaheadDecodingConfig,
    SamplingParams,
    Unimplemented,
)
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, sampling_pb2

DEFAULTS = {
    **dict.fromkeys(
        (
            *("end_id", "pad_id", "bad", "bad_token_ids", "stop", "stop_token_ids", "embedding_bias"),
            *("logits_processor", "best_of", "top_k", "top_p", "top_p_min", "top_p_reset_ids", "top_p_decay", "seed"),
            *("temperature", "min_tokens", "beam_search_diversity_rate", "repetition_penalty", "presence_penalty"),
            *("frequency_penalty", "length_penalty", "early_stopping", "no_repeat_ngram_size", "min_p"),
            *("beam_width_array", "logprobs", "prompt_logprobs", "additional_model_outputs", "lookahead_config"),
            *("guided_decoding", "truncate_prompt_tokens"),
        )
    ),
    "max_tokens": 32,
    "n": 1,
    **dict.fromkeys(
        (
            *("include_stop_str_in_output", "apply_batched_logits_processor", "use_beam_search"),
            *("return_context_logits", "return_generation_logits", "return_encoder_output", "return_perf_metrics"),
            "ignore_eos",
        ),
        False,
    ),
    **dict.fromkeys(
        (
            *("exclude_input_from_output", "detokenize", "add_special_tokens", "skip_special_tokens"),
            "spaces_between_special_tokens",
        ),
        True,
    ),
}


def test_fields_and_defaults_are_those_of_tensorrt_llm() -> None:
    assert dataclasses.asdict(SamplingParams()) == DEFAULTS


def test_arguments_are_keywords_only() -> None:
    kinds = {parameter.kind for parameter in inspect.signature(SamplingParams).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_defaults_send_nothing() -> None:
    start = SamplingParams().to_proto()
    assert start.sampling == sampling_pb2.SamplingParams()
    assert start.output == sampling_pb2.OutputOptions()
    assert not start.HasField("guided")
    assert not start.HasField("add_special_tokens")


def test_every_field_reaches_the_wire() -> None:
    """Each field, set to something else than its default, changes the request."""
    values: dict[str, object] = {
        "end_id": 2,
        "pad_id": 3,
        "max_tokens": 7,
        "bad": "x",
        "bad_token_ids": [1],
        "stop": ["a", "b"],
        "stop_token_ids": [4],
        "include_stop_str_in_output": True,
        "embedding_bias": np.ones(4, np.float32),
        "logits_processor": "named",
        "apply_batched_logits_processor": True,
        "n": 2,
        "best_of": 3,
        "use_beam_search": True,
        "top_k": 0,
        "top_p": 0.0,
        "top_p_min": 0.1,
        "top_p_reset_ids": 0,
        "top_p_decay": 0.5,
        "seed": 0,
        "temperature": 0.0,
        "min_tokens": 0,
        "beam_search_diversity_rate": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "length_penalty": 0.0,
        "early_stopping": 0,
        "no_repeat_ngram_size": 3,
        "min_p": 0.0,
        "beam_width_array": [1, 2],
        "logprobs": 0,
        "prompt_logprobs": 0,
        "additional_model_outputs": [AdditionalModelOutput(name="x", gather_context=True)],
        "lookahead_config": LookaheadDecodingConfig(),
        "guided_decoding": GuidedDecodingParams(regex="a+"),
        "truncate_prompt_tokens": 5,
        **{name: not default for name, default in DEFAULTS.items() if isinstance(default, bool)},
    }
    assert values.keys() == DEFAULTS.keys()
    plain = SamplingParams().to_proto()
    for name, value in values.items():
        assert SamplingParams(**{name: value}).to_proto() != plain, name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", None),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("n", 0),
        ("best_of", 0),
        ("top_k", -1),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("top_p", math.nan),
        ("top_p_min", 0.0),
        ("top_p_decay", 0.0),
        ("temperature", -1.0),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("seed", -1),
        ("seed", 2**64),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("min_p", 2.0),
        ("logprobs", -1),
        ("logprobs", True),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("bad_token_ids", 3),
        ("ignore_eos", 1),
        ("truncate_prompt_tokens", 0),
        ("no_repeat_ngram_size", 0),
        ("beam_width_array", [0]),
    ],
)
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_fields_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"best_of \(2\) must be at least n \(3\)"):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(ValueError, match="min_tokens"):
        SamplingParams(min_tokens=4, max_tokens=3)
    with pytest.raises(ValueError, match="detokenize"):
        SamplingParams(detokenize=False, stop="x")
    with pytest.raises(ValueError, match="one constraint, not regex, json_object"):
        GuidedDecodingParams(regex="a", json_object=True)


def test_a_function_cannot_travel() -> None:
    with pytest.raises(Unimplemented, match="logits_processor"):
        SamplingParams(logits_processor=lambda *args: None)
    with pytest.raises(Unimplemented, match="logits_processor"):
        SamplingParams(logits_processor=[print])  # type: ignore[list-item]


def test_changes_are_checked_before_a_request() -> None:
    params = SamplingParams()
    params.top_k = -5
    with pytest.raises(ValueError, match="top_k"):
        params.validate()


@pytest.mark.parametrize(
    ("guide", "field", "value"),
    [
        (GuidedDecodingParams(json={"type": "object"}), "json_schema", '{"type": "object"}'),
        (GuidedDecodingParams(json="{}"), "json_schema", "{}"),
        (GuidedDecodingParams(grammar="root ::= x"), "grammar", "root ::= x"),
        (GuidedDecodingParams(json_object=True), "json_object", True),
        (GuidedDecodingParams(structural_tag="{}"), "structural_tag", "{}"),
    ],
)
def test_guides(guide: GuidedDecodingParams, field: str, value: object) -> None:
    proto = SamplingParams(guided_decoding=guide).to_proto().guided
    assert (proto.WhichOneof("guide"), getattr(proto, field)) == (field, value)


def test_no_guide_sends_none() -> None:
    assert SamplingParams(guided_decoding=GuidedDecodingParams()).to_proto() == inference_pb2.Start(
        sampling=sampling_pb2.SamplingParams(), output=sampling_pb2.OutputOptions()
    )
