"""Random histories over tiny pools and vocabularies: whatever happens, a request's output is its output alone."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference_service.config import KvCacheConfig, SchedulerConfig
from inference_service.executor.executor import BAD_LOGITS, STEP_FAILED
from inference_service.executor.messages import CancelRequest, Sampling

from .scripted import Rig

MAX_SEQ_LEN = 14
NAN_TOKEN = 9

configs = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")),
        "max_batch_size": st.integers(1, 4),
        "max_num_tokens": st.integers(1, 9),
        "chunk_size": st.none() | st.integers(1, 5),
        "enable_chunked_prefill": st.booleans(),
    }
).map(lambda fields: SchedulerConfig(**fields))

samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 9),
    min_tokens=st.integers(1, 4),
    seed=st.integers(0, 1),
    stop_token_ids=st.sampled_from(((), (0,), (0, 2))),
    logprobs=st.sampled_from((None, 0)),
)


class Histories(RuleBasedStateMachine):
    @initialize(
        scheduler=configs,
        blocks=st.lists(st.integers(4, 14), min_size=1, max_size=2).map(tuple),
        block_size=st.integers(1, 4),
        reuse=st.booleans(),
        partial=st.booleans(),
    )
    def start(
        self, scheduler: SchedulerConfig, blocks: tuple[int, ...], block_size: int, reuse: bool, partial: bool
    ) -> None:
        self.rig = Rig(
            blocks=blocks,
            block_size=block_size,
            max_seq_len=MAX_SEQ_LEN,
            vocab=3,
            scheduler=scheduler,
            kv_cache=KvCacheConfig(enable_block_reuse=reuse, enable_partial_reuse=partial),
            bad_on=frozenset({NAN_TOKEN}),
        )
        self.ended_early: set[int] = set()
        self.may_fail: set[int] = set()

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=9),
        sampling=samplings,
        salt=st.sampled_from(("", "", "other")),
        priority=st.sampled_from((0.5, 0.5, 0.9)),
        stream_interval=st.integers(1, 3),
        patience=st.none() | st.none() | st.integers(0, 12),
        sick=st.integers(0, 9).map(lambda value: value == 0),
    )
    def add(
        self,
        prompt: list[int],
        sampling: Sampling,
        salt: str,
        priority: float,
        stream_interval: int,
        patience: int | None,
        sick: bool,
    ) -> None:
        self._add(
            [*prompt, NAN_TOKEN] if sick else prompt,
            sampling=sampling,
            salt=salt,
            priority=priority,
            stream_interval=stream_interval,
            deadline=None if patience is None else self.rig.now + patience,
        )

    @precondition(lambda self: self.rig.requests)
    @rule(data=st.data(), sampling=samplings, extra=st.lists(st.integers(0, 2), max_size=3))
    def continue_a_conversation(self, data: st.DataObject, sampling: Sampling, extra: list[int]) -> None:
        before = data.draw(st.sampled_from(list(self.rig.requests)))
        sequence = [*self.rig.requests[before].token_ids, *self.rig.tokens(before), *extra]
        cut = data.draw(st.integers(1, len(sequence)))
        self._add(
            [token for token in sequence[:cut] if token != NAN_TOKEN][: MAX_SEQ_LEN - 2] or [0], sampling=sampling
        )

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

    @rule()
    def fail_a_step(self) -> None:
        self.rig.runner.fail_next = True
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
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
