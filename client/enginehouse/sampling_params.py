"""How a request is decoded: TensorRT-LLM's SamplingParams, checked here and sent to the server.

A field left at None takes the server's default, named in brackets in the table of docs/api.md. A field that the
server does not honour is refused by the server by name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from enginehouse import _check as check
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, sampling_pb2
from enginehouse.errors import unsupported_field

_FLOAT_RANGES: dict[str, tuple[float, float, bool]] = {
    # name: lowest, highest, whether the lowest itself is refused
    "top_p": (0.0, 1.0, False),
    "top_p_min": (0.0, 1.0, True),
    "top_p_decay": (0.0, 1.0, True),
    "temperature": (0.0, float("inf"), False),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (0.0, float("inf"), True),
    "presence_penalty": (float("-inf"), float("inf"), False),
    "frequency_penalty": (float("-inf"), float("inf"), False),
    "length_penalty": (float("-inf"), float("inf"), False),
    "beam_search_diversity_rate": (float("-inf"), float("inf"), False),
}
_INT_RANGES: dict[str, tuple[int, int]] = {
    "end_id": (-1, check.INT32_MAX),
    "pad_id": (-1, check.INT32_MAX),
    "n": (1, check.INT32_MAX),
    "best_of": (1, check.INT32_MAX),
    "max_tokens": (1, check.INT32_MAX),
    "min_tokens": (0, check.INT32_MAX),
    "top_k": (0, check.INT32_MAX),
    "top_p_reset_ids": (-1, check.INT32_MAX),
    "seed": (0, 2**64 - 1),
    "early_stopping": (0, check.INT32_MAX),
    "no_repeat_ngram_size": (1, check.INT32_MAX),
    "logprobs": (0, check.INT32_MAX),
    "prompt_logprobs": (0, check.INT32_MAX),
    "truncate_prompt_tokens": (1, check.INT32_MAX),
}
# Fields that go to the wire's SamplingParams and OutputOptions under their own name.
_SAMPLING_SCALARS = (
    *("end_id", "pad_id", "n", "best_of", "max_tokens", "min_tokens", "top_k", "top_p", "top_p_min"),
    *("top_p_reset_ids", "top_p_decay", "seed", "temperature", "min_p", "beam_search_diversity_rate"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty", "early_stopping"),
    *("no_repeat_ngram_size", "use_beam_search", "ignore_eos", "apply_batched_logits_processor"),
)
_OUTPUT_SCALARS = (
    *("logprobs", "prompt_logprobs", "return_context_logits", "return_generation_logits", "return_encoder_output"),
    *("exclude_input_from_output", "return_perf_metrics", "detokenize", "skip_special_tokens"),
    *("spaces_between_special_tokens", "include_stop_str_in_output"),
)


@dataclass(frozen=True, kw_only=True)
class GuidedDecodingParams:
    """A constraint on the output; at most one field is set.

    `json`: a JSON schema as text or dict, or a pydantic model class. `regex`, `grammar` (EBNF), `structural_tag`
    (JSON text). `json_object`: any JSON object. `choice`: exactly one of these texts.
    """

    json: str | dict[str, Any] | type | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None
    choice: list[str] | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False)]
        if len(given) > 1:
            raise ValueError(f"GuidedDecodingParams takes one constraint, not {', '.join(given)}")

    def to_proto(self) -> sampling_pb2.GuidedDecoding | None:
        """The wire's message; None when no constraint is set."""
        if self.json is not None:
            return sampling_pb2.GuidedDecoding(json_schema=_schema_text(self.json))
        if self.choice is not None:
            return sampling_pb2.GuidedDecoding(choice=sampling_pb2.Choices(texts=check.texts("choice", self.choice)))
        if self.json_object:
            return sampling_pb2.GuidedDecoding(json_object=True)
        for name in ("regex", "grammar", "structural_tag"):
            if (value := getattr(self, name)) is not None:
                return sampling_pb2.GuidedDecoding(**{name: value})
        return None


@dataclass(frozen=True, kw_only=True)
class AdditionalModelOutput:
    """A further tensor of the model to return; `gather_context` asks for the prompt's rows too."""

    name: str
    gather_context: bool = False


@dataclass(frozen=True, kw_only=True)
class LookaheadDecodingConfig:
    """How lookahead decoding looks ahead: tokens looked at together, n-gram length, n-grams verified in one step."""

    max_window_size: int = 4
    max_ngram_size: int = 3
    max_verification_set_size: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            check.integer(field.name, getattr(self, field.name), 1)


