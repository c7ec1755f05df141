"""From a start on a stream to a running request, or to its refusal in band."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from inference_service.frontend.prompts import Prompt, encode_prompt, prompt_chars
from inference_service.frontend.request import Admission, LiveRequest
from inference_service.frontend.served_model import ServedModel
from inference_service.frontend.validation import Plan, check_start, make_plan
from inference_service.models import ModelManager
from service_kit import logs, status

log = logs.logger("requests")

T = TypeVar("T")
INLINE_CHARS = 4096
"""Longer texts, and all chats (a template is a program), are encoded off the event loop."""
ENCODE_SECONDS = 30.0
"""A prompt that takes longer to render and encode is refused: templates are programs and may not end."""
DEADLINE_MARGIN = 0.2
"""Seconds before the RPC's deadline, at most a tenth of what is left, at which requests end with TIMEOUT: the client
would not hear of an end at the deadline itself."""


class _Started(NamedTuple):
    """A start on its way: its model is found and its place is taken."""

    start: pb.Start
    model: ServedModel
    number: int
    arrival: float
    stream_deadline: float | None


class Admitter:
    """Shared by all streams of a frontend. `workers` threads encode long prompts."""

    def __init__(self, models: ModelManager, *, workers: int = 2) -> None:
        self.instance_id = uuid.uuid4().hex[:12]
        self.draining = False
        """Set: every start is refused."""
        self._models = models
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="encode")
        self._tasks: set[asyncio.Task[None]] = set()
        self._live: dict[str, LiveRequest] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def live(self, server_id: str) -> LiveRequest | None:
        """The live request with this server id."""
        return self._live.get(server_id)

    def live_ids(self) -> list[str]:
        return list(self._live)

    async def offload(self, function: Callable[..., T], *args: Any) -> T:
        """Runs something slow in the encoding threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def admit(self, request: LiveRequest, start: pb.Start, stream_deadline: float | None) -> None:
        """Accepts or fails `request`; long prompts are encoded first, in a thread."""
        arrival = time.monotonic()
        try:
            self._refuse_while_draining()
            check_start(start)
            model = self._models.find(start.model).require_ready()
            started = _Started(start, model, self._register(request, model), arrival, stream_deadline)
            if start.WhichOneof("prompt") != "chat" and prompt_chars(start) <= INLINE_CHARS:
                self._accept(request, started, encode_prompt(start, model.spec))
                return
        except Exception as error:
            _refuse(request, error)
            return
        task = asyncio.create_task(self._accept_later(request, started))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_later(self, request: LiveRequest, started: _Started) -> None:
        try:
            async with asyncio.timeout(ENCODE_SECONDS):
                prompt = await self.offload(encode_prompt, started.start, started.model.spec)
            started.model.require_ready()
            self._accept(request, started, prompt)
        except TimeoutError:
            _refuse(request, _too_slow())
        except Exception as error:
            _refuse(request, error)

    def _accept(self, request: LiveRequest, started: _Started, prompt: Prompt) -> None:
        plan = make_plan(started.start, prompt, started.model.spec)
        request.accept(
            Admission(
                plan=plan,
                target=started.model,
                vocabulary=started.model.vocabulary if plan.text.detokenize else None,
                number=started.number,
                server_id=self._server_id(started.number),
                arrival=started.arrival,
                deadline=_deadline(plan, started.arrival, started.stream_deadline),
            )
        )

    def _register(self, request: LiveRequest, model: ServedModel) -> int:
        """Takes a place on the model and a number that is never used again."""
        number = next(self._numbers)
        server_id = self._server_id(number)
        model.admit(number, request)
        self._live[server_id] = request

        def release() -> None:
            del self._live[server_id]
            model.release(number)
            _log_end(request, server_id, model)

        request.when_ended(release)
        return number

    def _server_id(self, number: int) -> str:
        return f"{self.instance_id}-{number}"

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise errors.Unavailable(
                "This server is shutting down; send the request to another one.", reason="DRAINING", retry_after=1.0
            )


def _too_slow() -> errors.ResourceExhausted:
    return errors.ResourceExhausted(
        f"The prompt could not be encoded within {ENCODE_SECONDS:g} s; shorten it, or send `token_ids`.",
        reason="ENCODING_TOO_SLOW",
        metadata={"seconds": ENCODE_SECONDS},
        retry_after=ENCODE_SECONDS,
    )


def _deadline(plan: Plan, arrival: float, stream_deadline: float | None) -> float | None:
    """The earlier of the request's limit and the stream's end."""
    limits = [arrival + plan.time_limit] if plan.time_limit is not None else []
    if stream_deadline is not None:
        limits.append(stream_deadline - min(DEADLINE_MARGIN, max(0.0, stream_deadline - arrival) / 10))
    return min(limits, default=None)


def _log_end(request: LiveRequest, server_id: str, model: ServedModel) -> None:
    plan = request.admission.plan if request.admission is not None else None
    if plan is not None:
        log.info(
            "request ended",
            server_id=server_id,
            model=model.name,
            prompt_tokens=len(plan.prompt.token_ids),
            completion_tokens=request.completion_tokens,
            finish=request.finish_reason,
            labels=plan.labels,
        )


def _refuse(request: LiveRequest, error: Exception) -> None:
    status.record(error)
    request.fail(status.to_error(error))
