"""One started request on a Generate stream: the state machine that keeps law 1 (exactly one last event).

What is to be sent is merged here until the stream's writer takes it, so a lagging reader costs one delta per request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse.errors import EnginehouseError, Internal
from inference_service.executor.messages import (
    AddRequest,
    CancelRequest,
    Command,
    FinishReason,
    RequestMetrics,
    RequestOutput,
)
from inference_service.frontend import events
from inference_service.frontend.validation import Plan
from inference_service.text.output import Delta, DeltaBuffer, Finish, OutputProcessor
from inference_service.text.vocabulary import Vocabulary


class Phase(Enum):
    ADMITTING = "admitting"
    """Being checked and tokenized; the executor does not know it."""
    RUNNING = "running"
    CLOSING = "closing"
    """Its output ended in the frontend (a stop string); the executor's last word is still to come."""
    ENDED = "ended"
    """`done` or `error` is queued; nothing follows."""


_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.ADMITTING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.CLOSING, Phase.ENDED}),
    Phase.CLOSING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
_NOTHING = Delta([], "", [])


class Target(Protocol):
    """The loaded model that a request runs on."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def submit(self, command: Command) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What an accepted request runs with. `number` is the executor's id for it, `server_id` the client's."""

    plan: Plan
    target: Target
    vocabulary: Vocabulary | None
    number: int
    server_id: str
    arrival: float
    deadline: float | None


class LiveRequest:
    """Args:
    request_id: the client's name for it.
    on_change: called whenever there is something new to take.
    """

    def __init__(self, request_id: str, on_change: Callable[[LiveRequest], None]) -> None:
        self.request_id = request_id
        self.phase = Phase.ADMITTING
        self.cancelled = False
        self._on_change = on_change
        self._on_end: list[Callable[[], None]] = []
        self._admission: Admission | None = None
        self._output: OutputProcessor | None = None
        self._head: list[pb.Event] = []
        self._buffer = DeltaBuffer()
        self._started = False
        self._has_output = False
        self.completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        """Known once its output has ended; None for one that failed."""
        self._tail: list[pb.Event] = []

    @property
    def admission(self) -> Admission | None:
        return self._admission

    @property
    def waiting_tokens(self) -> int:
        """The prompt's tokens as long as nothing came back for it, then 0."""
        if self._admission is None or self._has_output:
            return 0
        return len(self._admission.plan.prompt.token_ids)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """`callback` runs once, when the request has ended."""
        self._on_end.append(callback)

    def accept(self, admission: Admission) -> None:
        """Queues `accepted` and hands the request to the executor, unless it was cancelled meanwhile."""
        plan = admission.plan
        self._admission = admission
        self._output = OutputProcessor(plan.text, admission.vocabulary)
        model = (admission.target.name, admission.target.version)
        self._head = [events.accepted(self.request_id, admission.server_id, plan.prompt, model, admission.arrival)]
        if plan.prompt.info:
            self._head.append(events.prompt_info(self.request_id, plan.prompt))
        self._move_to(Phase.RUNNING)
        if self.cancelled:
            self.on_output(RequestOutput(request_id=admission.number, token_ids=[], finish_reason="cancelled"))
        else:
            admission.target.submit(_add_request(admission))
        self._on_change(self)

    def cancel(self) -> None:
        """Asks for the end; the executor answers with the finish. Repeating it, or being late, is no error."""
        if self.cancelled or self.phase is Phase.ENDED:
            return
        self.cancelled = True
        if self.phase is Phase.RUNNING and self._admission is not None:
            self._admission.target.submit(CancelRequest(self._admission.number))

    def fail(self, error: EnginehouseError) -> None:
        """Ends the request with `error`; in CLOSING its output is complete, so that it just ends."""
        if self.phase is Phase.CLOSING:
            self._finish_request(None)
        elif self.phase is not Phase.ENDED:
            self._end(events.failed(self.request_id, error))

    def on_output(self, output: RequestOutput) -> None:
        """Takes what the executor produced."""
        if self.phase is Phase.ENDED:
            return
        if output.error is not None:
            self.fail(Internal(output.error, reason="REQUEST_FAILED"))
            return
        assert self._output is not None, "output before admission"
        assert self._admission is not None, "output before admission"
        self._has_output = True
        progress = self._output.process(output)
        if progress.delta is not None:
            self._buffer.add(progress.delta)
        if progress.finish is not None:
            self._output_ended(progress.finish)
        if progress.stop_executor:
            self._move_to(Phase.CLOSING)
            self._admission.target.submit(CancelRequest(self._admission.number, "stop"))
        elif output.finish_reason is not None:
            self._finish_request(output.metrics)
        if self.has_news:
            self._on_change(self)

    @property
    def has_news(self) -> bool:
        """Whether `take_events` would return something."""
        return bool(self._head or self._tail or self._delta_is_due())

    def take_events(self) -> list[pb.Event]:
        """Everything that is to be sent now, in order."""
        taken, self._head = self._head, []
        if self._delta_is_due():
            self._started = True
            taken.append(events.delta(self.request_id, self._buffer.take()))
        taken += self._tail
        self._tail = []
        return taken

    def _delta_is_due(self) -> bool:
        """The first tokens at once; later ones by the interval; at the end whatever is left."""
        if self._admission is None or not self._admission.plan.stream or not self._buffer:
            return False
        last = self.finish_reason is not None or self.phase is Phase.ENDED
        return last or not self._started or len(self._buffer) >= self._admission.plan.interval

    def _output_ended(self, finish: Finish) -> None:
        assert self._admission is not None, "finish before admission"
        self.finish_reason = finish.reason
        self.completion_tokens = finish.completion_tokens
        whole = _NOTHING if self._admission.plan.stream else self._buffer.take()
        self._tail.append(events.finished(self.request_id, finish, whole))

    def _finish_request(self, metrics: RequestMetrics | None) -> None:
        assert self._admission is not None, "finish before admission"
        plan = self._admission.plan
        self._end(
            events.done(
                self.request_id,
                len(plan.prompt.token_ids),
                self.completion_tokens,
                metrics,
                perf=plan.perf_metrics,
            )
        )

    def _end(self, last: pb.Event) -> None:
        self._move_to(Phase.ENDED)
        self._tail.append(last)
        for callback in self._on_end:
            callback()
        self._on_change(self)

    def _move_to(self, phase: Phase) -> None:
        assert phase in _NEXT[self.phase], f"request {self.request_id}: {self.phase.name} -> {phase.name}"
        self.phase = phase


def _add_request(admission: Admission) -> AddRequest:
    plan = admission.plan
    return AddRequest(
        request_id=admission.number,
        token_ids=plan.prompt.token_ids,
        sampling=plan.sampling,
        priority=plan.priority,
        cache_salt=plan.cache_salt,
        deadline=admission.deadline,
        arrival=admission.arrival,
        stream_interval=plan.executor_interval,
    )
