"""The keywords of LLM(): which belong to the build, which to the load, and which a network client cannot honour."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from enginehouse import _check as check
from enginehouse.build import VerifyOptions
from enginehouse.configs import (
    BuildConfig,
    CalibConfig,
    KvCacheConfig,
    LoraConfig,
    ParallelConfig,
    QuantConfig,
    SchedulerConfig,
)

_PARALLEL = (
    *("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "moe_tensor_parallel_size"),
    *("moe_expert_parallel_size", "moe_cluster_parallel_size", "gpus_per_node", "enable_attention_dp", "auto_parallel"),
)
_LOAD = (
    *("kv_cache_config", "scheduler_config", "max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len"),
    *("max_beam_width", "enable_chunked_prefill", "normalize_log_probs", "guided_decoding_backend"),
    *("gather_generation_logits", "iter_stats_max_iterations", "request_stats_max_iterations", "max_queue_size"),
    *("num_postprocess_workers", "num_threads", "deterministic", "devices"),
)
_SET_AT_LOAD_ONLY = "is set when a model is loaded; the server's operator decides"
REFUSED: dict[str, str] = {
    "trust_remote_code": "code that comes with a checkpoint is never run",
    "backend": "the engine's target decides; see targets=",
    "batched_logits_processor": "a function cannot travel to the server; its operator installs processors by name",
    "cache_transceiver_config": _SET_AT_LOAD_ONLY,
    "cp_config": "context parallelism is set by context_parallel_size=",
    "decoding_config": "speculative decoding is not supported yet",
    "executor_cls": "the executor is the server's",
    "extended_runtime_perf_knob_config": _SET_AT_LOAD_ONLY,
    "batching_type": "requests always join a running batch; see SchedulerConfig for STATIC_BATCH",
    "garbage_collection_gen0_threshold": _SET_AT_LOAD_ONLY,
    "peft_cache_config": "LoRA adapters are not supported yet",
    "postprocess_tokenizer_dir": "the server detokenizes with the engine's own tokenizer",
    "reasoning_parser": "reasoning is not parsed; see the text",
    "speculative_config": "speculative decoding is not supported yet",
    "workspace": "the builder has its own workspace",
    "mpi_session": "the server starts its own ranks",
    "_mpi_session": "the server starts its own ranks",
}


@dataclass(frozen=True, kw_only=True)
class LlmArgs:
    """The keywords of LLM() beside those in its signature. All but the first group need builder=."""

    timeout: float = 30.0
    """Seconds for each call that answers at once; a generation has none of its own."""

    engine_id: str | None = None
    """The engine to find or build [made from the checkpoint's name]."""
    model_name: str | None = None
    """The served name [the engine's id]."""
    build_config: BuildConfig | None = None
    quant_config: QuantConfig | None = None
    calib_config: CalibConfig | None = None
    lora_config: LoraConfig | None = None
    targets: Sequence[str] = ()
    verify: VerifyOptions | None = None
    weights: str = "real"
    labels: Mapping[str, str] = field(default_factory=dict)
    alias: str = ""
    enable_build_cache: bool = True
    """False builds even if an engine with the same build key exists."""
    load_timeout: float = 3600.0
    """Seconds for the load of a model, or the wait for one that is being loaded."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    moe_tensor_parallel_size: int | None = None
    moe_expert_parallel_size: int | None = None
    moe_cluster_parallel_size: int | None = None
    gpus_per_node: int | None = None
    enable_attention_dp: bool = False
    auto_parallel: bool = False

    kv_cache_config: KvCacheConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    max_input_len: int | None = None
    max_beam_width: int | None = None
    enable_chunked_prefill: bool | None = None
    normalize_log_probs: bool | None = None
    guided_decoding_backend: str | None = None
    gather_generation_logits: bool | None = None
    iter_stats_max_iterations: int | None = None
    request_stats_max_iterations: int | None = None
    max_queue_size: int | None = None
    num_postprocess_workers: int | None = None
    num_threads: int | None = None
    deterministic: bool | None = None
    devices: Sequence[str] = ()
    dtype: str = "auto"
    revision: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            if str(item.type).startswith("int"):
                check.integer(item.name, getattr(self, item.name), 0, 2**63 - 1)
        for name in ("timeout", "load_timeout"):
            check.number(name, getattr(self, name), 0.0, above=True)

    @classmethod
    def parse(cls, keywords: Mapping[str, Any]) -> LlmArgs:
        """Raises ValueError that names the keywords that are unknown or cannot be honoured."""
        for name, why in REFUSED.items():
            if keywords.get(name) not in (None, False):
                raise ValueError(f"LLM() cannot honour {name}={keywords[name]!r}: {why}")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(keywords.keys() - known - REFUSED.keys()):
            raise ValueError(f"LLM() got invalid argument: {', '.join(_with_meant(name, known) for name in unknown)}")
        return cls(**{name: value for name, value in keywords.items() if name in known})

    def changed(self) -> list[str]:
        """The names of what differs from its default and needs a builder."""
        clean = LlmArgs()
        always = {"timeout", "load_timeout", "engine_id", "model_name"}
        names = [item.name for item in fields(self) if item.name not in always]
        return [name for name in names if getattr(self, name) != getattr(clean, name)]

    def build_options(self) -> dict[str, Any]:
        """The keywords of `BuilderClient.build`."""
        dtype = None if self.dtype == "auto" else self.dtype
        config = self.build_config or BuildConfig()
        limits = {name: value for name in _BOUNDS if (value := getattr(self, name)) is not None}
        config = replace(config, **limits, dtype=dtype or config.dtype, lora_config=self.lora_config)
        quant = self.quant_config
        if self.calib_config is not None:
            quant = replace(quant or QuantConfig(), calib_config=self.calib_config)
        parallel = {name: value for name in _PARALLEL if (value := getattr(self, name)) not in (None, False, 1)}
        return {
            "build_config": config,
            "quant_config": quant,
            "parallel_config": ParallelConfig(**parallel) if parallel else None,
            "targets": self.targets,
            "verify": self.verify,
            "weights": self.weights,
            "labels": self.labels,
            "alias": self.alias,
            "force": not self.enable_build_cache,
            "revision": self.revision,
        }

    def load_options(self) -> dict[str, Any]:
        """The keywords of `ModelClient.load`."""
        options = {name: value for name in _LOAD if (value := getattr(self, name)) not in (None, ())}
        return {**options, "dtype": self.dtype}


_BOUNDS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len", "max_beam_width")


def _with_meant(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"{name} (did you mean {close[0]}?)" if close else name
