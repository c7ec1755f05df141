import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STAGE_UNSPECIFIED: _ClassVar[RequestStage]
    REQUEST_STAGE_QUEUED: _ClassVar[RequestStage]
    REQUEST_STAGE_ENCODER_IN_PROGRESS: _ClassVar[RequestStage]
    REQUEST_STAGE_CONTEXT_IN_PROGRESS: _ClassVar[RequestStage]
    REQUEST_STAGE_GENERATION_IN_PROGRESS: _ClassVar[RequestStage]
    REQUEST_STAGE_GENERATION_COMPLETE: _ClassVar[RequestStage]
REQUEST_STAGE_UNSPECIFIED: RequestStage
REQUEST_STAGE_QUEUED: RequestStage
REQUEST_STAGE_ENCODER_IN_PROGRESS: RequestStage
REQUEST_STAGE_CONTEXT_IN_PROGRESS: RequestStage
REQUEST_STAGE_GENERATION_IN_PROGRESS: RequestStage
REQUEST_STAGE_GENERATION_COMPLETE: RequestStage

class GetStatsRequest(_message.Message):
    __slots__ = ("model", "after_iteration", "max_iterations", "include_requests", "timeout")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AFTER_ITERATION_FIELD_NUMBER: _ClassVar[int]
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    after_iteration: int
    max_iterations: int
    include_requests: bool
    timeout: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., after_iteration: _Optional[int] = ..., max_iterations: _Optional[int] = ..., include_requests: _Optional[bool] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("iterations",)
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    iterations: _containers.RepeatedCompositeFieldContainer[IterationStats]
    def __init__(self, iterations: _Optional[_Iterable[_Union[IterationStats, _Mapping]]] = ...) -> None: ...

class StreamStatsRequest(_message.Message):
    __slots__ = ("model", "interval", "include_requests")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    interval: _duration_pb2.Duration
    include_requests: bool
    def __init__(self, model: _Optional[str] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., include_requests: _Optional[bool] = ...) -> None: ...

class StreamStatsResponse(_message.Message):
    __slots__ = ("iterations",)
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    iterations: _containers.RepeatedCompositeFieldContainer[IterationStats]
    def __init__(self, iterations: _Optional[_Iterable[_Union[IterationStats, _Mapping]]] = ...) -> None: ...

