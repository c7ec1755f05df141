"""The runner over an engine in memory: block copies, a program that computes the logits, the sampler."""

from __future__ import annotations

from typing import Protocol

import torch

from inference_service.runners.base import Rows, RunnerFacts, Sampled, Step
from inference_service.runners.engine import Engine
from inference_service.runners.sampler import sample


class Program(Protocol):
    """An engine's graph made ready for one way of computing. Reads and writes the engine's pools."""

    def run(self, step: Step) -> torch.Tensor:
        """Logits [R, V] float32, valid until the next call."""
        ...


class EngineRunner:
    """A `base.Runner`. `engine` has its pools allocated, `program` runs over them."""

    def __init__(self, engine: Engine, program: Program) -> None:
        self._engine = engine
        self._program: Program | None = program
        self._logits = torch.empty(0)
        self._num_blocks = engine.num_blocks

    @property
    def num_blocks(self) -> tuple[int, ...]:
        return self._num_blocks

    @property
    def vocab_size(self) -> int:
        return self._engine.manifest.vocab_size

    @property
    def facts(self) -> RunnerFacts:
        engine = self._engine
        pools = sum(pool.nbytes for pool in engine.pools.values())
        weights = engine.num_parameters * engine.dtype.itemsize
        return RunnerFacts(str(engine.device), str(engine.dtype).removeprefix("torch."), weights, pools)

    @property
    def logits(self) -> torch.Tensor:
        """Logits [R, V] float32 of the last `forward`."""
        return self._logits

    @property
    def pools(self) -> dict[str, torch.Tensor]:
        """KV pools by name; their inner layout is the program's."""
        return self._engine.pools

    @torch.inference_mode()
    def forward(self, step: Step) -> None:
        assert self._program is not None, "forward after close"
        self._engine.copy_blocks(step)
        self._logits = self._program.run(step)

    @torch.inference_mode()
    def sample(self, rows: Rows) -> Sampled:
        return sample(self._logits, rows)

    def close(self) -> None:
        self._program = None
        self._logits = torch.empty(0)
        self._engine.close()
