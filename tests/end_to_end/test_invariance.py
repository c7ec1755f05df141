"""In float32 on a CPU a request's tokens depend on nothing but the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .engines import Engine, Served, random_prompts

LENGTHS = tuple(1 + (i * 7) % 80 for i in range(32))
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """32 prompts; every fourth starts with the same 48 tokens, so that blocks are shared."""
    made = random_prompts(49152, LENGTHS)
    shared = random_prompts(49152, [48], seed=9)[0]
    return [shared + prompt[:20] if index % 4 == 0 else prompt for index, prompt in enumerate(made)]


@pytest.fixture(scope="module")
def alone(smollm2: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Each request on its own, with an empty cache."""
    from .engines import model_config

    served = Served(smollm2, model_config(kv_cache={"enable_block_reuse": False}))
    outputs = [served.generate([prompt], NEW_TOKENS)[0] for prompt in prompts]
    served.close()
    return outputs


@pytest.mark.timeout(300)
def test_alone_equals_in_a_batch_arriving_at_random(
    smollm2: Engine, prompts: list[list[int]], alone: list[list[int]], serve: Callable[..., Served]
) -> None:
    for seed in range(2):
        assert serve(smollm2).generate_arriving(prompts, NEW_TOKENS, seed) == alone


@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", [1, 31, 32, 33, None])
def test_any_prefill_chunking_gives_the_same_tokens(
    chunk: int | None, smollm2: Engine, prompts: list[list[int]], alone: list[list[int]], serve: Callable[..., Served]
) -> None:
    some = slice(0, 6) if chunk == 1 else slice(0, 32)
    served = serve(smollm2, scheduler={"chunk_size": chunk})
    assert served.generate(prompts[some], NEW_TOKENS) == alone[some]


@pytest.mark.timeout(300)
def test_a_warm_cache_gives_the_same_tokens(
    smollm2: Engine, prompts: list[list[int]], alone: list[list[int]], serve: Callable[..., Served]
) -> None:
    served = serve(smollm2)
    assert served.generate(prompts, NEW_TOKENS) == alone
    before = served.executor.stats().reused_blocks_total
    assert served.generate(prompts, NEW_TOKENS) == alone
    assert served.executor.stats().reused_blocks_total >= before + sum(len(p) // 32 for p in prompts) // 2


@pytest.mark.timeout(300)
def test_preempted_requests_give_the_same_tokens(
    smollm2: Engine, prompts: list[list[int]], serve: Callable[..., Served]
) -> None:
    growing = [prompt[:30] for prompt in prompts[1:9]]  # each grows from one block to four; the pool holds ten
    cold = serve(smollm2, kv_cache={"enable_block_reuse": False})
    alone = [cold.generate([prompt], 70)[0] for prompt in growing]
    served = serve(smollm2, scheduler={"policy": "MAX_UTILIZATION"}, kv_cache={"max_tokens": 10 * 32})
    assert served.generate(growing, 70) == alone
    assert served.executor.stats().preemptions_total > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("interval", [2, 5, 1000])
def test_any_stream_interval_gives_the_same_tokens(
    interval: int, smollm2: Engine, prompts: list[list[int]], alone: list[list[int]], serve: Callable[..., Served]
) -> None:
    served = serve(smollm2)
    assert served.generate(prompts[:8], NEW_TOKENS, stream_interval=interval) == alone[:8]
    assert max(len(delta.token_ids) for delta in served.deltas[1][:-1]) <= interval


def test_a_seeded_sample_depends_on_its_seed_alone(
    smollm2: Engine, prompts: list[list[int]], serve: Callable[..., Served]
) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "seed": 7}
    alone = [serve(smollm2).generate([prompt], 12, **options)[0] for prompt in prompts[:4]]
    served = serve(smollm2, scheduler={"policy": "MAX_UTILIZATION", "chunk_size": 17}, kv_cache={"max_tokens": 256})
    assert served.generate(prompts[:4], 12, **options) == alone
    other = serve(smollm2).generate(prompts[:4], 12, **{**options, "seed": 8})
    assert other != alone


@pytest.mark.long
def test_every_prompt_token_by_token_gives_the_same_tokens(
    smollm2: Engine, prompts: list[list[int]], alone: list[list[int]], serve: Callable[..., Served]
) -> None:
    assert serve(smollm2, scheduler={"chunk_size": 1}).generate(prompts, NEW_TOKENS) == alone
