"""The machine that a build runs on, and the memory that the build takes of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

from builder_service.queue.memory import anonymous_bytes

SAMPLE_SECONDS = 0.2


def cpu_name() -> str:
    """The processor's model name; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


class PeakMemory:
    """Within its blocks, the highest anonymous memory of this process in `bytes`; sampled, so short peaks may be
    missed. It may be entered several times, one after the other."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> Self:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, anonymous_bytes(os.getpid()))
            if self._ended.wait(SAMPLE_SECONDS):
                return
