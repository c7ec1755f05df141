"""What a request answers with: RequestOutput and its CompletionOutputs, as TensorRT-LLM's users know them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from enginehouse import _tensors as tensors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, sampling_pb2
from enginehouse._inbox import Inbox
from enginehouse.errors import EnginehouseError
from enginehouse.requests import DisaggregatedParams

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length", "timeout", "cancelled"]
_REASONS: dict[int, FinishReason] = {
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
    inference_pb2.FINISH_REASON_TIMEOUT: "timeout",
    inference_pb2.FINISH_REASON_CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability (natural, at most 0) and its rank among all tokens, from 1."""

    logprob: float
    rank: int | None = None


TokenLogprobs = dict[int, Logprob]
"""The logprobs at one position by token id: the position's own token first, then the likeliest ones."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a request used. `cached_tokens` of the prompt's were in the KV cache."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestPerfMetrics:
    """How a request went. Times are Unix seconds on the server; None where it did not happen."""

    arrival_time: float | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    kv_cache_transfer_start: float | None = None
    kv_cache_transfer_end: float | None = None
    kv_cache_size: int = 0
    num_total_allocated_blocks: int = 0
    num_new_allocated_blocks: int = 0
    num_reused_blocks: int = 0
    num_missed_blocks: int = 0
    kv_cache_hit_rate: float = 0.0
    acceptance_rate: float | None = None
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0
    first_iter: int | None = None
    last_iter: int | None = None
    preemptions: int = 0


@dataclass(slots=True)
class CompletionOutput:
    """One output sequence. The `*_diff` properties give what the last step of an iteration added."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop id or stop text that matched; None for the end id."""
    generation_logits: np.ndarray | None = None
    """float32 [tokens, vocabulary], when asked for."""
    disaggregated_params: DisaggregatedParams | None = None
    request_perf_metrics: RequestPerfMetrics | None = None
    additional_context_outputs: dict[str, np.ndarray] | None = None
    additional_generation_outputs: dict[str, np.ndarray] | None = None
    _before: tuple[int, int, int] = field(default=(0, 0, 0), repr=False, compare=False)
    _shown: tuple[int, int, int] = field(default=(0, 0, 0), repr=False, compare=False)

    @property
    def length(self) -> int:
        """The number of generated tokens."""
        return len(self.token_ids)

    @property
    def text_diff(self) -> str:
        return self.text[self._before[0] :]

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._before[1] :]

    @property
    def logprobs_diff(self) -> list[TokenLogprobs]:
        return self.logprobs[self._before[2] :]

    def _show(self) -> None:
        """Begins the next diff where the last one ended."""
        self._before, self._shown = self._shown, (len(self.text), len(self.token_ids), len(self.logprobs))

    def _extend(self, part: inference_pb2.Delta | inference_pb2.Finished) -> None:
        if part.text:
            self.text += part.text
        self.token_ids.extend(part.token_ids)
        self.logprobs.extend(map(_logprobs, part.logprobs))

    def _finish(self, finished: inference_pb2.Finished) -> None:
        self._extend(finished)
        self.finish_reason = _REASONS.get(finished.reason)
        if (match := finished.WhichOneof("stop_match")) is not None:
            self.stop_reason = getattr(finished, match)
        if finished.HasField("cumulative_logprob"):
            self.cumulative_logprob = finished.cumulative_logprob
        if finished.HasField("disaggregated"):
            self.disaggregated_params = DisaggregatedParams.from_proto(finished.disaggregated)


