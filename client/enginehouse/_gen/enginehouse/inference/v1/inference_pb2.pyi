import datetime

from enginehouse._gen.enginehouse.common.v1 import common_pb2 as _common_pb2
from enginehouse._gen.enginehouse.inference.v1 import sampling_pb2 as _sampling_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TIMEOUT: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class TensorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_KIND_UNSPECIFIED: _ClassVar[TensorKind]
    TENSOR_KIND_CONTEXT_LOGITS: _ClassVar[TensorKind]
    TENSOR_KIND_GENERATION_LOGITS: _ClassVar[TensorKind]
    TENSOR_KIND_ENCODER_OUTPUT: _ClassVar[TensorKind]
    TENSOR_KIND_HIDDEN_STATES: _ClassVar[TensorKind]
    TENSOR_KIND_ADDITIONAL_CONTEXT_OUTPUT: _ClassVar[TensorKind]
    TENSOR_KIND_ADDITIONAL_GENERATION_OUTPUT: _ClassVar[TensorKind]

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    MODALITY_IMAGE: _ClassVar[Modality]
    MODALITY_AUDIO: _ClassVar[Modality]
    MODALITY_VIDEO: _ClassVar[Modality]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TIMEOUT: FinishReason
FINISH_REASON_CANCELLED: FinishReason
TENSOR_KIND_UNSPECIFIED: TensorKind
TENSOR_KIND_CONTEXT_LOGITS: TensorKind
TENSOR_KIND_GENERATION_LOGITS: TensorKind
TENSOR_KIND_ENCODER_OUTPUT: TensorKind
TENSOR_KIND_HIDDEN_STATES: TensorKind
TENSOR_KIND_ADDITIONAL_CONTEXT_OUTPUT: TensorKind
TENSOR_KIND_ADDITIONAL_GENERATION_OUTPUT: TensorKind
MODALITY_UNSPECIFIED: Modality
MODALITY_IMAGE: Modality
MODALITY_AUDIO: Modality
MODALITY_VIDEO: Modality

class GenerateRequest(_message.Message):
    __slots__ = ("start", "cancel")
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    start: Start
    cancel: Cancel
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("request_id", "model", "text", "token_ids", "chat", "embeddings", "query_token_ids", "multimodal", "mm_processor_kwargs", "add_special_tokens", "truncate_prompt_tokens", "sampling", "output", "guided", "lora", "prompt_adapter", "kv", "disaggregated", "priority", "time_limit", "stream", "stream_interval", "labels", "position_ids", "encoder_token_ids")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_FIELD_NUMBER: _ClassVar[int]
    MM_PROCESSOR_KWARGS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    GUIDED_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    DISAGGREGATED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    POSITION_IDS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    text: str
    token_ids: _sampling_pb2.TokenIds
    chat: ChatPrompt
    embeddings: _common_pb2.Tensor
    query_token_ids: _containers.RepeatedScalarFieldContainer[int]
    multimodal: _containers.RepeatedCompositeFieldContainer[MultimodalItem]
    mm_processor_kwargs: _struct_pb2.Struct
    add_special_tokens: bool
    truncate_prompt_tokens: int
    sampling: _sampling_pb2.SamplingParams
    output: _sampling_pb2.OutputOptions
    guided: _sampling_pb2.GuidedDecoding
    lora: _sampling_pb2.LoraRequest
    prompt_adapter: _sampling_pb2.PromptAdapterRequest
    kv: _sampling_pb2.KvOptions
    disaggregated: _sampling_pb2.DisaggregatedParams
    priority: float
    time_limit: _duration_pb2.Duration
    stream: bool
    stream_interval: int
    labels: _containers.ScalarMap[str, str]
    position_ids: _containers.RepeatedScalarFieldContainer[int]
    encoder_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[_sampling_pb2.TokenIds, _Mapping]] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., embeddings: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., query_token_ids: _Optional[_Iterable[int]] = ..., multimodal: _Optional[_Iterable[_Union[MultimodalItem, _Mapping]]] = ..., mm_processor_kwargs: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., add_special_tokens: _Optional[bool] = ..., truncate_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., output: _Optional[_Union[_sampling_pb2.OutputOptions, _Mapping]] = ..., guided: _Optional[_Union[_sampling_pb2.GuidedDecoding, _Mapping]] = ..., lora: _Optional[_Union[_sampling_pb2.LoraRequest, _Mapping]] = ..., prompt_adapter: _Optional[_Union[_sampling_pb2.PromptAdapterRequest, _Mapping]] = ..., kv: _Optional[_Union[_sampling_pb2.KvOptions, _Mapping]] = ..., disaggregated: _Optional[_Union[_sampling_pb2.DisaggregatedParams, _Mapping]] = ..., priority: _Optional[float] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., stream: _Optional[bool] = ..., stream_interval: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., position_ids: _Optional[_Iterable[int]] = ..., encoder_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages", "add_generation_prompt", "continue_final_message", "chat_template", "template_kwargs", "tools")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str
    template_kwargs: _struct_pb2.Struct
    tools: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., add_generation_prompt: _Optional[bool] = ..., continue_final_message: _Optional[bool] = ..., chat_template: _Optional[str] = ..., template_kwargs: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., tools: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "name", "tool_calls", "tool_call_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    tool_call_id: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., tool_call_id: _Optional[str] = ...) -> None: ...

