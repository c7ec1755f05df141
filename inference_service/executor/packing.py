"""Turns a plan into the packed tensor contract, with no Python work per token for sequences that decode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference_service.executor.block_pool import NULL_BLOCK
from inference_service.executor.request import Request
from inference_service.executor.scheduler import Plan
from inference_service.runners.base import Ints, Rows, Step


class Packed(NamedTuple):
    """`drawing`: the requests of the logits rows, in the order of `rows`."""

    step: Step
    rows: Rows
    drawing: list[Request]


class BlockTables:
    """Mirror of the running requests' block tables as arrays, one row (slot) each: a step gathers rows.

    Tables only grow at the end while a request runs, so only new entries are written. Rows: int32 [slots, blocks].
    """

    def __init__(self, num_slots: int, max_blocks: int, num_groups: int) -> None:
        self._tables = tuple(np.zeros((num_slots, max_blocks), np.int32) for _ in range(num_groups))
        self._written = [0] * num_slots
        self._free = list(range(num_slots))

    def update(self, request: Request) -> int:
        """The request's slot, its row up to date."""
        if request.slot < 0:
            request.slot = self._free.pop()
            self._written[request.slot] = 0
            for table in self._tables:
                table[request.slot] = NULL_BLOCK
        slot, blocks = request.slot, request.blocks
        known, num_blocks = self._written[slot], len(blocks[0])
        if known != num_blocks:
            for table, ids in zip(self._tables, blocks, strict=True):
                table[slot, known:num_blocks] = ids[known:]
            self._written[slot] = num_blocks
        return slot

    def drop(self, request: Request) -> None:
        """Frees the slot of a request that no longer runs. Idempotent."""
        if request.slot >= 0:
            self._free.append(request.slot)
            request.slot = -1

    def gather(self, requests: Sequence[Request], width: int) -> tuple[Ints, ...]:
        slots = np.array([self.update(request) for request in requests], np.intp)
        return tuple(np.ascontiguousarray(table[slots, :width]) for table in self._tables)


def pack(plan: Plan, tables: BlockTables, block_size: int) -> Packed:
    """The step's arrays. Block tables are as wide as the longest sequence needs, padded with the null block."""
    requests, size = plan.requests, len(plan.requests)
    starts = _ints((request.num_computed for request in requests), size)
    totals = _ints((len(request.token_ids) for request in requests), size)
    counts = np.array(plan.counts, np.int32)
    seq_lens = starts + counts
    query_start = np.zeros(size + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    draws = np.flatnonzero(seq_lens == totals)
    step = Step(
        token_ids=np.array(_tokens(plan), np.int32),
        positions=np.arange(plan.num_tokens, dtype=np.int32) + np.repeat(starts - query_start[:-1], counts),
        query_start=query_start,
        seq_lens=seq_lens,
        block_tables=tables.gather(requests, -(-int(seq_lens.max()) // block_size)),
        logits_rows=query_start[1:][draws] - np.int32(1),
        copies=tuple(plan.copies),
    )
    drawing = requests if len(draws) == size else [requests[index] for index in draws.tolist()]
    return Packed(step, _rows(drawing), drawing)


def _ints(values: Iterable[int], size: int) -> npt.NDArray[np.int32]:
    return np.fromiter(values, np.int32, size)


def _tokens(plan: Plan) -> list[int]:
    tokens: list[int] = []
    for request, count in zip(plan.requests, plan.counts, strict=True):
        start = request.num_computed
        if count == 1:
            tokens.append(request.token_ids[start])
        else:
            tokens += request.token_ids[start : start + count]
    return tokens


def _rows(drawing: list[Request]) -> Rows:
    """Sampling rows. Stop ids are banned where drawing one would end the output below min_tokens, the drawn token
    counted: so they are never drawn there, rather than drawn and passed over."""
    positions = [request.num_output for request in drawing]
    banned = {
        row: request.sampling.stop_token_ids
        for row, request in enumerate(drawing)
        if positions[row] + 1 < request.sampling.min_tokens and request.sampling.stop_token_ids
    }
    return Rows(tuple([request.sampling for request in drawing]), np.array(positions, np.int32), banned)
