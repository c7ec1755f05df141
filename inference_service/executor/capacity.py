"""Capacity policies: who may hold KV blocks. Who runs in a step, under the token budget, the scheduler decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inference_service.executor.kv_cache import KvCache, PrefixMatch
from inference_service.executor.request import Request


class CapacityPolicy(Protocol):
    """`running` lists the requests that hold blocks."""

    @property
    def fills_at_once(self) -> bool:
        """A batch is complete after one step: admit even whom the step has no token for, put nobody off."""
        ...

    def opens(self, running: Sequence[Request]) -> bool:
        """Whether this step admits at all; asked once, before its first admission."""
        ...

    def fits(self, kv: KvCache, running: Sequence[Request], request: Request, match: PrefixMatch) -> bool:
        """Whether `request` may be admitted with this match. Reserves nothing."""
        ...


class GuaranteedNoEvict:
    """Admits only when everybody's whole length fits, so a running request never lacks a block.

    A hit on a block in use is not counted for the newcomer. That is safe: its own reference keeps the block when the
    others end, so free >= the sum of what the running ones still need, before and after every end.
    """

    fills_at_once = False

    def opens(self, running: Sequence[Request]) -> bool:
        return True

    def fits(self, kv: KvCache, running: Sequence[Request], request: Request, match: PrefixMatch) -> bool:
        promised = sum(_max_blocks(kv, other) - len(other.blocks[0]) for other in running)
        return promised + kv.num_needed(match, _most_computed(request)) <= kv.num_free


class MaxUtilization:
    """Admits when the tokens known now fit and every running request can still take its next block. The scheduler
    preempts the last in order when a block is missing later."""

    fills_at_once = False

    def opens(self, running: Sequence[Request]) -> bool:
        return True

    def fits(self, kv: KvCache, running: Sequence[Request], request: Request, match: PrefixMatch) -> bool:
        return kv.num_needed(match, request.num_tokens) + len(running) <= kv.num_free


class StaticBatch(GuaranteedNoEvict):
    """Fills a batch, with its whole length guaranteed, and admits nobody until all of it has ended."""

    fills_at_once = True

    def opens(self, running: Sequence[Request]) -> bool:
        return not running


POLICIES: dict[str, type[CapacityPolicy]] = {
    "GUARANTEED_NO_EVICT": GuaranteedNoEvict,
    "MAX_UTILIZATION": MaxUtilization,
    "STATIC_BATCH": StaticBatch,
}


def _most_computed(request: Request) -> int:
    """Tokens that may ever be in the cache: all but the last one drawn."""
    return request.max_total - 1


def _max_blocks(kv: KvCache, request: Request) -> int:
    return kv.blocks_for(_most_computed(request))
