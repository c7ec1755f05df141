"""The engine loop's body: `Executor.step()`. Single-threaded; thread.py gives it a thread and an inbox."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from inference_service.config import KvCacheConfig, SchedulerConfig
from inference_service.executor.capacity import POLICIES
from inference_service.executor.kv_cache import KvCache
from inference_service.executor.messages import (
    AddRequest,
    CancelRequest,
    Command,
    ExecutorStats,
    FinishReason,
    RequestOutput,
)
from inference_service.executor.packing import BlockTables, Packed, pack
from inference_service.executor.request import FINISHED, Request, Status
from inference_service.executor.scheduler import Plan, Scheduler
from inference_service.runners.base import Runner, Sampled

_log = logging.getLogger(__name__)

STEP_FAILED = "The model failed while computing this request. Retry it; if it fails again, report the request id."
BAD_LOGITS = "The model produced invalid numbers (NaN) for this request. Its engine may not suit this dtype."


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """What an executor needs to know of its model. `max_seq_len` counts prompt and output tokens of a sequence.
    `engine_id` keeps cached blocks of different engines apart."""

    block_size: int
    engine_id: str
    max_seq_len: int
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_cache: KvCacheConfig = field(default_factory=KvCacheConfig)


_NOTHING_DRAWN = Sampled(np.empty(0, np.int32), ())
"""Of a step of prompt chunks alone: `sample` is not called."""


class Executor:
    """Batches sequences in flight over one runner.

    `submit` and `step` belong to one thread. Every submitted sequence ends with exactly one output that has a
    finish_reason or an error. `clock` is time.monotonic, or a test's own.
    """

    def __init__(self, runner: Runner, settings: ExecutorSettings, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._settings = settings
        self._clock = clock
        self._kv = KvCache(
            runner.num_blocks,
            settings.block_size,
            settings.engine_id,
            reuse=settings.kv_cache.enable_block_reuse,
            partial=settings.kv_cache.enable_partial_reuse,
        )
        self._scheduler = Scheduler(settings.scheduler, self._kv, POLICIES[settings.scheduler.policy]())
        self._tables = BlockTables(
            settings.scheduler.max_batch_size, self._kv.blocks_for(settings.max_seq_len), len(runner.num_blocks)
        )
        self._requests: dict[int, Request] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._outputs: list[RequestOutput] = []
        self._last_plan = Plan()
        self._last_latency = 0.0
        self._num_iterations = 0
        self._num_completed = 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._outputs)

    @property
    def max_request_tokens(self) -> int:
        """Most tokens, prompt and output, of one sequence: the engine's limit, or what the KV cache holds."""
        return min(self._settings.max_seq_len, self._kv.max_tokens + 1)

    def submit(self, command: Command) -> None:
        """Takes a command between steps. Its effect, a refusal too, is in the next step's outputs."""
        if isinstance(command, AddRequest):
            self._add(command)
        else:
            self._cancel(command)

    def step(self) -> list[RequestOutput]:
        """Runs one iteration: end the overdue, schedule, forward, sample, apply, emit."""
        started = self._clock()
        self._end_overdue(started)
        plan = self._scheduler.schedule()
        if plan.requests:
            packed = self._pack(plan, started)
            self._apply(plan, packed, self._compute(packed))
            self._record(plan, started)
        outputs, self._outputs = self._outputs, []
        return outputs

    def cancel_all(self) -> None:
        """Ends every sequence with reason cancelled, in the next step's outputs."""
        for request in tuple(self._requests.values()):
            self._finish(request, "cancelled")

    def stats(self) -> ExecutorStats:
        """Counters and gauges after the last step. Callable from any thread; approximate while a step runs."""
        plan, pool = self._last_plan, self._kv.pools[0]
        return ExecutorStats(
            iteration=self._num_iterations,
            iteration_latency_s=self._last_latency,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_scheduled_tokens=plan.num_tokens,
            num_context_requests=len(plan.requests) - plan.num_decodes,
            num_generation_requests=plan.num_decodes,
            num_paused_requests=sum(request.status is Status.PREEMPTED for request in self._scheduler.waiting),
            max_blocks=pool.num_blocks - 1,
            free_blocks=pool.num_free,
            used_blocks=pool.num_used,
            cached_blocks=pool.num_cached,
            tokens_per_block=self._kv.block_size,
            reused_blocks_total=self._kv.num_reused_blocks,
            missed_blocks_total=self._kv.num_missed_blocks,
            preemptions_total=self._scheduler.num_preemptions,
            completed_total=self._num_completed,
        )

    def check_integrity(self) -> None:
        """Asserts that blocks, states and queues agree. O(blocks): for idle moments and tests."""
        self._kv.check_integrity(self._scheduler)
        listed = {request.id for request in self._scheduler}
        assert listed == self._requests.keys(), f"scheduler has {len(listed)} requests, executor {len(self._requests)}"

    def _add(self, command: AddRequest) -> None:
        assert command.request_id not in self._requests, f"request id {command.request_id} is in use"
        refusal = self._refusal(command)
        if refusal is not None:
            self._outputs.append(RequestOutput(request_id=command.request_id, token_ids=[], error=refusal))
            return
        chain = self._kv.new_chain(command.cache_salt)
        request = Request(command, chain, len(self._kv.pools), self._settings.max_seq_len)
        self._requests[request.id] = request
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))
        self._scheduler.add(request)

    def _refusal(self, command: AddRequest) -> str | None:
        """Why it could never run. The frontend refuses these first, with a better status; here they must not hang."""
        num_prompt, config = len(command.token_ids), self._settings.scheduler
        if num_prompt == 0 or command.sampling.max_tokens < 1:
            return "The prompt is empty or max_tokens is below 1."
        if num_prompt >= self._settings.max_seq_len:
            return f"The prompt has {num_prompt} tokens; the model takes fewer than {self._settings.max_seq_len}."
        if not config.enable_chunked_prefill and num_prompt > config.max_num_tokens:
            return f"The prompt has {num_prompt} tokens; without chunked prefill at most {config.max_num_tokens} run."
        total = min(num_prompt + command.sampling.max_tokens, self._settings.max_seq_len)
        if total > self.max_request_tokens:
            return f"Prompt and max_tokens come to {total} tokens; the KV cache holds {self.max_request_tokens}."
        return None

    def _cancel(self, command: CancelRequest) -> None:
        request = self._requests.get(command.request_id)
        if request is not None:  # an id that has ended: the cancel crossed its last output
            self._finish(request, command.reason)

    def _end_overdue(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            request = self._requests.get(heapq.heappop(self._deadlines)[1])
            if request is not None:
                self._finish(request, "timeout")

    def _pack(self, plan: Plan, now: float) -> Packed:
        for request in plan.preempted:
            self._tables.drop(request)
        for request in plan.admitted:
            request.first_scheduled = request.first_scheduled or now
        return pack(plan, self._tables, self._kv.block_size)

    def _compute(self, packed: Packed) -> Sampled | None:
        """None: the runner failed. The loop must outlive that, so the step's requests fail and the others go on."""
        try:
            self._runner.forward(packed.step)
            return self._runner.sample(packed.rows) if packed.drawing else _NOTHING_DRAWN
        except Exception:
            _log.exception("a step of %d sequences, %d tokens failed", packed.step.num_seqs, packed.step.num_tokens)
            return None

    def _apply(self, plan: Plan, packed: Packed, sampled: Sampled | None) -> None:
        """Advances what was computed, then appends what was drawn."""
        self._kv.end_step()
        if sampled is None:
            for request in dict.fromkeys([*plan.requests, *plan.admitted]):  # a newcomer's copies may not have run
                self._fail(request, STEP_FAILED, trusted=True)  # blocks of this step are not published yet
            return
        for row in sampled.bad_rows:
            request = packed.drawing[row]
            _log.error("sequence %d fails: NaN logits for its output token %d", request.id, request.num_output)
            self._fail(request, BAD_LOGITS, trusted=False)
        self._advance(plan)
        self._append(packed.drawing, sampled)

    def _advance(self, plan: Plan) -> None:
        block_size = self._kv.block_size
        for request, count in zip(plan.requests, plan.counts, strict=True):
            if request.status is not Status.RUNNING:  # failed above
                continue
            request.num_computed += count
            if request.num_computed >= (request.num_published + 1) * block_size:
                self._kv.publish(request)

    def _append(self, drawing: list[Request], sampled: Sampled) -> None:
        now = self._clock()
        for request, token, logprobs in zip(drawing, sampled.token_ids.tolist(), sampled.logprobs, strict=True):
            if request.status is not Status.RUNNING:
                continue
            request.token_ids.append(token)
            request.unsent.append(token)
            if logprobs is not None:
                request.unsent_logprobs.append(logprobs)
            request.last_token = now
            self._emit(request, token)

    def _emit(self, request: Request, token: int) -> None:
        """Ends the request, or sends what is due: the first token at once, later ones every stream_interval."""
        sampling, num_output = request.sampling, len(request.token_ids) - request.num_prompt
        if num_output == 1:
            request.first_token = request.last_token
        if token in sampling.stop_token_ids and num_output >= sampling.min_tokens:
            self._finish(request, "stop", token)
        elif len(request.token_ids) >= request.max_total:
            self._finish(request, "length")
        elif num_output == 1 or len(request.unsent) >= request.stream_interval:
            self._send(request)

    def _send(self, request: Request, reason: FinishReason | None = None, stop_token_id: int | None = None) -> None:
        output = RequestOutput(
            request_id=request.id,
            token_ids=request.unsent,
            logprobs=None if request.sampling.logprobs is None else request.unsent_logprobs,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            metrics=request.metrics if reason else None,
        )
        self._outputs.append(output)
        request.unsent = []
        if request.unsent_logprobs:
            request.unsent_logprobs = []

    def _finish(self, request: Request, reason: FinishReason, stop_token_id: int | None = None) -> None:
        self._retire(request, FINISHED[reason], trusted=True)
        self._num_completed += 1
        self._send(request, reason, stop_token_id)

    def _fail(self, request: Request, message: str, *, trusted: bool) -> None:
        self._retire(request, Status.FINISHED_ERROR, trusted=trusted)
        self._outputs.append(RequestOutput(request_id=request.id, token_ids=[], error=message))

    def _retire(self, request: Request, status: Status, *, trusted: bool) -> None:
        """The only way out: state, queue, blocks, slot and id go together."""
        request.move_to(status)
        self._scheduler.remove(request)
        self._kv.free(request, trusted=trusted)
        self._tables.drop(request)
        del self._requests[request.id]

    def _record(self, plan: Plan, started: float) -> None:
        self._num_iterations += 1
        self._last_plan = plan
        self._last_latency = self._clock() - started
