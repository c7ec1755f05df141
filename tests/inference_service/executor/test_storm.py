"""Dense seeded storms: many requests at once in few blocks, with cancels, deadlines and failed steps."""

from __future__ import annotations

import random

import pytest

from inference_service.config import KvCacheConfig, SchedulerConfig
from inference_service.executor.messages import CancelRequest, Sampling

from .scripted import Rig

POLICIES = ("MAX_UTILIZATION", "MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH")


def make_rig(rng: random.Random) -> Rig:
    block_size = rng.choice((1, 2, 3, 4))
    max_seq_len = 24
    groups = rng.choice((1, 1, 2))
    return Rig(
        blocks=tuple(2 + max_seq_len // block_size + rng.randrange(8) for _ in range(groups)),
        block_size=block_size,
        max_seq_len=max_seq_len,
        vocab=3,
        scheduler=SchedulerConfig(
            policy=rng.choice(POLICIES),
            enable_chunked_prefill=rng.random() < 0.8,
            max_batch_size=rng.choice((2, 4, 8)),
            max_num_tokens=rng.choice((16, 24, 40)),
            chunk_size=rng.choice((None, None, 1, 3, 5)),
        ),
        kv_cache=KvCacheConfig(enable_partial_reuse=rng.random() < 0.8),
    )


def random_prompt(rng: random.Random, rig: Rig) -> list[int]:
    if rig.requests and rng.random() < 0.5:
        before = rng.choice(list(rig.requests))
        known = [*rig.requests[before].token_ids, *rig.tokens(before)]
        return [*known[: rng.randint(1, 12)], rng.randrange(3)]
    return [rng.randrange(3) for _ in range(rng.randint(1, 14))]


def add_random(rng: random.Random, rig: Rig) -> int:
    sampling = Sampling(
        max_tokens=rng.randint(1, 12),
        min_tokens=rng.randint(1, 3),
        seed=rng.randrange(2),
        stop_token_ids=rng.choice(((), (), (0,))),
        logprobs=rng.choice((None, 0)),
    )
    return rig.add(
        random_prompt(rng, rig),
        sampling=sampling,
        priority=rng.choice((0.5, 0.5, 0.9)),
        stream_interval=rng.choice((1, 1, 4)),
        deadline=rig.now + rng.randint(5, 40) if rng.random() < 0.1 else None,
    )


@pytest.mark.parametrize("seed", range(24))
def test_after_a_storm_all_is_as_alone_and_every_block_is_back(seed: int) -> None:
    rng = random.Random(seed)
    rig = make_rig(rng)
    cancelled: set[int] = set()
    while len(rig.requests) < 50:
        for _ in range(rng.choice((0, 0, 1, 5))):
            request_id = add_random(rng, rig)
            if rng.random() < 0.15:
                cancelled.add(request_id)
        for request_id in [one for one in cancelled if rng.random() < 0.2]:
            rig.executor.submit(CancelRequest(request_id))
        rig.runner.fail_next = rng.random() < 0.02
        rig.now += 1
        rig.step()
        rig.executor.check_integrity()
    rig.runner.fail_next = False
    rig.run()
    ends = {request_id: rig.last(request_id) for request_id in rig.requests}
    for request_id, end in ends.items():
        rig.check_history(request_id)
        if end.finish_reason in ("stop", "length"):
            rig.check_as_alone(request_id)
        assert end.finish_reason != "cancelled" or request_id in cancelled
        assert rig.tokens(request_id) == rig.alone(request_id).token_ids[: len(rig.tokens(request_id))]
    assert sum(end.finish_reason in ("stop", "length") for end in ends.values()) > 25
