"""How an engine is built and how a model is served: TensorRT-LLM's configuration classes.

None means the server's default, named in brackets. A field that the server does not honour is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from enginehouse import _check as check
from enginehouse._convert import enum_number, to_proto
from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import model_pb2


class _Config:
    """Checks that ints are not negative and bools are bools, by the annotation of each field."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type == "int | None":
                check.integer(field.name, value, 0, 2**63 - 1)
            elif field.type == "float | None":
                check.number(field.name, value, 0.0)
            elif field.type in ("bool", "bool | None") and value is not None:
                check.boolean(field.name, value)


@dataclass(frozen=True, kw_only=True)
class LoraConfig(_Config):
    """The LoRA adapters that an engine is prepared for."""

    lora_dir: list[str] | None = None
    lora_ckpt_source: str = "hf"
    max_lora_rank: int | None = None
    """[64]"""
    lora_target_modules: list[str] | None = None
    trtllm_modules_to_hf_modules: dict[str, str] | None = None
    max_loras: int | None = None
    max_cpu_loras: int | None = None


@dataclass(frozen=True, kw_only=True)
class PluginConfig(_Config):
    """TensorRT-LLM's plugin switches, for configurations that are carried over."""

    gpt_attention_plugin: str | None = None
    gemm_plugin: str | None = None
    lora_plugin: str | None = None
    gemm_swiglu_plugin: str | None = None
    nccl_plugin: str | None = None
    remove_input_padding: bool | None = None
    use_paged_context_fmha: bool | None = None
    use_fused_mlp: bool | None = None
    streamingllm: bool = False
    pp_reduce_scatter: bool = False
    multi_block_mode: bool | None = None
    tokens_per_block: int | None = None


@dataclass(frozen=True, kw_only=True)
class BuildConfig(_Config):
    """The bounds and features of an engine."""

    max_input_len: int | None = None
    """Most prompt tokens of one request [1024]."""
    max_seq_len: int | None = None
    """Most tokens of one sequence, prompt and generated [the model's limit]."""
    opt_batch_size: int | None = None
    """[8]"""
    max_batch_size: int | None = None
    """Most sequences in one step [2048]."""
    max_beam_width: int | None = None
    """[1]"""
    max_num_tokens: int | None = None
    """Most tokens in one step [8192]."""
    opt_num_tokens: int | None = None
    max_prompt_embedding_table_size: int | None = None
    """[0]"""
    kv_cache_type: str | None = None
    """continuous, paged or disabled [paged]."""
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    strongly_typed: bool | None = None
    """[True]"""
    force_num_profiles: int | None = None
    profiling_verbosity: str | None = None
    """layer_names_only, detailed or none [layer_names_only]."""
    enable_debug_output: bool = False
    max_draft_len: int | None = None
    """[0]"""
    speculative_decoding_mode: str | None = None
    """none, draft_tokens_external, medusa, lookahead_decoding, explicit_draft_tokens or eagle [none]."""
    use_refit: bool = False
    input_timing_cache: str | None = None
    output_timing_cache: str | None = None
    """["model.cache"]"""
    lora_config: LoraConfig | None = None
    weight_sparsity: bool = False
    weight_streaming: bool = False
    plugin_config: PluginConfig | None = None
    use_strip_plan: bool = False
    max_encoder_input_len: int | None = None
    dry_run: bool = False
    visualize_network: bool = False
    monitor_memory: bool = False
    use_mrope: bool = False
    dtype: str | None = None
    """float32, float16 or bfloat16 [the checkpoint's]; "auto" is the same as None."""
    logits_dtype: str | None = None
    """[float32]"""
    fast_build: bool = False
    tokens_per_block: int | None = None
    """[32]"""
    workers: int | None = None

    def to_proto(self) -> build_config_pb2.BuildConfig:
        return to_proto(_without_auto(self, "dtype"), build_config_pb2.BuildConfig())


