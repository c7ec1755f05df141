"""One Generate stream: a reader that takes starts and cancels, and a writer that sends what its requests have.

The reader never waits for the executor, and the writer waits for nobody but its own client, so that no stream holds
up another. Requests hold their own merged output; the session only knows which of them have news.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from inference_service.frontend.request import LiveRequest

Write = Callable[[pb.GenerateResponse], Awaitable[None]]
Admit = Callable[[LiveRequest, pb.Start, float | None], None]
"""Accepts or fails the request, now or soon. The last argument is the stream's deadline in time.monotonic() seconds."""


@dataclass(frozen=True, kw_only=True)
class SessionLimits:
    """Bounds of one stream."""

    unread_seconds: float = 30.0
    """A reader that takes nothing for so long loses its requests."""
    max_unsent_requests: int = 4096
    """With so many requests that have unsent events the reader stops reading."""
    message_bytes: int = 1 << 20
    """A message is sent once it is this long, even if there are more events."""


class GenerateSession:
    """Args:
    admit: see `Admit`.
    deadline: when the RPC ends, in time.monotonic() seconds; None is never.
    """

    def __init__(self, admit: Admit, limits: SessionLimits, deadline: float | None) -> None:
        self._admit = admit
        self._limits = limits
        self._deadline = deadline
        self._live: dict[str, LiveRequest] = {}
        self._news: dict[LiveRequest, None] = {}
        self._notices: list[pb.Event] = []
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._input_ended = False
        self._draining = False

    async def run(self, messages: AsyncIterable[pb.GenerateRequest], write: Write) -> None:
        """Serves the stream to its end.

        Raises:
            InvalidArgument: a malformed message.
            ResourceExhausted: the client stopped reading.
        """
        reader = asyncio.create_task(self._read(messages))
        try:
            await self._write(reader, write)
        finally:
            reader.cancel()
            for request in tuple(self._live.values()):
                request.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # _write has raised what it had to say
                await reader

    def drain(self, notice: pb.Draining) -> None:
        """Tells the client that the server stops; the stream ends once its live requests have."""
        if not self._draining:
            self._draining = True
            self._notices.append(pb.Event(draining=notice))
            self._wake.set()

    async def _read(self, messages: AsyncIterable[pb.GenerateRequest]) -> None:
        try:
            async for message in messages:
                self._take(message)
                await self._room.wait()
        finally:
            self._input_ended = True
            self._wake.set()

    def _take(self, message: pb.GenerateRequest) -> None:
        kind = message.WhichOneof("request")
        if kind == "start":
            self._start(message.start)
        elif kind == "cancel":
            request = self._live.get(message.cancel.request_id)
            if request is not None:  # else it has just ended
                request.cancel()
        else:
            raise errors.InvalidArgument(
                "A message on the stream has neither `start` nor `cancel`; set one of them.",
                reason="MALFORMED_MESSAGE",
                metadata={"field": "request"},
            )

    def _start(self, start: pb.Start) -> None:
        request = LiveRequest(start.request_id, self._has_news)
        if start.request_id in self._live:
            request.fail(
                errors.AlreadyExists(
                    f"A request `{start.request_id[:128]}` is live on this stream; choose another request_id.",
                    reason="REQUEST_ID_IN_USE",
                    metadata={"request_id": start.request_id[:128]},
                )
            )
            return
        self._live[start.request_id] = request
        request.when_ended(lambda: self._forget(request))
        self._admit(request, start, self._deadline)

    def _has_news(self, request: LiveRequest) -> None:
        self._news[request] = None
        if len(self._news) >= self._limits.max_unsent_requests:
            self._room.clear()
        self._wake.set()

    def _forget(self, request: LiveRequest) -> None:
        del self._live[request.request_id]

    async def _write(self, reader: asyncio.Task[None], write: Write) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if reader.done():
                reader.result()
            while events := self._next_events():
                await self._send(pb.GenerateResponse(events=events), write)
            self._room.set()
            if (self._input_ended or self._draining) and not self._live and not self._news and not self._notices:
                if self._input_ended:
                    await reader  # it may have failed while an answer was sent
                return

    def _next_events(self) -> list[pb.Event]:
        """What there is to say, up to about the length of one message."""
        events, self._notices = self._notices, []
        size = 0
        while self._news and size < self._limits.message_bytes:
            request = next(iter(self._news))
            del self._news[request]
            taken = request.take_events()
            size += sum(event.ByteSize() for event in taken)
            events += taken
        return events

    async def _send(self, response: pb.GenerateResponse, write: Write) -> None:
        try:
            async with asyncio.timeout(self._limits.unread_seconds):
                await write(response)
        except TimeoutError as error:
            raise errors.ResourceExhausted(
                f"The client did not read its stream for {self._limits.unread_seconds:g} s, so its requests were "
                "cancelled; read responses as they come.",
                reason="STREAM_NOT_READ",
                metadata={"seconds": self._limits.unread_seconds},
                retry_after=1.0,
            ) from error
