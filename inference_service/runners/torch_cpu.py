"""The torch runner: opset 1 over torch operators, on a CPU or (see `torch_cuda`) a GPU."""

from __future__ import annotations

import os

import torch

from engine_ops.graph import Graph
from inference_service.config import ModelConfig, RunnerConfig
from inference_service.runners.base import Rows, Sampled, Step
from inference_service.runners.engine import DTYPES, Engine, Version, count_blocks
from inference_service.runners.plan import make_plan
from inference_service.runners.sampler import sample
from inference_service.runners.step_data import StepData
from inference_service.runners.torch_ops import FACTORIES, Values


class TorchRunner:
    """Runs an engine with torch operators on one device. `engine` has its pools allocated."""

    def __init__(self, engine: Engine, num_blocks: int) -> None:
        engine.allocate_pools((num_blocks,) * len(engine.block_sizes))
        plan = make_plan(engine.graph)
        self._engine = engine
        self._num_blocks = num_blocks
        self._kernels = [FACTORIES[i.node.op](i, engine) for i in plan.instructions]
        self._values: Values = [torch.empty(0)] * len(plan.widths)
        self._output = plan.logits

    @property
    def num_blocks(self) -> tuple[int, ...]:
        return (self._num_blocks,) * len(self._engine.block_sizes)

    @property
    def vocab_size(self) -> int:
        return self._engine.manifest.vocab_size

    @property
    def logits(self) -> torch.Tensor:
        """Logits [R, V] float32 of the last `forward`."""
        return self._values[self._output]

    @property
    def pools(self) -> dict[str, torch.Tensor]:
        """KV pools by name."""
        return self._engine.pools

    @torch.inference_mode()
    def forward(self, step: Step) -> None:
        self._engine.copy_blocks(step)
        data = StepData(step, self._engine.block_sizes, self._engine.device)
        for kernel in self._kernels:
            kernel(self._values, data)

    @torch.inference_mode()
    def sample(self, rows: Rows) -> Sampled:
        return sample(self.logits, rows)

    def close(self) -> None:
        self._kernels, self._values = [], []
        self._engine.pools.clear()


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


def load_cpu(version: Version, config: ModelConfig) -> TorchRunner:
    """An engine version on this machine's CPU."""
    if config.runner.num_threads is not None:
        torch.set_num_threads(config.runner.num_threads)
    engine = Engine(version, torch.float32, torch.device("cpu"))
    engine.dtype = compute_dtype(config.runner, engine.graph)
    free = min(available_bytes(), config.kv_cache.max_cpu_bytes)
    return TorchRunner(engine, count_blocks(engine.graph, version.manifest, engine.dtype, config.kv_cache, free))
