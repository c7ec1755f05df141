"""The torch runner on a CUDA GPU, in its plain form: the same kernels as on a CPU, weights and pools on the device."""

from __future__ import annotations

import torch

from inference_service.config import ModelConfig
from inference_service.runners.engine import Engine, Version, count_blocks
from inference_service.runners.runner import EngineRunner
from inference_service.runners.torch_ops import TorchProgram
from inference_service.runners.weights import DTYPES


def load_cuda(version: Version, config: ModelConfig) -> EngineRunner:
    """An engine version on the current CUDA device. The KV cache takes its fraction of what the weights leave."""
    device = torch.device("cuda")
    engine = Engine(version, device)
    if config.runner.dtype != "auto":
        engine.dtype = DTYPES[config.runner.dtype]
    else:
        engine.dtype = next(DTYPES[t.dtype] for t in engine.graph.weights.values() if t.dtype in DTYPES)
    free, _ = torch.cuda.mem_get_info(device)
    weights = engine.num_parameters * engine.dtype.itemsize
    engine.allocate_pools(count_blocks(engine.graph, version.manifest, engine.dtype, config.kv_cache, free - weights))
    return EngineRunner(engine, TorchProgram(engine))
