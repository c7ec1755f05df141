"""A model under a served name: its state, its executor thread, and the live requests that run on it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from engine_store.manifest import Manifest
from enginehouse.errors import EnginehouseError, FailedPrecondition, Internal, ResourceExhausted, Unavailable
from inference_service.config import ModelConfig
from inference_service.executor.executor import Executor
from inference_service.executor.messages import Command, ExecutorStats, RequestOutput
from inference_service.executor.thread import ExecutorThread
from inference_service.frontend.prompts import ModelSpec
from inference_service.frontend.request import LiveRequest
from inference_service.runners.base import Runner
from inference_service.text.vocabulary import Vocabulary
from service_kit import logs

log = logs.logger("models")

STOP_SECONDS = 30.0
STATS_KEPT = 1000


class State(Enum):
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"
    GONE = "gone"


_NEXT: dict[State, frozenset[State]] = {
    State.LOADING: frozenset({State.READY, State.FAILED, State.GONE}),
    State.READY: frozenset({State.UNLOADING, State.FAILED, State.GONE}),
    State.UNLOADING: frozenset({State.FAILED, State.GONE}),
    State.FAILED: frozenset({State.GONE}),
    State.GONE: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What loading made: the parts that a served model runs on."""

    runner: Runner
    executor: Executor
    spec: ModelSpec
    load_seconds: float


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """What to load and how. `ref` is "latest", a version number or an alias."""

    name: str
    engine: str
    ref: str = "latest"
    config: ModelConfig = field(default_factory=ModelConfig)
    use_priority: bool = False
    """Whether a request's priority orders the queue; else the first that came is first."""
    labels: Mapping[str, str] = field(default_factory=dict)
    max_input_len: int | None = None
    """Most prompt tokens of a request; None: what the sequence limit allows."""
    stats_kept: int | None = None
    """Steps whose statistics are kept; None: 1000."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """The executor's statistics after one step, when (seconds since the epoch), and the tokens it generated."""

    time: float
    stats: ExecutorStats
    tokens: int


