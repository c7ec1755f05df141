"""Every RPC of both daemons against messages that nobody should send."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.longrunning import operations_pb2
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from enginehouse._gen.enginehouse.builder.v1 import builder_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, model_pb2, telemetry_pb2

from .daemons import Home, Process, daemons, make_home, wait_serving
from .rpcs import Fuzzer

COMMON = {"google.longrunning.Operations", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
SERVICES = {
    "builder": COMMON | {service.full_name for service in builder_pb2.DESCRIPTOR.services_by_name.values()},
    "inference": COMMON
    | {
        service.full_name
        for file in (inference_pb2, model_pb2, telemetry_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    },
}
# imported, so that the pool of descriptors knows them
COMMON_FILES = (health_pb2, reflection_pb2, operations_pb2)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("fuzz") / "home")


@pytest.fixture
def processes(home: Home) -> Iterator[dict[str, Process]]:
    with daemons(home) as running:
        for process in running.values():
            wait_serving(process)
        yield running


def methods_of(process: Process) -> list[str]:
    """All methods that the daemon says it has; none of the contract's is missing."""
    with grpc.insecure_channel(process.address) as channel:
        found = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert found == SERVICES[process.name]
    pool = descriptor_pool.Default()
    return [f"/{name}/{method.name}" for name in sorted(found) for method in pool.FindServiceByName(name).methods]


def fuzz(home: Home, processes: dict[str, Process], folder: Path, seconds: float) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    seconds = float(os.environ.get("FUZZ_SECONDS") or seconds)
    methods = {name: methods_of(process) for name, process in processes.items()}

    async def run() -> list[str]:
        report = await Fuzzer(seed, home, processes, folder).run(methods, seconds)
        called = set(report.calls)
        assert called == {method for known in methods.values() for method in known}
        lines = [*report.lines(), f"  seed: FUZZ_SEED={seed}"]
        print("\n".join(lines))
        return lines if report.faults else []

    if lines := asyncio.run(run()):
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.timeout(300)
def test_no_message_to_any_rpc_breaks_a_daemon(home: Home, processes: dict[str, Process], tmp_path: Path) -> None:
    fuzz(home, processes, tmp_path, 12)


@pytest.mark.long
def test_no_message_to_any_rpc_breaks_a_daemon_for_ten_minutes(
    home: Home, processes: dict[str, Process], tmp_path: Path
) -> None:
    fuzz(home, processes, tmp_path, 600)
