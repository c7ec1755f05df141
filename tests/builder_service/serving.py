"""A builder daemon on a real socket, with scripted children, for tests."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from builder_service.daemon import BuilderSettings, register
from builder_service.queue.process import ChildSettings
from engine_store import EngineStore
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2_grpc, engine_pb2
from enginehouse.errors import EnginehouseError, from_rpc_error
from service_kit.server import Daemon, ServerSettings, serving

SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))


def metadata(operation: operations_pb2.Operation) -> pb.BuildMetadata:
    """What an operation says of its build."""
    message = pb.BuildMetadata()
    assert operation.metadata.Unpack(message)
    return message


def version(operation: operations_pb2.Operation) -> engine_pb2.EngineVersion:
    """The version of a build that succeeded."""
    message = engine_pb2.EngineVersion()
    assert operation.done
    assert operation.response.Unpack(message), operation
    return message


@dataclass
class Remote:
    """What a test needs of a running daemon: stubs over one channel, and the store behind it."""

    builder: builder_pb2_grpc.BuilderServiceStub
    operations: operations_pb2_grpc.OperationsStub
    health: health_pb2_grpc.HealthStub
    store: EngineStore
    root: Path
    daemon: Daemon

    def request(self, do: str = "publish", **fields: object) -> pb.BuildEngineRequest:
        source = pb.CheckpointSource(path=str(self.root / "models" / "tiny"))
        labels = {"do": do, **fields.pop("labels", {})}
        return pb.BuildEngineRequest(**{"engine_id": "tiny", "source": source, "labels": labels, **fields})

    async def done(self, operation: operations_pb2.Operation, seconds: int = 20) -> operations_pb2.Operation:
        request = operations_pb2.WaitOperationRequest(name=operation.name)
        request.timeout.FromSeconds(seconds)
        return await self.operations.WaitOperation(request)

    async def build(self, do: str = "publish", **fields: object) -> operations_pb2.Operation:
        """Builds and waits."""
        return await self.done(await self.builder.BuildEngine(self.request(do, **fields)))

    async def serving(self) -> bool:
        answer = await self.health.Check(health_pb2.HealthCheckRequest())
        return answer.status == health_pb2.HealthCheckResponse.SERVING


def settings(root: Path, **changes: object) -> BuilderSettings:
    (root / "models" / "tiny").mkdir(parents=True, exist_ok=True)
    return BuilderSettings(
        **{
            "store": root / "store",
            "state": root / "state",
            "roots": (root / "models",),
            "server": ServerSettings(port=0, grace_seconds=5),
            "child": ChildSettings(command=SCRIPTED),
            **changes,
        }
    )


@contextlib.asynccontextmanager
async def running(chosen: BuilderSettings) -> AsyncIterator[Remote]:
    """The daemon of these settings and a client."""
    async with (
        serving(chosen.server, lambda daemon: register(daemon, chosen)) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        yield Remote(
            builder_pb2_grpc.BuilderServiceStub(channel),
            operations_pb2_grpc.OperationsStub(channel),
            health_pb2_grpc.HealthStub(channel),
            EngineStore(chosen.store),
            chosen.store.parent,
            daemon,
        )


@contextlib.contextmanager
def refused(reason: str, code: grpc.StatusCode | None = None):
    """The call inside ends with this reason; yields a list that then holds the error."""
    caught: list[EnginehouseError] = []
    try:
        yield caught
    except grpc.RpcError as error:
        caught.append(from_rpc_error(error))
        assert caught[0].reason == reason, caught[0].message
        assert code is None or caught[0].code == code
    else:
        raise AssertionError(f"was not refused with {reason}")
