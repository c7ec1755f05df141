"""What can go with a request beside its prompt and sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from enginehouse import _check as check
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, sampling_pb2

_REQUEST_TYPES = {
    "context_only": sampling_pb2.REQUEST_TYPE_CONTEXT_ONLY,
    "generation_only": sampling_pb2.REQUEST_TYPE_GENERATION_ONLY,
    "context_and_generation": sampling_pb2.REQUEST_TYPE_CONTEXT_AND_GENERATION,
}
_SCHEDULE_STYLES = {
    "context_first": sampling_pb2.SCHEDULE_STYLE_CONTEXT_FIRST,
    "generation_first": sampling_pb2.SCHEDULE_STYLE_GENERATION_FIRST,
}


@dataclass(frozen=True)
class LoRARequest:
    """A LoRA adapter for one request. `lora_path`: where the server finds it if it is not loaded."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self) -> None:
        check.integer("lora_int_id", self.lora_int_id, 1, 2**63 - 1)
        check.one_of("lora_ckpt_source", self.lora_ckpt_source, ("hf", "nemo"))

    def to_proto(self) -> sampling_pb2.LoraRequest:
        return sampling_pb2.LoraRequest(
            name=self.lora_name, int_id=self.lora_int_id, path=self.lora_path, ckpt_source=self.lora_ckpt_source
        )


@dataclass(frozen=True)
class PromptAdapterRequest:
    """A prompt adapter (p-tuning) for one request."""

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str = ""

    def __post_init__(self) -> None:
        check.integer("prompt_adapter_id", self.prompt_adapter_id, 1, 2**63 - 1)

    def to_proto(self) -> sampling_pb2.PromptAdapterRequest:
        return sampling_pb2.PromptAdapterRequest(
            name=self.prompt_adapter_name, id=self.prompt_adapter_id, local_path=self.prompt_adapter_local_path
        )


@dataclass(frozen=True)
class TokenRangeRetentionConfig:
    """How long the blocks of prompt tokens [token_start, token_end) are kept. None as the end: to the prompt's end.
    Priority 0 to 100, higher is evicted later; it holds for `duration_ms` (None: for ever), then it is 35."""

    token_start: int
    token_end: int | None = None
    priority: int = 35
    duration_ms: int | None = None

    def __post_init__(self) -> None:
        check.integer("token_start", self.token_start, 0)
        check.integer("token_end", self.token_end, self.token_start + 1)
        check.integer("priority", self.priority, 0, 100)
        check.integer("duration_ms", self.duration_ms, 1)


@dataclass(frozen=True)
class KvCacheRetentionConfig:
    """How long a request's blocks stay in the KV cache. Ranges must not overlap."""

    token_range_retention_configs: Sequence[TokenRangeRetentionConfig] = ()
    decode_retention_priority: int = 35
    decode_duration_ms: int | None = None

    def __post_init__(self) -> None:
        check.integer("decode_retention_priority", self.decode_retention_priority, 0, 100)
        check.integer("decode_duration_ms", self.decode_duration_ms, 1)
        ordered = sorted(self.token_range_retention_configs, key=lambda item: item.token_start)
        for before, after in pairwise(ordered):
            if before.token_end is None or before.token_end > after.token_start:
                raise ValueError(f"token ranges overlap at token {after.token_start}")

    def to_proto(self) -> sampling_pb2.KvCacheRetentionConfig:
        proto = sampling_pb2.KvCacheRetentionConfig(decode_retention_priority=self.decode_retention_priority)
        if self.decode_duration_ms is not None:
            proto.decode_duration.FromMilliseconds(self.decode_duration_ms)
        for config in self.token_range_retention_configs:
            item = proto.token_range_retention_configs.add(
                token_start=config.token_start, token_end=config.token_end, priority=config.priority
            )
            if config.duration_ms is not None:
                item.duration.FromMilliseconds(config.duration_ms)
        return proto


