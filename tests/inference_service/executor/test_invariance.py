"""On a real engine in float32, token for token: alone = batched = chunked = warm = preempted."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: install enginehouse[inference]")

from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig, SchedulerConfig
from inference_service.executor.executor import Executor, ExecutorSettings
from inference_service.executor.messages import AddRequest, ExecutorStats, RequestOutput, Sampling
from inference_service.runners.engine import Version
from inference_service.runners.torch_cpu import load_cpu

from ..runners.conftest import Shape, TinyEngine

BLOCK, MAX_SEQ_LEN = 4, 96


class Result(NamedTuple):
    token_ids: list[int]
    logprobs: list[float]


def make_requests() -> list[AddRequest]:
    """Prompts with a common beginning, greedy and sampled, with and without logprobs."""
    rng = random.Random(0)
    root = [rng.randrange(97) for _ in range(40)]
    return [
        AddRequest(
            request_id=index,
            token_ids=root[: rng.randint(1, 40)] + [rng.randrange(97) for _ in range(rng.randint(0, 6))],
            sampling=Sampling(
                max_tokens=rng.randint(5, 24),
                temperature=rng.choice((0.0, 0.8)),
                top_k=rng.choice((0, 10)),
                top_p=rng.choice((1.0, 0.9)),
                seed=index,
                logprobs=rng.choice((None, 2)),
            ),
            arrival=float(index),
        )
        for index in range(16)
    ]


class Model:
    def __init__(self, engine: TinyEngine, scheduler: SchedulerConfig, cache_tokens: int) -> None:
        cache = KvCacheConfig(max_tokens=cache_tokens)
        runner = RunnerConfig(device="cpu", dtype="float32", num_threads=1)
        config = ModelConfig(kv_cache=cache, runner=runner, scheduler=scheduler)
        self.runner = load_cpu(Version(engine.manifest, engine.dir), config)
        settings = ExecutorSettings(
            block_size=BLOCK, engine_id="tiny@1", max_seq_len=MAX_SEQ_LEN, scheduler=scheduler, kv_cache=cache
        )
        self.executor = Executor(self.runner, settings, time.monotonic)

    def run(self, requests: list[AddRequest], *, at_random: bool = False) -> dict[int, Result]:
        """All at once, or 0 to 3 new ones before each step."""
        rng, left, outputs = random.Random(1), list(requests), list[RequestOutput]()
        while left or self.executor.has_work:
            for _ in range(rng.randint(0, 3) if at_random else len(left)):
                if left:
                    self.executor.submit(left.pop(0))
            outputs += self.executor.step()
        self.executor.check_integrity()
        assert not [output.error for output in outputs if output.error]
        return {request.request_id: _join(outputs, request.request_id) for request in requests}

    @property
    def stats(self) -> ExecutorStats:
        return self.executor.stats()


def _join(outputs: list[RequestOutput], request_id: int) -> Result:
    own = [output for output in outputs if output.request_id == request_id]
    entries = [entry for output in own for entry in output.logprobs or []]
    return Result([token for output in own for token in output.token_ids], [entry.logprobs[0] for entry in entries])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    shape = Shape(block_size=BLOCK, max_seq_len=MAX_SEQ_LEN)
    return TinyEngine(tmp_path_factory.mktemp("engine") / "version", shape, scale=3.0)


@pytest.fixture(scope="module")
def alone(engine: TinyEngine) -> dict[int, Result]:
    """Each request with an empty cache and nobody else."""
    results: dict[int, Result] = {}
    for request in make_requests():
        model = Model(engine, SchedulerConfig(), cache_tokens=400)
        results |= model.run([request])
        model.runner.close()
    return results


def check(results: dict[int, Result], alone: dict[int, Result]) -> None:
    assert {key: one.token_ids for key, one in results.items()} == {key: one.token_ids for key, one in alone.items()}
    for key, one in results.items():
        np.testing.assert_allclose(one.logprobs, alone[key].logprobs, atol=1e-4)


def test_the_engine_is_no_constant(alone: dict[int, Result]) -> None:
    assert len({token for result in alone.values() for token in result.token_ids}) > 40


@pytest.mark.parametrize("at_random", [False, True])
def test_batched_is_as_alone(engine: TinyEngine, alone: dict[int, Result], at_random: bool) -> None:
    check(Model(engine, SchedulerConfig(), 4000).run(make_requests(), at_random=at_random), alone)


@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_chunked_prefill_is_as_alone(engine: TinyEngine, alone: dict[int, Result], chunk: int) -> None:
    scheduler = SchedulerConfig(chunk_size=chunk, max_num_tokens=32)
    check(Model(engine, scheduler, 4000).run(make_requests(), at_random=True), alone)


def test_a_warm_cache_is_as_alone(engine: TinyEngine, alone: dict[int, Result]) -> None:
    model = Model(engine, SchedulerConfig(), 4000)
    check(model.run(make_requests()), alone)
    cold = model.stats.reused_blocks_total
    check(model.run(make_requests()), alone)
    assert model.stats.reused_blocks_total > 2 * cold


@pytest.mark.parametrize("policy", ["MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"])
def test_a_small_cache_is_as_alone(engine: TinyEngine, alone: dict[int, Result], policy: str) -> None:
    model = Model(engine, SchedulerConfig(policy=policy, max_num_tokens=48), 160)
    check(model.run(make_requests()), alone)
    assert (model.stats.preemptions_total > 0) == (policy == "MAX_UTILIZATION")
