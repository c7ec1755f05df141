"""How a request ends, and what its outputs carry on the way."""

from __future__ import annotations

import pytest

from inference_service.config import SchedulerConfig
from inference_service.executor.executor import BAD_LOGITS, STEP_FAILED
from inference_service.executor.messages import CancelRequest, Sampling
from inference_service.executor.request import Status

from .scripted import Rig


def test_a_stop_id_ends_and_is_part_of_the_output() -> None:
    rig = Rig()
    request_id = rig.add([1, 2], sampling=Sampling(max_tokens=40, stop_token_ids=(0,)))
    rig.run()
    rig.check_as_alone(request_id)
    last = rig.last(request_id)
    assert (last.finish_reason, last.stop_token_id, last.token_ids[-1]) == ("stop", 0, 0)


@pytest.mark.parametrize("min_tokens", [1, 2, 5, 9])
def test_stop_ids_are_not_drawn_before_min_tokens(min_tokens: int) -> None:
    rig = Rig(vocab=3)
    sampling = [Sampling(max_tokens=9, min_tokens=min_tokens, seed=seed, stop_token_ids=(0, 2)) for seed in range(6)]
    ids = [rig.add([1], sampling=one) for one in sampling]
    rig.run()
    for request_id in ids:
        rig.check_as_alone(request_id)
        assert len(rig.tokens(request_id)) >= min_tokens
        assert set(rig.tokens(request_id)[: min_tokens - 1]) <= {1}


def test_b25_the_longest_prompt_gets_one_token_and_one_longer_is_refused() -> None:
    rig = Rig(max_seq_len=8)
    fits = rig.add([1] * 7, max_tokens=5)
    over = rig.add([1] * 8, max_tokens=1)
    rig.run()
    rig.check_as_alone(fits)
    assert len(rig.tokens(fits)) == 1
    assert "8 tokens" in (rig.last(over).error or "")


def test_b26_an_empty_prompt_is_refused_and_nothing_else_ends() -> None:
    rig = Rig()
    other, empty = rig.add([1]), rig.add([])
    rig.run()
    rig.check_as_alone(other)
    assert rig.last(empty).error is not None


def test_a_request_larger_than_the_cache_is_refused_not_hung() -> None:
    rig = Rig(blocks=3, block_size=4, max_seq_len=64)
    assert rig.executor.max_request_tokens == 9
    fits, over = rig.add([1] * 4, max_tokens=5), rig.add([1] * 4, max_tokens=6)
    rig.run()
    rig.check_as_alone(fits)
    assert "holds 9" in (rig.last(over).error or "")


def test_unchunked_refuses_a_prompt_above_the_token_budget() -> None:
    rig = Rig(scheduler=SchedulerConfig(enable_chunked_prefill=False, max_num_tokens=4))
    fits, over = rig.add([1] * 4), rig.add([1] * 5)
    rig.run()
    rig.check_as_alone(fits)
    assert rig.last(over).error is not None


@pytest.mark.parametrize(("interval", "sizes"), [(1, [1] * 8), (3, [1, 3, 3, 1]), (7, [1, 7]), (50, [1, 7])])
def test_b13_stream_interval_sends_the_first_at_once_and_the_last_always(interval: int, sizes: list[int]) -> None:
    rig = Rig()
    request_id = rig.add([1, 2], sampling=Sampling(max_tokens=8, logprobs=0), stream_interval=interval)
    rig.run()
    rig.check_as_alone(request_id)
    assert [len(output.token_ids) for output in rig.outputs[request_id]] == sizes
    assert all(len(output.logprobs) == len(output.token_ids) for output in rig.outputs[request_id])


def test_cancel_ends_in_every_state_with_what_was_generated() -> None:
    rig = Rig(scheduler=SchedulerConfig(max_batch_size=1, max_num_tokens=4))
    running, waiting = rig.add([1], max_tokens=20, stream_interval=9), rig.add([2], max_tokens=20)
    for _ in range(3):
        rig.step()
    for request_id in (running, waiting):
        rig.executor.submit(CancelRequest(request_id))
    rig.run()
    for request_id in (running, waiting):
        rig.check_history(request_id)
        assert rig.last(request_id).finish_reason == "cancelled"
    assert rig.tokens(running) == rig.alone(running).token_ids[:3]


