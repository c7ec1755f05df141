from enginehouse._gen.enginehouse.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvCacheType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_CACHE_TYPE_UNSPECIFIED: _ClassVar[KvCacheType]
    KV_CACHE_TYPE_CONTINUOUS: _ClassVar[KvCacheType]
    KV_CACHE_TYPE_PAGED: _ClassVar[KvCacheType]
    KV_CACHE_TYPE_DISABLED: _ClassVar[KvCacheType]

class ProfilingVerbosity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROFILING_VERBOSITY_UNSPECIFIED: _ClassVar[ProfilingVerbosity]
    PROFILING_VERBOSITY_LAYER_NAMES_ONLY: _ClassVar[ProfilingVerbosity]
    PROFILING_VERBOSITY_DETAILED: _ClassVar[ProfilingVerbosity]
    PROFILING_VERBOSITY_NONE: _ClassVar[ProfilingVerbosity]

class SpeculativeDecodingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATIVE_DECODING_MODE_UNSPECIFIED: _ClassVar[SpeculativeDecodingMode]
    SPECULATIVE_DECODING_MODE_NONE: _ClassVar[SpeculativeDecodingMode]
    SPECULATIVE_DECODING_MODE_DRAFT_TOKENS_EXTERNAL: _ClassVar[SpeculativeDecodingMode]
    SPECULATIVE_DECODING_MODE_MEDUSA: _ClassVar[SpeculativeDecodingMode]
    SPECULATIVE_DECODING_MODE_LOOKAHEAD_DECODING: _ClassVar[SpeculativeDecodingMode]
    SPECULATIVE_DECODING_MODE_EXPLICIT_DRAFT_TOKENS: _ClassVar[SpeculativeDecodingMode]
    SPECULATIVE_DECODING_MODE_EAGLE: _ClassVar[SpeculativeDecodingMode]

