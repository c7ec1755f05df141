"""From exceptions to gRPC statuses, in one place for every handler of a daemon.

The table itself is in `enginehouse.errors`. What is not in that tree is our fault: the client gets INTERNAL without a
word about the inside, the log gets the traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc_status import rpc_status

from enginehouse import errors
from service_kit import logs

log = logs.logger("rpc")

# grpc.aio gives back the number where the synchronous API gives the enum
_UNIMPLEMENTED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED.value[0])
INTERNAL_TEXT = "The server failed on this request; its log has the details. Retry, and report it if it comes again."


def to_error(exc: BaseException) -> errors.EnginehouseError:
    """The error that a client may see for `exc`."""
    if isinstance(exc, errors.EnginehouseError):
        return exc
    if isinstance(exc, asyncio.CancelledError):
        return errors.Cancelled("The call was cancelled.")
    return errors.Internal(INTERNAL_TEXT)


def to_status(exc: BaseException) -> status_pb2.Status:
    """The status that a client may see for `exc`, with ErrorInfo and what else its class asks for."""
    return errors.to_status(to_error(exc))


def record(exc: BaseException) -> None:
    """Logs a failed call: expected errors as one line, all others with their traceback."""
    if isinstance(exc, errors.EnginehouseError) and not isinstance(exc, errors.Internal):
        log.info("call refused", code=exc.code.name, reason=exc.reason, message=exc.message, **_metadata(exc))
    else:
        log.error("call failed", exc_info=exc)


def _metadata(exc: errors.EnginehouseError) -> dict[str, str]:
    return {f"meta_{key}": value for key, value in exc.metadata.items()}


async def abort(context: grpc.aio.ServicerContext[Any, Any], exc: BaseException) -> NoReturn:
    """Ends the call with the status of `exc` and logs it. Never returns."""
    record(exc)
    error = to_error(exc)
    status = rpc_status.to_status(errors.to_status(error))
    await context.abort(status.code, status.details, (*status.trailing_metadata, *_pushback(error)))
    raise AssertionError("abort returned")


def _pushback(error: errors.EnginehouseError) -> tuple[tuple[str, str], ...]:
    """What a client's retry policy goes by (gRFC A6): how long to wait, or that another attempt is of no use."""
    if error.code is not grpc.StatusCode.UNAVAILABLE:
        return ()
    milliseconds = -1 if error.retry_after is None else round(error.retry_after * 1000)
    return (("grpc-retry-pushback-ms", str(milliseconds)),)


def _is_missing(exc: Exception, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
    """Whether generated code raised it, for a method that a servicer leaves out."""
    return isinstance(exc, NotImplementedError) and context.code() in _UNIMPLEMENTED


def _missing_method(method: str) -> errors.Unimplemented:
    return errors.Unimplemented(
        f"This server does not have {method}; a newer version may.",
        reason="UNSUPPORTED_METHOD",
        metadata={"method": method},
    )


class _Malformed:
    """Stands for a request whose bytes are no such message. gRPC would answer with UNKNOWN and the parser's error."""


def _tolerant(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The parser of a handler's requests, with `_Malformed` for what it refuses."""

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _Malformed()

    return read


def _well_formed(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise errors.InvalidArgument(
            "The request's bytes are no such message; use stubs made from this server's .proto files.",
            reason="MALFORMED_MESSAGE",
        )
    return request


async def _all_well_formed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _well_formed(request)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Applies `abort` to every handler, counts live calls, and refuses new ones while draining.

    Health checks and reflection (`/grpc.*`) stay answered during a drain and are not counted.
    Each call's log lines carry `rpc` and `peer`.
    """

    def __init__(self) -> None:
        self.live_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def drain(self) -> None:
        """From now on new calls fail with UNAVAILABLE, reason DRAINING."""
        self._draining = True

    async def idle(self) -> None:
        """Returns once no call is live."""
        await self._idle.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return handler
        arity = {False: "unary", True: "stream"}
        kind = f"{arity[handler.request_streaming]}_{arity[handler.response_streaming]}"
        checked = _all_well_formed if handler.request_streaming else _well_formed
        return handler._replace(
            request_deserializer=_tolerant(handler.request_deserializer),
            **{kind: self._wrap(method, getattr(handler, kind), checked)},
        )

    def _wrap(self, method: str, behaviour: Callable[..., Any], checked: Callable[[Any], Any]) -> Callable[..., Any]:
        if not inspect.isasyncgenfunction(behaviour):

            async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
                async with self._guard(method, context):
                    return await behaviour(checked(request), context)

            return call

        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            async with (
                self._guard(method, context),
                contextlib.aclosing(behaviour(checked(request), context)) as responses,
            ):
                async for response in responses:
                    yield response

        return stream

    @contextlib.asynccontextmanager
    async def _guard(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(rpc=method, peer=context.peer())
        counted = not method.startswith("/grpc.")
        self.live_calls += counted
        if counted:
            self._idle.clear()
        try:
            if self._draining and counted:
                raise errors.Unavailable(
                    "This server is shutting down; use another one.", reason="DRAINING", retry_after=1.0
                )
            yield
        except grpc.aio.AbortError:
            raise
        except Exception as exc:
            await abort(context, _missing_method(method) if _is_missing(exc, context) else exc)
        finally:
            self.live_calls -= counted
            if self.live_calls == 0:
                self._idle.set()
