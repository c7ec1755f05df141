"""One sequence's host state, and the one table of its legal state changes."""

from __future__ import annotations

from enum import Enum

from inference_service.executor.messages import AddRequest, FinishReason, RequestMetrics, Sampling, TokenLogprobs
from inference_service.executor.prefix import KeyChain


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Lost its blocks; waits to be computed again, outputs and random stream kept."""
    FINISHED_STOP = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_TIMEOUT = "timeout"
    FINISHED_CANCELLED = "cancelled"
    FINISHED_ERROR = "error"


FINISHED: dict[FinishReason, Status] = {
    "stop": Status.FINISHED_STOP,
    "length": Status.FINISHED_LENGTH,
    "timeout": Status.FINISHED_TIMEOUT,
    "cancelled": Status.FINISHED_CANCELLED,
}
_ENDS = frozenset({*FINISHED.values(), Status.FINISHED_ERROR})
_NEXT: dict[Status, frozenset[Status]] = {
    Status.WAITING: _ENDS | {Status.RUNNING},
    Status.RUNNING: _ENDS | {Status.PREEMPTED},
    Status.PREEMPTED: _ENDS | {Status.RUNNING},
    **{end: frozenset() for end in _ENDS},
}

Order = tuple[float, float, int]


class Request:
    """State of one sequence, owned by the executor.

    `token_ids` is the prompt followed by the output; tokens [0, num_computed) are in the KV cache. `blocks` lists the
    block ids per cache group, owned through reference counts by KvCache. `unsent` and `unsent_logprobs` are the tail
    of the output that no RequestOutput has carried yet.
    """

    __slots__ = (
        "_status",
        "allocated_blocks",
        "blocks",
        "cached_tokens",
        "chain",
        "deadline",
        "first_scheduled",
        "first_token",
        "id",
        "last_token",
        "max_total",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "num_published",
        "order",
        "reused_blocks",
        "sampling",
        "slot",
        "stream_interval",
        "token_ids",
        "unsent",
        "unsent_logprobs",
    )

    def __init__(self, command: AddRequest, chain: KeyChain, num_groups: int, max_seq_len: int) -> None:
        self.id = command.request_id
        self.token_ids = list(command.token_ids)
        self.num_prompt = len(command.token_ids)
        self.sampling: Sampling = command.sampling
        self.max_total = min(self.num_prompt + command.sampling.max_tokens, max_seq_len)
        """Most tokens, prompt included, that the sequence may reach."""
        self.order: Order = (-command.priority, command.arrival, command.request_id)
        """Sort key: who comes first. Higher priority, then earlier arrival."""
        self.deadline = command.deadline
        self.stream_interval = command.stream_interval
        self.chain = chain
        self.blocks: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.num_published = 0
        """Full blocks already offered to the prefix cache."""
        self.num_computed = 0
        self.slot = -1
        """Row in the block table mirror while running."""
        self.unsent: list[int] = []
        self.unsent_logprobs: list[TokenLogprobs] = []
        self.first_scheduled = self.first_token = self.last_token = 0.0
        self.cached_tokens = self.allocated_blocks = self.reused_blocks = self.num_preemptions = 0
        self._status = Status.WAITING

    @property
    def status(self) -> Status:
        return self._status

    def move_to(self, status: Status) -> None:
        """Changes state; an illegal change asserts and changes nothing."""
        assert status in _NEXT[self._status], f"request {self.id}: {self._status.name} -> {status.name}"
        self._status = status

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Tokens known but not yet computed. One while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def metrics(self) -> RequestMetrics:
        return RequestMetrics(
            arrival=self.order[1],
            first_scheduled=self.first_scheduled,
            first_token=self.first_token,
            last_token=self.last_token,
            cached_tokens=self.cached_tokens,
            allocated_blocks=self.allocated_blocks,
            reused_blocks=self.reused_blocks,
            preemptions=self.num_preemptions,
        )
