"""The seam between the executor and what computes: two calls, `forward` and `sample`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inference_service.executor.messages import Sampling, TokenLogprobs

Ints = npt.NDArray[np.int32]


class BlockCopy(NamedTuple):
    """Copy a whole KV block in every layer of `group` before the step's writes."""

    group: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class Step:
    """The packed tensor contract of one step (docs/engine-format.md). All arrays int32, C-contiguous.

    token_ids[T], positions[T], query_start[B+1], seq_lens[B] (tokens in the cache after this step),
    block_tables: one [B, M] per cache group, logits_rows[R]: rows of the packed tokens whose logits are wanted,
    in the order of `Rows`.
    """

    token_ids: Ints
    positions: Ints
    query_start: Ints
    seq_lens: Ints
    block_tables: tuple[Ints, ...]
    logits_rows: Ints
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)


@dataclass(frozen=True, slots=True)
class Rows:
    """What `sample` needs for each of the R logits rows.

    `positions[r]`: index of the token to be drawn within its request's output; with the seed it names the draw, so
    a result never depends on neighbours, chunking or preemption. `banned[r]`: ids that must not be drawn in this
    row (stop ids before min_tokens).
    """

    sampling: tuple[Sampling, ...]
    positions: Ints
    banned: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Result of `sample`. `bad_rows` had NaN logits: their requests fail, their neighbours do not."""

    token_ids: Ints
    logprobs: tuple[TokenLogprobs | None, ...]
    bad_rows: tuple[int, ...] = ()


class RunnerFacts(NamedTuple):
    """What a loaded runner is: for people and routers. `device` is torch's name of it, `dtype` what it computes in;
    the bytes are of weights and KV pools as it holds them."""

    device: str
    dtype: str
    weights_bytes: int
    kv_cache_bytes: int


class Runner(Protocol):
    """Runs a loaded engine. Not thread-safe: one executor thread owns it."""

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Blocks per cache group, block 0 (never allocated) included."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def facts(self) -> RunnerFacts: ...

    def forward(self, step: Step) -> None:
        """Runs the graph over one step; the logits stay with the runner until `sample`."""
        ...

    def sample(self, rows: Rows) -> Sampled:
        """Draws one token for each logits row of the last `forward`."""
        ...

    def close(self) -> None:
        """Frees weights and pools. Idempotent."""
        ...