@dataclass
class DisaggregatedParams:
    """The hand-off between a server that reads prompts and one that generates."""

    request_type: str | None = None
    first_gen_tokens: list[int] | None = None
    first_gen_log_probs: list[Any] | None = None
    first_gen_logits: Any = None
    ctx_request_id: int | None = None
    opaque_state: bytes | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: str | None = None
    multimodal_embedding_handles: list[bytes] | None = None
    multimodal_hashes: list[list[int]] | None = field(default=None)
    mrope_position_ids_handle: bytes | None = None
    mrope_position_deltas_handle: bytes | None = None

    def __post_init__(self) -> None:
        if self.request_type is not None:
            self.request_type = self.request_type.lower()
        if self.schedule_style is not None:
            self.schedule_style = self.schedule_style.lower()
        check.one_of("request_type", self.request_type, _REQUEST_TYPES)
        check.one_of("schedule_style", self.schedule_style, _SCHEDULE_STYLES)
        check.integers("first_gen_tokens", self.first_gen_tokens)
        check.integers("draft_tokens", self.draft_tokens)

    def to_proto(self) -> sampling_pb2.DisaggregatedParams:
        scalars = (
            *("ctx_request_id", "opaque_state", "disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint"),
            *("mrope_position_ids_handle", "mrope_position_deltas_handle"),
        )
        proto = sampling_pb2.DisaggregatedParams(
            request_type=_REQUEST_TYPES.get(self.request_type or "", sampling_pb2.REQUEST_TYPE_UNSPECIFIED),
            schedule_style=_SCHEDULE_STYLES.get(self.schedule_style or "", sampling_pb2.SCHEDULE_STYLE_UNSPECIFIED),
            first_gen_tokens=self.first_gen_tokens or (),
            draft_tokens=self.draft_tokens or (),
            multimodal_embedding_handles=self.multimodal_embedding_handles or (),
            **{name: value for name in scalars if (value := getattr(self, name)) is not None},
        )
        for words in self.multimodal_hashes or ():
            proto.multimodal_hashes.add(words=words)
        for row in self.first_gen_log_probs or ():
            top = [sampling_pb2.Logprob(token_id=i, logprob=lp.logprob, rank=lp.rank) for i, lp in row.items()]
            proto.first_gen_log_probs.add(top=top)
        if self.first_gen_logits is not None:
            proto.first_gen_logits.CopyFrom(_tensor(self.first_gen_logits))
        return proto

    @classmethod
    def from_proto(cls, proto: sampling_pb2.DisaggregatedParams) -> DisaggregatedParams:
        """The hand-off that a context server answered with."""
        optional = ("ctx_request_id", "opaque_state", "disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint")
        names = {number: name for name, number in _REQUEST_TYPES.items()}
        return cls(
            request_type=names.get(proto.request_type),
            first_gen_tokens=list(proto.first_gen_tokens) or None,
            draft_tokens=list(proto.draft_tokens) or None,
            **{name: getattr(proto, name) for name in optional if proto.HasField(name)},
        )


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What goes with one request beside prompt and sampling parameters.

    cache_salt: requests share cached blocks only with those of the same salt. priority: 0 to 1, higher is earlier
    [0.5]. time_limit: seconds; then the request ends with reason "timeout" and what was generated. stream_interval:
    tokens in one step of a streamed answer [1].
    """

    lora_request: LoRARequest | None = None
    prompt_adapter_request: PromptAdapterRequest | None = None
    kv_cache_retention_config: KvCacheRetentionConfig | None = None
    disaggregated_params: DisaggregatedParams | None = None
    cache_salt: str | None = None
    priority: float | None = None
    time_limit: float | None = None
    stream_interval: int | None = None

    def fill(self, start: inference_pb2.Start) -> None:
        """Writes the options into a request's Start."""
        check.number("priority", self.priority, 0.0, 1.0)
        check.number("time_limit", self.time_limit, 0.0, above=True)
        check.integer("stream_interval", self.stream_interval, 1)
        if self.lora_request is not None:
            start.lora.CopyFrom(self.lora_request.to_proto())
        if self.prompt_adapter_request is not None:
            start.prompt_adapter.CopyFrom(self.prompt_adapter_request.to_proto())
        if self.kv_cache_retention_config is not None:
            start.kv.retention.CopyFrom(self.kv_cache_retention_config.to_proto())
        if self.disaggregated_params is not None:
            start.disaggregated.CopyFrom(self.disaggregated_params.to_proto())
        if self.cache_salt:
            start.kv.cache_salt = self.cache_salt
        if self.priority is not None:
            start.priority = self.priority
        if self.time_limit is not None:
            start.time_limit.FromNanoseconds(int(self.time_limit * 1e9))
        if self.stream_interval is not None:
            start.stream_interval = self.stream_interval


def _tensor(value: Any) -> common_pb2.Tensor:
    import numpy as np

    array = np.ascontiguousarray(value, dtype="<f4")
    return common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=array.shape, data=array.tobytes())