class ServedModel:
    """Everything but `submit` belongs to the event loop that made it. `on_change` is told of every change of state."""

    def __init__(self, load: LoadSpec, manifest: Manifest, on_change: Callable[[ServedModel], None]) -> None:
        self.load = load
        self.manifest = manifest
        self.state = State.LOADING
        self.message = ""
        self.create_time = self.update_time = time.time()
        self.engine: Engine | None = None
        self.live: dict[int, LiveRequest] = {}
        self.steps: deque[StepStats] = deque(maxlen=STATS_KEPT if load.stats_kept is None else load.stats_kept)
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._thread: ExecutorThread | None = None
        self._closing = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def name(self) -> str:
        return self.load.name

    @property
    def version(self) -> str:
        return f"engines/{self.manifest.name}/versions/{self.manifest.version}"

    @property
    def alias(self) -> str:
        """The alias that it was loaded by; empty for none."""
        return "" if self.load.ref == "latest" or self.load.ref.isdigit() else self.load.ref

    @property
    def spec(self) -> ModelSpec:
        assert self.engine is not None, f"model {self.name} is {self.state.name} without an engine"
        return self.engine.spec

    @property
    def vocabulary(self) -> Vocabulary | None:
        tokenizer = self.spec.tokenizer
        return tokenizer.vocabulary if tokenizer is not None else None

    def start(self, engine: Engine) -> None:
        """Begins to serve."""
        self.engine = engine
        self._thread = ExecutorThread(engine.executor, self._on_outputs, self._on_fatal)
        self._thread.start()
        self.move_to(State.READY)

    def require_ready(self) -> ServedModel:
        """Itself when it takes requests; else FailedPrecondition that names the state, or Unavailable."""
        if self.state is State.READY:
            return self
        raise FailedPrecondition(
            f"The model `{self.name}` is {self.state.value}{': ' + self.message if self.message else ''}; "
            "load it, or wait until it is ready.",
            reason="MODEL_NOT_READY",
            metadata={"model": self.name, "state": self.state.name, "detail": self.message},
        )

    def admit(self, number: int, request: LiveRequest) -> None:
        """Counts a request as live from before its tokens are made.

        Raises:
            ResourceExhausted: as many requests are live as may run and wait.
        """
        scheduler, queue = self.load.config.scheduler, self.load.config.max_queue_size
        most = scheduler.max_batch_size + queue
        if len(self.live) >= most:
            raise ResourceExhausted(
                f"The model `{self.name}` has {len(self.live)} live requests; {scheduler.max_batch_size} may run and "
                f"{queue} wait. Retry later.",
                reason="QUEUE_FULL",
                metadata={"model": self.name, "live": len(self.live), "max_queue_size": queue, "subject": self.name},
                retry_after=1.0,
            )
        self.live[number] = request
        self._idle.clear()

    def release(self, number: int) -> None:
        """The request has ended."""
        self.live.pop(number, None)
        if not self.live:
            self._idle.set()

    def submit(self, command: Command) -> None:
        assert self._thread is not None, f"model {self.name} has no executor"
        self._thread.submit(command)

    def stats(self) -> ExecutorStats | None:
        """The executor's latest statistics; None before it is ready."""
        return self.engine.executor.stats() if self.engine is not None else None

    def queued_tokens(self) -> int:
        """Prompt tokens of the accepted requests that have no output yet."""
        return sum(request.waiting_tokens for request in self.live.values())

    async def unload(self, grace: float) -> None:
        """Takes no new requests, lets the live ones finish for `grace` seconds, then ends the rest and frees all."""
        if self.state is State.READY:
            self.move_to(State.UNLOADING)
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            self.fail_live(
                Unavailable(
                    f"The model `{self.name}` was unloaded before the request ended; send it elsewhere.",
                    reason="MODEL_UNLOADED",
                    metadata={"model": self.name},
                    retry_after=1.0,
                )
            )
        await self.close()

    async def close(self) -> None:
        """Stops the executor and frees the engine. Idempotent; a second caller waits for the first: nothing is freed
        under a running step."""
        async with self._closing:
            if self.state is State.GONE:
                return
            if self._thread is not None and not await asyncio.to_thread(self._thread.stop, STOP_SECONDS):
                log.error("the executor did not stop", model=self.name, seconds=STOP_SECONDS)
            elif self.engine is not None:
                self.engine.runner.close()
            self.move_to(State.GONE)

    def fail_live(self, error: EnginehouseError) -> None:
        """Ends every live request with `error`; the executor is told to drop them."""
        for request in tuple(self.live.values()):
            request.cancel()
            request.fail(error)

    def move_to(self, state: State, message: str = "") -> None:
        assert state in _NEXT[self.state], f"model {self.name}: {self.state.name} -> {state.name}"
        self.state, self.message, self.update_time = state, message, time.time()
        log.info("model changed", model=self.name, version=self.version, state=state.name, detail=message)
        self._on_change(self)

    def _on_outputs(self, outputs: list[RequestOutput]) -> None:
        """In the executor's thread: one hand-over per step."""
        assert self.engine is not None
        tokens = sum(len(output.token_ids) for output in outputs)
        step = StepStats(time.time(), self.engine.executor.stats(), tokens)
        self._call(self._dispatch, outputs, step)

    def _on_fatal(self, error: BaseException) -> None:
        self._call(self._die)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop has closed under a daemon that is ending
            log.info("outputs dropped at the end", model=self.name)

    def _dispatch(self, outputs: list[RequestOutput], step: StepStats) -> None:
        self.steps.append(step)
        for output in outputs:
            request = self.live.get(output.request_id)
            if request is not None:
                self._deliver(request, output)

    def _deliver(self, request: LiveRequest, output: RequestOutput) -> None:
        """Whatever goes wrong with one request's text is that request's alone."""
        try:
            request.on_output(output)
        except Exception:
            log.exception("an output could not be processed", model=self.name)
            request.cancel()
            request.fail(Internal("The server failed on this request's output; report it.", reason="OUTPUT_FAILED"))

    def _die(self) -> None:
        if self.state in (State.READY, State.UNLOADING):
            self.move_to(State.FAILED, "its executor stopped on an internal error; unload it and load it again")
        self.fail_live(
            Unavailable(
                f"The model `{self.name}` stopped on an internal error; retry on another server, or load it again.",
                reason="EXECUTOR_STOPPED",
                metadata={"model": self.name},
                retry_after=5.0,
            )
        )
