"""Makes the parts that a model runs on: leases a version, checks its files, reads tokenizer and weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import NamedTuple

from engine_ops.graph import decode
from engine_store import EngineStore
from engine_store.checking import checked_while_loading
from engine_store.leases import Lease
from engine_store.manifest import Manifest
from inference_service.config import ModelConfig
from inference_service.executor.executor import Executor, ExecutorSettings
from inference_service.frontend.fit import check_graph, model_spec
from inference_service.frontend.served_model import Engine, LoadSpec
from inference_service.leases import LeaseKeeper
from inference_service.runners import load_runner
from inference_service.runners.base import Runner
from inference_service.text.tokenizer import Tokenizer

RunnerLoader = Callable[[Path, Manifest, ModelConfig], Runner]
Progress = Callable[[float, str], None]
"""Called from any thread with the fraction done and what is being done."""


def load_checked(folder: Path, manifest: Manifest, config: ModelConfig) -> Runner:
    """A runner for the version in `folder`, whose manifest and graph must agree; see `load_runner`."""
    check_graph(decode((folder / "graph.json").read_bytes()), manifest)
    return load_runner(folder, manifest, config)


class Loaded(NamedTuple):
    """A version in memory, and the lease on its files: release it when the engine is closed."""

    engine: Engine
    lease: Lease


class _Abandoned(Exception):
    """Nobody waits for the engine any more."""


class EngineLoader:
    """Args:
    store: where engine versions are.
    leases: takes the leases, and renews them.
    load: makes the runner of a version.
    """

    def __init__(self, store: EngineStore, leases: LeaseKeeper, load: RunnerLoader) -> None:
        self._store, self._leases, self._load = store, leases, load

    async def load(self, spec: LoadSpec, manifest: Manifest, report: Progress) -> Loaded:
        """The engine of a version. When cancelled, its thread stops as soon as it can and frees what it has made.

        Each load has a thread of its own, which ends with it: so do the OpenMP threads that it used.
        """
        abandoned = Event()
        pool = ThreadPoolExecutor(1, f"load {spec.name}")
        making = pool.submit(self._make, spec, manifest, report, abandoned)
        pool.shutdown(wait=False)
        try:
            return await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            abandoned.set()
            making.add_done_callback(self._free)
            raise

    def _make(self, spec: LoadSpec, manifest: Manifest, report: Progress, abandoned: Event) -> Loaded:
        with ExitStack() as undo:
            lease = self._leases.hold(manifest.name, manifest.version)
            undo.callback(self._leases.release, lease)
            engine = self._make_engine(spec, manifest, report, abandoned)
            undo.pop_all()
        return Loaded(engine, lease)

    def _make_engine(self, spec: LoadSpec, manifest: Manifest, report: Progress, abandoned: Event) -> Engine:
        started = time.monotonic()
        folder = self._store.version_path(manifest.name, manifest.version)

        def checked(done: int, total: int) -> None:
            if abandoned.is_set():
                raise _Abandoned
            report(0.95 * done / max(total, 1), "reading the files and checking their digests")

        with ExitStack() as undo:
            with checked_while_loading(self._store, manifest, checked):
                texts = folder / "tokenizer"
                tokenizer = Tokenizer(texts) if (texts / "tokenizer.json").is_file() else None
                runner = self._load(folder, manifest, spec.config)
                undo.callback(runner.close)
            executor = Executor(runner, _settings(spec.config, manifest), time.monotonic)
            undo.pop_all()
        report(1.0, "ready")
        return Engine(
            runner=runner,
            executor=executor,
            spec=model_spec(spec, manifest, tokenizer, executor.max_request_tokens),
            load_seconds=time.monotonic() - started,
        )

    def _free(self, making: Future[Loaded]) -> None:
        if not making.cancelled() and making.exception() is None:
            making.result().engine.runner.close()
            self._leases.release(making.result().lease)


def _settings(config: ModelConfig, manifest: Manifest) -> ExecutorSettings:
    return ExecutorSettings(
        block_size=manifest.cache_groups[0].block_size,
        engine_id=manifest.build_key,
        max_seq_len=config.max_seq_len or manifest.limits.max_seq_len,
        scheduler=config.scheduler,
        kv_cache=config.kv_cache,
    )
