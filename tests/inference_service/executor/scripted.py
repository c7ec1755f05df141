"""A runner whose tokens are a pure function of (sequence so far, seed, position), and which polices the contract.

Its KV memory holds, per (block, slot), the token written there and a digest of the whole prefix behind it, as a real
cache entry depends on every token before it. At each forward every row's content, read back through its block table,
must be a prefix of a sequence that some submitted request would produce alone: that catches any fault of prefix
reuse, partial copies, preemption, chunking or block ownership.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from inference_service.config import KvCacheConfig, SchedulerConfig
from inference_service.executor.executor import Executor, ExecutorSettings
from inference_service.executor.messages import AddRequest, FinishReason, RequestOutput, Sampling, TokenLogprobs
from inference_service.runners.base import Rows, RunnerFacts, Sampled, Step

EMPTY = -1


def next_token(sequence: tuple[int, ...], seed: int, position: int, vocab: int, banned: tuple[int, ...] = ()) -> int:
    token = zlib.crc32(repr((sequence, seed, position)).encode()) % vocab
    while token in banned:
        token = (token + 1) % vocab
    return token


@dataclass(frozen=True)
class Alone:
    """What a request produces with nobody else there."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason


def run_alone(prompt: list[int], sampling: Sampling, max_seq_len: int, vocab: int) -> Alone:
    sequence, output = tuple(prompt), []
    while True:
        banned = sampling.stop_token_ids if len(output) + 1 < sampling.min_tokens else ()
        token = next_token(sequence, sampling.seed, len(output), vocab, banned)
        sequence, output = (*sequence, token), [*output, token]
        if token in sampling.stop_token_ids and len(output) >= sampling.min_tokens:
            return Alone(tuple(output), "stop")
        if len(output) == sampling.max_tokens or len(sequence) == max_seq_len:
            return Alone(tuple(output), "length")


def prefix_digest(previous: int, token: int) -> int:
    return zlib.crc32(f"{previous},{token}".encode())


class ScriptedFailure(Exception):
    """What a runner might raise."""


