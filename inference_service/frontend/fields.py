"""Which fields of `Start` are honoured. Every other one is refused by name, never ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping

from google.protobuf.message import Message

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse._gen.enginehouse.inference.v1 import sampling_pb2 as spb
from enginehouse.errors import unsupported_field
from service_kit.fields import refuse_unsupported

HONOURED = frozenset(
    {
        *("request_id", "model", "text", "token_ids", "add_special_tokens", "truncate_prompt_tokens", "priority"),
        *("time_limit", "stream", "stream_interval", "labels", "kv.cache_salt"),
        *("chat.messages", "chat.add_generation_prompt", "chat.continue_final_message", "chat.template_kwargs"),
        "chat.tools",
        *("sampling.max_tokens", "sampling.min_tokens", "sampling.end_id", "sampling.pad_id", "sampling.temperature"),
        *("sampling.top_k", "sampling.top_p", "sampling.min_p", "sampling.seed", "sampling.stop"),
        *("sampling.stop_token_ids", "sampling.ignore_eos"),
        *("output.logprobs", "output.exclude_input_from_output", "output.return_perf_metrics", "output.detokenize"),
        *("output.skip_special_tokens", "output.spaces_between_special_tokens", "output.include_stop_str_in_output"),
    }
)
"""Fields of `Start` that change something here. `pad_id` is checked and needs nothing: batches are packed."""

NEUTRAL: dict[str, float] = {
    "sampling.n": 1,
    "sampling.best_of": 1,
    "sampling.repetition_penalty": 1.0,
    "sampling.presence_penalty": 0.0,
    "sampling.frequency_penalty": 0.0,
    "sampling.length_penalty": 0.0,
    "sampling.early_stopping": 1,
    "sampling.beam_search_diversity_rate": 0.0,
    "sampling.top_p_decay": 1.0,
    "sampling.top_p_min": 1e-6,
    "sampling.top_p_reset_ids": -1,
    "sampling.prompt_ignore_length": 0,
    "output.logprobs_mode": spb.LOGPROBS_MODE_RAW,
}
"""Fields that are not honoured yet, but whose default, given explicitly, asks for nothing."""


def refuse_fields(start: pb.Start) -> None:
    """Raises Unimplemented (reason UNSUPPORTED_FIELD) for the first field that is set and not honoured."""
    refuse_unless_neutral(start, NEUTRAL)
    if any(len(sequence.ids) != 1 for sequence in start.sampling.stop_token_sequences):
        raise unsupported_field("sampling.stop_token_sequences", "with other than one id each is not supported yet")
    refuse_unsupported(start, HONOURED | NEUTRAL.keys() | {"sampling.stop_token_sequences"})


def refuse_unless_neutral(message: Message, neutral: Mapping[str, float]) -> None:
    """Raises Unimplemented for a field of the table ("part.name" to number) that is set to another value."""
    for path, accepted in neutral.items():
        part, name = path.split(".")
        for field, value in getattr(message, part).ListFields():
            if field.name == name and not math.isclose(value, accepted, rel_tol=1e-6):
                raise unsupported_field(path, f"= {value:g} is not supported yet")
