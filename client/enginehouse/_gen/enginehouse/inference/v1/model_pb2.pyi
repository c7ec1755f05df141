import datetime

from enginehouse._gen.enginehouse.common.v1 import common_pb2 as _common_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.longrunning import operations_pb2 as _operations_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CapacitySchedulerPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPACITY_SCHEDULER_POLICY_UNSPECIFIED: _ClassVar[CapacitySchedulerPolicy]
    CAPACITY_SCHEDULER_POLICY_GUARANTEED_NO_EVICT: _ClassVar[CapacitySchedulerPolicy]
    CAPACITY_SCHEDULER_POLICY_MAX_UTILIZATION: _ClassVar[CapacitySchedulerPolicy]
    CAPACITY_SCHEDULER_POLICY_STATIC_BATCH: _ClassVar[CapacitySchedulerPolicy]

class ContextChunkingPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTEXT_CHUNKING_POLICY_UNSPECIFIED: _ClassVar[ContextChunkingPolicy]
    CONTEXT_CHUNKING_POLICY_FIRST_COME_FIRST_SERVED: _ClassVar[ContextChunkingPolicy]
    CONTEXT_CHUNKING_POLICY_EQUAL_PROGRESS: _ClassVar[ContextChunkingPolicy]
    CONTEXT_CHUNKING_POLICY_FORCE_CHUNK: _ClassVar[ContextChunkingPolicy]

class WaitingQueuePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITING_QUEUE_POLICY_UNSPECIFIED: _ClassVar[WaitingQueuePolicy]
    WAITING_QUEUE_POLICY_FCFS: _ClassVar[WaitingQueuePolicy]
    WAITING_QUEUE_POLICY_PRIORITY: _ClassVar[WaitingQueuePolicy]

class BatchingType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCHING_TYPE_UNSPECIFIED: _ClassVar[BatchingType]
    BATCHING_TYPE_STATIC: _ClassVar[BatchingType]
    BATCHING_TYPE_INFLIGHT: _ClassVar[BatchingType]

class AdapterKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADAPTER_KIND_UNSPECIFIED: _ClassVar[AdapterKind]
    ADAPTER_KIND_LORA: _ClassVar[AdapterKind]
    ADAPTER_KIND_PROMPT: _ClassVar[AdapterKind]
CAPACITY_SCHEDULER_POLICY_UNSPECIFIED: CapacitySchedulerPolicy
CAPACITY_SCHEDULER_POLICY_GUARANTEED_NO_EVICT: CapacitySchedulerPolicy
CAPACITY_SCHEDULER_POLICY_MAX_UTILIZATION: CapacitySchedulerPolicy
CAPACITY_SCHEDULER_POLICY_STATIC_BATCH: CapacitySchedulerPolicy
CONTEXT_CHUNKING_POLICY_UNSPECIFIED: ContextChunkingPolicy
CONTEXT_CHUNKING_POLICY_FIRST_COME_FIRST_SERVED: ContextChunkingPolicy
CONTEXT_CHUNKING_POLICY_EQUAL_PROGRESS: ContextChunkingPolicy
CONTEXT_CHUNKING_POLICY_FORCE_CHUNK: ContextChunkingPolicy
WAITING_QUEUE_POLICY_UNSPECIFIED: WaitingQueuePolicy
WAITING_QUEUE_POLICY_FCFS: WaitingQueuePolicy
WAITING_QUEUE_POLICY_PRIORITY: WaitingQueuePolicy
BATCHING_TYPE_UNSPECIFIED: BatchingType
BATCHING_TYPE_STATIC: BatchingType
BATCHING_TYPE_INFLIGHT: BatchingType
ADAPTER_KIND_UNSPECIFIED: AdapterKind
ADAPTER_KIND_LORA: AdapterKind
ADAPTER_KIND_PROMPT: AdapterKind

