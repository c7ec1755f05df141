"""What a step's arrays imply, worked out once and shared by all layers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inference_service.runners.base import Ints, Step


class StepData:
    """A step on a device. Index tensors are int64 there, as torch's indexing wants them.

    `row_of_token` [T]: the sequence of each token. `slot(group)`: the block and the offset in it that each token's
    key and value are written to.
    """

    def __init__(self, step: Step, block_sizes: tuple[int, ...], device: torch.device) -> None:
        self.step = step
        self.device = device
        self.query_lens: Ints = np.diff(step.query_start)
        self.row_of_token = np.repeat(np.arange(step.num_seqs), self.query_lens)
        self.token_ids = self._put(step.token_ids)
        self.positions = self._put(step.positions)
        self.logits_rows = self._put(step.logits_rows)
        self.block_tables = tuple(self._put(table) for table in step.block_tables)
        self.blocks, self.offsets = [], []
        for table, size in zip(step.block_tables, block_sizes, strict=True):
            self.blocks.append(self._put(table[self.row_of_token, step.positions // size]))
            self.offsets.append(self._put(step.positions % size))

    def _put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(self.device)

    @cached_property
    def decode_rows(self) -> torch.Tensor:
        """Sequences [D] with a single query token."""
        return self._put(np.flatnonzero(self.query_lens == 1))

    @cached_property
    def decode_tokens(self) -> torch.Tensor:
        """The query tokens [D] of `decode_rows`."""
        return self._put(self.step.query_start[:-1][self.query_lens == 1])

    @cached_property
    def decode_lens(self) -> torch.Tensor:
        """Keys [D] that the sequences of `decode_rows` see."""
        return self._put(self.step.seq_lens[self.query_lens == 1])

    @cached_property
    def decode_max_len(self) -> int:
        return int(self.step.seq_lens[self.query_lens == 1].max(initial=0))

    @cached_property
    def prefill_rows(self) -> list[int]:
        """Sequences with several query tokens."""
        return [int(row) for row in np.flatnonzero(self.query_lens > 1)]

    @cached_property
    def key_positions(self) -> torch.Tensor:
        """0, 1, ... up to the longest sequence of the step."""
        return torch.arange(int(self.step.seq_lens.max(initial=0)), device=self.device)
