"""The executor's statistics as dicts under TensorRT-LLM's names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp


def stats_dict(message: Message) -> dict[str, Any]:
    """Names in camelCase; a duration is milliseconds under a name that ends with MS; messages that are absent are
    left out."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        head, *rest = field.name.split("_")
        name = head + "".join(word.capitalize() for word in rest)
        if field.is_repeated:
            result[name] = [stats_dict(item) if isinstance(item, Message) else item for item in value]
        elif field.has_presence and not message.HasField(field.name):
            continue
        elif isinstance(value, Duration):
            result[f"{name}MS"] = value.ToNanoseconds() / 1e6
        elif isinstance(value, Timestamp):
            result[name] = datetime.fromtimestamp(value.ToNanoseconds() / 1e9, UTC).isoformat()
        else:
            result[name] = stats_dict(value) if isinstance(value, Message) else value
    return result
