"""Random histories over tiny pools and vocabularies: whatever happens, a request's output is its output alone."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_service.config import KvCacheConfig, SchedulerConfig
from inference_service.executor.executor import BAD_LOGITS, STEP_FAILED
from inference_service.executor.messages import CancelRequest, Sampling

from .scripted import Rig

MAX_SEQ_LEN = 14
NAN_TOKEN = 9

PROMPT_ROOTS = ([0, 1, 2, 0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 2, 1, 0, 2, 1])
"""Most prompts begin with a part of these, so that they share blocks and parts of blocks."""

rarely = st.integers(0, 9).map(lambda value: value == 6)
configs = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(("MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH")),
        "max_batch_size": st.sampled_from((4, 3, 2, 1)),
        "max_num_tokens": st.integers(1, 16).map(lambda value: 17 - value),
        "chunk_size": st.none() | st.integers(1, 5),
        "enable_chunked_prefill": rarely.map(lambda rare: not rare),
    }
).map(lambda fields: SchedulerConfig(**fields))

samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 9).map(lambda value: 10 - value),
    min_tokens=st.integers(1, 4),
    seed=st.integers(0, 1),
    stop_token_ids=st.sampled_from(((), (), (0,), (0, 2))),
    logprobs=st.sampled_from((None, 0)),
)
prompts = st.builds(
    lambda root, cut, extra: root[:cut] + extra,
    st.sampled_from(PROMPT_ROOTS),
    st.integers(1, 9).map(lambda value: 10 - value),
    st.lists(st.integers(0, 2), max_size=2),
)
arrivals = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "sampling": samplings,
        "salt": rarely.map(lambda rare: "other" if rare else ""),
        "priority": st.sampled_from((0.5, 0.5, 0.9)),
        "stream_interval": st.integers(1, 3),
        "patience": st.none() | st.none() | st.integers(0, 20),
        "sick": rarely,
    }
)


class Histories(RuleBasedStateMachine):
    @initialize(
        scheduler=configs,
        block_size=st.integers(1, 4),
        spare=st.lists(st.integers(-1, 8), min_size=1, max_size=2),
        reuse=rarely.map(lambda rare: not rare),
        partial=rarely.map(lambda rare: not rare),
    )
    def start(self, scheduler: SchedulerConfig, block_size: int, spare: list[int], reuse: bool, partial: bool) -> None:
        """Pools that hold about one longest sequence, and `spare` blocks."""
        self.rig = Rig(
            blocks=tuple(1 + MAX_SEQ_LEN // block_size + extra for extra in spare),
            block_size=block_size,
            max_seq_len=MAX_SEQ_LEN,
            vocab=3,
            scheduler=scheduler,
            kv_cache=KvCacheConfig(enable_block_reuse=reuse, enable_partial_reuse=partial),
            bad_on=frozenset({NAN_TOKEN}),
        )
        self.ended_early: set[int] = set()
        self.may_fail: set[int] = set()

    @rule(burst=st.lists(arrivals, min_size=1, max_size=4))
    def add(self, burst: list[dict[str, Any]]) -> None:
        for arrival in burst:
            fields = dict(arrival)
            prompt, patience, sick = fields.pop("prompt"), fields.pop("patience"), fields.pop("sick")
            deadline = None if patience is None else self.rig.now + patience
            self._add([*prompt, NAN_TOKEN] if sick else prompt, deadline=deadline, **fields)

    @precondition(lambda self: self.rig.requests)
    @rule(data=st.data(), sampling=samplings, extra=st.lists(st.integers(0, 2), max_size=3))
    def continue_a_conversation(self, data: st.DataObject, sampling: Sampling, extra: list[int]) -> None:
        before = data.draw(st.sampled_from(list(self.rig.requests)))
        sequence = [*self.rig.requests[before].token_ids, *self.rig.tokens(before), *extra]
        self._add([token for token in sequence if token != NAN_TOKEN][: MAX_SEQ_LEN - 3], sampling=sampling)

    def _add(self, prompt: list[int], **fields: object) -> None:
        request_id = self.rig.add(prompt, **fields)
        if NAN_TOKEN in prompt:
            self.may_fail.add(request_id)

    @precondition(lambda self: self.rig.requests)
    @rule(data=st.data(), reason=st.sampled_from(("cancelled", "stop")))
    def cancel(self, data: st.DataObject, reason: str) -> None:
        request_id = data.draw(st.sampled_from(list(self.rig.requests)))
        self.rig.executor.submit(CancelRequest(request_id, reason))
        self.ended_early.add(request_id)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.rig.now += 1
            self.rig.step()
            self.rig.executor.check_integrity()

    @rule(fails=rarely)
    def maybe_fail_a_step(self, fails: bool) -> None:
        self.rig.runner.fail_next = fails
        self.rig.step()
        self.rig.runner.fail_next = False

    @invariant()
    def whatever_is_out_is_right(self) -> None:
        for request_id in self.rig.outputs:
            expected = self.rig.alone(request_id).token_ids
            assert self.rig.tokens(request_id) == expected[: len(self.rig.tokens(request_id))]

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run()
        assert self.rig.outputs.keys() == self.rig.requests.keys()
        for request_id in self.rig.requests:
            self._check_end(request_id)

    def _check_end(self, request_id: int) -> None:
        self.rig.check_history(request_id)
        last, command = self.rig.last(request_id), self.rig.requests[request_id]
        if last.error is not None:
            assert last.error in (BAD_LOGITS, STEP_FAILED) or last.error.startswith("The prompt") or "KV" in last.error
            assert last.error != BAD_LOGITS or request_id in self.may_fail
        elif last.finish_reason == "timeout":
            assert command.deadline is not None
            assert command.deadline <= self.rig.now
        elif request_id not in self.ended_early:
            self.rig.check_as_alone(request_id)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
