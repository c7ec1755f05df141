"""What a build will need, told from the checkpoint's size alone: rough, and at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from builder_service.job import BuildJob

# Measured with SmolLM2-135M on 2 cores: the child's libraries, and what grows with the engine's weights.
_BASE_BYTES, _BASE_SECONDS = 320 << 20, 12.0
_MEMORY_PER_BYTE = 1.25
_SECONDS_PER_BYTE = {"on": 1 / 25e6, "off": 1 / 60e6}
_GGUF_GROWTH = 2.8
"""16-bit weights for each byte of a GGUF file of about 5 bits a weight, the usual kind."""
_MAX_CONFIG_BYTES = 1 << 20


class Estimate(NamedTuple):
    """Peak memory and disk in bytes, time in seconds."""

    memory_bytes: int
    disk_bytes: int
    seconds: float


def estimate(job: BuildJob) -> Estimate | None:
    """The estimate for a checkpoint on this machine; None for one that is not here (yet, or any more) or unreadable."""
    path = Path(job.source.path)
    try:
        if not job.source.path or not path.exists():
            return None
        weights = int(_weights_bytes(path, 4 if job.build.dtype == "float32" else 2, job.build.dtype == "auto"))
    except OSError:  # a link that leads nowhere, a file that went away: the build itself will say what is wrong
        return None
    seconds = _BASE_SECONDS + weights * _SECONDS_PER_BYTE[job.verify]
    return Estimate(_BASE_BYTES + int(weights * _MEMORY_PER_BYTE), weights, seconds)


def _weights_bytes(path: Path, width: int, as_it_is: bool) -> float:
    """The bytes of the engine's weights, `width` bytes each unless the checkpoint's own width is kept."""
    if path.is_file():
        return path.stat().st_size * _GGUF_GROWTH * width / 2
    stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return stored if as_it_is else stored * width / _stored_width(path / "config.json")


def _stored_width(config: Path) -> int:
    """Bytes of a weight in the checkpoint. What cannot be read counts as 2: the build itself will say what is wrong."""
    try:
        with config.open("rb") as file:
            fields = json.loads(file.read(_MAX_CONFIG_BYTES))
        return 4 if "float32" in (fields.get("dtype"), fields.get("torch_dtype")) else 2
    except (OSError, ValueError, AttributeError, RecursionError):
        return 2
