"""Who computes how many tokens in the next step.

There are no phases. Every running request's computed count catches up with its token count, under one budget of tokens
a step: a prompt in chunks, a prefix hit (it starts further on), a preempted request (it starts again) and decoding
(one token behind) are the same rule. Capacity (capacity.py) says who may hold blocks; this file who runs now.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from inference_service.config import SchedulerConfig
from inference_service.executor.capacity import CapacityPolicy
from inference_service.executor.kv_cache import KvCache, PrefixMatch
from inference_service.executor.prefix import BlockKey
from inference_service.executor.request import Order, Request, Status
from inference_service.runners.base import BlockCopy


@dataclass(slots=True)
class Plan:
    """One step: `counts[i]` tokens of `requests[i]`, from its num_computed on."""

    requests: list[Request] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    num_tokens: int = 0
    num_decodes: int = 0
    """The first so many requests had one token left to compute."""

    def add(self, request: Request, count: int) -> None:
        self.requests.append(request)
        self.counts.append(count)
        self.num_tokens += count


def _order(request: Request) -> Order:
    return request.order


class Scheduler:
    """Owns the waiting and the running list, both in order (higher priority, then earlier arrival)."""

    def __init__(self, config: SchedulerConfig, kv: KvCache, policy: CapacityPolicy) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._config = config
        self._kv = kv
        self._policy = policy
        self._max_chunk = min(config.chunk_size or config.max_num_tokens, config.max_num_tokens)

    def __iter__(self) -> Iterator[Request]:
        return chain(self.running, self.waiting)

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=_order)

    def remove(self, request: Request) -> None:
        """Forgets a request that has ended; its blocks are its owner's business."""
        (self.running if request in self.running else self.waiting).remove(request)

    def schedule(self) -> Plan:
        """Plans a step. Changes block tables and states, but no computed count: the step has not run yet."""
        plan = Plan()
        self._make_room(plan)
        self._plan_running(plan)
        if not plan.preempted:  # a victim that came back at once would only push the next one out
            self._admit(plan)
        assert plan.requests or not self.has_requests, (
            f"nothing to run with {len(self.running)} running, {len(self.waiting)} waiting, {self._kv.num_free} free"
        )
        return plan

    def _make_room(self, plan: Plan) -> None:
        """Gives every running request the blocks for its tokens, the first in order first; the last ones pay."""
        block_size = self._kv.block_size
        for request in tuple(self.running):
            if len(request.token_ids) <= len(request.blocks[0]) * block_size:  # the common case, kept cheap
                continue
            while request.status is Status.RUNNING and not self._kv.grow(request):
                plan.preempted.append(self._preempt())

    def _preempt(self) -> Request:
        """Takes the blocks of the last in order; it will be computed again from its prompt and output."""
        victim = self.running.pop()
        self._kv.free(victim)
        victim.move_to(Status.PREEMPTED)
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.add(victim)
        return victim

    def _plan_running(self, plan: Plan) -> None:
        """Decodes first, so that no prompt delays them; then prompts in order."""
        behind: list[Request] = []
        left = self._config.max_num_tokens
        for request in self.running:
            if len(request.token_ids) - request.num_computed > 1:
                behind.append(request)
            elif left:
                plan.add(request, 1)
                left -= 1
        plan.num_decodes = len(plan.requests)
        for request in behind:
            if not self._plan_chunk(plan, request):
                break

    def _plan_chunk(self, plan: Plan, request: Request) -> int:
        """Plans what the budget has room for, and says how many tokens that is."""
        count = self._chunk(request.num_remaining, self._config.max_num_tokens - plan.num_tokens)
        if count:
            plan.add(request, count)
        return count

    def _chunk(self, remaining: int, left: int) -> int:
        """Tokens of one request in this step. Unchunked, all or none: only what exceeds every step (a preempted
        request with its output) is split."""
        if self._config.enable_chunked_prefill:
            return min(remaining, self._max_chunk, left)
        return remaining if remaining <= left else left if remaining > self._config.max_num_tokens else 0

    def _admit(self, plan: Plan) -> None:
        """Strictly in order: who does not fit holds back all behind, so nobody starves.

        Put off for this step, and overtaken, is only who waits for a prefix that this step computes: n samples of one
        prompt then cost one prefill.
        """
        room = self._config.max_batch_size - len(self.running)
        if not self.waiting or not self._policy.opens(self.running):
            return
        computing = set(self._computed_keys(plan))
        for request in self.waiting[:room]:
            match = self._kv.match(request)  # now, never when it was queued: the cache changes meanwhile
            if not self._policy.fills_at_once and self._kv.missing_key(request, match) in computing:
                continue
            fitting = self._fit(request, match)
            if fitting is None or not self._has_budget(plan, request, fitting):
                return
            computing.update(self._kv.full_keys(request, self._start(request, fitting, plan)))

    def _computed_keys(self, plan: Plan) -> Iterator[BlockKey]:
        for request, count in zip(plan.requests[plan.num_decodes :], plan.counts[plan.num_decodes :], strict=True):
            yield from self._kv.full_keys(request, count)

    def _fit(self, request: Request, match: PrefixMatch) -> PrefixMatch | None:
        """The match with which it fits: pinning the source of a copy can be one block too many."""
        candidates = (match, match.without_partial()) if match.num_partial else (match,)
        return next((one for one in candidates if self._policy.fits(self._kv, self.running, request, one)), None)

    def _has_budget(self, plan: Plan, request: Request, match: PrefixMatch) -> bool:
        missing = request.num_tokens - match.num_full * self._kv.block_size - match.num_partial
        return self._policy.fills_at_once or self._chunk(missing, self._config.max_num_tokens - plan.num_tokens) > 0

    def _start(self, request: Request, match: PrefixMatch, plan: Plan) -> int:
        """Gives it its blocks; the number of its tokens in this step."""
        self.waiting.remove(request)
        plan.copies += self._kv.admit(request, match)
        if not request.num_preemptions:
            request.cached_tokens = request.num_computed
        request.move_to(Status.RUNNING)
        insort(self.running, request, key=_order)
        plan.admitted.append(request)
        return self._plan_chunk(plan, request)