class MultimodalItem(_message.Message):
    __slots__ = ("modality", "data", "uri", "embeddings", "mime_type", "content_hash")
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    modality: Modality
    data: bytes
    uri: str
    embeddings: _common_pb2.Tensor
    mime_type: str
    content_hash: str
    def __init__(self, modality: _Optional[_Union[Modality, str]] = ..., data: _Optional[bytes] = ..., uri: _Optional[str] = ..., embeddings: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., mime_type: _Optional[str] = ..., content_hash: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("request_id", "accepted", "prompt", "delta", "finished", "done", "error", "tensor_chunk", "draining")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TENSOR_CHUNK_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    accepted: Accepted
    prompt: PromptInfo
    delta: Delta
    finished: Finished
    done: Done
    error: _status_pb2.Status
    tensor_chunk: TensorChunk
    draining: Draining
    def __init__(self, request_id: _Optional[str] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., prompt: _Optional[_Union[PromptInfo, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., tensor_chunk: _Optional[_Union[TensorChunk, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("server_id", "prompt_tokens", "model", "version", "arrival_time")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_TIME_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    prompt_tokens: int
    model: str
    version: str
    arrival_time: _timestamp_pb2.Timestamp
    def __init__(self, server_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., arrival_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class PromptInfo(_message.Message):
    __slots__ = ("token_ids", "text", "first_position", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    first_position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("output_index", "token_ids", "text", "logprobs")
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    output_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    def __init__(self, output_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("output_index", "reason", "stop_text", "stop_token_id", "token_ids", "text", "logprobs", "cumulative_logprob", "completion_tokens", "disaggregated")
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISAGGREGATED_FIELD_NUMBER: _ClassVar[int]
    output_index: int
    reason: FinishReason
    stop_text: str
    stop_token_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    cumulative_logprob: float
    completion_tokens: int
    disaggregated: _sampling_pb2.DisaggregatedParams
    def __init__(self, output_index: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., cumulative_logprob: _Optional[float] = ..., completion_tokens: _Optional[int] = ..., disaggregated: _Optional[_Union[_sampling_pb2.DisaggregatedParams, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("usage", "perf_metrics")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PERF_METRICS_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    perf_metrics: PerfMetrics
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., perf_metrics: _Optional[_Union[PerfMetrics, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class PerfMetrics(_message.Message):
    __slots__ = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time", "kv_cache_transfer_start", "kv_cache_transfer_end", "kv_cache_size", "kv_cache", "speculative", "first_iter", "last_iter", "preemptions")
    ARRIVAL_TIME_FIELD_NUMBER: _ClassVar[int]
    FIRST_SCHEDULED_TIME_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKEN_TIME_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TRANSFER_START_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TRANSFER_END_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ITER_FIELD_NUMBER: _ClassVar[int]
    LAST_ITER_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    arrival_time: _timestamp_pb2.Timestamp
    first_scheduled_time: _timestamp_pb2.Timestamp
    first_token_time: _timestamp_pb2.Timestamp
    last_token_time: _timestamp_pb2.Timestamp
    kv_cache_transfer_start: _timestamp_pb2.Timestamp
    kv_cache_transfer_end: _timestamp_pb2.Timestamp
    kv_cache_size: int
    kv_cache: KvCacheMetrics
    speculative: SpeculativeMetrics
    first_iter: int
    last_iter: int
    preemptions: int
    def __init__(self, arrival_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_scheduled_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_token_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_token_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kv_cache_transfer_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kv_cache_transfer_end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kv_cache_size: _Optional[int] = ..., kv_cache: _Optional[_Union[KvCacheMetrics, _Mapping]] = ..., speculative: _Optional[_Union[SpeculativeMetrics, _Mapping]] = ..., first_iter: _Optional[int] = ..., last_iter: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...

class KvCacheMetrics(_message.Message):
    __slots__ = ("num_total_allocated_blocks", "num_new_allocated_blocks", "num_reused_blocks", "num_missed_blocks", "kv_cache_hit_rate")
    NUM_TOTAL_ALLOCATED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_ALLOCATED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_REUSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    num_total_allocated_blocks: int
    num_new_allocated_blocks: int
    num_reused_blocks: int
    num_missed_blocks: int
    kv_cache_hit_rate: float
    def __init__(self, num_total_allocated_blocks: _Optional[int] = ..., num_new_allocated_blocks: _Optional[int] = ..., num_reused_blocks: _Optional[int] = ..., num_missed_blocks: _Optional[int] = ..., kv_cache_hit_rate: _Optional[float] = ...) -> None: ...

class SpeculativeMetrics(_message.Message):
    __slots__ = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    acceptance_rate: float
    total_accepted_draft_tokens: int
    total_draft_tokens: int
    def __init__(self, acceptance_rate: _Optional[float] = ..., total_accepted_draft_tokens: _Optional[int] = ..., total_draft_tokens: _Optional[int] = ...) -> None: ...

class TensorChunk(_message.Message):
    __slots__ = ("kind", "name", "output_index", "first_row", "rows", "row_shape", "dtype", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROW_SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: TensorKind
    name: str
    output_index: int
    first_row: int
    rows: int
    row_shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: _common_pb2.DataType
    data: bytes
    def __init__(self, kind: _Optional[_Union[TensorKind, str]] = ..., name: _Optional[str] = ..., output_index: _Optional[int] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., row_shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("deadline", "retry_after")
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    deadline: _timestamp_pb2.Timestamp
    retry_after: _duration_pb2.Duration
    def __init__(self, deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("server_ids", "all")
    SERVER_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    server_ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    def __init__(self, server_ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted", "not_found")
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    aborted: _containers.RepeatedScalarFieldContainer[str]
    not_found: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, aborted: _Optional[_Iterable[str]] = ..., not_found: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "texts", "add_special_tokens", "truncate_prompt_tokens", "return_offsets")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    add_special_tokens: bool
    truncate_prompt_tokens: int
    return_offsets: bool
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., add_special_tokens: _Optional[bool] = ..., truncate_prompt_tokens: _Optional[int] = ..., return_offsets: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TokenizedText]
    def __init__(self, results: _Optional[_Iterable[_Union[TokenizedText, _Mapping]]] = ...) -> None: ...

class TokenizedText(_message.Message):
    __slots__ = ("token_ids", "starts", "ends")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "sequences", "skip_special_tokens", "spaces_between_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPACES_BETWEEN_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    sequences: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenIds]
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[_sampling_pb2.TokenIds, _Mapping]]] = ..., skip_special_tokens: _Optional[bool] = ..., spaces_between_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class ApplyChatTemplateRequest(_message.Message):
    __slots__ = ("model", "chat", "tokenize")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    chat: ChatPrompt
    tokenize: bool
    def __init__(self, model: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., tokenize: _Optional[bool] = ...) -> None: ...

class ApplyChatTemplateResponse(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class TokenizerFileChunk(_message.Message):
    __slots__ = ("path", "data", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    sha256: str
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("version", "instance_id", "start_time", "models", "opsets", "forms", "devices", "libraries", "features", "max_message_bytes", "max_live_requests", "draining")
    class LibrariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    OPSETS_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    version: str
    instance_id: str
    start_time: _timestamp_pb2.Timestamp
    models: _containers.RepeatedScalarFieldContainer[str]
    opsets: _containers.RepeatedScalarFieldContainer[int]
    forms: _containers.RepeatedScalarFieldContainer[_common_pb2.TargetForm]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    libraries: _containers.ScalarMap[str, str]
    features: _containers.RepeatedScalarFieldContainer[str]
    max_message_bytes: int
    max_live_requests: int
    draining: bool
    def __init__(self, version: _Optional[str] = ..., instance_id: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., models: _Optional[_Iterable[str]] = ..., opsets: _Optional[_Iterable[int]] = ..., forms: _Optional[_Iterable[_Union[_common_pb2.TargetForm, str]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., libraries: _Optional[_Mapping[str, str]] = ..., features: _Optional[_Iterable[str]] = ..., max_message_bytes: _Optional[int] = ..., max_live_requests: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("id", "name", "compute_capability", "memory_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    compute_capability: str
    memory_bytes: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., compute_capability: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("models", "time")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelLoad]
    time: _timestamp_pb2.Timestamp
    def __init__(self, models: _Optional[_Iterable[_Union[ModelLoad, _Mapping]]] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ModelLoad(_message.Message):
    __slots__ = ("model", "running_requests", "queued_requests", "queued_tokens", "running_tokens", "used_kv_blocks", "total_kv_blocks", "generation_throughput", "cache_hit_rate", "max_queue_size")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USED_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    model: str
    running_requests: int
    queued_requests: int
    queued_tokens: int
    running_tokens: int
    used_kv_blocks: int
    total_kv_blocks: int
    generation_throughput: float
    cache_hit_rate: float
    max_queue_size: int
    def __init__(self, model: _Optional[str] = ..., running_requests: _Optional[int] = ..., queued_requests: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., running_tokens: _Optional[int] = ..., used_kv_blocks: _Optional[int] = ..., total_kv_blocks: _Optional[int] = ..., generation_throughput: _Optional[float] = ..., cache_hit_rate: _Optional[float] = ..., max_queue_size: _Optional[int] = ...) -> None: ...
