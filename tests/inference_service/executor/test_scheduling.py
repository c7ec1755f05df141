"""Who runs when, and that nothing about it changes an output."""

from __future__ import annotations

import itertools

import pytest

from inference_service.config import SchedulerConfig
from inference_service.executor.messages import Sampling

from .scripted import Rig

POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
PROMPT = [1, 2, 3, 0, 2, 2, 1]


@pytest.mark.parametrize("policy", POLICIES)
def test_many_requests_in_few_blocks_all_end_as_alone(policy: str) -> None:
    rig = Rig(blocks=8, max_seq_len=28, scheduler=SchedulerConfig(policy=policy, max_batch_size=4, max_num_tokens=8))
    ids = [rig.add([1, 2, 3, index % 4] * 2, max_tokens=1 + index) for index in range(12)]
    rig.run()
    for request_id in ids:
        rig.check_as_alone(request_id)


@pytest.mark.parametrize(("chunk", "block_size"), list(itertools.product((1, 3, 4, 5, None), (1, 4))))
def test_chunked_prefill_changes_nothing(chunk: int | None, block_size: int) -> None:
    rig = Rig(block_size=block_size, scheduler=SchedulerConfig(max_num_tokens=6, chunk_size=chunk, max_batch_size=4))
    ids = [rig.add([*PROMPT, index], max_tokens=6) for index in range(4)]
    rig.run()
    for request_id in ids:
        rig.check_as_alone(request_id)
    assert all(step.num_tokens <= 6 for step in rig.runner.steps)


def test_a_prompt_does_not_delay_those_decoding() -> None:
    rig = Rig(scheduler=SchedulerConfig(max_num_tokens=4))
    first = rig.add([1, 2], max_tokens=12)
    rig.step()
    rig.add([3] * 20, max_tokens=1)
    before = len(rig.tokens(first))
    for _ in range(5):
        rig.step()
    assert len(rig.tokens(first)) == before + 5
    assert all(step.num_tokens == 4 for step in rig.runner.steps[1:6])


def test_without_chunking_a_prompt_runs_whole_in_one_step() -> None:
    rig = Rig(scheduler=SchedulerConfig(enable_chunked_prefill=False, max_num_tokens=10))
    ids = [rig.add([1, 2, 3, *[index] * 4], max_tokens=3) for index in range(4)]
    rig.run()
    for request_id in ids:
        rig.check_as_alone(request_id)
    chunks = [step for step in rig.runner.steps if step.num_tokens > step.num_seqs]
    assert all(len(step.logits_rows) == step.num_seqs for step in chunks)


def test_higher_priority_goes_first_and_equal_priority_in_arrival_order() -> None:
    rig = Rig(scheduler=SchedulerConfig(max_batch_size=1))
    ids = [rig.add([priority], max_tokens=1, priority=priority / 3) for priority in (1, 3, 2, 3)]
    order = []
    while rig.executor.has_work:
        order += [output.request_id for output in rig.step()]
    assert order == [ids[1], ids[3], ids[2], ids[0]]


def test_guaranteed_never_preempts_and_max_utilization_does() -> None:
    def preemptions(policy: str) -> int:
        rig = Rig(blocks=9, max_seq_len=32, scheduler=SchedulerConfig(policy=policy))
        for index in range(4):
            rig.add([index] * 4, max_tokens=20)
        rig.run()
        return rig.executor.stats().preemptions_total

    assert preemptions("GUARANTEED_NO_EVICT") == 0
    assert preemptions("MAX_UTILIZATION") > 0


def test_max_utilization_takes_from_the_lowest_priority_then_the_latest() -> None:
    rig = Rig(blocks=7, max_seq_len=24, scheduler=SchedulerConfig(policy="MAX_UTILIZATION"))
    low = rig.add([1] * 3, max_tokens=18, priority=0.1)
    early = rig.add([2] * 3, max_tokens=18)
    late = rig.add([3] * 3, max_tokens=18)
    rig.run()
    preempted = {request_id: rig.last(request_id).metrics.preemptions for request_id in (low, early, late)}
    assert preempted[early] == 0
    assert preempted[low] > 0
    for request_id in (low, early, late):
        rig.check_as_alone(request_id)


def test_max_utilization_leaves_each_running_request_its_next_block() -> None:
    rig = Rig(blocks=4, block_size=4, max_seq_len=16, scheduler=SchedulerConfig(policy="MAX_UTILIZATION"))
    rig.add([1] * 4, max_tokens=5)
    rig.add([2] * 8, max_tokens=3)
    rig.step()
    assert rig.executor.stats().num_running == 1
    rig.run()
    assert rig.executor.stats().preemptions_total == 0


def test_b37_preempted_seeded_requests_keep_stream_logprobs_and_finish_reason() -> None:
    rig = Rig(blocks=6, max_seq_len=20, vocab=11, scheduler=SchedulerConfig(policy="MAX_UTILIZATION"))
    ids = [
        rig.add([seed, 1], sampling=Sampling(max_tokens=16, seed=seed, temperature=1.0, logprobs=0), stream_interval=3)
        for seed in (30, 31, 32)
    ]
    rig.run()
    assert rig.executor.stats().preemptions_total > 0
    for request_id in ids:
        rig.check_as_alone(request_id)
        carried = [entry for output in rig.outputs[request_id] for entry in output.logprobs]
        assert [entry.token_ids[0] for entry in carried] == list(rig.tokens(request_id))


def test_static_batch_admits_nobody_until_all_have_ended() -> None:
    rig = Rig(scheduler=SchedulerConfig(policy="STATIC_BATCH", max_num_tokens=4))
    batch = [rig.add([index] * 3, max_tokens=2 + index) for index in range(3)]
    rig.step()
    assert rig.executor.stats().num_running == 3, "the token budget does not shrink the batch"
    late = rig.add([3], max_tokens=1)
    while any(not rig.outputs.get(one) or rig.last(one).finish_reason is None for one in batch):
        assert late not in rig.outputs
        rig.step()
    rig.run()
    rig.check_as_alone(late)


def test_shared_prefix_lets_guaranteed_admit_more() -> None:
    rig = Rig(blocks=9, max_seq_len=32)
    first = rig.add([1] * 16 + [2], max_tokens=12)
    rig.step()
    second = rig.add([1] * 16 + [3], max_tokens=4)
    rig.step()
    assert rig.executor.stats().num_running == 2, "7 + 5 blocks of 8: it fits because four are shared"
    rig.run()
    for request_id in (first, second):
        rig.check_as_alone(request_id)
