"""From a `LoadModelRequest` to what the model manager loads: every field honoured or refused by name."""

from __future__ import annotations

import dataclasses
from typing import Literal

from google.protobuf.message import Message

from engine_store.manifest import Manifest
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import model_pb2 as mpb
from enginehouse.errors import FailedPrecondition, InvalidArgument, unsupported_field
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig, SchedulerConfig
from inference_service.frontend.checks import check_count, check_float, check_int, invalid
from inference_service.frontend.fields import refuse_unless_neutral
from inference_service.frontend.served_model import LoadSpec
from service_kit.fields import refuse_unsupported

HONOURED = frozenset(
    {
        *("model", "engine", "version", "alias", "target", "dtype", "devices", "labels", "request_id", "validate_only"),
        *("kv_cache.enable_block_reuse", "kv_cache.max_tokens", "kv_cache.free_gpu_memory_fraction"),
        *("kv_cache.enable_partial_reuse", "kv_cache.tokens_per_block"),
        *("scheduler.capacity_scheduler_policy", "scheduler.context_chunking_policy", "scheduler.waiting_queue_policy"),
        *("scheduler.enable_chunked_prefill", "scheduler.chunk_size"),
        *("limits.max_batch_size", "limits.max_num_tokens", "limits.max_seq_len", "limits.max_input_len"),
        *("executor.max_queue_size", "executor.num_threads", "executor.batching_type"),
        "executor.iter_stats_max_iterations",
    }
)
NEUTRAL: dict[str, float] = {
    "kv_cache.copy_on_partial_reuse": True,
    "kv_cache.sink_token_length": 0,
    "kv_cache.host_cache_size": 0,
    "kv_cache.disk_cache_size": 0,
    "kv_cache.secondary_offload_min_priority": 0,
    "kv_cache.event_buffer_max_size": 0,
    "kv_cache.max_gpu_total_bytes": 0,
    "limits.max_beam_width": 1,
    "limits.max_prompt_embedding_table_size": 0,
    "limits.max_draft_len": 0,
    "limits.max_lora_rank": 0,
    "limits.max_encoder_input_len": 0,
    "executor.normalize_log_probs": True,
    "executor.request_stats_max_iterations": 0,
    "executor.gpu_weights_percent": 1.0,
}
"""Fields that are not honoured yet, but whose default, given explicitly, asks for nothing."""
_MAX_STATS = 100_000

Policy = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"]
_POLICIES: dict[int, Policy] = {
    mpb.CAPACITY_SCHEDULER_POLICY_GUARANTEED_NO_EVICT: "GUARANTEED_NO_EVICT",
    mpb.CAPACITY_SCHEDULER_POLICY_MAX_UTILIZATION: "MAX_UTILIZATION",
    mpb.CAPACITY_SCHEDULER_POLICY_STATIC_BATCH: "STATIC_BATCH",
}
_DTYPES: dict[int, Literal["auto", "float32", "bfloat16", "float16"]] = {
    common_pb2.DATA_TYPE_UNSPECIFIED: "auto",
    common_pb2.DATA_TYPE_FLOAT32: "float32",
    common_pb2.DATA_TYPE_BFLOAT16: "bfloat16",
    common_pb2.DATA_TYPE_FLOAT16: "float16",
}
_DEVICES: dict[str, Literal["auto", "cpu", "cuda"]] = {"": "auto", "cpu": "cpu", "cuda": "cuda", "cuda:0": "cuda"}


def to_load_spec(request: mpb.LoadModelRequest, defaults: ModelConfig) -> LoadSpec:
    """What the request asks for, over the server's defaults.

    Raises:
        Unimplemented: a field that is not honoured. InvalidArgument: a value out of range.
    """
    refuse_unless_neutral(request, NEUTRAL)
    refuse_unsupported(request, HONOURED | NEUTRAL.keys())
    if not request.engine:
        raise invalid("engine", "is empty; name the engine to load.", "NO_ENGINE")
    if request.target not in ("", "torch"):
        raise unsupported_field("target", f"= {request.target[:40]!r} is not supported yet (torch is)")
    check_count("labels", len(request.labels), 64)
    if any(len(text) > 63 for label in request.labels.items() for text in label):
        raise invalid("labels", "holds a key or value of more than 63 characters.", "TOO_LONG")
    revision = request.WhichOneof("revision")
    if revision == "version":
        check_int("version", request.version, 1)
    return LoadSpec(
        name=request.model or request.engine,
        engine=request.engine,
        ref=str(getattr(request, revision)) if revision else "latest",
        config=dataclasses.replace(
            defaults,
            kv_cache=_kv_cache(request.kv_cache, defaults.kv_cache),
            scheduler=_scheduler(request, defaults.scheduler),
            runner=_runner(request, defaults.runner),
            max_seq_len=request.limits.max_seq_len if request.limits.HasField("max_seq_len") else defaults.max_seq_len,
            max_queue_size=_max_queue_size(request.executor, defaults.max_queue_size),
        ),
        use_priority=request.scheduler.waiting_queue_policy == mpb.WAITING_QUEUE_POLICY_PRIORITY,
        labels=dict(request.labels),
        max_input_len=_optional_int(request.limits, "max_input_len", "limits.max_input_len", 1),
        stats_kept=_optional_int(
            request.executor, "iter_stats_max_iterations", "executor.iter_stats_max_iterations", 0, _MAX_STATS
        ),
    )


