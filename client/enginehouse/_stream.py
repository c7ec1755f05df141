"""All requests of one client on one bidirectional Generate stream.

A background thread runs its own event loop; everything here but `submit`, `cancel` and `close` happens on it.

    submit ──▶ inbox ──▶ Lane (one gRPC stream): writer ──▶ server ──▶ reader ──▶ each request's Inbox

A lane ends when the server drains or the connection breaks; then new requests open another one. A request that the
server has not accepted is tried once more; an accepted one fails with Unavailable, as it may have run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable

import grpc

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc
from enginehouse._inbox import Inbox, wake_waiters
from enginehouse.connection import MAX_MESSAGE_BYTES, Endpoint
from enginehouse.errors import Cancelled, EnginehouseError, InvalidArgument, ResourceExhausted, Unavailable, from_status

RETRY_DELAY_S = 0.3
MAX_RETRY_DELAY_S = 2.0


class Ticket:
    """One request on its way."""

    __slots__ = ("accepted", "cancelled", "inbox", "lane", "patient", "request", "request_id", "retried")

    def __init__(self, start: inference_pb2.Start, inbox: Inbox, patient: bool) -> None:
        self.request = inference_pb2.GenerateRequest(start=start)
        self.request_id: str = start.request_id
        self.inbox = inbox
        self.lane: Lane | None = None
        self.patient = patient
        self.accepted = self.retried = self.cancelled = False

    def may_retry(self, error: EnginehouseError) -> bool:
        """Whether the server surely did not run it, and another try may help."""
        if self.accepted or self.cancelled:
            return False
        if isinstance(error, Unavailable):
            return not self.retried
        return self.patient and isinstance(error, ResourceExhausted) and error.reason == "QUEUE_FULL"


class Lane:
    """One gRPC stream and the requests that live on it."""

    def __init__(self, call: grpc.aio.StreamStreamCall, owner: GenerateStream) -> None:
        self._call, self._owner = call, owner
        self._outbox: deque[inference_pb2.GenerateRequest] = deque()
        self._wake = asyncio.Event()
        self._live: dict[str, Ticket] = {}
        self.closing = False
        self._writer = asyncio.create_task(self._write())
        self.reader = asyncio.create_task(self._read())

    def start(self, ticket: Ticket) -> None:
        ticket.lane = self
        self._live[ticket.request_id] = ticket
        self._send(ticket.request)

    def cancel(self, ticket: Ticket) -> None:
        if ticket.request_id in self._live:
            self._send(inference_pb2.GenerateRequest(cancel=inference_pb2.Cancel(request_id=ticket.request_id)))

    def stop(self) -> None:
        """Drops the stream; the server cancels what lives on it."""
        self.closing = True
        self._call.cancel()

    def _send(self, message: inference_pb2.GenerateRequest) -> None:
        self._outbox.append(message)
        self._wake.set()

    async def _write(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # a broken stream: the reader tells
            while True:
                while self._outbox:
                    await self._call.write(self._outbox.popleft())
                self._wake.clear()
                await self._wake.wait()

    async def _read(self) -> None:
        error: EnginehouseError = Unavailable("The server ended the stream; try again.", reason="STREAM_ENDED")
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._dispatch(response.events)
        except grpc.RpcError as failure:
            error = self._owner.endpoint.translate(failure)
        except asyncio.CancelledError:
            error = Cancelled("The client was shut down.", reason="CLIENT_SHUT_DOWN")
        self.closing = True
        self._writer.cancel()
        self._owner.lane_ended(self)
        for ticket in list(self._live.values()):
            self._fail(ticket, error)
        self._live.clear()

    def _dispatch(self, events: Iterable[inference_pb2.Event]) -> None:
        touched: dict[Inbox, None] = {}
        for event in events:
            kind = event.WhichOneof("event")
            if kind == "draining":
                self.closing = True
            elif (ticket := self._live.get(event.request_id)) is None:
                continue
            elif kind == "accepted":
                ticket.accepted = True
            elif kind == "error":
                del self._live[ticket.request_id]
                self._fail(ticket, from_status(event.error))
            else:
                last = kind == "done"
                if last:
                    del self._live[ticket.request_id]
                    self._owner.forget(ticket)
                ticket.inbox.push(event, last=last)
                touched[ticket.inbox] = None
        wake_waiters(touched)

    def _fail(self, ticket: Ticket, error: EnginehouseError) -> None:
        if ticket.may_retry(error):
            self._owner.retry(ticket, error)
        else:
            self._owner.fail(ticket, error)


class GenerateStream:
    """The requests of one client. Thread-safe: `submit`, `cancel`, `close`.

    Args:
        endpoint: the inference daemon.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._posted: deque[Callable[[], None]] = deque()
        self._scheduled = self._closed = False
        self._tickets: dict[str, Ticket] = {}
        self._lanes: set[Lane] = set()
        self._lane: Lane | None = None
        self._channel: grpc.aio.Channel | None = None
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run, name="enginehouse-client", daemon=True)
        self._thread.start()

    # Any thread

    def submit(self, start: inference_pb2.Start, inbox: Inbox, *, patient: bool = False) -> None:
        """Sends a request; its events arrive in `inbox`. A patient one waits while the server's queue is full.

        Raises:
            Cancelled: after `close`.
            InvalidArgument: it is longer than a message may be, which would end the stream for all others.
        """
        ticket = Ticket(start, inbox, patient)
        if (size := ticket.request.ByteSize()) > MAX_MESSAGE_BYTES:
            raise InvalidArgument(
                f"The request has {size} bytes, more than the {MAX_MESSAGE_BYTES} of a message; shorten the prompt.",
                reason="MESSAGE_TOO_LARGE",
                metadata={"bytes": size, "limit": MAX_MESSAGE_BYTES},
            )
        self._post(lambda: self._start(ticket))

    def cancel(self, request_id: str) -> None:
        """Asks the server to end a request. One that has ended is ignored."""
        with contextlib.suppress(Cancelled):
            self._post(lambda: self._cancel(request_id))

    def close(self) -> None:
        """Drops the stream: live requests fail with Cancelled. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._stop)
        if threading.current_thread() is not self._thread:  # the garbage collector may call from there
            self._thread.join()

    def _post(self, action: Callable[[], None]) -> None:
        if self._closed:
            raise Cancelled("The client was shut down; make a new LLM.", reason="CLIENT_SHUT_DOWN")
        self._posted.append(action)
        # One wake for many submissions. `_take` clears the flag before it empties the queue, so none is left behind.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._take)

    # The stream's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._shut_down())
        finally:
            self._loop.close()

    def _take(self) -> None:
        self._scheduled = False
        while self._posted:
            self._posted.popleft()()

    def _start(self, ticket: Ticket) -> None:
        if ticket.cancelled:
            return self.fail(ticket, Cancelled("The request was cancelled before it was accepted."))
        self._tickets[ticket.request_id] = ticket
        if self._lane is None or self._lane.closing:
            self._lane = self._open()
        self._lane.start(ticket)

    def _open(self) -> Lane:
        if self._channel is None:
            self._channel = self.endpoint.aio_channel()
        stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        lane = Lane(stub.Generate(metadata=self.endpoint.metadata), self)
        self._lanes.add(lane)
        return lane

    def _cancel(self, request_id: str) -> None:
        if (ticket := self._tickets.get(request_id)) is not None:
            ticket.cancelled = True
            if ticket.lane is not None:
                ticket.lane.cancel(ticket)

    def retry(self, ticket: Ticket, error: EnginehouseError) -> None:
        ticket.retried, ticket.lane = ticket.retried or isinstance(error, Unavailable), None
        delay = min(error.retry_after or RETRY_DELAY_S, MAX_RETRY_DELAY_S)
        self._loop.call_later(delay * random.uniform(1, 2), self._start, ticket)

    def fail(self, ticket: Ticket, error: EnginehouseError) -> None:
        self.forget(ticket)
        ticket.inbox.push(error, last=True)
        wake_waiters([ticket.inbox])

    def forget(self, ticket: Ticket) -> None:
        self._tickets.pop(ticket.request_id, None)

    def lane_ended(self, lane: Lane) -> None:
        self._lanes.discard(lane)

    def _stop(self) -> None:
        self._take()
        self._loop.stop()

    async def _shut_down(self) -> None:
        lanes = list(self._lanes)
        for lane in lanes:
            lane.stop()
        await asyncio.gather(*(lane.reader for lane in lanes))
        for ticket in list(self._tickets.values()):
            self.fail(ticket, Cancelled("The client was shut down.", reason="CLIENT_SHUT_DOWN"))
        if self._channel is not None:
            await self._channel.close()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it halves the cost of a message."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()  # type: ignore[no-any-return]
