"""What holds of every status that a daemon sends, whatever it was asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from enginehouse.errors import DOMAIN

INTERNALS = re.compile(
    r"Traceback|<class '|site-packages|\.py\b|\bobject at 0x|builder_service|inference_service|service_kit|"
    r"\b(?:Key|Type|Value|Index|Attribute|Assertion|Runtime|OS|Overflow|Recursion|Memory|Unicode\w*|Decode|Validation)"
    r"Error\b|msgspec|sqlite|NoneType"
)
"""Words that only the inside of a daemon knows."""
WRITTEN_LATE = "Internal error from Core"
"""What gRPC's client says when it wrote to a stream that the server had ended."""
OURS = ("/enginehouse.", "/google.longrunning.")
FAULTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)


def broken_law(method: str, code: grpc.StatusCode, details: str, trailers: Any) -> str:
    """Why this end of a call is a fault; empty when it is not. Ends that the caller made itself are not for this."""
    if code is grpc.StatusCode.OK:
        return ""
    if code in FAULTS:
        return f"{code.name}: {details[:300]}"
    packed = dict(trailers or ()).get("grpc-status-details-bin")
    if packed is None:
        return f"{code.name} without details: {details[:300]}" if method.startswith(OURS) else ""
    return broken_status(status_pb2.Status.FromString(packed))


def broken_status(status: status_pb2.Status) -> str:
    """The same for a google.rpc.Status, of a trailer, an event or an operation."""
    code = next((code for code in grpc.StatusCode if code.value[0] == status.code), None)
    if code is None or code in FAULTS[:2]:
        return f"status {code.name if code else status.code}: {status.message[:300]}"
    if (word := INTERNALS.search(str(status))) is not None:
        return f"{code.name} speaks of {word[0]!r}: {status.message[:300]}"
    info = error_details_pb2.ErrorInfo()
    if not any(detail.Unpack(info) for detail in status.details if detail.Is(info.DESCRIPTOR)):
        return f"{code.name} without ErrorInfo: {status.message[:300]}"
    if info.domain != DOMAIN or not re.fullmatch(r"[A-Z][A-Z0-9_]{2,62}", info.reason):
        return f"{code.name} with domain {info.domain!r} and reason {info.reason!r}"
    return ""


def reason_of(trailers: Any) -> str:
    """The reason in a failed call's ErrorInfo; empty when there is none."""
    packed = dict(trailers or ()).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    if packed is not None:
        for detail in status_pb2.Status.FromString(packed).details:
            if detail.Unpack(info):
                return info.reason
    return ""


def statuses(message: Message) -> Iterator[status_pb2.Status]:
    """Every google.rpc.Status in a response: errors of operations and events."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else (value,):
            if field.message_type.full_name == "google.rpc.Status":
                yield part
            elif field.message_type.full_name == "google.rpc.Any":
                continue
            else:
                yield from statuses(part)


def parsed(kind: type[Message], data: bytes) -> Message | None:
    """The message, or None for bytes that are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
