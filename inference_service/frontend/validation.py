"""From a `Start` to what the executor and the text side need: every range checked, every field honoured or refused.

The decoding rule, as in TensorRT-LLM: with temperature, top_k, top_p and min_p all absent the likeliest token is taken.
One of them set means sampling, the others at their neutral values; temperature 0, top_k 1 and top_p 0 are greedy.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse._gen.enginehouse.inference.v1 import sampling_pb2 as spb
from enginehouse.errors import InvalidArgument, unsupported_field
from inference_service.executor.messages import Sampling
from inference_service.frontend.checks import check_count, check_float, check_int, check_token_ids, invalid
from inference_service.frontend.fields import refuse_fields
from inference_service.frontend.prompts import ModelSpec, Prompt, check_prompt_tokens, need_tokenizer
from inference_service.text.output import TextOptions, special_stops

DEFAULT_MAX_TOKENS = 32
MAX_LOGPROBS = 20
MAX_LABELS = 16
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 1024
MAX_REQUEST_ID_CHARS = 128
MAX_SALT_CHARS = 256
MAX_STREAM_INTERVAL = 1 << 16
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them says nothing else."""
_UNSTREAMED_INTERVAL = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A start that has passed every check."""

    prompt: Prompt
    sampling: Sampling
    text: TextOptions
    stream: bool
    interval: int
    """Tokens in one delta to the client."""
    executor_interval: int
    priority: float
    cache_salt: str
    time_limit: float | None
    """Seconds."""
    perf_metrics: bool
    labels: dict[str, str]


def check_start(start: pb.Start) -> None:
    """What can be checked without the model. Cheap.

    Raises:
        InvalidArgument, Unimplemented (reason UNSUPPORTED_FIELD).
    """
    if not 1 <= len(start.request_id) <= MAX_REQUEST_ID_CHARS:
        raise invalid("request_id", f"must have 1 to {MAX_REQUEST_ID_CHARS} characters.", length=len(start.request_id))
    _check_counts(start)
    refuse_fields(start)
    if start.WhichOneof("prompt") is None:
        raise InvalidArgument(
            "The request has no prompt; set one of `text`, `token_ids` and `chat`.",
            reason="NO_PROMPT",
            metadata={"field": "prompt"},
        )
    for key, value in start.labels.items():
        if len(key) > 63 or len(value) > 63:
            raise invalid("labels", "holds a key or value of more than 63 characters.", "TOO_LONG", key=key[:63])


def _check_counts(start: pb.Start) -> None:
    """Before anything walks through the lists: a message holds millions of entries."""
    params = start.sampling
    check_count("labels", len(start.labels), MAX_LABELS)
    check_count("sampling.stop", len(params.stop), MAX_STOPS)
    check_count("sampling.stop_token_ids", len(params.stop_token_ids), MAX_STOP_IDS)
    check_count("sampling.stop_token_sequences", len(params.stop_token_sequences), MAX_STOP_IDS)


def make_plan(start: pb.Start, prompt: Prompt, spec: ModelSpec) -> Plan:
    """Checks the rest of the request against the model.

    Raises:
        InvalidArgument: names the field and the numbers.
    """
    text = _text_options(start, spec, prompt)
    interval = start.stream_interval if start.HasField("stream_interval") else 1
    check_int("stream_interval", interval, 1, MAX_STREAM_INTERVAL)
    every_token = bool(text.stops)  # a stop string should end the sequence at once
    return Plan(
        prompt=prompt,
        sampling=_sampling(start, spec, len(prompt.token_ids), text),
        text=text,
        stream=start.stream,
        interval=interval,
        executor_interval=1 if every_token else interval if start.stream else _UNSTREAMED_INTERVAL,
        priority=_priority(start, spec),
        cache_salt=_salt(start.kv.cache_salt),
        time_limit=_time_limit(start),
        perf_metrics=start.output.return_perf_metrics,
        labels=dict(start.labels),
    )


def _sampling(start: pb.Start, spec: ModelSpec, prompt_tokens: int, text: TextOptions) -> Sampling:
    params = start.sampling
    max_tokens = _max_tokens(params, prompt_tokens, spec)
    singles = [sequence.ids[0] for sequence in params.stop_token_sequences]
    stop_ids = check_token_ids("sampling.stop_token_ids", [*params.stop_token_ids, *singles], spec.vocab_size)
    if params.HasField("pad_id"):
        check_int("sampling.pad_id", params.pad_id, -1, spec.vocab_size - 1)
    if params.HasField("min_tokens"):
        check_int("sampling.min_tokens", params.min_tokens, 0, max_tokens)
    decoding = _decoding(params)
    return Sampling(
        temperature=decoding.temperature,
        top_k=min(decoding.top_k, spec.vocab_size),
        top_p=decoding.top_p,
        min_p=decoding.min_p,
        seed=params.seed if params.HasField("seed") else secrets.randbits(64),
        max_tokens=max_tokens,
        min_tokens=text.min_tokens,
        stop_token_ids=tuple(dict.fromkeys([*text.end_ids, *stop_ids, *text.stop_of_id])),
        logprobs=_logprobs(start.output, spec),
    )


class _Decoding(NamedTuple):
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def _decoding(params: spb.SamplingParams) -> _Decoding:
    if not any(params.HasField(name) for name in ("temperature", "top_k", "top_p", "min_p")):
        return _Decoding()
    temperature = (
        check_float("sampling.temperature", params.temperature, 0.0) if params.HasField("temperature") else 1.0
    )
    top_k = check_int("sampling.top_k", params.top_k, 0)
    top_p = check_float("sampling.top_p", params.top_p, 0.0, 1.0) if params.HasField("top_p") else 1.0
    min_p = check_float("sampling.min_p", params.min_p, 0.0, 1.0)
    if temperature < GREEDY_BELOW or top_k == 1 or top_p == 0.0:
        return _Decoding()
    return _Decoding(temperature, top_k, top_p, min_p)


def _max_tokens(params: spb.SamplingParams, prompt_tokens: int, spec: ModelSpec) -> int:
    """An explicit max_tokens that does not fit is refused; the default shrinks to what is left."""
    check_prompt_tokens(prompt_tokens, spec)
    room = spec.max_seq_len - prompt_tokens
    if not params.HasField("max_tokens"):
        return min(DEFAULT_MAX_TOKENS, room)
    max_tokens = check_int("sampling.max_tokens", params.max_tokens, 1)
    if max_tokens > room:
        raise invalid(
            "sampling.max_tokens",
            f"is {max_tokens}, but {prompt_tokens} prompt tokens leave room for {room} (max_seq_len "
            f"{spec.max_seq_len}). Lower it or shorten the prompt.",
            "SEQUENCE_TOO_LONG",
            max_tokens=max_tokens,
            prompt_tokens=prompt_tokens,
            max_seq_len=spec.max_seq_len,
        )
    return max_tokens


def _logprobs(output: spb.OutputOptions, spec: ModelSpec) -> int | None:
    if not output.HasField("logprobs"):
        return None
    if output.HasField("exclude_input_from_output") and not output.exclude_input_from_output:
        raise unsupported_field(
            "output.logprobs", "together with exclude_input_from_output = false is not supported yet"
        )
    return check_int("output.logprobs", output.logprobs, 0, min(MAX_LOGPROBS, spec.vocab_size))


def _text_options(start: pb.Start, spec: ModelSpec, prompt: Prompt) -> TextOptions:
    params, output = start.sampling, start.output
    detokenize = output.detokenize if output.HasField("detokenize") else spec.tokenizer is not None
    stops = _stops(params.stop, detokenize)
    vocabulary = need_tokenizer(spec).vocabulary if detokenize else None
    echo = output.HasField("exclude_input_from_output") and not output.exclude_input_from_output
    return TextOptions(
        detokenize=detokenize,
        skip_special_tokens=not output.HasField("skip_special_tokens") or output.skip_special_tokens,
        spaces_between_special_tokens=not output.HasField("spaces_between_special_tokens")
        or output.spaces_between_special_tokens,
        stops=stops,
        include_stop=output.include_stop_str_in_output,
        min_tokens=params.min_tokens if params.HasField("min_tokens") else 1,
        stop_of_id=special_stops(stops, vocabulary) if vocabulary is not None else {},
        end_ids=_end_ids(params, spec),
        echo=tuple(prompt.token_ids) if echo else (),
    )


def _end_ids(params: spb.SamplingParams, spec: ModelSpec) -> frozenset[int]:
    if params.HasField("end_id"):
        check_int("sampling.end_id", params.end_id, -1, spec.vocab_size - 1)
    if params.ignore_eos:
        return frozenset()
    if params.HasField("end_id"):
        return frozenset() if params.end_id == -1 else frozenset({params.end_id})
    return frozenset(spec.eos_token_ids)


def _stops(stops: Sequence[str], detokenize: bool) -> tuple[str, ...]:
    if stops and not detokenize:
        raise invalid("sampling.stop", "needs text; leave `output.detokenize` true, or use stop_token_ids.", "CONFLICT")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise invalid(
                "sampling.stop",
                f"holds a text of {len(stop)} characters; each must have 1 to {MAX_STOP_CHARS}.",
                length=len(stop),
                max=MAX_STOP_CHARS,
            )
    return tuple(dict.fromkeys(stops))


def _priority(start: pb.Start, spec: ModelSpec) -> float:
    priority = check_float("priority", start.priority, 0.0, 1.0) if start.HasField("priority") else 0.5
    return priority if spec.use_priority else 0.5


def _salt(salt: str) -> str:
    if len(salt) > MAX_SALT_CHARS:
        raise invalid("kv.cache_salt", f"has {len(salt)} characters; at most {MAX_SALT_CHARS}.", "TOO_LONG")
    return salt


def _time_limit(start: pb.Start) -> float | None:
    if not start.HasField("time_limit"):
        return None
    seconds = start.time_limit.seconds + start.time_limit.nanos / 1e9
    if seconds <= 0:
        raise invalid("time_limit", f"is {seconds:g} s; it must be above 0.", value=seconds)
    return seconds
