"""What a build will need, told from the checkpoint's size alone: rough, and at once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from builder_service.job import BuildJob

# Measured on SmolLM2-135M: the child's libraries, and the time until its first work.
_BASE_BYTES, _BASE_SECONDS = 400 << 20, 12.0
_BYTES_PER_SECOND = 60e6
_F32_PER_GGUF_BYTE = 4.0


class Estimate(NamedTuple):
    """Peak memory and disk in bytes, time in seconds."""

    memory_bytes: int
    disk_bytes: int
    seconds: float


def estimate(job: BuildJob) -> Estimate | None:
    """The estimate for a checkpoint on this machine; None for one that has to be fetched first."""
    if not job.source.path:
        return None
    path = Path(job.source.path)
    if path.is_file():
        weights = int(path.stat().st_size * (_F32_PER_GGUF_BYTE if job.build.dtype == "float32" else 2.0))
    else:
        weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    memory = _BASE_BYTES + weights * (2 if job.verify == "on" else 1)
    return Estimate(memory, weights, _BASE_SECONDS + weights / _BYTES_PER_SECOND)
