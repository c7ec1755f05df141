"""The executor's statistics and cache events as dicts under TensorRT-LLM's names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from enginehouse._calls import Calls
from enginehouse._gen.enginehouse.inference.v1 import telemetry_pb2, telemetry_pb2_grpc
from enginehouse.errors import DeadlineExceeded


class Telemetry:
    """What one model's executor does, each step and event told once."""

    def __init__(self, calls: Calls, model: str) -> None:
        self._calls, self._model = calls, model
        self._stub = telemetry_pb2_grpc.TelemetryServiceStub(calls.channel)
        self._last_iteration = self._last_sequence = 0

    def stats(self, timeout: float | None) -> list[dict[str, Any]]:
        """The steps since the last call; waits up to `timeout` seconds for one when there is none."""
        request = telemetry_pb2.GetStatsRequest(model=self._model, after_iteration=self._last_iteration)
        request.timeout.FromNanoseconds(int((timeout or 0) * 1e9))
        response = self._calls.unary(self._stub.GetStats, request, self._calls.timeout + (timeout or 0))
        if response.iterations:
            self._last_iteration = response.iterations[-1].iter
        return [stats_dict(item) for item in response.iterations]

    def kv_cache_events(self, timeout: float | None) -> list[dict[str, Any]]:
        """The cache events since the last call; listens for `timeout` seconds."""
        request = telemetry_pb2.StreamKvCacheEventsRequest(model=self._model, after_sequence=self._last_sequence)
        metadata, events = self._calls.endpoint.metadata, []
        try:
            with self._calls.endpoint.errors():
                for batch in self._stub.StreamKvCacheEvents(request, timeout=timeout or 0.1, metadata=metadata):
                    self._last_sequence = batch.sequence
                    events += [stats_dict(event) for event in batch.events]
        except DeadlineExceeded:  # the end of listening
            pass
        return events


def stats_dict(message: Message) -> dict[str, Any]:
    """Names in camelCase; a duration is milliseconds under a name that ends with MS; messages that are absent are
    left out."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        head, *rest = field.name.split("_")
        name = head + "".join(word.capitalize() for word in rest)
        if field.is_repeated:
            result[name] = [_plain(item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            continue
        elif isinstance(value, Duration):
            result[f"{name}MS"] = value.ToNanoseconds() / 1e6
        elif isinstance(value, Timestamp):
            result[name] = datetime.fromtimestamp(value.ToNanoseconds() / 1e9, UTC).isoformat()
        else:
            result[name] = _plain(value)
    return result


def _plain(item: Any) -> Any:
    if isinstance(item, Message):
        return stats_dict(item)
    return item.hex() if isinstance(item, bytes) else item
