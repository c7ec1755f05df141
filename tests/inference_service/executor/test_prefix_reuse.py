"""What is shared, what is copied, what is never shared."""

from __future__ import annotations

from pathlib import Path

import pytest

import inference_service.executor as executor_package
from inference_service.config import KvCacheConfig, SchedulerConfig
from inference_service.executor.prefix import KeyChain, child_key, common_tokens, pack_tokens, root_key

from .scripted import Rig

BLOCK = 4


def cached(rig: Rig, request_id: int) -> int:
    return rig.last(request_id).metrics.cached_tokens


def run_one(rig: Rig, prompt: list[int], **fields: object) -> int:
    request_id = rig.add(prompt, **fields)
    rig.run()
    rig.check_as_alone(request_id)
    return request_id


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_b34_a_wholly_cached_prompt_of_exact_blocks_recomputes_one_token(num_blocks: int, partial: bool) -> None:
    rig = Rig(block_size=BLOCK, kv_cache=KvCacheConfig(enable_partial_reuse=partial))
    prompt = [1, 2, 3] * 4
    prompt = prompt[: num_blocks * BLOCK]
    cold = run_one(rig, prompt, max_tokens=6)
    warm = run_one(rig, prompt, max_tokens=6)
    assert cached(rig, cold) == 0
    assert cached(rig, warm) == (len(prompt) - 1 if partial else len(prompt) - BLOCK)
    assert rig.tokens(cold) == rig.tokens(warm)


def test_b34_eviction_between_queueing_and_running_is_seen() -> None:
    rig = Rig(blocks=6, block_size=BLOCK, max_seq_len=20, scheduler=SchedulerConfig(max_batch_size=1))
    prompt = [1] * 8
    run_one(rig, prompt, max_tokens=1)
    blocker = rig.add([2] * 12, max_tokens=8, priority=1.0)
    queued = rig.add(prompt, max_tokens=3)
    rig.run()
    for request_id in (blocker, queued):
        rig.check_as_alone(request_id)
    assert cached(rig, queued) == 0, "its blocks were evicted while it waited"


def test_generated_tokens_are_reused_in_the_next_turn() -> None:
    rig = Rig(block_size=BLOCK)
    first = run_one(rig, [1, 2, 3], max_tokens=10)
    turn = [1, 2, 3, *rig.tokens(first), 3, 3]
    second = run_one(rig, turn, max_tokens=2)
    assert cached(rig, second) == 12, "of 13 tokens 12 were computed, in three full blocks"


def test_a_part_of_a_block_is_reused_by_copy_and_the_source_stays_whole() -> None:
    rig = Rig(block_size=BLOCK)
    run_one(rig, [1, 2, 3, 0, 2, 2, 2, 2, 3], max_tokens=1)
    second = run_one(rig, [1, 2, 3, 0, 2, 2, 3, 3, 3], max_tokens=1)
    assert cached(rig, second) == 6
    assert len(rig.runner.steps[-1].copies) == 1
    again = run_one(rig, [1, 2, 3, 0, 2, 2, 2, 2, 3], max_tokens=1)
    assert cached(rig, again) == 8


def test_partial_reuse_takes_the_sibling_that_shares_most() -> None:
    rig = Rig(block_size=BLOCK)
    run_one(rig, [1, 2, 3, 3, 1], max_tokens=1)
    run_one(rig, [1, 0, 0, 0, 1], max_tokens=1)
    assert cached(rig, run_one(rig, [1, 2, 3, 1, 0], max_tokens=1)) == 3


def test_a_copy_is_given_up_where_pinning_its_source_would_not_fit() -> None:
    rig = Rig(blocks=3, block_size=BLOCK)
    run_one(rig, [1, 2, 3, 0, 1], max_tokens=1)
    assert cached(rig, run_one(rig, [1, 2, 3, 3, 1], max_tokens=4)) == 0


def test_the_source_of_a_copy_is_not_given_away_in_the_same_step() -> None:
    rig = Rig(blocks=5, block_size=BLOCK)
    run_one(rig, [1, 2, 3, 0, 1], max_tokens=1)
    holder = rig.add([2, 2, 2, 2, 0], max_tokens=3)
    rig.step()
    first, second = rig.add([1, 2, 2], max_tokens=1), rig.add([2, 2, 1], max_tokens=1)
    rig.step()
    assert len(rig.runner.steps[-1].copies) == 1, "one block is left, but it is being copied from"
    rig.run()
    for request_id in (holder, first, second):
        rig.check_as_alone(request_id)