@dataclass(kw_only=True)
class SamplingParams:
    """How tokens are chosen, when to stop, and what to return. The default is greedy decoding of 32 tokens.

    Raises:
        ValueError: a value has the wrong type or is out of range; the message names the field.
    """

    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    """float32 [vocabulary], anything that numpy takes; added to the logits."""
    logits_processor: Callable[..., Any] | str | list[str] | None = None
    """The names of processors that the server's operator installed. A function cannot travel and is refused."""
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[AdditionalModelOutput] | None = None
    lookahead_config: LookaheadDecodingConfig | None = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raises ValueError when a field is wrong. Runs at construction, and again before each request."""
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in _INT_RANGES:
                check.integer(name, value, *_INT_RANGES[name])
            elif name in _FLOAT_RANGES:
                low, high, above = _FLOAT_RANGES[name]
                check.number(name, value, low, high, above=above)
            elif field.type == "bool":
                check.boolean(name, value)
        for name in ("n", "max_tokens"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be an int, not None")
        for name in ("bad_token_ids", "stop_token_ids"):
            check.integers(name, getattr(self, name))
        check.integers("beam_width_array", self.beam_width_array, 1)
        for name in ("bad", "stop"):
            check.texts(name, getattr(self, name))
        self._validate_together()

    def _validate_together(self) -> None:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) must be at least n ({self.n})")
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})")
        if not self.detokenize and (self.stop or self.bad):
            raise ValueError("stop and bad texts need detokenize=True; use stop_token_ids and bad_token_ids instead")
        if callable(self.logits_processor) or any(callable(item) for item in _as_list(self.logits_processor)):
            raise unsupported_field(
                "logits_processor", "cannot be a function over the network, only the name of a server's processor"
            )

    def sampling_proto(self) -> sampling_pb2.SamplingParams:
        """How tokens are chosen, as the wire's message."""
        proto = sampling_pb2.SamplingParams(**_given(self, _SAMPLING_SCALARS))
        proto.stop.extend(check.texts("stop", self.stop))
        proto.bad.extend(check.texts("bad", self.bad))
        proto.stop_token_ids.extend(self.stop_token_ids or ())
        proto.bad_token_ids.extend(self.bad_token_ids or ())
        proto.beam_width_array.extend(self.beam_width_array or ())
        proto.logits_processors.extend(check.texts("logits_processor", self.logits_processor))
        if self.embedding_bias is not None:
            proto.embedding_bias.extend(_float_row("embedding_bias", self.embedding_bias))
        if (ahead := self.lookahead_config) is not None:
            proto.lookahead.CopyFrom(sampling_pb2.LookaheadConfig(**_given(ahead, [f.name for f in fields(ahead)])))
        return proto

    def output_proto(self) -> sampling_pb2.OutputOptions:
        """What is returned, as the wire's message."""
        proto = sampling_pb2.OutputOptions(**_given(self, _OUTPUT_SCALARS))
        for output in self.additional_model_outputs or ():
            proto.additional_model_outputs.add(name=output.name, gather_context=output.gather_context)
        return proto

    def to_proto(self) -> inference_pb2.Start:
        """The fields of a request's Start that these parameters stand for; the prompt and its options are not set."""
        start = inference_pb2.Start(sampling=self.sampling_proto(), output=self.output_proto())
        if self.guided_decoding is not None and (guided := self.guided_decoding.to_proto()) is not None:
            start.guided.CopyFrom(guided)
        if self.truncate_prompt_tokens is not None:
            start.truncate_prompt_tokens = self.truncate_prompt_tokens
        if not self.add_special_tokens:
            start.add_special_tokens = False
        return start


def _given(source: object, names: Sequence[str]) -> dict[str, Any]:
    """The named attributes that differ from their class's default, which is the wire's default too."""
    return {name: value for name in names if (value := getattr(source, name)) != getattr(type(source), name)}


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _schema_text(schema: str | dict[str, Any] | type) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, dict):
        return json.dumps(schema)
    if hasattr(schema, "model_json_schema"):  # a pydantic model class
        return json.dumps(schema.model_json_schema())
    raise ValueError(f"json must be a JSON schema as text or dict, or a pydantic model class, not {schema!r}")


def _float_row(name: str, value: Any) -> list[float]:
    import numpy as np

    row = np.asarray(value, dtype=np.float32)
    if row.ndim != 1 or not np.isfinite(row).all():
        raise ValueError(f"{name} must be a finite float32 vector, one value for each token; its shape is {row.shape}")
    return list(map(float, row))
