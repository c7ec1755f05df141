"""The one exception tree of Enginehouse, and its one table to gRPC status codes.

    EnginehouseError
    ├── InvalidArgument      the request is wrong whatever the state of the server
    ├── Unauthenticated      no or bad credentials
    ├── PermissionDenied     the caller lacks the role
    ├── NotFound             the named resource does not exist
    ├── AlreadyExists        the id is taken
    ├── FailedPrecondition   right request, wrong state (model not loaded, engine does not fit this machine)
    ├── Aborted              an etag did not match, a concurrent change won
    ├── ResourceExhausted    a queue, quota or rate is full; carries `retry_after`
    ├── Unavailable          draining, starting, connection lost; retry
    ├── DeadlineExceeded     the caller's deadline passed
    ├── Cancelled            the caller or an operator cancelled it
    ├── Unimplemented        a field or method that this version does not honour
    ├── DataLoss             stored bytes do not match their digest
    └── Internal             our fault; details are in the server's log only

Every error carries `reason` (UPPER_SNAKE, stable, for programs), `message` (for people, says what to do next),
and `metadata` (everything that varies in the message). The server sends them as `google.rpc.ErrorInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "enginehouse.dev"
MAX_MESSAGE_BYTES = 900
MAX_METADATA_BYTES = 1500
"""Of all values together. A status travels in HTTP/2 trailers, percent-encoded and again in base64: gRPC drops a call
whose trailers exceed 8 KiB, so that the caller would see a broken stream instead of the error."""


def shorten(text: str, most: int = MAX_MESSAGE_BYTES) -> str:
    """`text` as valid UTF-8 of at most `most` bytes; what was cut off shows as "..."."""
    data = text.encode(errors="replace")
    return data.decode() if len(data) <= most else data[: most - 3].decode(errors="ignore") + "..."


def _bounded(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata within MAX_METADATA_BYTES: long values give way, so that short ones stay whole."""
    short, left = {}, MAX_METADATA_BYTES
    for index, key in enumerate(sorted(metadata, key=lambda key: len(metadata[key]))):
        short[key] = shorten(metadata[key], left // (len(metadata) - index))
        left -= len(short[key].encode())
    return short


class EnginehouseError(Exception):
    """Base of all errors raised by the client and the daemons.

    Args:
        message: one or two sentences for a person; says what to do next.
        reason: stable UPPER_SNAKE identifier, at most 63 characters.
        metadata: what varies in the message, by name. It and the message are cut to what fits into a status.
        retry_after: seconds after which a retry may succeed, where that is known.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    default_reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        metadata: Mapping[str, object] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.message = shorten(message)
        super().__init__(self.message)
        self.reason = reason or self.default_reason
        self.metadata = _bounded({key: str(value) for key, value in (metadata or {}).items()})
        self.retry_after = retry_after


class InvalidArgument(EnginehouseError, ValueError):
    code = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = "INVALID_ARGUMENT"


class Unauthenticated(EnginehouseError):
    code = grpc.StatusCode.UNAUTHENTICATED
    default_reason = "UNAUTHENTICATED"


class PermissionDenied(EnginehouseError):
    code = grpc.StatusCode.PERMISSION_DENIED
    default_reason = "PERMISSION_DENIED"


class NotFound(EnginehouseError):
    code = grpc.StatusCode.NOT_FOUND
    default_reason = "NOT_FOUND"


class AlreadyExists(EnginehouseError):
    code = grpc.StatusCode.ALREADY_EXISTS
    default_reason = "ALREADY_EXISTS"


class FailedPrecondition(EnginehouseError):
    code = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "FAILED_PRECONDITION"


class Aborted(EnginehouseError):
    code = grpc.StatusCode.ABORTED
    default_reason = "ABORTED"


class ResourceExhausted(EnginehouseError):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = "RESOURCE_EXHAUSTED"


class Unavailable(EnginehouseError, ConnectionError):
    code = grpc.StatusCode.UNAVAILABLE
    default_reason = "UNAVAILABLE"


class DeadlineExceeded(EnginehouseError, TimeoutError):
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = "DEADLINE_EXCEEDED"


class Cancelled(EnginehouseError):
    code = grpc.StatusCode.CANCELLED
    default_reason = "CANCELLED"


class Unimplemented(EnginehouseError, NotImplementedError):
    code = grpc.StatusCode.UNIMPLEMENTED
    default_reason = "UNIMPLEMENTED"


class DataLoss(EnginehouseError):
    code = grpc.StatusCode.DATA_LOSS
    default_reason = "DATA_LOSS"


class Internal(EnginehouseError):
    code = grpc.StatusCode.INTERNAL
    default_reason = "INTERNAL"


BY_CODE: dict[grpc.StatusCode, type[EnginehouseError]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        Unauthenticated,
        PermissionDenied,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        Aborted,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Unimplemented,
        DataLoss,
        Internal,
    )
}
_BY_NUMBER: dict[int, type[EnginehouseError]] = {code.value[0]: cls for code, cls in BY_CODE.items()}


def unsupported_field(field: str, why: str = "is not supported yet") -> Unimplemented:
    """The refusal of a field that exists in the contract and is not honoured by this version."""
    return Unimplemented(f"`{field}` {why}; leave it unset.", reason="UNSUPPORTED_FIELD", metadata={"field": field})


def to_status(error: EnginehouseError) -> status_pb2.Status:
    """The error as a `google.rpc.Status` with its details (AIP-193)."""
    status = status_pb2.Status(code=error.code.value[0], message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    status.details.add().Pack(info)
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after * 1e9))
        status.details.add().Pack(retry)
    if isinstance(error, ResourceExhausted):
        quota = error_details_pb2.QuotaFailure()
        quota.violations.add(subject=error.metadata.get("subject", error.reason), description=error.message)
        status.details.add().Pack(quota)
    if isinstance(error, InvalidArgument) and "field" in error.metadata:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=error.metadata["field"], description=error.message)
        status.details.add().Pack(bad)
    return status


def from_status(status: status_pb2.Status) -> EnginehouseError:
    """The exception that a `google.rpc.Status` stands for."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    retry_after = None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    cls = _BY_NUMBER.get(status.code, EnginehouseError)
    return cls(status.message, reason=info.reason or None, metadata=dict(info.metadata), retry_after=retry_after)


def from_rpc_error(error: grpc.RpcError) -> EnginehouseError:
    """The exception for a failed call, chained by the caller with `raise ... from error`."""
    call: Any = error
    status = None
    try:
        status = rpc_status.from_call(call)
    except (ValueError, AttributeError):  # no or inconsistent grpc-status-details-bin trailer
        status = None
    if status is not None:
        return from_status(status)
    cls = BY_CODE.get(call.code(), EnginehouseError)
    return cls(call.details() or call.code().name)