@dataclass
class ScriptedRunner:
    """`fail_next`: the next forward raises before it does anything. `fail_on`: a step with one of these tokens raises
    after all its writes. `bad_on`: a row whose newest token is one of these has NaN logits."""

    blocks: tuple[int, ...]
    block_size: int
    vocab_size: int = 4
    facts: ClassVar[RunnerFacts] = RunnerFacts("cpu", "float32", 0, 0)
    max_num_tokens: int = 1 << 30
    check_prefixes: bool = True
    fail_on: frozenset[int] = frozenset()
    bad_on: frozenset[int] = frozenset()
    fail_next: bool = False
    known: set[tuple[int, ...]] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)
    _sequences: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = [(count, self.block_size) for count in self.blocks]
        self.tokens = [np.full(s, EMPTY, np.int64) for s in shape]
        self.digests = [np.full(s, EMPTY, np.int64) for s in shape]

    @property
    def num_blocks(self) -> tuple[int, ...]:
        return self.blocks

    def learn(self, prompt: list[int], alone: Alone) -> None:
        full = (*prompt, *alone.token_ids)
        self.known.update(full[:end] for end in range(1, len(full) + 1))

    def forward(self, step: Step) -> None:
        self.steps.append(step)
        self._check_shapes(step)
        if self.fail_next:
            self.fail_next = False
            raise ScriptedFailure
        self._copy(step)
        self._write(step)
        if self.fail_on & set(step.token_ids.tolist()):
            raise ScriptedFailure
        content = [[self._read(step, row, group) for row in range(step.num_seqs)] for group in range(len(self.blocks))]
        assert all(group == content[0] for group in content), "cache groups differ"
        for sequence in content[0]:
            assert not self.check_prefixes or sequence in self.known, f"{sequence} is no prefix of any request"
        ends = np.searchsorted(step.query_start, step.logits_rows, side="right") - 1
        self._sequences = [content[0][row] for row in ends]

    def sample(self, rows: Rows) -> Sampled:
        assert len(rows.sampling) == len(rows.positions) == len(self._sequences) > 0
        drawn = [
            next_token(sequence, sampling.seed, position, self.vocab_size, rows.banned.get(row, ()))
            for row, (sequence, sampling, position) in enumerate(
                zip(self._sequences, rows.sampling, rows.positions.tolist(), strict=True)
            )
        ]
        logprobs = tuple(
            None if sampling.logprobs is None else TokenLogprobs((token,), (0.0,), (1,))
            for token, sampling in zip(drawn, rows.sampling, strict=True)
        )
        bad = tuple(row for row, sequence in enumerate(self._sequences) if sequence[-1] in self.bad_on)
        return Sampled(np.array(drawn, np.int32), logprobs, bad)

    def close(self) -> None:
        pass

    def _check_shapes(self, step: Step) -> None:
        assert 0 < step.num_tokens <= self.max_num_tokens
        arrays = (step.token_ids, step.positions, step.query_start, step.seq_lens, step.logits_rows, *step.block_tables)
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
        assert step.query_start[0] == 0
        assert step.query_start[-1] == step.num_tokens == len(step.positions)
        assert (np.diff(step.query_start) > 0).all(), "a row without tokens"
        for row in range(step.num_seqs):
            begin, end = step.query_start[row : row + 2]
            expected = np.arange(step.seq_lens[row] - (end - begin), step.seq_lens[row])
            assert (step.positions[begin:end] == expected).all()

    def _copy(self, step: Step) -> None:
        """In reverse, to show that the order does not matter."""
        sources = {(copy.group, copy.source) for copy in step.copies}
        targets = [(copy.group, copy.destination) for copy in step.copies]
        assert len(targets) == len(set(targets)), "two copies into one block"
        assert not sources & set(targets), "a block is source and destination"
        for group, source, destination in reversed(step.copies):
            self.tokens[group][destination] = self.tokens[group][source]
            self.digests[group][destination] = self.digests[group][source]

    def _write(self, step: Step) -> None:
        for group, table in enumerate(step.block_tables):
            written: set[tuple[int, int]] = set()
            for row in range(step.num_seqs):
                for index in range(step.query_start[row], step.query_start[row + 1]):
                    position = int(step.positions[index])
                    where = (int(table[row, position // self.block_size]), position % self.block_size)
                    assert where[0] != 0, "write into the null block"
                    assert where not in written, "two writes into one slot"
                    written.add(where)
                    before = self._where(table[row], position - 1)
                    previous = self.digests[group][before] if position else 0
                    self.tokens[group][where] = step.token_ids[index]
                    self.digests[group][where] = prefix_digest(int(previous), int(step.token_ids[index]))

    def _read(self, step: Step, row: int, group: int) -> tuple[int, ...]:
        table, sequence, digest = step.block_tables[group][row], [], 0
        for position in range(step.seq_lens[row]):
            where = self._where(table, position)
            token = int(self.tokens[group][where])
            digest = prefix_digest(digest, token)
            assert token != EMPTY, f"row {row} reads position {position}, never written"
            assert digest == self.digests[group][where], f"row {row} position {position}: another prefix's content"
            sequence.append(token)
        return tuple(sequence)

    def _where(self, table: np.ndarray, position: int) -> tuple[int, int]:
        return int(table[position // self.block_size]), position % self.block_size


class Rig:
    """An executor over a scripted runner, a hand-set clock, and the outputs gathered by request."""

    def __init__(
        self,
        *,
        blocks: int | tuple[int, ...] = 64,
        block_size: int = 4,
        max_seq_len: int = 64,
        vocab: int = 4,
        scheduler: SchedulerConfig | None = None,
        kv_cache: KvCacheConfig | None = None,
        **runner: object,
    ) -> None:
        self.scheduler = scheduler or SchedulerConfig()
        self.max_seq_len, self.vocab = max_seq_len, vocab
        counts = blocks if isinstance(blocks, tuple) else (blocks,)
        self.runner = ScriptedRunner(counts, block_size, vocab, self.scheduler.max_num_tokens, **runner)
        settings = ExecutorSettings(
            block_size=block_size,
            engine_id="tiny@1",
            max_seq_len=max_seq_len,
            scheduler=self.scheduler,
            kv_cache=kv_cache or KvCacheConfig(),
        )
        self.now = 0.0
        self.executor = Executor(self.runner, settings, lambda: self.now)
        self.requests: dict[int, AddRequest] = {}
        self.outputs: dict[int, list[RequestOutput]] = {}

    def add(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 4,
        sampling: Sampling | None = None,
        priority: float = 0.5,
        salt: str = "",
        deadline: float | None = None,
        stream_interval: int = 1,
    ) -> int:
        request_id = len(self.requests) + 1
        command = AddRequest(
            request_id=request_id,
            token_ids=list(prompt),
            sampling=sampling or Sampling(max_tokens=max_tokens),
            priority=priority,
            cache_salt=salt,
            deadline=deadline,
            arrival=self.now,
            stream_interval=stream_interval,
        )
        self.requests[request_id] = command
        if 0 < len(prompt) < self.max_seq_len:
            self.runner.learn(prompt, self.alone(request_id))
        self.executor.submit(command)
        return request_id

    def alone(self, request_id: int) -> Alone:
        command = self.requests[request_id]
        return run_alone(command.token_ids, command.sampling, self.max_seq_len, self.vocab)

    def step(self) -> list[RequestOutput]:
        outputs = self.executor.step()
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        return outputs

    def run(self, limit: int = 2000) -> None:
        """Steps until nothing is left, then checks the books."""
        for _ in range(limit):
            if not self.executor.has_work:
                self.executor.check_integrity()
                stats = self.executor.stats()
                assert (stats.num_running, stats.num_waiting, stats.used_blocks) == (0, 0, 0)
                return
            self.step()
        raise AssertionError(f"still working after {limit} steps")

    def tokens(self, request_id: int) -> tuple[int, ...]:
        return tuple(token for output in self.outputs.get(request_id, []) for token in output.token_ids)

    def last(self, request_id: int) -> RequestOutput:
        return self.outputs[request_id][-1]

    def check_history(self, request_id: int) -> None:
        """One terminal output, at the end; no empty delta before it; every delta within its stream interval."""
        history = self.outputs[request_id]
        ends = [output.finish_reason is not None or output.error is not None for output in history]
        assert ends == [False] * (len(history) - 1) + [True], f"request {request_id}: {history}"
        assert all(output.token_ids for output in history[:-1])

    def check_as_alone(self, request_id: int) -> None:
        self.check_history(request_id)
        expected = self.alone(request_id)
        assert self.last(request_id).error is None
        assert (self.tokens(request_id), self.last(request_id).finish_reason) == (
            expected.token_ids,
            expected.finish_reason,
        )