def test_concurrent_requests_share_blocks_in_use() -> None:
    rig = Rig(block_size=BLOCK)
    first = rig.add([1] * 9, max_tokens=8)
    rig.step()
    used = rig.executor.stats().used_blocks
    second = rig.add([1] * 8 + [2], max_tokens=8)
    rig.step()
    assert rig.executor.stats().used_blocks == used + 1
    rig.run()
    for request_id in (first, second):
        rig.check_as_alone(request_id)


@pytest.mark.parametrize("chunk", [None, 4, 6])
def test_samples_of_one_prompt_that_arrive_together_cost_one_prefill(chunk: int | None) -> None:
    rig = Rig(block_size=BLOCK, scheduler=SchedulerConfig(chunk_size=chunk))
    samples = [rig.add([1, 2, 3, 0] * 4 + [1], max_tokens=3) for _ in range(4)]
    other = rig.add([2] * 9, max_tokens=3)
    rig.step()
    assert rig.executor.stats().num_running == 2, "the other prompt does not wait"
    rig.run()
    for request_id in (*samples, other):
        rig.check_as_alone(request_id)
    assert [cached(rig, request_id) for request_id in samples] == [0, 16, 16, 16]


def test_a_static_batch_puts_nobody_off() -> None:
    rig = Rig(block_size=BLOCK, scheduler=SchedulerConfig(policy="STATIC_BATCH"))
    for _ in range(3):
        rig.add([1] * 9)
    rig.step()
    assert rig.executor.stats().num_running == 3
    rig.run()


def test_salts_share_nothing() -> None:
    rig = Rig(block_size=BLOCK)
    run_one(rig, [1] * 9)
    assert cached(rig, run_one(rig, [1] * 9, salt="tenant")) == 0
    assert cached(rig, run_one(rig, [1] * 9, salt="tenant")) == 8


def test_no_reuse_means_none() -> None:
    rig = Rig(block_size=BLOCK, kv_cache=KvCacheConfig(enable_block_reuse=False))
    run_one(rig, [1] * 9)
    assert cached(rig, run_one(rig, [1] * 9)) == 0
    assert rig.executor.stats().cached_blocks == 0


def test_blocks_of_a_nan_request_are_never_reused() -> None:
    rig = Rig(block_size=BLOCK, bad_on=frozenset({9}), scheduler=SchedulerConfig(max_num_tokens=4))
    sick = rig.add([1] * 8 + [9], max_tokens=2)
    rig.step()
    rig.step()
    assert rig.executor.stats().cached_blocks == 2, "its first chunks are cached before the NaN shows"
    rig.run()
    assert rig.last(sick).error is not None
    assert cached(rig, run_one(rig, [1] * 8 + [2])) == 0


def test_a_preempted_request_finds_its_own_blocks_but_does_not_count_them_as_cached() -> None:
    rig = Rig(blocks=7, block_size=BLOCK, max_seq_len=24, scheduler=SchedulerConfig(policy="MAX_UTILIZATION"))
    ids = [rig.add([token] * 3, max_tokens=18) for token in (1, 2)]
    rig.run()
    metrics = rig.last(ids[1]).metrics
    assert metrics.preemptions > 0
    assert metrics.reused_blocks > 0
    assert metrics.cached_tokens == 0


def test_two_groups_of_different_size_hold_the_same_sequence() -> None:
    rig = Rig(blocks=(6, 9), block_size=BLOCK, max_seq_len=20, scheduler=SchedulerConfig(policy="MAX_UTILIZATION"))
    ids = [rig.add([1, 2, 3, 0, token % 3], max_tokens=12) for token in range(5)]
    rig.run()
    for request_id in ids:
        rig.check_as_alone(request_id)


def test_keys_chain_over_all_that_came_before() -> None:
    block = pack_tokens([1, 2, 3, 4])
    assert child_key(root_key("a"), block) != child_key(root_key("b"), block)
    assert root_key("a", salt="bc") != root_key("ab", salt="c")
    assert root_key("a", salt="x") != root_key("a", adapter="x")
    left, right = KeyChain(root_key("a"), 2), KeyChain(root_key("a"), 2)
    left.extend([1, 2, 3, 4, 5], 2)
    right.extend([9, 2, 3, 4], 2)
    assert left.key(1) != right.key(1)
    assert left.tokens(1) == right.tokens(1)


def test_common_tokens_counts_whole_tokens() -> None:
    assert common_tokens(pack_tokens([1, 256, 3]), pack_tokens([1, 257, 3])) == 1
    assert common_tokens(pack_tokens([1, 2]), pack_tokens([1, 2, 3])) == 2


def test_the_core_imports_no_torch() -> None:
    folder = Path(executor_package.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "import torch" in path.read_text()]