class IterationStats(_message.Message):
    __slots__ = ("timestamp", "iter", "iter_latency", "new_active_requests_queue_latency", "num_new_active_requests", "num_active_requests", "num_queued_requests", "num_completed_requests", "max_num_active_requests", "max_batch_size_static", "max_batch_size_tuner_recommended", "max_batch_size_runtime", "max_num_tokens_static", "max_num_tokens_tuner_recommended", "max_num_tokens_runtime", "gpu_mem_usage", "cpu_mem_usage", "pinned_mem_usage", "kv_cache_stats", "cross_kv_cache_stats", "static_batching_stats", "inflight_batching_stats", "spec_decoding_stats", "request_stats")
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ITER_FIELD_NUMBER: _ClassVar[int]
    ITER_LATENCY_FIELD_NUMBER: _ClassVar[int]
    NEW_ACTIVE_REQUESTS_QUEUE_LATENCY_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPLETED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_STATIC_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_TUNER_RECOMMENDED_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_RUNTIME_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_STATIC_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_TUNER_RECOMMENDED_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_RUNTIME_FIELD_NUMBER: _ClassVar[int]
    GPU_MEM_USAGE_FIELD_NUMBER: _ClassVar[int]
    CPU_MEM_USAGE_FIELD_NUMBER: _ClassVar[int]
    PINNED_MEM_USAGE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_STATS_FIELD_NUMBER: _ClassVar[int]
    CROSS_KV_CACHE_STATS_FIELD_NUMBER: _ClassVar[int]
    STATIC_BATCHING_STATS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_BATCHING_STATS_FIELD_NUMBER: _ClassVar[int]
    SPEC_DECODING_STATS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_STATS_FIELD_NUMBER: _ClassVar[int]
    timestamp: _timestamp_pb2.Timestamp
    iter: int
    iter_latency: _duration_pb2.Duration
    new_active_requests_queue_latency: _duration_pb2.Duration
    num_new_active_requests: int
    num_active_requests: int
    num_queued_requests: int
    num_completed_requests: int
    max_num_active_requests: int
    max_batch_size_static: int
    max_batch_size_tuner_recommended: int
    max_batch_size_runtime: int
    max_num_tokens_static: int
    max_num_tokens_tuner_recommended: int
    max_num_tokens_runtime: int
    gpu_mem_usage: int
    cpu_mem_usage: int
    pinned_mem_usage: int
    kv_cache_stats: KvCacheStats
    cross_kv_cache_stats: KvCacheStats
    static_batching_stats: StaticBatchingStats
    inflight_batching_stats: InflightBatchingStats
    spec_decoding_stats: SpecDecodingStats
    request_stats: _containers.RepeatedCompositeFieldContainer[RequestStats]
    def __init__(self, timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., iter: _Optional[int] = ..., iter_latency: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., new_active_requests_queue_latency: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., num_new_active_requests: _Optional[int] = ..., num_active_requests: _Optional[int] = ..., num_queued_requests: _Optional[int] = ..., num_completed_requests: _Optional[int] = ..., max_num_active_requests: _Optional[int] = ..., max_batch_size_static: _Optional[int] = ..., max_batch_size_tuner_recommended: _Optional[int] = ..., max_batch_size_runtime: _Optional[int] = ..., max_num_tokens_static: _Optional[int] = ..., max_num_tokens_tuner_recommended: _Optional[int] = ..., max_num_tokens_runtime: _Optional[int] = ..., gpu_mem_usage: _Optional[int] = ..., cpu_mem_usage: _Optional[int] = ..., pinned_mem_usage: _Optional[int] = ..., kv_cache_stats: _Optional[_Union[KvCacheStats, _Mapping]] = ..., cross_kv_cache_stats: _Optional[_Union[KvCacheStats, _Mapping]] = ..., static_batching_stats: _Optional[_Union[StaticBatchingStats, _Mapping]] = ..., inflight_batching_stats: _Optional[_Union[InflightBatchingStats, _Mapping]] = ..., spec_decoding_stats: _Optional[_Union[SpecDecodingStats, _Mapping]] = ..., request_stats: _Optional[_Iterable[_Union[RequestStats, _Mapping]]] = ...) -> None: ...

class KvCacheStats(_message.Message):
    __slots__ = ("max_num_blocks", "free_num_blocks", "used_num_blocks", "tokens_per_block", "alloc_total_blocks", "alloc_new_blocks", "reused_blocks", "missed_blocks", "cache_hit_rate")
    MAX_NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ALLOC_TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ALLOC_NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REUSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    max_num_blocks: int
    free_num_blocks: int
    used_num_blocks: int
    tokens_per_block: int
    alloc_total_blocks: int
    alloc_new_blocks: int
    reused_blocks: int
    missed_blocks: int
    cache_hit_rate: float
    def __init__(self, max_num_blocks: _Optional[int] = ..., free_num_blocks: _Optional[int] = ..., used_num_blocks: _Optional[int] = ..., tokens_per_block: _Optional[int] = ..., alloc_total_blocks: _Optional[int] = ..., alloc_new_blocks: _Optional[int] = ..., reused_blocks: _Optional[int] = ..., missed_blocks: _Optional[int] = ..., cache_hit_rate: _Optional[float] = ...) -> None: ...

