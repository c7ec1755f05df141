"""Settings of a loaded model, by composition. Defaults mirror TensorRT-LLM's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class KvCacheConfig:
    """KV cache size and reuse. `max_tokens` caps the pool in tokens (rounded down to blocks);
    `free_gpu_memory_fraction` is the share of the memory left after weights (on a CPU: of the available memory,
    itself capped by `max_cpu_bytes`)."""

    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float = 0.9
    max_cpu_bytes: int = 2 << 30


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """GUARANTEED_NO_EVICT admits a request only when its whole length fits; MAX_UTILIZATION admits optimistically
    and preempts; STATIC_BATCH admits a new batch only when the last one has ended."""

    policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = "GUARANTEED_NO_EVICT"
    enable_chunked_prefill: bool = True
    max_batch_size: int = 256
    max_num_tokens: int = 2048
    chunk_size: int | None = None
    """Most prompt tokens of one sequence in one step; None: max_num_tokens."""


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """`device` auto: cuda where a GPU is there. `dtype` auto: the engine's dtype, but float32 on a CPU without AMX or
    AVX512-BF16."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    num_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that LoadModel may set. `max_seq_len` None: the engine's limit."""

    kv_cache: KvCacheConfig = field(default_factory=KvCacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    max_seq_len: int | None = None
    max_queue_size: int = 1024
