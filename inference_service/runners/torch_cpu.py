"""An engine version on this machine's CPU: the native program where it can run, torch operators elsewhere."""

from __future__ import annotations

import os

import torch

from engine_ops.graph import Graph
from inference_service.config import ModelConfig, RunnerConfig
from inference_service.runners.engine import Engine, Version, count_blocks
from inference_service.runners.native_program import NativeProgram, native_for
from inference_service.runners.runner import EngineRunner
from inference_service.runners.torch_ops import TorchProgram
from inference_service.runners.weights import DTYPES


def load_cpu(version: Version, config: ModelConfig, *, native: bool = True) -> EngineRunner:
    """Loads a version. `native` False: torch operators only."""
    if config.runner.num_threads is not None:
        torch.set_num_threads(config.runner.num_threads)
    engine = Engine(version, torch.device("cpu"))
    engine.dtype = compute_dtype(config.runner, engine.graph)
    free = min(available_bytes(), config.kv_cache.max_cpu_bytes)
    engine.allocate_pools(count_blocks(engine.graph, version.manifest, engine.dtype, config.kv_cache, free))
    library = native_for(engine) if native else None
    return EngineRunner(engine, NativeProgram(engine, library) if library else TorchProgram(engine))


def compute_dtype(config: RunnerConfig, graph: Graph) -> torch.dtype:
    """The dtype to compute in: the one asked for, else the engine's where the CPU multiplies it, else float32."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    stored = {DTYPES[t.dtype] for t in graph.weights.values() if t.dtype in DTYPES}
    fast = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if stored == {torch.bfloat16} and fast else torch.float32


def available_bytes() -> int:
    """Memory that this process can still take, in bytes."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
