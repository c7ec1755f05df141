"""google.longrunning.Operations for both daemons: one servicer over a small protocol, and a store in memory.

The builder implements `OperationStore` over its SQLite queue. The inference daemon uses `InMemoryOperations`, whose
operations are asyncio tasks and end with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf import empty_pb2
from google.protobuf.message import Message

from enginehouse.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, unsupported_field
from service_kit import pagination, status

COLLECTION = "operations"
_KEPT_DONE = 1000
_DEFAULT_WAIT_SECONDS = 30.0
_MAX_WAIT_SECONDS = 300.0


class OperationStore(Protocol):
    """Where operations are kept. Each method raises NotFound for an unknown name."""

    async def get(self, name: str) -> operations_pb2.Operation: ...

    async def list(self, page: pagination.Page) -> pagination.Paged[operations_pb2.Operation]: ...

    async def cancel(self, name: str) -> None:
        """Asks for cancellation. A done operation stays as it is."""

    async def delete(self, name: str) -> None:
        """Forgets a done operation; FailedPrecondition for a running one."""

    async def wait(self, name: str, seconds: float) -> operations_pb2.Operation:
        """The operation once it is done, or as it is after so many seconds."""


class OperationsServicer(operations_pb2_grpc.OperationsServicer):
    """The gRPC face of an `OperationStore`."""

    def __init__(self, store: OperationStore) -> None:
        self._store = store

    async def GetOperation(self, request: Any, context: Any) -> operations_pb2.Operation:
        return await self._store.get(request.name)

    async def ListOperations(self, request: Any, context: Any) -> operations_pb2.ListOperationsResponse:
        if request.name not in ("", COLLECTION):
            raise InvalidArgument(
                f"Operations are listed under `{COLLECTION}`, not `{request.name}`.",
                metadata={"field": "name", "value": request.name},
            )
        if request.filter:
            raise unsupported_field("filter")
        page = pagination.parse(request.page_size, request.page_token, COLLECTION)
        items, token = await self._store.list(page)
        return operations_pb2.ListOperationsResponse(operations=items, next_page_token=token)

    async def CancelOperation(self, request: Any, context: Any) -> empty_pb2.Empty:
        await self._store.cancel(request.name)
        return empty_pb2.Empty()

    async def DeleteOperation(self, request: Any, context: Any) -> empty_pb2.Empty:
        await self._store.delete(request.name)
        return empty_pb2.Empty()

    async def WaitOperation(
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> operations_pb2.Operation:
        asked = request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else _DEFAULT_WAIT_SECONDS
        return await self._store.wait(request.name, max(0.0, min(asked, _MAX_WAIT_SECONDS)))


def require_uuid4(request_id: str) -> None:
    """Raises InvalidArgument for a request_id that is neither empty nor a UUID4."""
    with contextlib.suppress(ValueError):
        if not request_id or uuid.UUID(request_id).version == 4:
            return
    raise InvalidArgument(
        "`request_id` must be a UUID4 (random), or empty.",
        reason="INVALID_REQUEST_ID",
        metadata={"field": "request_id"},
    )


@dataclass
class _Entry:
    """One operation and the task behind it. The key orders by creation."""

    key: int
    operation: operations_pb2.Operation
    request_id: str
    digest: bytes
    """Of the request, which may be long."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Handle:
    """What an operation's work gets, to tell how far it is."""

    def __init__(self, operation: operations_pb2.Operation) -> None:
        self.name: str = operation.name
        self._operation = operation

    def update(self, metadata: Message) -> None:
        """Replaces the operation's metadata."""
        self._operation.metadata.Pack(metadata)


Work = Callable[[Handle], Awaitable[Message]]


class InMemoryOperations:
    """Runs operations as tasks of this event loop. The last 1000 done ones are kept."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._by_request: dict[str, _Entry] = {}
        self._made = 0

    def start(self, work: Work, metadata: Message, request: Message, request_id: str = "") -> operations_pb2.Operation:
        """Starts `work` and returns its operation. Its result is the response, its exception the error.

        Args:
            request: the call's message; with `request_id`, the same message answers with the same operation.

        Raises:
            InvalidArgument: request_id is not a UUID4.
            AlreadyExists: request_id was used with another message.
        """
        require_uuid4(request_id)
        digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
        if request_id and (known := self._by_request.get(request_id)):
            return _same(known, digest)
        self._made += 1
        operation = operations_pb2.Operation(name=f"{COLLECTION}/{uuid.uuid4().hex}")
        operation.metadata.Pack(metadata)
        entry = _Entry(self._made, operation, request_id, digest)
        self._entries[operation.name] = entry
        if request_id:
            self._by_request[request_id] = entry
        entry.task = asyncio.create_task(self._run(entry, work), name=operation.name)
        return _copy(operation)

    def knows(self, request_id: str) -> bool:
        """Whether `start` would answer with an operation that it has started before."""
        return request_id in self._by_request

    async def get(self, name: str) -> operations_pb2.Operation:
        return _copy(self._entry(name).operation)

    async def list(self, page: pagination.Page) -> pagination.Paged[operations_pb2.Operation]:
        entries, token = pagination.paginate(
            self._entries.values(), lambda entry: entry.key, page, COLLECTION, descending=True
        )
        return pagination.Paged([_copy(entry.operation) for entry in entries], token)

    async def cancel(self, name: str) -> None:
        entry = self._entry(name)
        if entry.task and not entry.operation.done:
            entry.task.cancel()

    async def delete(self, name: str) -> None:
        entry = self._entry(name)
        if not entry.operation.done:
            raise FailedPrecondition(
                f"{name} is still running; cancel it or wait for it first.",
                reason="OPERATION_RUNNING",
                metadata={"operation": name},
            )
        self._forget(entry)

    async def wait(self, name: str, seconds: float) -> operations_pb2.Operation:
        entry = self._entry(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await entry.done.wait()
        return _copy(entry.operation)

    async def close(self) -> None:
        """Cancels what runs and waits for it."""
        tasks = [entry.task for entry in self._entries.values() if entry.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, entry: _Entry, work: Work) -> None:
        try:
            entry.operation.response.Pack(await work(Handle(entry.operation)))
        except (Exception, asyncio.CancelledError) as exc:
            if isinstance(exc, Exception):
                status.record(exc)
            entry.operation.error.CopyFrom(status.to_status(exc))
        finally:
            entry.operation.done = True
            entry.done.set()
            self._trim()

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise NotFound(
                f"There is no operation `{name}`; list them to see which there are.",
                reason="OPERATION_NOT_FOUND",
                metadata={"operation": name},
            )
        return self._entries[name]

    def _trim(self) -> None:
        done = [entry for entry in self._entries.values() if entry.operation.done]
        for entry in done[:-_KEPT_DONE]:
            self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.operation.name]
        self._by_request.pop(entry.request_id, None)


def _same(known: _Entry, digest: bytes) -> operations_pb2.Operation:
    if known.digest != digest:
        raise AlreadyExists(
            "This `request_id` was used for another request; make a new one.",
            reason="REQUEST_ID_REUSED",
            metadata={"field": "request_id", "operation": known.operation.name},
        )
    return _copy(known.operation)


def _copy(operation: operations_pb2.Operation) -> operations_pb2.Operation:
    """A snapshot: the caller's must not change while the task goes on."""
    copy = operations_pb2.Operation()
    copy.CopyFrom(operation)
    return copy
