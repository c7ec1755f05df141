"""What crosses between a frontend and an executor: plain data, encoded with msgspec where they are two processes.

The frontend has already validated everything here: the executor accepts only valid requests.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "timeout", "cancelled"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved sampling parameters of one sequence. temperature 0 (or top_k 1) is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    """Always set: the frontend draws fresh entropy where the caller gave none."""
    max_tokens: int = 32
    min_tokens: int = 1
    """Fewer output tokens than this never end by a stop id."""
    stop_token_ids: tuple[int, ...] = ()
    """EOS ids (unless ignore_eos) and the caller's stop ids. The matched id is part of the output tokens."""
    logprobs: int | None = None
    """None: off. 0: the sampled token only. k: the k best, plus the sampled token first."""


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start one sequence. `request_id` is the server's own, never reused."""

    request_id: int
    token_ids: list[int]
    sampling: Sampling
    priority: float = 0.5
    cache_salt: str = ""
    deadline: float | None = None
    """time.monotonic() seconds after which the sequence ends with reason timeout."""
    arrival: float = 0.0
    """time.monotonic() seconds."""
    stream_interval: int = 1


class CancelRequest(msgspec.Struct, frozen=True, tag=True):
    """End a sequence. `reason` becomes its finish reason: "cancelled", or "stop" when the frontend matched a stop
    string. An unknown or finished id is ignored."""

    request_id: int
    reason: FinishReason = "cancelled"


Command = AddRequest | CancelRequest


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one output position; the sampled token is entry 0. ranks are 1-based over the vocabulary."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Times are time.monotonic() seconds; counts are of KV blocks."""

    arrival: float
    first_scheduled: float
    first_token: float
    last_token: float
    cached_tokens: int = 0
    allocated_blocks: int = 0
    reused_blocks: int = 0
    preemptions: int = 0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step (or several, with stream_interval) produced for one sequence. Deltas, never cumulative."""

    request_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    metrics: RequestMetrics | None = None
    """With the finish reason only."""
    error: str | None = None
    """The sequence failed (reason INTERNAL); no finish_reason then. Text is safe for the client."""


class ExecutorStats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Counters and gauges after a step."""

    iteration: int
    iteration_latency_s: float
    num_running: int
    num_waiting: int
    num_scheduled_tokens: int
    num_context_requests: int
    num_generation_requests: int
    num_paused_requests: int
    max_blocks: int
    free_blocks: int
    used_blocks: int
    cached_blocks: int
    tokens_per_block: int
    reused_blocks_total: int
    missed_blocks_total: int
    preemptions_total: int
    completed_total: int
