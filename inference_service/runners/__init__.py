"""What computes: runners of a loaded engine version, behind `base.Runner`."""

from __future__ import annotations

from inference_service.runners.base import Runner
from inference_service.runners.loading import load_runner

__all__ = ["Runner", "load_runner"]