@dataclass(frozen=True, kw_only=True)
class CalibConfig(_Config):
    """How activations are measured for quantization."""

    device: str | None = None
    calib_dataset: str | None = None
    calib_batches: int | None = None
    """[512]"""
    calib_batch_size: int | None = None
    """[1]"""
    calib_max_seq_length: int | None = None
    """[512]"""
    random_seed: int | None = None
    """[1234]"""
    tokenizer_max_seq_length: int | None = None
    """[2048]"""


@dataclass(frozen=True, kw_only=True)
class QuantConfig(_Config):
    """How weights and cache are quantized. `quant_algo` and `kv_cache_quant_algo` take TensorRT-LLM's names, for
    example "W8A16", "FP8", "W4A16_AWQ"."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int | None = None
    """[128]"""
    smoothquant_val: float | None = None
    """[0.5]"""
    clamp_val: list[float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: list[str] | None = None
    calib_config: CalibConfig | None = None

    def to_proto(self) -> build_config_pb2.QuantConfig:
        return to_proto(self, build_config_pb2.QuantConfig())


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(_Config):
    """How a model is spread over ranks [one]."""

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    context_parallel_size: int | None = None
    moe_tensor_parallel_size: int | None = None
    moe_expert_parallel_size: int | None = None
    moe_cluster_parallel_size: int | None = None
    gpus_per_node: int | None = None
    enable_attention_dp: bool = False
    auto_parallel: bool = False

    def to_proto(self) -> common_pb2.ParallelConfig:
        return to_proto(self, common_pb2.ParallelConfig())


@dataclass(frozen=True, kw_only=True)
class KvCacheConfig(_Config):
    """The KV cache of a served model."""

    enable_block_reuse: bool | None = None
    """[True]"""
    max_tokens: int | None = None
    """Most tokens that it holds [what memory allows]."""
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = None
    """[0.9]"""
    host_cache_size: int | None = None
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int | None = None
    """[0]"""
    attention_dp_events_gather_period_ms: int | None = None
    """[5]"""
    enable_partial_reuse: bool | None = None
    """[True]"""
    copy_on_partial_reuse: bool | None = None
    """[True]"""
    use_uvm: bool = False
    max_gpu_total_bytes: int | None = None
    tokens_per_block: int | None = None
    """[the engine's]"""
    dtype: str | None = None
    onboard_blocks: bool | None = None
    disk_cache_size: int | None = None

    def to_proto(self) -> model_pb2.KvCacheConfig:
        return to_proto(_without_auto(self, "dtype"), model_pb2.KvCacheConfig())


@dataclass(frozen=True, kw_only=True)
class DynamicBatchConfig(_Config):
    """How batch sizes follow the load."""

    enable_batch_size_tuning: bool | None = None
    """[True]"""
    enable_max_num_tokens_tuning: bool | None = None
    """[False]"""
    dynamic_batch_moving_average_window: int | None = None
    """[128]"""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(_Config):
    """How a served model's requests are scheduled."""

    capacity_scheduler_policy: str | None = None
    """GUARANTEED_NO_EVICT, MAX_UTILIZATION or STATIC_BATCH [GUARANTEED_NO_EVICT]."""
    context_chunking_policy: str | None = None
    """FIRST_COME_FIRST_SERVED, EQUAL_PROGRESS or FORCE_CHUNK."""
    dynamic_batch_config: DynamicBatchConfig | None = None
    waiting_queue_policy: str | None = None
    """FCFS or PRIORITY [FCFS]."""
    enable_prefix_aware_scheduling: bool | None = None
    enable_chunked_prefill: bool | None = None
    """[True]"""
    chunk_size: int | None = None
    """Most prompt tokens of one request in one step [max_num_tokens]."""

    def to_proto(self) -> model_pb2.SchedulerConfig:
        return to_proto(self, model_pb2.SchedulerConfig())


def data_type(dtype: str) -> Any:
    """The wire's number of a type's name; "auto" is unspecified. Raises ValueError that lists the names."""
    return 0 if dtype == "auto" else enum_number(common_pb2.DataType.DESCRIPTOR, "dtype", dtype)


def _without_auto(config: Any, name: str) -> Any:
    return replace(config, **{name: None}) if getattr(config, name) == "auto" else config