class StaticBatchingStats(_message.Message):
    __slots__ = ("num_scheduled_requests", "num_context_requests", "num_ctx_tokens", "num_gen_tokens", "empty_gen_slots")
    NUM_SCHEDULED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTEXT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CTX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_GEN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    num_scheduled_requests: int
    num_context_requests: int
    num_ctx_tokens: int
    num_gen_tokens: int
    empty_gen_slots: int
    def __init__(self, num_scheduled_requests: _Optional[int] = ..., num_context_requests: _Optional[int] = ..., num_ctx_tokens: _Optional[int] = ..., num_gen_tokens: _Optional[int] = ..., empty_gen_slots: _Optional[int] = ...) -> None: ...

class InflightBatchingStats(_message.Message):
    __slots__ = ("num_scheduled_requests", "num_context_requests", "num_gen_requests", "num_paused_requests", "num_ctx_tokens", "micro_batch_id", "avg_num_decoded_tokens_per_iter")
    NUM_SCHEDULED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTEXT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_GEN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PAUSED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CTX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    AVG_NUM_DECODED_TOKENS_PER_ITER_FIELD_NUMBER: _ClassVar[int]
    num_scheduled_requests: int
    num_context_requests: int
    num_gen_requests: int
    num_paused_requests: int
    num_ctx_tokens: int
    micro_batch_id: int
    avg_num_decoded_tokens_per_iter: float
    def __init__(self, num_scheduled_requests: _Optional[int] = ..., num_context_requests: _Optional[int] = ..., num_gen_requests: _Optional[int] = ..., num_paused_requests: _Optional[int] = ..., num_ctx_tokens: _Optional[int] = ..., micro_batch_id: _Optional[int] = ..., avg_num_decoded_tokens_per_iter: _Optional[float] = ...) -> None: ...

class SpecDecodingStats(_message.Message):
    __slots__ = ("num_draft_tokens", "num_accepted_tokens", "num_requests_with_draft_tokens", "acceptance_length", "iter_latency", "draft_overhead")
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WITH_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ITER_LATENCY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    num_draft_tokens: int
    num_accepted_tokens: int
    num_requests_with_draft_tokens: int
    acceptance_length: float
    iter_latency: _duration_pb2.Duration
    draft_overhead: float
    def __init__(self, num_draft_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_requests_with_draft_tokens: _Optional[int] = ..., acceptance_length: _Optional[float] = ..., iter_latency: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draft_overhead: _Optional[float] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("server_id", "stage", "context_prefill_position", "num_generated_tokens", "avg_num_decoded_tokens_per_iter", "scheduled", "paused", "dis_serving_stats", "alloc_total_blocks", "alloc_new_blocks", "reused_blocks", "missed_blocks", "kv_cache_hit_rate")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PREFILL_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AVG_NUM_DECODED_TOKENS_PER_ITER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    DIS_SERVING_STATS_FIELD_NUMBER: _ClassVar[int]
    ALLOC_TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ALLOC_NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REUSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    stage: RequestStage
    context_prefill_position: int
    num_generated_tokens: int
    avg_num_decoded_tokens_per_iter: float
    scheduled: bool
    paused: bool
    dis_serving_stats: DisServingStats
    alloc_total_blocks: int
    alloc_new_blocks: int
    reused_blocks: int
    missed_blocks: int
    kv_cache_hit_rate: float
    def __init__(self, server_id: _Optional[str] = ..., stage: _Optional[_Union[RequestStage, str]] = ..., context_prefill_position: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., avg_num_decoded_tokens_per_iter: _Optional[float] = ..., scheduled: _Optional[bool] = ..., paused: _Optional[bool] = ..., dis_serving_stats: _Optional[_Union[DisServingStats, _Mapping]] = ..., alloc_total_blocks: _Optional[int] = ..., alloc_new_blocks: _Optional[int] = ..., reused_blocks: _Optional[int] = ..., missed_blocks: _Optional[int] = ..., kv_cache_hit_rate: _Optional[float] = ...) -> None: ...

class DisServingStats(_message.Message):
    __slots__ = ("kv_cache_transfer", "kv_cache_size")
    KV_CACHE_TRANSFER_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    kv_cache_transfer: _duration_pb2.Duration
    kv_cache_size: int
    def __init__(self, kv_cache_transfer: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., kv_cache_size: _Optional[int] = ...) -> None: ...

class StreamKvCacheEventsRequest(_message.Message):
    __slots__ = ("model", "after_sequence")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    model: str
    after_sequence: int
    def __init__(self, model: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class KvCacheEventBatch(_message.Message):
    __slots__ = ("sequence", "time", "events", "attention_dp_rank")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_DP_RANK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    events: _containers.RepeatedCompositeFieldContainer[KvCacheEvent]
    attention_dp_rank: int
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., events: _Optional[_Iterable[_Union[KvCacheEvent, _Mapping]]] = ..., attention_dp_rank: _Optional[int] = ...) -> None: ...

class KvCacheEvent(_message.Message):
    __slots__ = ("event_id", "created", "stored", "removed", "updated", "cleared", "window")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    event_id: int
    created: KvCacheCreated
    stored: KvCacheStored
    removed: KvCacheRemoved
    updated: KvCacheUpdated
    cleared: KvCacheCleared
    window: int
    def __init__(self, event_id: _Optional[int] = ..., created: _Optional[_Union[KvCacheCreated, _Mapping]] = ..., stored: _Optional[_Union[KvCacheStored, _Mapping]] = ..., removed: _Optional[_Union[KvCacheRemoved, _Mapping]] = ..., updated: _Optional[_Union[KvCacheUpdated, _Mapping]] = ..., cleared: _Optional[_Union[KvCacheCleared, _Mapping]] = ..., window: _Optional[int] = ...) -> None: ...

class KvCacheCreated(_message.Message):
    __slots__ = ("num_blocks_per_cache_level",)
    NUM_BLOCKS_PER_CACHE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    num_blocks_per_cache_level: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_blocks_per_cache_level: _Optional[_Iterable[int]] = ...) -> None: ...

