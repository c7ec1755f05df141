from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from builder_service.daemon import only_builder
from builder_service.queue.process import ChildSettings
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2_grpc, engine_pb2
from enginehouse.errors import FailedPrecondition, InvalidArgument
from service_kit.server import ServerSettings
from tests.builder_service.serving import SCRIPTED, refused, running, settings

DAEMON = """
import sys
from pathlib import Path
from builder_service.daemon import BuilderSettings, main
from builder_service.queue.process import ChildSettings
from service_kit import logs
from service_kit.server import ServerSettings
logs.setup()
root = Path(sys.argv[1])
main(BuilderSettings(store=root / "store", state=root / "state", roots=(root / "models",),
    server=ServerSettings(port=int(sys.argv[2]), grace_seconds=5), child=ChildSettings(command=tuple(sys.argv[3:]))))
"""


async def test_health_says_serving_once_the_queue_is_open(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        assert await remote.serving()


async def test_a_restarted_daemon_takes_up_where_the_last_one_stopped(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        operation = await remote.builder.BuildEngine(remote.request("once"))
        while not (tmp_path / "state" / "cache" / "begun").exists():
            await asyncio.sleep(0.02)
    async with running(settings(tmp_path)) as remote:
        done = await remote.done(operation)
        metadata = pb.BuildMetadata()
        assert done.metadata.Unpack(metadata)
        assert (metadata.stage, metadata.attempt) == (pb.BUILD_STAGE_SUCCEEDED, 2)


async def test_a_real_checkpoint_becomes_a_verified_engine(
    tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    """The real child, from a tiny random checkpoint to a version whose files are intact, found again the next time."""
    checkpoint = make_checkpoint()
    chosen = settings(tmp_path, roots=(checkpoint.parent,), child=ChildSettings())
    async with running(chosen) as remote:
        request = pb.BuildEngineRequest(engine_id="real", source=pb.CheckpointSource(path=str(checkpoint)))
        names = []
        for _ in range(2):
            done = await remote.done(await remote.builder.BuildEngine(request), 60)
            version = engine_pb2.EngineVersion()
            assert done.response.Unpack(version), done
            names.append(version.name)
            watch = remote.builder.WatchBuild(pb.WatchBuildRequest(operation=done.name))
            moved = [event.time.ToNanoseconds() / 1e9 async for event in watch if event.WhichOneof("event") != "memory"]
            assert max(later - earlier for earlier, later in itertools.pairwise(moved)) < 1.5
        assert names == ["engines/real/versions/1"] * 2
        assert version.verify_report.passed
        assert version.targets[0].verification == engine_pb2.TARGET_VERIFICATION_EXECUTED
        assert remote.store.inspect("real", 1) == []


async def test_a_daemon_whose_port_is_taken_costs_its_builds_no_attempt(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        operation = await remote.builder.BuildEngine(remote.request("once"))
        while not (tmp_path / "state" / "cache" / "begun").exists():
            await asyncio.sleep(0.02)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = settings(tmp_path, server=ServerSettings(port=taken.getsockname()[1], grace_seconds=5))
        for _ in range(4):
            with pytest.raises(FailedPrecondition, match="cannot be used"):
                async with running(busy):
                    pass
    async with running(settings(tmp_path)) as remote:
        metadata = pb.BuildMetadata()
        assert (await remote.done(operation)).metadata.Unpack(metadata)
        assert (metadata.stage, metadata.attempt) == (pb.BUILD_STAGE_SUCCEEDED, 2)


async def test_an_open_watch_ends_with_advice_when_the_daemon_ends(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        operation = await remote.builder.BuildEngine(remote.request("hang"))
        watch = remote.builder.WatchBuild(pb.WatchBuildRequest(operation=operation.name))
        began = asyncio.Event()

        async def read_on() -> None:
            with refused("DRAINING", grpc.StatusCode.UNAVAILABLE) as caught:
                async for _ in watch:
                    began.set()
            assert caught[0].retry_after

        reader = asyncio.create_task(read_on())
        await began.wait()
        await remote.daemon.drain()
        await reader


async def test_an_open_wait_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        operation = await remote.builder.BuildEngine(remote.request("hang"))
        waiting = asyncio.create_task(remote.done(operation))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(4):
            await remote.daemon.drain()
        assert not (await waiting).done


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_kill_9_of_the_daemon_loses_no_build_and_leaves_no_orphan(tmp_path: Path) -> None:
    """A real daemon process dies in the middle of a build; the next one ends the orphan and builds again."""
    chosen = settings(tmp_path)
    port = _free_port()
    command = [sys.executable, "-c", DAEMON, str(tmp_path), str(port), *SCRIPTED]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = builder_pb2_grpc.BuilderServiceStub(channel)
            request = pb.BuildEngineRequest(
                engine_id="tiny", source=pb.CheckpointSource(path="tiny"), labels={"do": "once"}
            )
            operation = await stub.BuildEngine(request, wait_for_ready=True, timeout=20)
            while not (tmp_path / "state" / "cache" / "begun").exists():
                await asyncio.sleep(0.02)
        orphans = _children(daemon.pid)
        daemon.kill()
    assert all(map(_alive, orphans))
    assert len(orphans) == 1
    async with running(chosen) as remote:
        done = await remote.done(operation)
        assert done.done
        assert not done.HasField("error"), done
    assert not any(map(_alive, orphans))


async def test_sigterm_ends_the_daemon_in_order(tmp_path: Path) -> None:
    settings(tmp_path)
    port = _free_port()
    command = [sys.executable, "-c", DAEMON, str(tmp_path), str(port), *SCRIPTED]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 20)
        daemon.send_signal(signal.SIGTERM)
        _, log = daemon.communicate(timeout=20)
    assert daemon.returncode == 0
    assert "listening" in log
    assert str(port) in log


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def test_two_builders_never_share_a_queue(tmp_path: Path) -> None:
    with only_builder(tmp_path), pytest.raises(FailedPrecondition, match="Another builder"), only_builder(tmp_path):
        pass
    with only_builder(tmp_path):
        pass


async def test_a_damaged_queue_is_told_at_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "builds.sqlite").write_bytes(b"no database " * 100)
    with pytest.raises(FailedPrecondition, match="move it away"):
        async with running(settings(tmp_path)):
            pass


def test_a_missing_root_is_told_at_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no directory"):
        settings(tmp_path, roots=(tmp_path / "none",))


async def test_a_store_that_cannot_be_made_is_told_at_start(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(FailedPrecondition, match="cannot be used"):
        async with running(settings(tmp_path)):
            pass