def check_against_engine(request: mpb.LoadModelRequest, manifest: Manifest) -> None:
    """What only the engine's manifest can tell: bounds above its own, another block size."""
    for name in ("max_batch_size", "max_num_tokens"):
        if request.limits.HasField(name):
            check_int(f"limits.{name}", getattr(request.limits, name), 1, getattr(manifest.limits, name))
    block_size = manifest.cache_groups[0].block_size
    if request.kv_cache.HasField("tokens_per_block") and request.kv_cache.tokens_per_block != block_size:
        raise FailedPrecondition(
            f"The engine has blocks of {block_size} tokens, the request asks for {request.kv_cache.tokens_per_block}; "
            "leave it unset or build the engine again.",
            reason="BLOCK_SIZE",
            metadata={"field": "kv_cache.tokens_per_block", "engine": block_size},
        )


def _kv_cache(asked: mpb.KvCacheConfig, defaults: KvCacheConfig) -> KvCacheConfig:
    changes: dict[str, object] = {}
    for name in ("enable_block_reuse", "enable_partial_reuse"):
        if asked.HasField(name):
            changes[name] = getattr(asked, name)
    if asked.HasField("max_tokens"):
        changes["max_tokens"] = check_int("kv_cache.max_tokens", asked.max_tokens, 1)
    if asked.HasField("free_gpu_memory_fraction"):
        fraction = check_float("kv_cache.free_gpu_memory_fraction", asked.free_gpu_memory_fraction, 0.0, 1.0)
        if fraction == 0.0:
            raise invalid("kv_cache.free_gpu_memory_fraction", "is 0; it must be above 0.", value=0)
        changes["free_gpu_memory_fraction"] = fraction
    return dataclasses.replace(defaults, **changes)  # type: ignore[arg-type]


def _scheduler(request: mpb.LoadModelRequest, defaults: SchedulerConfig) -> SchedulerConfig:
    asked, limits = request.scheduler, request.limits
    if asked.context_chunking_policy not in (
        mpb.CONTEXT_CHUNKING_POLICY_UNSPECIFIED,
        mpb.CONTEXT_CHUNKING_POLICY_FIRST_COME_FIRST_SERVED,
    ):
        raise unsupported_field("scheduler.context_chunking_policy", "other than first come, first served is not yet")
    changes: dict[str, object] = {"policy": _policy(request, defaults)}
    if asked.HasField("enable_chunked_prefill"):
        changes["enable_chunked_prefill"] = asked.enable_chunked_prefill
    if asked.HasField("chunk_size"):
        changes["chunk_size"] = check_int("scheduler.chunk_size", asked.chunk_size, 1)
    for name in ("max_batch_size", "max_num_tokens"):
        if limits.HasField(name):
            changes[name] = check_int(f"limits.{name}", getattr(limits, name), 1)
    return dataclasses.replace(defaults, **changes)  # type: ignore[arg-type]


def _policy(request: mpb.LoadModelRequest, defaults: SchedulerConfig) -> Policy:
    policy = _POLICIES.get(request.scheduler.capacity_scheduler_policy, defaults.policy)
    if request.executor.batching_type != mpb.BATCHING_TYPE_STATIC:
        return policy
    if request.scheduler.capacity_scheduler_policy and policy != "STATIC_BATCH":
        raise InvalidArgument(
            "`executor.batching_type` is STATIC and `scheduler.capacity_scheduler_policy` is not; make them agree.",
            reason="CONFLICT",
            metadata={"field": "executor.batching_type"},
        )
    return "STATIC_BATCH"


def _runner(request: mpb.LoadModelRequest, defaults: RunnerConfig) -> RunnerConfig:
    if len(request.devices) > 1 or any(device not in _DEVICES for device in request.devices):
        raise unsupported_field("devices", "other than one of cpu and cuda:0 is not supported yet")
    if request.dtype not in _DTYPES:
        name = (
            common_pb2.DataType.Name(request.dtype) if request.dtype in common_pb2.DataType.values() else request.dtype
        )
        raise unsupported_field("dtype", f"= {name} is not supported (FLOAT32, BFLOAT16 and FLOAT16 are)")
    changes: dict[str, object] = {}
    if request.devices:
        changes["device"] = _DEVICES[request.devices[0]]
    if request.dtype:
        changes["dtype"] = _DTYPES[request.dtype]
    if request.executor.HasField("num_threads"):
        changes["num_threads"] = check_int("executor.num_threads", request.executor.num_threads, 1)
    return dataclasses.replace(defaults, **changes)  # type: ignore[arg-type]


def _optional_int(message: Message, name: str, path: str, low: int, high: int | None = None) -> int | None:
    return check_int(path, getattr(message, name), low, high) if message.HasField(name) else None


def _max_queue_size(asked: mpb.ExecutorConfig, default: int) -> int:
    if not asked.HasField("max_queue_size"):
        return default
    return check_int("executor.max_queue_size", asked.max_queue_size, 0)
