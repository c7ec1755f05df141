"""Picks the runner for an engine version and this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from engine_store.manifest import Manifest
from enginehouse.errors import FailedPrecondition
from inference_service.config import ModelConfig
from inference_service.runners.base import Runner
from inference_service.runners.engine import Version
from inference_service.runners.torch_cpu import load_cpu
from inference_service.runners.torch_cuda import load_cuda


def load_runner(version_dir: Path, manifest: Manifest, config: ModelConfig) -> Runner:
    """A runner for the engine version in `version_dir`.

    Raises FailedPrecondition where the version has no torch target (reason NO_TORCH_TARGET), the device is not there
    (NO_CUDA_DEVICE), the opset differs or the KV cache does not fit; DataLoss where files and graph disagree.
    """
    if not any(target.form == "torch" for target in manifest.targets):
        forms = ", ".join(target.form for target in manifest.targets)
        raise FailedPrecondition(
            f"The engine has no torch target (it has: {forms}); build it again for target torch.",
            reason="NO_TORCH_TARGET",
            metadata={"targets": forms},
        )
    version = Version(manifest, version_dir)
    return load_cuda(version, config) if _on_cuda(config) else load_cpu(version, config)


def _on_cuda(config: ModelConfig) -> bool:
    device = config.runner.device
    if device == "cuda" and not torch.cuda.is_available():
        raise FailedPrecondition(
            "This machine has no CUDA device; load the model with device cpu or auto.", reason="NO_CUDA_DEVICE"
        )
    return device == "cuda" or (device == "auto" and torch.cuda.is_available())