def test_a_matched_stop_string_finishes_as_stop() -> None:
    rig = Rig()
    request_id = rig.add([1], max_tokens=20)
    rig.step()
    rig.executor.submit(CancelRequest(request_id, "stop"))
    rig.run()
    assert rig.last(request_id).finish_reason == "stop"


def test_b38_a_late_or_repeated_cancel_touches_nobody() -> None:
    rig = Rig()
    for _ in range(200):
        old = rig.add([1], max_tokens=2)
        rig.step()
        rig.executor.submit(CancelRequest(old))
        new = rig.add([1], max_tokens=2)
        rig.executor.submit(CancelRequest(old))
        rig.run()
        rig.check_as_alone(new)
        assert rig.last(old).finish_reason == "cancelled"


@pytest.mark.parametrize("max_batch_size", [1, 2])
def test_a_deadline_ends_running_and_waiting_alike(max_batch_size: int) -> None:
    rig = Rig(scheduler=SchedulerConfig(max_batch_size=max_batch_size))
    ids = [rig.add([index], max_tokens=30, deadline=3.0) for index in (1, 2)]
    for _ in range(4):
        rig.step()
        rig.now += 1
    for request_id in ids:
        rig.check_history(request_id)
        assert rig.last(request_id).finish_reason == "timeout"
    assert rig.tokens(ids[0]) == rig.alone(ids[0]).token_ids[:3]
    rig.run()


def test_nan_logits_fail_their_request_alone() -> None:
    rig = Rig(bad_on=frozenset({9}))
    ids = [rig.add(prompt) for prompt in ([1, 2], [3, 9], [2, 2])]
    rig.run()
    assert rig.last(ids[1]).error == BAD_LOGITS
    for request_id in (ids[0], ids[2]):
        rig.check_as_alone(request_id)


def test_a_failed_step_fails_its_requests_and_the_next_ones_run() -> None:
    rig = Rig(scheduler=SchedulerConfig(max_batch_size=2), fail_on=frozenset({9}))
    victims = [rig.add([1, 2]), rig.add([3, 9])]
    later = rig.add([1, 2])
    rig.run()
    for request_id in victims:
        rig.check_history(request_id)
        assert rig.last(request_id).error == STEP_FAILED
    rig.check_as_alone(later)
    assert rig.last(later).metrics.cached_tokens == 0


def test_a_failed_step_fails_those_too_whose_copies_were_to_run_in_it() -> None:
    rig = Rig(block_size=4, scheduler=SchedulerConfig(policy="STATIC_BATCH", max_num_tokens=3))
    seen = rig.add([1, 2, 3, 0, 1], max_tokens=1)
    rig.run()
    victims = [rig.add([2, 2, 2, 2], max_tokens=1), rig.add([1, 2, 2], max_tokens=1)]
    rig.runner.fail_next = True
    rig.run()
    rig.check_as_alone(seen)
    assert [rig.last(request_id).error for request_id in victims] == [STEP_FAILED] * 2


def test_metrics_tell_the_times_of_the_injected_clock() -> None:
    rig = Rig(scheduler=SchedulerConfig(max_num_tokens=2))
    rig.now = 5.0
    request_id = rig.add([1, 2, 3], max_tokens=2)
    for _ in range(3):
        rig.now += 1
        rig.step()
    metrics = rig.last(request_id).metrics
    assert (metrics.arrival, metrics.first_scheduled, metrics.first_token, metrics.last_token) == (5.0, 6.0, 7.0, 8.0)


def test_stats_count_what_the_step_did() -> None:
    rig = Rig(block_size=4)
    rig.add([1] * 6, max_tokens=4)
    rig.step()
    rig.add([2] * 3, max_tokens=4)
    rig.step()
    stats = rig.executor.stats()
    assert (stats.iteration, stats.num_scheduled_tokens) == (2, 4)
    assert (stats.num_context_requests, stats.num_generation_requests) == (1, 1)
    assert (stats.max_blocks, stats.used_blocks, stats.free_blocks, stats.cached_blocks) == (63, 3, 60, 1)
    rig.run()
    assert rig.executor.stats().completed_total == 2


def test_an_illegal_state_change_asserts_and_changes_nothing() -> None:
    rig = Rig()
    rig.add([1])
    request = next(iter(rig.executor._scheduler))
    with pytest.raises(AssertionError, match="WAITING -> PREEMPTED"):
        request.move_to(Status.PREEMPTED)
    assert request.status is Status.WAITING
