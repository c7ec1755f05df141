"""A build: its options, and the handle to follow it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from google.longrunning import operations_pb2

from enginehouse._calls import Calls, wait_operation
from enginehouse._convert import enum_number, from_proto, to_proto
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2, builder_pb2_grpc, engine_pb2
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse.configs import BuildConfig, ParallelConfig, QuantConfig
from enginehouse.engine_types import (
    BuildDetail,
    BuildEvent,
    BuildFinished,
    BuildStatus,
    EngineVersion,
    LogLine,
    MemorySample,
    StageProgress,
    StageStarted,
)
from enginehouse.errors import EnginehouseError, FailedPrecondition, Unavailable, from_status
from enginehouse.names import checkpoint_source

REATTACH_ATTEMPTS = 8
MAX_REATTACH_DELAY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """How an engine is compared with its checkpoint before it is published. None: the builder's default."""

    off: bool = False
    prompts: int | None = None
    tokens: int | None = None
    max_logit_difference: float | None = None
    max_difference_ratio: float | None = None
    max_mean_kl: float | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build; `BuilderClient.build` takes each as a keyword.

    targets: what to compile to, of "torch", "tensorrt", "tensorrt-rtx" [torch]. verify: VerifyOptions [the builder's].
    weights: "real" or "dummy" (seeded random numbers, for benchmarks). alias: pointed at the version once published.
    force: build even if a version with this key exists. validate_only: only check and estimate. revision: of a hub
    repository. request_id: a UUID4; the same one answers with the same build [a fresh one]. priority: 0 to 1 [0.5]; of
    the builds that wait, higher ones come first.
    """

    build_config: BuildConfig | None = None
    quant_config: QuantConfig | None = None
    parallel_config: ParallelConfig | None = None
    targets: Sequence[str] = ()
    verify: VerifyOptions | None = None
    weights: str = "real"
    dummy_seed: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    alias: str = ""
    force: bool = False
    validate_only: bool = False
    revision: str | None = None
    request_id: str | None = None
    priority: float | None = None

    def to_proto(self, source: str | Path, engine_id: str) -> builder_pb2.BuildEngineRequest:
        request = builder_pb2.BuildEngineRequest(
            engine_id=engine_id,
            source=checkpoint_source(source, self.revision),
            build_config=self.build_config.to_proto() if self.build_config else None,
            quant_config=self.quant_config.to_proto() if self.quant_config else None,
            parallel_config=self.parallel_config.to_proto() if self.parallel_config else None,
            verify=to_proto(self.verify, builder_pb2.VerifyOptions()) if self.verify else None,
            dummy_seed=self.dummy_seed,
            labels=dict(self.labels),
            alias=self.alias,
            force=self.force,
            validate_only=self.validate_only,
            request_id=self.request_id or str(uuid.uuid4()),
            priority=self.priority,
        )
        for target in self.targets:
            request.targets.add(form=enum_number(common_pb2.TargetForm.DESCRIPTOR, "targets", target))
        if self.weights != "real":
            request.weights = enum_number(builder_pb2.WeightsSource.DESCRIPTOR, "weights", self.weights)
        return request


class BuildHandle:
    """A build on the builder daemon. `name` is the operation's name; another process can go on with it through
    `BuilderClient.build_handle(name)`."""

    def __init__(self, calls: Calls, operation: operations_pb2.Operation) -> None:
        self._calls, self._operation = calls, operation
        self.name: str = operation.name

    @property
    def done(self) -> bool:
        """Whether the build has ended. Asks the daemon until it has."""
        return bool(self._refresh().done)

    def status(self) -> BuildStatus:
        """Where the build is now."""
        self._refresh()
        return self.status_seen()

    def status_seen(self) -> BuildStatus:
        """Where the build was when the daemon was last asked. Asks nothing."""
        metadata = builder_pb2.BuildMetadata()
        self._operation.metadata.Unpack(metadata)
        return from_proto(BuildStatus, metadata)

    def error(self) -> EnginehouseError | None:
        """Why the build failed; None while it runs and when it succeeded."""
        operation = self._refresh()
        return from_status(operation.error) if operation.HasField("error") else None

    def watch(self, after_sequence: int = 0) -> Iterator[BuildEvent]:
        """Yields what happens from the event after `after_sequence`, ending with a BuildFinished. A lost connection
        is made again from the last event seen; after several attempts in vain it raises Unavailable."""
        attempts = 0
        while self.name:  # a build that was only validated has no name and no events
            try:
                for event in self._events(after_sequence):
                    attempts, after_sequence = 0, event.sequence
                    yield event
                    if isinstance(event.detail, BuildFinished):
                        return
            except Unavailable:
                attempts += 1
                if attempts > REATTACH_ATTEMPTS:
                    raise
                time.sleep(min(0.2 * 2**attempts, MAX_REATTACH_DELAY_S))
                continue
            if self.done:
                return  # an operation that was done at once has no events

    def result(self, timeout: float | None = None) -> EngineVersion:
        """Waits for the end.

        Args:
            timeout: seconds for the whole wait; None waits for ever.

        Raises:
            TimeoutError: the time is over; the build goes on.
            EnginehouseError: the build failed or was cancelled.
        """
        if not self._operation.done:
            self._operation = wait_operation(self._calls, self._operation, timeout)
        if self._operation.HasField("error"):
            raise from_status(self._operation.error)
        version = engine_pb2.EngineVersion()
        if not self._operation.response.Unpack(version) or not version.name:
            raise FailedPrecondition(
                "The build was only validated, and no version has its key yet.", reason="VALIDATED_ONLY"
            )
        return from_proto(EngineVersion, version)

    def cancel(self) -> None:
        """Asks the daemon to stop the build and to remove what it began. One that has ended is left alone."""
        request = operations_pb2.CancelOperationRequest(name=self.name)
        self._calls.unary(self._calls.operations.CancelOperation, request)

    def _events(self, after_sequence: int) -> Iterator[BuildEvent]:
        """One attachment's events."""
        stub = builder_pb2_grpc.BuilderServiceStub(self._calls.channel)
        request = builder_pb2.WatchBuildRequest(operation=self.name, after_sequence=after_sequence)
        with self._calls.endpoint.errors():
            call = stub.WatchBuild(request, metadata=self._calls.endpoint.metadata)
            try:
                yield from map(_read_event, call)
            finally:
                call.cancel()

    def _refresh(self) -> operations_pb2.Operation:
        if not self._operation.done:
            request = operations_pb2.GetOperationRequest(name=self.name)
            self._operation = self._calls.unary(self._calls.operations.GetOperation, request)
        return self._operation

    def __repr__(self) -> str:
        return f"BuildHandle({self.name!r})"


_DETAILS = {"stage": StageStarted, "progress": StageProgress, "log": LogLine, "memory": MemorySample}


def _read_event(proto: builder_pb2.BuildEvent) -> BuildEvent:
    kind = proto.WhichOneof("event")
    detail: BuildDetail
    if kind == "finished":
        detail = from_proto(BuildFinished, proto.finished)
        detail = replace(detail, error=from_status(proto.finished.error) if proto.finished.HasField("error") else None)
    elif kind in _DETAILS:
        detail = from_proto(_DETAILS[kind], getattr(proto, kind))
    else:
        detail = LogLine(level="debug", text="An event that this client is too old to know.")
    when = datetime.fromtimestamp(proto.time.ToNanoseconds() / 1e9, UTC) if proto.HasField("time") else None
    return BuildEvent(sequence=proto.sequence, time=when, detail=detail)
