"""`validate_only` over a real socket: the answers of a build, without the build."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.longrunning import operations_pb2

from builder_service.api.validator import Validator
from builder_service.daemon import BuilderSettings
from builder_service.job import BuildJob, SourceSpec
from builder_service.queue.process import ChildSettings
from engine_store.owner import owner_alive
from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as config_pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import engine_pb2
from enginehouse.errors import DeadlineExceeded, ResourceExhausted
from tests.builder_service.serving import SCRIPTED, refused, running, settings
from tests.builder_service.sources.fake_hub import serve_hub


def _answer(operation: operations_pb2.Operation) -> tuple[pb.BuildMetadata, engine_pb2.EngineVersion]:
    metadata, version = pb.BuildMetadata(), engine_pb2.EngineVersion()
    assert (operation.done, operation.name) == (True, "")
    assert operation.metadata.Unpack(metadata)
    assert operation.response.Unpack(version)
    return metadata, version


def _job(tmp_path: Path, do: str) -> BuildJob:
    source = SourceSpec(kind="huggingface", path=str(tmp_path))
    return BuildJob(engine_id="e", store=str(tmp_path), cache=str(tmp_path), source=source, labels={"do": do})


def _real(tmp_path: Path, checkpoint: Path, **changes: object) -> BuilderSettings:
    return settings(tmp_path, roots=(checkpoint.parent,), child=ChildSettings(), **changes)


async def test_it_finds_the_key_and_the_version_that_has_it_and_builds_nothing(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        metadata, version = _answer(await remote.builder.BuildEngine(remote.request(validate_only=True)))
        assert (metadata.build_key, metadata.reused, metadata.message, version.name) == ("k1", False, "a note", "")
        assert not (await remote.operations.ListOperations(operations_pb2.ListOperationsRequest())).operations
        await remote.build(alias="prod")
        dry_run = remote.request(build_config=config_pb.BuildConfig(dry_run=True))
        metadata, version = _answer(await remote.builder.BuildEngine(dry_run))
        assert (metadata.reused, version.name, version.aliases) == (True, "engines/tiny/versions/1", ["prod"])


async def test_a_real_check_tells_the_key_that_the_build_then_has(
    tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = make_checkpoint()
    async with running(_real(tmp_path, checkpoint)) as remote:
        request = pb.BuildEngineRequest(
            engine_id="real", source=pb.CheckpointSource(path=str(checkpoint)), verify=pb.VerifyOptions(off=True)
        )
        built = await remote.done(await remote.builder.BuildEngine(request), 60)
        version = engine_pb2.EngineVersion()
        assert built.response.Unpack(version), built
        request.validate_only = True
        metadata, found = _answer(await remote.builder.BuildEngine(request))
        assert metadata.build_key == version.build_key
        assert found.name == version.name
        assert version.size_bytes * 0.9 < metadata.estimate.disk_bytes < version.size_bytes * 1.1
        assert metadata.estimate.memory_bytes > 200 << 20
        assert metadata.estimate.duration.ToSeconds() > 0
        request.build_config.max_seq_len = 64
        metadata, found = _answer(await remote.builder.BuildEngine(request))
        assert metadata.build_key != version.build_key
        assert found.name == ""
        assert len(remote.store.list_versions("real")) == 1


async def test_a_bad_checkpoint_answers_with_its_error_at_once(
    tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = make_checkpoint()
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    async with running(_real(tmp_path, checkpoint)) as remote:
        request = pb.BuildEngineRequest(
            engine_id="bad", source=pb.CheckpointSource(path=str(checkpoint)), validate_only=True
        )
        with refused("CHECKPOINT_TRUNCATED", grpc.StatusCode.FAILED_PRECONDITION) as caught:
            await remote.builder.BuildEngine(request)
        assert caught[0].metadata["file"] == "model.safetensors"


async def test_of_a_hub_repository_the_small_files_alone_are_fetched_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = make_checkpoint()
    (checkpoint / "model.gguf").write_bytes(b"x" * 1000)
    with serve_hub() as hub:
        hub.add("owner/name", checkpoint)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        async with running(settings(tmp_path, child=ChildSettings())) as remote:

            async def check(source: pb.CheckpointSource) -> pb.BuildMetadata:
                request = pb.BuildEngineRequest(engine_id="hub", source=source, validate_only=True)
                return _answer(await remote.builder.BuildEngine(request))[0]

            repository = pb.CheckpointSource(hub=pb.HubSource(repo="owner/name"))
            metadata = await check(repository)
            assert metadata.estimate.disk_bytes > 200_000
            assert metadata.build_key == ""
            size = (checkpoint / "model.safetensors").stat().st_size
            assert metadata.message == (
                f"owner/name is not in the builder's cache: {size} bytes on the hub were not checked"
            )
            gguf = pb.HubFile(repo="owner/name", file="model.gguf")
            assert "1000 bytes" in (await check(pb.CheckpointSource(gguf=pb.GgufSource(hub_file=gguf)))).message
            gguf.file = "other.gguf"
            with refused("HUB_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
                await check(pb.CheckpointSource(gguf=pb.GgufSource(hub_file=gguf)))
        assert not hub.gets("safetensors")
        assert not hub.gets("gguf")


@pytest.mark.long  # a hub is waited for
async def test_a_hub_that_is_not_there_is_unavailable_and_never_asked_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    request = pb.BuildEngineRequest(
        engine_id="hub", source=pb.CheckpointSource(hub=pb.HubSource(repo="owner/name")), validate_only=True
    )
    async with running(settings(tmp_path, child=ChildSettings())) as remote:
        with refused("HUB_UNREACHABLE", grpc.StatusCode.UNAVAILABLE):
            await remote.builder.BuildEngine(request)
    async with running(settings(tmp_path, child=ChildSettings(), offline=True)) as remote:
        with refused("NOT_IN_CACHE", grpc.StatusCode.NOT_FOUND):
            await remote.builder.BuildEngine(request)


@pytest.mark.parametrize(("do", "reason"), [("refuse", "UNSUPPORTED_ARCHITECTURE"), ("crash", "INTERNAL")])
async def test_a_check_that_fails_or_crashes_hurts_nobody_else(tmp_path: Path, do: str, reason: str) -> None:
    async with running(settings(tmp_path)) as remote:
        with refused(reason):
            await remote.builder.BuildEngine(remote.request(do, validate_only=True))
        assert await remote.serving()


async def test_a_check_above_the_memory_limit_is_ended(tmp_path: Path) -> None:
    limited = ChildSettings(command=SCRIPTED, memory_limit=96 << 20, sample_seconds=0.05)
    async with running(settings(tmp_path, child=limited)) as remote:
        with refused("MEMORY_LIMIT", grpc.StatusCode.RESOURCE_EXHAUSTED):
            await remote.builder.BuildEngine(remote.request("hog", validate_only=True))


async def test_a_caller_that_goes_away_ends_its_check(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as remote:
        call = remote.builder.BuildEngine(remote.request("hang", validate_only=True))
        while not list((tmp_path / "store" / "staging").glob("*/half")):
            await asyncio.sleep(0.02)
        call.cancel()
        began = time.monotonic()
        while _hanging(tmp_path):
            assert time.monotonic() - began < 3
            await asyncio.sleep(0.02)


def _hanging(root: Path) -> list[str]:
    """Staging entries whose writer, the hanging child, lives."""
    return [entry.name for entry in (root / "store" / "staging").iterdir() if owner_alive(entry.name)]


async def test_checks_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    validator = Validator(ChildSettings(command=SCRIPTED), places=1, waiting=1, seconds=0.5)
    calls = [asyncio.create_task(validator.check(_job(tmp_path, "hang"))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="2 checks") as full:
        await validator.check(_job(tmp_path, "hang"))
    assert (full.value.reason, full.value.retry_after) == ("VALIDATIONS_FULL", 5.0)
    for call in calls:
        with pytest.raises(DeadlineExceeded, match="took longer"):
            await call
    with contextlib.suppress(DeadlineExceeded):
        assert (await validator.check(_job(tmp_path, "publish"))).build_key == "k1"