class QuantAlgo(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUANT_ALGO_UNSPECIFIED: _ClassVar[QuantAlgo]
    QUANT_ALGO_NO_QUANT: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A16: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A16: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A16_AWQ: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A8_AWQ: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A16_GPTQ: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A16_GPTQ: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A8_SQ_PER_CHANNEL: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A8_SQ_PER_TENSOR_PLUGIN: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN: _ClassVar[QuantAlgo]
    QUANT_ALGO_W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A8_QSERVE_PER_GROUP: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A8_QSERVE_PER_CHANNEL: _ClassVar[QuantAlgo]
    QUANT_ALGO_FP8: _ClassVar[QuantAlgo]
    QUANT_ALGO_FP8_PER_CHANNEL_PER_TOKEN: _ClassVar[QuantAlgo]
    QUANT_ALGO_FP8_BLOCK_SCALES: _ClassVar[QuantAlgo]
    QUANT_ALGO_INT8: _ClassVar[QuantAlgo]
    QUANT_ALGO_MIXED_PRECISION: _ClassVar[QuantAlgo]
    QUANT_ALGO_NVFP4: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A8_NVFP4_FP8: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A8_MXFP4_FP8: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A8_MXFP4_MXFP8: _ClassVar[QuantAlgo]
    QUANT_ALGO_W4A16_MXFP4: _ClassVar[QuantAlgo]
KV_CACHE_TYPE_UNSPECIFIED: KvCacheType
KV_CACHE_TYPE_CONTINUOUS: KvCacheType
KV_CACHE_TYPE_PAGED: KvCacheType
KV_CACHE_TYPE_DISABLED: KvCacheType
PROFILING_VERBOSITY_UNSPECIFIED: ProfilingVerbosity
PROFILING_VERBOSITY_LAYER_NAMES_ONLY: ProfilingVerbosity
PROFILING_VERBOSITY_DETAILED: ProfilingVerbosity
PROFILING_VERBOSITY_NONE: ProfilingVerbosity
SPECULATIVE_DECODING_MODE_UNSPECIFIED: SpeculativeDecodingMode
SPECULATIVE_DECODING_MODE_NONE: SpeculativeDecodingMode
SPECULATIVE_DECODING_MODE_DRAFT_TOKENS_EXTERNAL: SpeculativeDecodingMode
SPECULATIVE_DECODING_MODE_MEDUSA: SpeculativeDecodingMode
SPECULATIVE_DECODING_MODE_LOOKAHEAD_DECODING: SpeculativeDecodingMode
SPECULATIVE_DECODING_MODE_EXPLICIT_DRAFT_TOKENS: SpeculativeDecodingMode
SPECULATIVE_DECODING_MODE_EAGLE: SpeculativeDecodingMode
QUANT_ALGO_UNSPECIFIED: QuantAlgo
QUANT_ALGO_NO_QUANT: QuantAlgo
QUANT_ALGO_W8A16: QuantAlgo
QUANT_ALGO_W4A16: QuantAlgo
QUANT_ALGO_W4A16_AWQ: QuantAlgo
QUANT_ALGO_W4A8_AWQ: QuantAlgo
QUANT_ALGO_W8A16_GPTQ: QuantAlgo
QUANT_ALGO_W4A16_GPTQ: QuantAlgo
QUANT_ALGO_W8A8_SQ_PER_CHANNEL: QuantAlgo
QUANT_ALGO_W8A8_SQ_PER_TENSOR_PLUGIN: QuantAlgo
QUANT_ALGO_W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN: QuantAlgo
QUANT_ALGO_W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN: QuantAlgo
QUANT_ALGO_W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN: QuantAlgo
QUANT_ALGO_W4A8_QSERVE_PER_GROUP: QuantAlgo
QUANT_ALGO_W4A8_QSERVE_PER_CHANNEL: QuantAlgo
QUANT_ALGO_FP8: QuantAlgo
QUANT_ALGO_FP8_PER_CHANNEL_PER_TOKEN: QuantAlgo
QUANT_ALGO_FP8_BLOCK_SCALES: QuantAlgo
QUANT_ALGO_INT8: QuantAlgo
QUANT_ALGO_MIXED_PRECISION: QuantAlgo
QUANT_ALGO_NVFP4: QuantAlgo
QUANT_ALGO_W4A8_NVFP4_FP8: QuantAlgo
QUANT_ALGO_W4A8_MXFP4_FP8: QuantAlgo
QUANT_ALGO_W4A8_MXFP4_MXFP8: QuantAlgo
QUANT_ALGO_W4A16_MXFP4: QuantAlgo

class BuildConfig(_message.Message):
    __slots__ = ("max_input_len", "max_seq_len", "opt_batch_size", "max_batch_size", "max_beam_width", "max_num_tokens", "opt_num_tokens", "max_prompt_embedding_table_size", "kv_cache_type", "gather_context_logits", "gather_generation_logits", "strongly_typed", "force_num_profiles", "profiling_verbosity", "enable_debug_output", "max_draft_len", "speculative_decoding_mode", "use_refit", "input_timing_cache", "output_timing_cache", "lora_config", "auto_parallel_config", "weight_sparsity", "weight_streaming", "plugin_config", "use_strip_plan", "max_encoder_input_len", "dry_run", "visualize_network", "monitor_memory", "use_mrope", "dtype", "logits_dtype", "fast_build", "tokens_per_block", "workers")
    MAX_INPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    OPT_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPT_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_EMBEDDING_TABLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TYPE_FIELD_NUMBER: _ClassVar[int]
    GATHER_CONTEXT_LOGITS_FIELD_NUMBER: _ClassVar[int]
    GATHER_GENERATION_LOGITS_FIELD_NUMBER: _ClassVar[int]
    STRONGLY_TYPED_FIELD_NUMBER: _ClassVar[int]
    FORCE_NUM_PROFILES_FIELD_NUMBER: _ClassVar[int]
    PROFILING_VERBOSITY_FIELD_NUMBER: _ClassVar[int]
    ENABLE_DEBUG_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_LEN_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_DECODING_MODE_FIELD_NUMBER: _ClassVar[int]
    USE_REFIT_FIELD_NUMBER: _ClassVar[int]
    INPUT_TIMING_CACHE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TIMING_CACHE_FIELD_NUMBER: _ClassVar[int]
    LORA_CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUTO_PARALLEL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SPARSITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_STREAMING_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_CONFIG_FIELD_NUMBER: _ClassVar[int]
    USE_STRIP_PLAN_FIELD_NUMBER: _ClassVar[int]
    MAX_ENCODER_INPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    VISUALIZE_NETWORK_FIELD_NUMBER: _ClassVar[int]
    MONITOR_MEMORY_FIELD_NUMBER: _ClassVar[int]
    USE_MROPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FAST_BUILD_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    max_input_len: int
    max_seq_len: int
    opt_batch_size: int
    max_batch_size: int
    max_beam_width: int
    max_num_tokens: int
    opt_num_tokens: int
    max_prompt_embedding_table_size: int
    kv_cache_type: KvCacheType
    gather_context_logits: bool
    gather_generation_logits: bool
    strongly_typed: bool
    force_num_profiles: int
    profiling_verbosity: ProfilingVerbosity
    enable_debug_output: bool
    max_draft_len: int
    speculative_decoding_mode: SpeculativeDecodingMode
    use_refit: bool
    input_timing_cache: str
    output_timing_cache: str
    lora_config: LoraConfig
    auto_parallel_config: AutoParallelConfig
    weight_sparsity: bool
    weight_streaming: bool
    plugin_config: PluginConfig
    use_strip_plan: bool
    max_encoder_input_len: int
    dry_run: bool
    visualize_network: bool
    monitor_memory: bool
    use_mrope: bool
    dtype: _common_pb2.DataType
    logits_dtype: _common_pb2.DataType
    fast_build: bool
    tokens_per_block: int
    workers: int
    def __init__(self, max_input_len: _Optional[int] = ..., max_seq_len: _Optional[int] = ..., opt_batch_size: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., max_beam_width: _Optional[int] = ..., max_num_tokens: _Optional[int] = ..., opt_num_tokens: _Optional[int] = ..., max_prompt_embedding_table_size: _Optional[int] = ..., kv_cache_type: _Optional[_Union[KvCacheType, str]] = ..., gather_context_logits: _Optional[bool] = ..., gather_generation_logits: _Optional[bool] = ..., strongly_typed: _Optional[bool] = ..., force_num_profiles: _Optional[int] = ..., profiling_verbosity: _Optional[_Union[ProfilingVerbosity, str]] = ..., enable_debug_output: _Optional[bool] = ..., max_draft_len: _Optional[int] = ..., speculative_decoding_mode: _Optional[_Union[SpeculativeDecodingMode, str]] = ..., use_refit: _Optional[bool] = ..., input_timing_cache: _Optional[str] = ..., output_timing_cache: _Optional[str] = ..., lora_config: _Optional[_Union[LoraConfig, _Mapping]] = ..., auto_parallel_config: _Optional[_Union[AutoParallelConfig, _Mapping]] = ..., weight_sparsity: _Optional[bool] = ..., weight_streaming: _Optional[bool] = ..., plugin_config: _Optional[_Union[PluginConfig, _Mapping]] = ..., use_strip_plan: _Optional[bool] = ..., max_encoder_input_len: _Optional[int] = ..., dry_run: _Optional[bool] = ..., visualize_network: _Optional[bool] = ..., monitor_memory: _Optional[bool] = ..., use_mrope: _Optional[bool] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., logits_dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., fast_build: _Optional[bool] = ..., tokens_per_block: _Optional[int] = ..., workers: _Optional[int] = ...) -> None: ...

class QuantConfig(_message.Message):
    __slots__ = ("quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val", "use_meta_recipe", "has_zero_point", "pre_quant_scale", "exclude_modules", "calib_config")
    QUANT_ALGO_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_QUANT_ALGO_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SMOOTHQUANT_VAL_FIELD_NUMBER: _ClassVar[int]
    CLAMP_VAL_FIELD_NUMBER: _ClassVar[int]
    USE_META_RECIPE_FIELD_NUMBER: _ClassVar[int]
    HAS_ZERO_POINT_FIELD_NUMBER: _ClassVar[int]
    PRE_QUANT_SCALE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_MODULES_FIELD_NUMBER: _ClassVar[int]
    CALIB_CONFIG_FIELD_NUMBER: _ClassVar[int]
    quant_algo: QuantAlgo
    kv_cache_quant_algo: QuantAlgo
    group_size: int
    smoothquant_val: float
    clamp_val: _containers.RepeatedScalarFieldContainer[float]
    use_meta_recipe: bool
    has_zero_point: bool
    pre_quant_scale: bool
    exclude_modules: _containers.RepeatedScalarFieldContainer[str]
    calib_config: CalibConfig
    def __init__(self, quant_algo: _Optional[_Union[QuantAlgo, str]] = ..., kv_cache_quant_algo: _Optional[_Union[QuantAlgo, str]] = ..., group_size: _Optional[int] = ..., smoothquant_val: _Optional[float] = ..., clamp_val: _Optional[_Iterable[float]] = ..., use_meta_recipe: _Optional[bool] = ..., has_zero_point: _Optional[bool] = ..., pre_quant_scale: _Optional[bool] = ..., exclude_modules: _Optional[_Iterable[str]] = ..., calib_config: _Optional[_Union[CalibConfig, _Mapping]] = ...) -> None: ...

class CalibConfig(_message.Message):
    __slots__ = ("device", "calib_dataset", "calib_batches", "calib_batch_size", "calib_max_seq_length", "random_seed", "tokenizer_max_seq_length")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CALIB_DATASET_FIELD_NUMBER: _ClassVar[int]
    CALIB_BATCHES_FIELD_NUMBER: _ClassVar[int]
    CALIB_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CALIB_MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    RANDOM_SEED_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    device: str
    calib_dataset: str
    calib_batches: int
    calib_batch_size: int
    calib_max_seq_length: int
    random_seed: int
    tokenizer_max_seq_length: int
    def __init__(self, device: _Optional[str] = ..., calib_dataset: _Optional[str] = ..., calib_batches: _Optional[int] = ..., calib_batch_size: _Optional[int] = ..., calib_max_seq_length: _Optional[int] = ..., random_seed: _Optional[int] = ..., tokenizer_max_seq_length: _Optional[int] = ...) -> None: ...

class LoraConfig(_message.Message):
    __slots__ = ("lora_dir", "lora_ckpt_source", "max_lora_rank", "lora_target_modules", "trtllm_modules_to_hf_modules", "max_loras", "max_cpu_loras")
    class TrtllmModulesToHfModulesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LORA_DIR_FIELD_NUMBER: _ClassVar[int]
    LORA_CKPT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    LORA_TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    TRTLLM_MODULES_TO_HF_MODULES_FIELD_NUMBER: _ClassVar[int]
    MAX_LORAS_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_LORAS_FIELD_NUMBER: _ClassVar[int]
    lora_dir: _containers.RepeatedScalarFieldContainer[str]
    lora_ckpt_source: str
    max_lora_rank: int
    lora_target_modules: _containers.RepeatedScalarFieldContainer[str]
    trtllm_modules_to_hf_modules: _containers.ScalarMap[str, str]
    max_loras: int
    max_cpu_loras: int
    def __init__(self, lora_dir: _Optional[_Iterable[str]] = ..., lora_ckpt_source: _Optional[str] = ..., max_lora_rank: _Optional[int] = ..., lora_target_modules: _Optional[_Iterable[str]] = ..., trtllm_modules_to_hf_modules: _Optional[_Mapping[str, str]] = ..., max_loras: _Optional[int] = ..., max_cpu_loras: _Optional[int] = ...) -> None: ...

class AutoParallelConfig(_message.Message):
    __slots__ = ("world_size", "gpus_per_node", "cluster_key", "enable_pipeline_parallelism", "same_buffer_io")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_KEY_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PIPELINE_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    SAME_BUFFER_IO_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    gpus_per_node: int
    cluster_key: str
    enable_pipeline_parallelism: bool
    same_buffer_io: bool
    def __init__(self, world_size: _Optional[int] = ..., gpus_per_node: _Optional[int] = ..., cluster_key: _Optional[str] = ..., enable_pipeline_parallelism: _Optional[bool] = ..., same_buffer_io: _Optional[bool] = ...) -> None: ...

class PluginConfig(_message.Message):
    __slots__ = ("gpt_attention_plugin", "gemm_plugin", "lora_plugin", "gemm_swiglu_plugin", "nccl_plugin", "remove_input_padding", "use_paged_context_fmha", "use_fused_mlp", "streamingllm", "pp_reduce_scatter", "multi_block_mode", "tokens_per_block")
    GPT_ATTENTION_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    GEMM_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    LORA_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    GEMM_SWIGLU_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    NCCL_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    REMOVE_INPUT_PADDING_FIELD_NUMBER: _ClassVar[int]
    USE_PAGED_CONTEXT_FMHA_FIELD_NUMBER: _ClassVar[int]
    USE_FUSED_MLP_FIELD_NUMBER: _ClassVar[int]
    STREAMINGLLM_FIELD_NUMBER: _ClassVar[int]
    PP_REDUCE_SCATTER_FIELD_NUMBER: _ClassVar[int]
    MULTI_BLOCK_MODE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    gpt_attention_plugin: str
    gemm_plugin: str
    lora_plugin: str
    gemm_swiglu_plugin: str
    nccl_plugin: str
    remove_input_padding: bool
    use_paged_context_fmha: bool
    use_fused_mlp: bool
    streamingllm: bool
    pp_reduce_scatter: bool
    multi_block_mode: bool
    tokens_per_block: int
    def __init__(self, gpt_attention_plugin: _Optional[str] = ..., gemm_plugin: _Optional[str] = ..., lora_plugin: _Optional[str] = ..., gemm_swiglu_plugin: _Optional[str] = ..., nccl_plugin: _Optional[str] = ..., remove_input_padding: _Optional[bool] = ..., use_paged_context_fmha: _Optional[bool] = ..., use_fused_mlp: _Optional[bool] = ..., streamingllm: _Optional[bool] = ..., pp_reduce_scatter: _Optional[bool] = ..., multi_block_mode: _Optional[bool] = ..., tokens_per_block: _Optional[int] = ...) -> None: ...