class Model(_message.Message):
    __slots__ = ("name", "engine_version", "state", "state_message", "limits", "cache_groups", "load_facts", "features", "create_time", "update_time", "alias", "labels", "vocab_size", "architecture", "has_tokenizer", "has_chat_template", "eos_token_ids", "bos_token_id", "scheduler")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Model.State]
        STATE_LOADING: _ClassVar[Model.State]
        STATE_READY: _ClassVar[Model.State]
        STATE_UNLOADING: _ClassVar[Model.State]
        STATE_FAILED: _ClassVar[Model.State]
        STATE_RESTARTING: _ClassVar[Model.State]
    STATE_UNSPECIFIED: Model.State
    STATE_LOADING: Model.State
    STATE_READY: Model.State
    STATE_UNLOADING: Model.State
    STATE_FAILED: Model.State
    STATE_RESTARTING: Model.State
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FACTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    HAS_TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    name: str
    engine_version: str
    state: Model.State
    state_message: str
    limits: _common_pb2.EngineLimits
    cache_groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.CacheGroup]
    load_facts: LoadFacts
    features: _containers.RepeatedScalarFieldContainer[str]
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    alias: str
    labels: _containers.ScalarMap[str, str]
    vocab_size: int
    architecture: str
    has_tokenizer: bool
    has_chat_template: bool
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    scheduler: SchedulerConfig
    def __init__(self, name: _Optional[str] = ..., engine_version: _Optional[str] = ..., state: _Optional[_Union[Model.State, str]] = ..., state_message: _Optional[str] = ..., limits: _Optional[_Union[_common_pb2.EngineLimits, _Mapping]] = ..., cache_groups: _Optional[_Iterable[_Union[_common_pb2.CacheGroup, _Mapping]]] = ..., load_facts: _Optional[_Union[LoadFacts, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., alias: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., vocab_size: _Optional[int] = ..., architecture: _Optional[str] = ..., has_tokenizer: _Optional[bool] = ..., has_chat_template: _Optional[bool] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., scheduler: _Optional[_Union[SchedulerConfig, _Mapping]] = ...) -> None: ...

class LoadFacts(_message.Message):
    __slots__ = ("target", "devices", "dtype", "weights_bytes", "kv_cache_bytes", "kv_cache_tokens", "load_duration", "read_duration", "world_size")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOAD_DURATION_FIELD_NUMBER: _ClassVar[int]
    READ_DURATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    target: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    dtype: _common_pb2.DataType
    weights_bytes: int
    kv_cache_bytes: int
    kv_cache_tokens: int
    load_duration: _duration_pb2.Duration
    read_duration: _duration_pb2.Duration
    world_size: int
    def __init__(self, target: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., weights_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., kv_cache_tokens: _Optional[int] = ..., load_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., read_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., world_size: _Optional[int] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "engine", "version", "alias", "target", "dtype", "kv_cache", "scheduler", "limits", "executor", "peft_cache", "speculative", "devices", "follow_alias", "labels", "replace", "request_id", "validate_only")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    PEFT_CACHE_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_ALIAS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    version: int
    alias: str
    target: str
    dtype: _common_pb2.DataType
    kv_cache: KvCacheConfig
    scheduler: SchedulerConfig
    limits: _common_pb2.EngineLimits
    executor: ExecutorConfig
    peft_cache: PeftCacheConfig
    speculative: SpeculativeConfig
    devices: _containers.RepeatedScalarFieldContainer[str]
    follow_alias: bool
    labels: _containers.ScalarMap[str, str]
    replace: bool
    request_id: str
    validate_only: bool
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., version: _Optional[int] = ..., alias: _Optional[str] = ..., target: _Optional[str] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., kv_cache: _Optional[_Union[KvCacheConfig, _Mapping]] = ..., scheduler: _Optional[_Union[SchedulerConfig, _Mapping]] = ..., limits: _Optional[_Union[_common_pb2.EngineLimits, _Mapping]] = ..., executor: _Optional[_Union[ExecutorConfig, _Mapping]] = ..., peft_cache: _Optional[_Union[PeftCacheConfig, _Mapping]] = ..., speculative: _Optional[_Union[SpeculativeConfig, _Mapping]] = ..., devices: _Optional[_Iterable[str]] = ..., follow_alias: _Optional[bool] = ..., labels: _Optional[_Mapping[str, str]] = ..., replace: _Optional[bool] = ..., request_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class KvCacheConfig(_message.Message):
    __slots__ = ("enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length", "free_gpu_memory_fraction", "host_cache_size", "cross_kv_cache_fraction", "secondary_offload_min_priority", "event_buffer_max_size", "attention_dp_events_gather_period", "enable_partial_reuse", "copy_on_partial_reuse", "use_uvm", "max_gpu_total_bytes", "tokens_per_block", "dtype", "onboard_blocks", "disk_cache_size")
    ENABLE_BLOCK_REUSE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTENTION_WINDOW_FIELD_NUMBER: _ClassVar[int]
    SINK_TOKEN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FREE_GPU_MEMORY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    HOST_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CROSS_KV_CACHE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SECONDARY_OFFLOAD_MIN_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EVENT_BUFFER_MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_DP_EVENTS_GATHER_PERIOD_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PARTIAL_REUSE_FIELD_NUMBER: _ClassVar[int]
    COPY_ON_PARTIAL_REUSE_FIELD_NUMBER: _ClassVar[int]
    USE_UVM_FIELD_NUMBER: _ClassVar[int]
    MAX_GPU_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ONBOARD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DISK_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    enable_block_reuse: bool
    max_tokens: int
    max_attention_window: _containers.RepeatedScalarFieldContainer[int]
    sink_token_length: int
    free_gpu_memory_fraction: float
    host_cache_size: int
    cross_kv_cache_fraction: float
    secondary_offload_min_priority: int
    event_buffer_max_size: int
    attention_dp_events_gather_period: _duration_pb2.Duration
    enable_partial_reuse: bool
    copy_on_partial_reuse: bool
    use_uvm: bool
    max_gpu_total_bytes: int
    tokens_per_block: int
    dtype: _common_pb2.DataType
    onboard_blocks: bool
    disk_cache_size: int
    def __init__(self, enable_block_reuse: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., max_attention_window: _Optional[_Iterable[int]] = ..., sink_token_length: _Optional[int] = ..., free_gpu_memory_fraction: _Optional[float] = ..., host_cache_size: _Optional[int] = ..., cross_kv_cache_fraction: _Optional[float] = ..., secondary_offload_min_priority: _Optional[int] = ..., event_buffer_max_size: _Optional[int] = ..., attention_dp_events_gather_period: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., enable_partial_reuse: _Optional[bool] = ..., copy_on_partial_reuse: _Optional[bool] = ..., use_uvm: _Optional[bool] = ..., max_gpu_total_bytes: _Optional[int] = ..., tokens_per_block: _Optional[int] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., onboard_blocks: _Optional[bool] = ..., disk_cache_size: _Optional[int] = ...) -> None: ...

class SchedulerConfig(_message.Message):
    __slots__ = ("capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config", "waiting_queue_policy", "enable_prefix_aware_scheduling", "enable_chunked_prefill", "chunk_size")
    CAPACITY_SCHEDULER_POLICY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_CHUNKING_POLICY_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_BATCH_CONFIG_FIELD_NUMBER: _ClassVar[int]
    WAITING_QUEUE_POLICY_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PREFIX_AWARE_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    ENABLE_CHUNKED_PREFILL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    capacity_scheduler_policy: CapacitySchedulerPolicy
    context_chunking_policy: ContextChunkingPolicy
    dynamic_batch_config: DynamicBatchConfig
    waiting_queue_policy: WaitingQueuePolicy
    enable_prefix_aware_scheduling: bool
    enable_chunked_prefill: bool
    chunk_size: int
    def __init__(self, capacity_scheduler_policy: _Optional[_Union[CapacitySchedulerPolicy, str]] = ..., context_chunking_policy: _Optional[_Union[ContextChunkingPolicy, str]] = ..., dynamic_batch_config: _Optional[_Union[DynamicBatchConfig, _Mapping]] = ..., waiting_queue_policy: _Optional[_Union[WaitingQueuePolicy, str]] = ..., enable_prefix_aware_scheduling: _Optional[bool] = ..., enable_chunked_prefill: _Optional[bool] = ..., chunk_size: _Optional[int] = ...) -> None: ...

class DynamicBatchConfig(_message.Message):
    __slots__ = ("enable_batch_size_tuning", "enable_max_num_tokens_tuning", "dynamic_batch_moving_average_window")
    ENABLE_BATCH_SIZE_TUNING_FIELD_NUMBER: _ClassVar[int]
    ENABLE_MAX_NUM_TOKENS_TUNING_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_BATCH_MOVING_AVERAGE_WINDOW_FIELD_NUMBER: _ClassVar[int]
    enable_batch_size_tuning: bool
    enable_max_num_tokens_tuning: bool
    dynamic_batch_moving_average_window: int
    def __init__(self, enable_batch_size_tuning: _Optional[bool] = ..., enable_max_num_tokens_tuning: _Optional[bool] = ..., dynamic_batch_moving_average_window: _Optional[int] = ...) -> None: ...

class ExecutorConfig(_message.Message):
    __slots__ = ("normalize_log_probs", "iter_stats_max_iterations", "request_stats_max_iterations", "batching_type", "max_queue_size", "gpu_weights_percent", "max_seq_idle", "guided_decoding_backend", "logits_processors", "batched_logits_processor", "additional_output_names", "gather_generation_logits", "use_variable_beam_width_search", "deterministic", "use_cuda_graphs", "num_threads", "num_postprocess_workers", "max_time_limit")
    NORMALIZE_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ITER_STATS_MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_STATS_MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    BATCHING_TYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    GPU_WEIGHTS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_IDLE_FIELD_NUMBER: _ClassVar[int]
    GUIDED_DECODING_BACKEND_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    BATCHED_LOGITS_PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_OUTPUT_NAMES_FIELD_NUMBER: _ClassVar[int]
    GATHER_GENERATION_LOGITS_FIELD_NUMBER: _ClassVar[int]
    USE_VARIABLE_BEAM_WIDTH_SEARCH_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    USE_CUDA_GRAPHS_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    NUM_POSTPROCESS_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    normalize_log_probs: bool
    iter_stats_max_iterations: int
    request_stats_max_iterations: int
    batching_type: BatchingType
    max_queue_size: int
    gpu_weights_percent: float
    max_seq_idle: _duration_pb2.Duration
    guided_decoding_backend: str
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    batched_logits_processor: str
    additional_output_names: _containers.RepeatedScalarFieldContainer[str]
    gather_generation_logits: bool
    use_variable_beam_width_search: bool
    deterministic: bool
    use_cuda_graphs: bool
    num_threads: int
    num_postprocess_workers: int
    max_time_limit: _duration_pb2.Duration
    def __init__(self, normalize_log_probs: _Optional[bool] = ..., iter_stats_max_iterations: _Optional[int] = ..., request_stats_max_iterations: _Optional[int] = ..., batching_type: _Optional[_Union[BatchingType, str]] = ..., max_queue_size: _Optional[int] = ..., gpu_weights_percent: _Optional[float] = ..., max_seq_idle: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., guided_decoding_backend: _Optional[str] = ..., logits_processors: _Optional[_Iterable[str]] = ..., batched_logits_processor: _Optional[str] = ..., additional_output_names: _Optional[_Iterable[str]] = ..., gather_generation_logits: _Optional[bool] = ..., use_variable_beam_width_search: _Optional[bool] = ..., deterministic: _Optional[bool] = ..., use_cuda_graphs: _Optional[bool] = ..., num_threads: _Optional[int] = ..., num_postprocess_workers: _Optional[int] = ..., max_time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PeftCacheConfig(_message.Message):
    __slots__ = ("num_host_module_layer", "num_device_module_layer", "optimal_adapter_size", "max_adapter_size", "num_put_workers", "num_ensure_workers", "num_copy_streams", "max_pages_per_block_host", "max_pages_per_block_device", "device_cache_percent", "host_cache_size")
    NUM_HOST_MODULE_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_MODULE_LAYER_FIELD_NUMBER: _ClassVar[int]
    OPTIMAL_ADAPTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PUT_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_ENSURE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_COPY_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_PER_BLOCK_HOST_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_PER_BLOCK_DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CACHE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    HOST_CACHE_SIZE_FIELD_NUMBER: _ClassVar[int]
    num_host_module_layer: int
    num_device_module_layer: int
    optimal_adapter_size: int
    max_adapter_size: int
    num_put_workers: int
    num_ensure_workers: int
    num_copy_streams: int
    max_pages_per_block_host: int
    max_pages_per_block_device: int
    device_cache_percent: float
    host_cache_size: int
    def __init__(self, num_host_module_layer: _Optional[int] = ..., num_device_module_layer: _Optional[int] = ..., optimal_adapter_size: _Optional[int] = ..., max_adapter_size: _Optional[int] = ..., num_put_workers: _Optional[int] = ..., num_ensure_workers: _Optional[int] = ..., num_copy_streams: _Optional[int] = ..., max_pages_per_block_host: _Optional[int] = ..., max_pages_per_block_device: _Optional[int] = ..., device_cache_percent: _Optional[float] = ..., host_cache_size: _Optional[int] = ...) -> None: ...

class SpeculativeConfig(_message.Message):
    __slots__ = ("mode", "max_draft_len", "draft_engine_version")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_LEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    mode: str
    max_draft_len: int
    draft_engine_version: str
    def __init__(self, mode: _Optional[str] = ..., max_draft_len: _Optional[int] = ..., draft_engine_version: _Optional[str] = ...) -> None: ...

class LoadModelMetadata(_message.Message):
    __slots__ = ("model", "fraction", "message", "create_time")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    model: Model
    fraction: float
    message: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., fraction: _Optional[float] = ..., message: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model", "grace")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    model: str
    grace: _duration_pb2.Duration
    def __init__(self, model: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class UnloadModelMetadata(_message.Message):
    __slots__ = ("model", "live_requests", "create_time")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    model: str
    live_requests: int
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, model: _Optional[str] = ..., live_requests: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchModelsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ModelEvent(_message.Message):
    __slots__ = ("sequence", "model", "removed", "time")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    model: Model
    removed: bool
    time: _timestamp_pb2.Timestamp
    def __init__(self, sequence: _Optional[int] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., removed: _Optional[bool] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "model", "int_id", "kind", "rank", "target_modules", "size_bytes", "digest", "create_time", "pinned")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    int_id: int
    kind: AdapterKind
    rank: int
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    size_bytes: int
    digest: str
    create_time: _timestamp_pb2.Timestamp
    pinned: bool
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., int_id: _Optional[int] = ..., kind: _Optional[_Union[AdapterKind, str]] = ..., rank: _Optional[int] = ..., target_modules: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pinned: _Optional[bool] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("model", "name", "path", "kind", "ckpt_source", "int_id", "pinned")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CKPT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    INT_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    path: str
    kind: AdapterKind
    ckpt_source: str
    int_id: int
    pinned: bool
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ..., path: _Optional[str] = ..., kind: _Optional[_Union[AdapterKind, str]] = ..., ckpt_source: _Optional[str] = ..., int_id: _Optional[int] = ..., pinned: _Optional[bool] = ...) -> None: ...

class UploadAdapterRequest(_message.Message):
    __slots__ = ("adapter", "chunk")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    adapter: LoadAdapterRequest
    chunk: AdapterFileChunk
    def __init__(self, adapter: _Optional[_Union[LoadAdapterRequest, _Mapping]] = ..., chunk: _Optional[_Union[AdapterFileChunk, _Mapping]] = ...) -> None: ...

class AdapterFileChunk(_message.Message):
    __slots__ = ("path", "data", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    sha256: str
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("model", "name")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ("model", "page_size", "page_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters", "next_page_token")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    next_page_token: str
    def __init__(self, adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