class RequestOutput:
    """The output of one request: await it, iterate over it, or ask for `result()`.

    It is made by `LLM.generate` and `LLM.generate_async`. While somebody iterates, its attributes move with the
    iteration; otherwise reading an attribute brings it up to date with what has arrived.

    Attributes:
        request_id: the client's number for the request.
        prompt: the prompt's text; for a chat the rendered one; None when only token ids were given.
        prompt_token_ids: the prompt's tokens; empty until the server has told them.
        outputs: one CompletionOutput for each of `n`.
        context_logits: float32 [prompt tokens, vocabulary], when asked for.
        usage: tokens used, once finished.
        finished: whether the whole request has ended.
    """

    def __init__(self, _setup: RequestSetup | None = None) -> None:
        if _setup is None:
            raise RuntimeError("a RequestOutput is made by LLM.generate or LLM.generate_async, not directly")
        self.request_id = _setup.request_id
        self._prompt, self._prompt_token_ids = _setup.prompt, list(_setup.prompt_token_ids or [])
        self._streaming, self._abort, self._inbox = _setup.streaming, _setup.abort, _setup.inbox
        self._outputs = [CompletionOutput(index) for index in range(_setup.n)]
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._chunks = tensors.ChunkStore()
        self._usage: Usage | None = None
        self._error: EnginehouseError | None = None
        self._done = self._ended = self._iterating = False
        self._lock = threading.Lock()  # guards all state: several threads may wait for one request

    # Attributes

    @property
    def prompt(self) -> str | None:
        return self._current()._prompt

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._current()._prompt_token_ids

    @property
    def outputs(self) -> list[CompletionOutput]:
        return self._current()._outputs

    @property
    def context_logits(self) -> np.ndarray | None:
        return self._current()._chunks.get(inference_pb2.TENSOR_KIND_CONTEXT_LOGITS, 0)

    @property
    def encoder_output(self) -> np.ndarray | None:
        return self._current()._chunks.get(inference_pb2.TENSOR_KIND_ENCODER_OUTPUT, 0)

    @property
    def usage(self) -> Usage | None:
        return self._current()._usage

    @property
    def finished(self) -> bool:
        return self._current()._done

    # Waiting

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Waits for the end.

        Args:
            timeout: seconds for the whole wait, however many parts arrive; None waits for ever.

        Raises:
            TimeoutError: the time is over; the request goes on (`abort()` ends it).
            EnginehouseError: the request failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._advance():
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._inbox.wait(remaining):
                raise TimeoutError(f"request {self.request_id} did not end in {timeout} s; abort() would end it")
        return self._raise_or_self()

    async def aresult(self) -> RequestOutput:
        """`result` for asyncio, on any event loop. Cancelling the wait leaves the request running."""
        while not self._advance():
            await self._inbox.wait_async()
        return self._raise_or_self()

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self.aresult().__await__()

    def abort(self) -> None:
        """Asks the server to end the request; its outputs then finish with reason "cancelled". Returns at once."""
        if not self.finished:
            self._abort()

    def __iter__(self) -> RequestOutput:
        return self

    def __next__(self) -> RequestOutput:
        while not self._advance(step=True):
            self._inbox.wait()
        return self._step_or_end(StopIteration)

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._advance(step=True):
            await self._inbox.wait_async()
        return self._step_or_end(StopAsyncIteration)

    def __repr__(self) -> str:
        names = ("request_id", "prompt", "prompt_token_ids", "outputs", "finished")
        return f"RequestOutput({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    # State

    def _current(self) -> RequestOutput:
        if not self._iterating:
            self._advance()
        return self

    def _advance(self, *, step: bool = False) -> bool:
        """Applies what has arrived. True: the request has ended, or with `step` there is something to show."""
        with self._lock:
            changed = False
            for item in self._inbox.take():
                changed |= self._apply(item)
            if not step:
                return self._done
            ready = self._done or (changed and self._streaming)
            self._iterating = True
            if ready and not self._ended:
                for output in self._outputs:
                    output._show()
            return ready

    def _step_or_end(self, end: type[Exception]) -> RequestOutput:
        if self._ended:
            raise end
        self._ended = self._done
        self._iterating = not self._done
        return self._raise_or_self()

    def _raise_or_self(self) -> RequestOutput:
        if self._error is not None:
            raise self._error
        return self

    def _apply(self, item: inference_pb2.Event | EnginehouseError) -> bool:
        """Applies one event; True when outputs changed."""
        if isinstance(item, EnginehouseError):
            self._error, self._done = item, True
            return True
        kind = item.WhichOneof("event")
        if kind == "delta":
            self._outputs[item.delta.output_index]._extend(item.delta)
        elif kind == "finished":
            self._outputs[item.finished.output_index]._finish(item.finished)
        elif kind == "done":
            self._finish(item.done)
        elif kind == "prompt":
            self._apply_prompt(item.prompt)
        elif kind == "tensor_chunk":
            self._chunks.add(item.tensor_chunk)
        return kind in ("delta", "finished", "done")

    def _apply_prompt(self, info: inference_pb2.PromptInfo) -> None:
        self._prompt_token_ids = list(info.token_ids) or self._prompt_token_ids
        self._prompt = info.text or self._prompt
        self._prompt_logprobs.extend(map(_logprobs, info.logprobs))

    def _finish(self, done: inference_pb2.Done) -> None:
        usage = done.usage
        reasoning = usage.reasoning_tokens if usage.HasField("reasoning_tokens") else None
        self._usage = Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, reasoning)
        metrics = _perf_metrics(done.perf_metrics) if done.HasField("perf_metrics") else None
        for output in self._outputs:
            output.prompt_logprobs = self._prompt_logprobs
            output.request_perf_metrics = metrics
            self._chunks.attach(output)
        self._done = True


@dataclass(frozen=True, kw_only=True)
class RequestSetup:
    """What a RequestOutput begins with."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int] | None
    n: int
    streaming: bool
    inbox: Inbox
    abort: Callable[[], None]


def _logprobs(row: sampling_pb2.TokenLogprobs) -> TokenLogprobs:
    return {item.token_id: Logprob(item.logprob, item.rank if item.HasField("rank") else None) for item in row.top}


def _perf_metrics(proto: inference_pb2.PerfMetrics) -> RequestPerfMetrics:
    values: dict[str, Any] = {}
    for name in RequestPerfMetrics.__slots__:
        source = next((part for part in (proto, proto.kv_cache, proto.speculative) if hasattr(part, name)), None)
        if source is None:
            continue
        if not source.DESCRIPTOR.fields_by_name[name].has_presence or source.HasField(name):
            value = getattr(source, name)
            values[name] = value.ToNanoseconds() / 1e9 if hasattr(value, "ToNanoseconds") else value
    if not proto.HasField("speculative"):
        values["acceptance_rate"] = None
    return RequestPerfMetrics(**values)
