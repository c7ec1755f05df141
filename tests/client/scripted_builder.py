"""A builder daemon with a script for a build, over real sockets.

Each build has eight events. `breaks` counts how often a watch is cut after two events; engine id "bad" fails.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf import empty_pb2

from enginehouse._download import PieceDigest
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2, builder_pb2_grpc, engine_pb2
from enginehouse.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable, to_status
from tests.client.scripted import RunningServer

STAGES = ("FETCHING", "CONVERTING", "PUBLISHING")
FILES = {"engine.json": b"{}", "weights/rank0.safetensors": b"w" * 3000}


class ScriptedBuilder(builder_pb2_grpc.BuilderServiceServicer):
    def __init__(self, operations: ScriptedOperations) -> None:
        self.operations = operations
        self.requests: list[builder_pb2.BuildEngineRequest] = []
        self.watches: list[int] = []
        self.breaks = 0
        self.aliases: dict[str, engine_pb2.Alias] = {}
        self.bad_files = False
        self.pause = 0.01
        """Seconds before each event of a watch."""
        self.existing = False
        """Whether a version has the key of what is only validated."""
        self.chunks: list[builder_pb2.FileChunk] | None = None
        """Sent by a download instead of the files."""

    async def BuildEngine(self, request: Any, context: Any) -> Any:
        if request.source.path == "/secret":
            raise PermissionDenied("Checkpoints are read under /models only.", reason="OUTSIDE_ROOTS")
        self.requests.append(request)
        operation = self.operations.add(request)
        if request.validate_only:
            metadata = builder_pb2.BuildMetadata()
            metadata.estimate.memory_bytes = 1 << 30
            metadata.message, metadata.build_key = ("a note", "k") if self.existing else ("", "")
            operation = operations_pb2.Operation(done=True)
            operation.metadata.Pack(metadata)
            operation.response.Pack(_version() if self.existing else engine_pb2.EngineVersion())
        return operation

    async def WatchBuild(self, request: Any, context: Any) -> Any:
        self.watches.append(request.after_sequence)
        events = self.operations.events(request.operation)
        for sent, event in enumerate(events[request.after_sequence :]):
            if self.breaks and sent == 2:
                self.breaks -= 1
                raise Unavailable("Restarting.", reason="DRAINING")
            await asyncio.sleep(self.pause)
            yield event

    async def GetEngineVersion(self, request: Any, context: Any) -> Any:
        if not request.name.startswith("engines/tiny/"):
            raise NotFound("No such engine; list them with `enginehouse engines list`.", reason="ENGINE_NOT_FOUND")
        return _version(number=int(number)) if (number := request.name.rpartition("/")[2]).isdigit() else _version()

    async def CollectGarbage(self, request: Any, context: Any) -> Any:
        evicted = [] if request.validate_only else ["engines/tiny/versions/3"]
        return builder_pb2.CollectGarbageResponse(
            removed_versions=["engines/tiny/versions/2"],
            evicted_versions=evicted,
            waiting_versions=["engines/tiny/versions/4"],
            removed_blobs=1,
            freed_bytes=1 << 20,
            used_bytes=3 << 20,
            quota_bytes=4 << 20,
        )

    async def ListEngines(self, request: Any, context: Any) -> Any:
        engine = engine_pb2.Engine(name="engines/tiny", latest_version=1, version_count=1)
        engine.aliases.extend(self.aliases.values())
        return builder_pb2.ListEnginesResponse(engines=[engine])

    async def ListEngineVersions(self, request: Any, context: Any) -> Any:
        return builder_pb2.ListEngineVersionsResponse(engine_versions=[_version()])

    async def DeleteEngineVersion(self, request: Any, context: Any) -> Any:
        return _version()

    async def SetAlias(self, request: Any, context: Any) -> Any:
        alias = self.aliases[request.name] = engine_pb2.Alias(name=request.name, version=request.version, etag="1")
        return alias

    async def DeleteAlias(self, request: Any, context: Any) -> Any:
        if self.aliases.pop(request.name, None) is None:
            raise NotFound("No such alias.", reason="ALIAS_NOT_FOUND")
        return empty_pb2.Empty()

    async def ListAliases(self, request: Any, context: Any) -> Any:
        return builder_pb2.ListAliasesResponse(aliases=list(self.aliases.values()))

    async def VerifyEngineVersion(self, request: Any, context: Any) -> Any:
        response = builder_pb2.VerifyEngineVersionResponse(name=request.name, intact=not self.bad_files)
        if self.bad_files:
            response.problems.add(path="graph.json", problem="digest", expected="a", found="b")
        operation = operations_pb2.Operation(name="operations/verify", done=True)
        operation.response.Pack(response)
        return operation

    async def DownloadEngineVersion(self, request: Any, context: Any) -> Any:
        for chunk in self.chunks or ():
            yield chunk
        for path, data in FILES.items() if self.chunks is None else ():
            known = "" if path == "engine.json" else _digest(data)
            sent = b"x" * len(data) if self.bad_files else data
            for offset in range(0, len(data), 1000):
                last = offset + 1000 >= len(data)
                yield builder_pb2.FileChunk(
                    path=path,
                    offset=offset,
                    data=sent[offset : offset + 1000],
                    size_bytes=len(data),
                    digest=known if last else "",
                )


class ScriptedOperations(operations_pb2_grpc.OperationsServicer):
    def __init__(self) -> None:
        self.known: dict[str, builder_pb2.BuildEngineRequest] = {}
        self.cancelled: list[str] = []
        self.done = True
        self.metadata: dict[str, Any] = {}
        """Said of every build, beside what is always said."""

    def add(self, request: builder_pb2.BuildEngineRequest) -> operations_pb2.Operation:
        name = f"operations/{hashlib.sha256(request.request_id.encode()).hexdigest()[:8]}"
        self.known[name] = request
        return operations_pb2.Operation(name=name)

    def events(self, name: str) -> list[builder_pb2.BuildEvent]:
        request = self._get(name)
        events = []
        for index, stage in enumerate(STAGES):
            value = builder_pb2.BuildStage.Value(f"BUILD_STAGE_{stage}")
            events.append(builder_pb2.BuildEvent(stage=builder_pb2.StageStarted(stage=value, fraction=index / 3)))
            events.append(builder_pb2.BuildEvent(progress=builder_pb2.StageProgress(done=5, total=10, unit="tensors")))
        level = builder_pb2.LOG_LEVEL_WARNING
        events.append(builder_pb2.BuildEvent(log=builder_pb2.LogLine(level=level, text="dtype is a guess")))
        events.append(builder_pb2.BuildEvent(finished=_finished(request)))
        for sequence, event in enumerate(events, 1):
            event.sequence = sequence
            event.time.FromSeconds(1000 + sequence)
        return events

    async def GetOperation(self, request: Any, context: Any) -> Any:
        return self._operation(request.name)

    async def WaitOperation(self, request: Any, context: Any) -> Any:
        if not self.done:
            await asyncio.sleep(min(0.1, request.timeout.ToNanoseconds() / 1e9))
        return self._operation(request.name)

    async def ListOperations(self, request: Any, context: Any) -> Any:
        return operations_pb2.ListOperationsResponse(operations=map(self._operation, self.known))

    async def CancelOperation(self, request: Any, context: Any) -> Any:
        self._get(request.name)
        self.cancelled.append(request.name)
        return empty_pb2.Empty()

    def _get(self, name: str) -> builder_pb2.BuildEngineRequest:
        if name not in self.known:
            raise NotFound(f"There is no operation {name}.", reason="OPERATION_NOT_FOUND")
        return self.known[name]

    def _operation(self, name: str) -> operations_pb2.Operation:
        request = self._get(name)
        operation = operations_pb2.Operation(name=name, done=self.done)
        stage = "FAILED" if request.engine_id == "bad" else "SUCCEEDED"
        metadata = builder_pb2.BuildMetadata(
            stage=builder_pb2.BuildStage.Value(f"BUILD_STAGE_{stage if self.done else 'CONVERTING'}"),
            engine=f"engines/{request.engine_id}",
            fraction=1.0 if self.done else 0.5,
            **self.metadata,
        )
        metadata.create_time.FromSeconds(1000)
        operation.metadata.Pack(metadata)
        if self.done and request.engine_id == "bad":
            operation.error.CopyFrom(_failure())
        elif self.done:
            operation.response.Pack(_version(request.engine_id))
        return operation


def _finished(request: builder_pb2.BuildEngineRequest) -> builder_pb2.BuildFinished:
    if request.engine_id == "bad":
        return builder_pb2.BuildFinished(stage=builder_pb2.BUILD_STAGE_FAILED, error=_failure())
    return builder_pb2.BuildFinished(
        stage=builder_pb2.BUILD_STAGE_SUCCEEDED, version=_version(request.engine_id or "tiny")
    )


def _failure() -> Any:
    return to_status(
        InvalidArgument("The checkpoint is truncated; fetch it again.", reason="TRUNCATED", metadata={"file": "w"})
    )


def _digest(data: bytes) -> str:
    digest = PieceDigest()
    digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def _version(engine: str = "tiny", number: int = 1) -> engine_pb2.EngineVersion:
    """Version 2 has another sequence length and another build fact than version 1; version 3 only other timings."""
    second = number == 2
    version = engine_pb2.EngineVersion(
        name=f"engines/{engine}/versions/{number}",
        build_key="k",
        size_bytes=3002,
        architecture="LlamaForCausalLM",
        build_facts={"python": "3.12" if second else "3.11", "converting_seconds": str(number)},
        libraries={"torch": "2.13.0"},
    )
    for path, data in FILES.items():
        if path != "engine.json":
            version.files.add(path=path, size_bytes=len(data), digest=_digest(data))
    version.last_use_time.FromSeconds(2000)
    version.source.location = "/models/tiny"
    version.targets.add(name="torch", form=1, verification=1)
    version.create_time.FromSeconds(1000)
    version.limits.max_seq_len = 64 if second else 128
    return version


class ScriptedBuilderServer(RunningServer):
    """The whole scripted builder daemon."""

    def __init__(self) -> None:
        self.operations = ScriptedOperations()
        self.builder = ScriptedBuilder(self.operations)
        super().__init__(self._add)

    def _add(self, server: grpc.aio.Server) -> None:
        builder_pb2_grpc.add_BuilderServiceServicer_to_server(self.builder, server)
        operations_pb2_grpc.add_OperationsServicer_to_server(self.operations, server)