class KvCacheStored(_message.Message):
    __slots__ = ("parent_hash", "blocks")
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    parent_hash: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[KvCacheStoredBlock]
    def __init__(self, parent_hash: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[KvCacheStoredBlock, _Mapping]]] = ...) -> None: ...

class KvCacheStoredBlock(_message.Message):
    __slots__ = ("block_hash", "token_ids", "token_extra_ids", "lora_name", "cache_level", "priority")
    BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_EXTRA_IDS_FIELD_NUMBER: _ClassVar[int]
    LORA_NAME_FIELD_NUMBER: _ClassVar[int]
    CACHE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    block_hash: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_extra_ids: _containers.RepeatedScalarFieldContainer[int]
    lora_name: str
    cache_level: int
    priority: int
    def __init__(self, block_hash: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_extra_ids: _Optional[_Iterable[int]] = ..., lora_name: _Optional[str] = ..., cache_level: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class KvCacheRemoved(_message.Message):
    __slots__ = ("block_hashes",)
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, block_hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class KvCacheUpdated(_message.Message):
    __slots__ = ("block_hash", "cache_level", "priority")
    BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    CACHE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    block_hash: bytes
    cache_level: IntChange
    priority: IntChange
    def __init__(self, block_hash: _Optional[bytes] = ..., cache_level: _Optional[_Union[IntChange, _Mapping]] = ..., priority: _Optional[_Union[IntChange, _Mapping]] = ...) -> None: ...

class KvCacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IntChange(_message.Message):
    __slots__ = ("old_value", "new_value")
    OLD_VALUE_FIELD_NUMBER: _ClassVar[int]
    NEW_VALUE_FIELD_NUMBER: _ClassVar[int]
    old_value: int
    new_value: int
    def __init__(self, old_value: _Optional[int] = ..., new_value: _Optional[int] = ...) -> None: ...
