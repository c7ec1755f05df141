from __future__ import annotations

import asyncio
import uuid

import grpc
import pytest
from google.longrunning import operations_pb2

from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as config_pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse.errors import from_rpc_error, from_status
from tests.builder_service.serving import Remote, refused
from tests.builder_service.serving import metadata as build_metadata
from tests.builder_service.serving import version as built_version

INVALID, UNIMPLEMENTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED


async def _events(remote: Remote, operation: str, after: int = 0) -> list[pb.BuildEvent]:
    stream = remote.builder.WatchBuild(pb.WatchBuildRequest(operation=operation, after_sequence=after))
    return [event async for event in stream]


# Builds


async def test_a_build_ends_as_a_version_that_can_be_got(remote: Remote) -> None:
    operation = await remote.build(alias="prod")
    version = built_version(operation)
    assert (version.name, version.build_key, version.aliases) == ("engines/tiny/versions/1", "k1", ["prod"])
    metadata = build_metadata(operation)
    assert (metadata.stage, metadata.fraction) == (pb.BUILD_STAGE_SUCCEEDED, 1.0)
    assert metadata.HasField("end_time")
    for name in ("engines/tiny/versions/1", "engines/tiny/versions/latest", "engines/tiny/aliases/prod"):
        got = await remote.builder.GetEngineVersion(pb.GetEngineVersionRequest(name=name))
        assert (got.name, got.aliases, got.files) == (version.name, ["prod"], version.files)


async def test_a_watch_tells_everything_in_order_and_reattaches_by_sequence(remote: Remote) -> None:
    operation = await remote.builder.BuildEngine(remote.request())
    events = await _events(remote, operation.name)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].finished.version.name == "engines/tiny/versions/1"
    assert [event.WhichOneof("event") for event in events].count("finished") == 1
    fractions = [event.stage.fraction for event in events if event.WhichOneof("event") == "stage"]
    assert fractions == sorted(fractions)
    for after in (1, len(events) - 1, len(events)):
        assert await _events(remote, operation.name, after) == events[after:]


async def test_a_watch_that_was_dropped_does_not_disturb_the_build(remote: Remote) -> None:
    operation = await remote.builder.BuildEngine(remote.request())
    first = remote.builder.WatchBuild(pb.WatchBuildRequest(operation=operation.name))
    seen = [await first.read()]
    first.cancel()
    rest = await _events(remote, operation.name, seen[0].sequence)
    assert [event.sequence for event in [*seen, *rest]] == list(range(1, len(rest) + 2))
    assert rest[-1].finished.stage == pb.BUILD_STAGE_SUCCEEDED


async def test_a_request_id_makes_a_repeated_call_one_build(remote: Remote) -> None:
    request = remote.request(request_id=str(uuid.uuid4()))
    names = {(await remote.builder.BuildEngine(request)).name for _ in range(3)}
    assert len(names) == 1
    request.force = True
    with refused("REQUEST_ID_REUSED", grpc.StatusCode.ALREADY_EXISTS):
        await remote.builder.BuildEngine(request)
    with refused("INVALID_REQUEST_ID", INVALID):
        await remote.builder.BuildEngine(remote.request(request_id="7"))


async def test_failures_travel_with_reason_and_metadata(remote: Remote) -> None:
    operation = await remote.build("refuse")
    error = from_status(operation.error)
    assert (error.reason, error.metadata) == ("UNSUPPORTED_ARCHITECTURE", {"architecture": "Foo"})
    events = await _events(remote, operation.name)
    assert events[-1].finished.stage == pb.BUILD_STAGE_FAILED
    assert events[-1].finished.error == operation.error


async def test_cancel_over_the_wire_ends_as_cancelled(remote: Remote) -> None:
    operation = await remote.builder.BuildEngine(remote.request("hang"))
    async for event in remote.builder.WatchBuild(pb.WatchBuildRequest(operation=operation.name)):
        if event.WhichOneof("event") == "log":
            break
    await remote.operations.CancelOperation(operations_pb2.CancelOperationRequest(name=operation.name))
    done = await remote.done(operation)
    assert from_status(done.error).reason == "BUILD_CANCELLED"
    assert build_metadata(done).stage == pb.BUILD_STAGE_CANCELLED


async def test_operations_are_listed_newest_first_over_pages_and_forgotten_when_asked(remote: Remote) -> None:
    names = [(await remote.build(labels={"key": f"k{n}"})).name for n in range(3)]
    check = await remote.builder.VerifyEngineVersion(pb.VerifyEngineVersionRequest(name="engines/tiny/versions/1"))
    listed, token = [], ""
    while True:
        page = await remote.operations.ListOperations(
            operations_pb2.ListOperationsRequest(name="operations", page_size=3, page_token=token)
        )
        listed += [operation.name for operation in page.operations]
        if not (token := page.next_page_token):
            break
    assert listed == [*reversed(names), check.name]
    await remote.operations.DeleteOperation(operations_pb2.DeleteOperationRequest(name=names[0]))
    with refused("OPERATION_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
        await remote.operations.GetOperation(operations_pb2.GetOperationRequest(name=names[0]))


async def test_waiting_returns_in_time_for_a_build_that_goes_on(remote: Remote) -> None:
    operation = await remote.builder.BuildEngine(remote.request("hang"))
    request = operations_pb2.WaitOperationRequest(name=operation.name)
    request.timeout.FromMilliseconds(100)
    async with asyncio.timeout(5):
        assert not (await remote.operations.WaitOperation(request)).done
    with refused("OPERATION_RUNNING", grpc.StatusCode.FAILED_PRECONDITION):
        await remote.operations.DeleteOperation(operations_pb2.DeleteOperationRequest(name=operation.name))


# What is refused


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"engine_id": "Bad"}, "INVALID_RESOURCE_ID", "engine_id"),
        ({"source": None}, "INVALID_ARGUMENT", "source"),
        ({"source": pb.CheckpointSource(gguf=pb.GgufSource())}, "INVALID_ARGUMENT", "source.gguf"),
        ({"source": pb.CheckpointSource(path="/etc")}, "PATH_OUTSIDE_ROOTS", "source.path"),
        ({"source": pb.CheckpointSource(path="../state")}, "PATH_OUTSIDE_ROOTS", "source.path"),
        ({"source": pb.CheckpointSource(path="tiny\0")}, "INVALID_ARGUMENT", "source.path"),
        ({"source": pb.CheckpointSource(path="none")}, "CHECKPOINT_NOT_FOUND", "source.path"),
        ({"source": pb.CheckpointSource(hub=pb.HubSource(repo="../x"))}, "INVALID_ARGUMENT", "source.hub.repo"),
        ({"alias": "latest"}, "INVALID_ARGUMENT", "alias"),
        ({"labels": {"x" * 64: "y"}}, "INVALID_ARGUMENT", "labels"),
        ({"targets": [pb.TargetSpec()]}, "INVALID_ARGUMENT", "targets[0].form"),
        ({"build_config": config_pb.BuildConfig(max_seq_len=0)}, "INVALID_ARGUMENT", "build_config.max_seq_len"),
        (
            {"build_config": config_pb.BuildConfig(tokens_per_block=24)},
            "INVALID_ARGUMENT",
            "build_config.tokens_per_block",
        ),
        (
            {"build_config": config_pb.BuildConfig(dtype=common_pb2.DATA_TYPE_INT8)},
            "INVALID_ARGUMENT",
            "build_config.dtype",
        ),
    ],
)
async def test_a_bad_request_is_refused_before_it_is_queued(
    remote: Remote, change: dict[str, object], reason: str, field: str
) -> None:
    with refused(reason) as caught:
        await remote.builder.BuildEngine(remote.request(**change))
    assert caught[0].metadata["field"] == field
    assert not (await remote.operations.ListOperations(operations_pb2.ListOperationsRequest())).operations


async def test_a_request_too_long_to_keep_is_refused_unknown_fields_and_all(remote: Remote) -> None:
    request, unknown = remote.request(), b"\xc2\x3e\x80\x80\x08" + bytes(128 << 10)  # field 1000, bytes
    request.MergeFromString(unknown)
    with refused("REQUEST_TOO_LARGE"):
        await remote.builder.BuildEngine(request)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"quant_config": config_pb.QuantConfig(quant_algo=config_pb.QUANT_ALGO_FP8)}, "quant_config"),
        ({"parallel_config": common_pb2.ParallelConfig(tensor_parallel_size=2)}, "parallel_config"),
        ({"targets": [pb.TargetSpec(form=common_pb2.TARGET_FORM_TENSORRT)]}, "targets.form"),
        ({"build_config": config_pb.BuildConfig(max_beam_width=4)}, "build_config.max_beam_width"),
        ({"build_config": config_pb.BuildConfig(use_refit=True)}, "build_config.use_refit"),
        ({"tokenizer": pb.TokenizerSource(trust_remote_code=True)}, "tokenizer"),
        ({"dummy_seed": 3}, "dummy_seed"),
        ({"verify": pb.VerifyOptions(max_mean_kl=0.3)}, "verify.max_mean_kl"),
    ],
)
async def test_what_is_not_honoured_is_refused_by_name(remote: Remote, change: dict[str, object], field: str) -> None:
    with refused("UNSUPPORTED_FIELD", UNIMPLEMENTED) as caught:
        await remote.builder.BuildEngine(remote.request(**change))
    assert caught[0].metadata["field"] == field


async def test_values_that_only_say_what_happens_anyway_are_accepted(remote: Remote) -> None:
    operation = await remote.builder.BuildEngine(
        remote.request(
            validate_only=True,
            quant_config=config_pb.QuantConfig(quant_algo=config_pb.QUANT_ALGO_NO_QUANT),
            parallel_config=common_pb2.ParallelConfig(tensor_parallel_size=1),
            build_config=config_pb.BuildConfig(max_beam_width=1, kv_cache_type=config_pb.KV_CACHE_TYPE_PAGED),
        )
    )
    assert operation.done


async def test_a_link_does_not_lead_out_of_the_roots_and_the_error_lists_them(remote: Remote) -> None:
    (remote.root / "models" / "out").symlink_to("/etc")
    with refused("PATH_OUTSIDE_ROOTS", INVALID) as caught:
        await remote.builder.BuildEngine(remote.request(source=pb.CheckpointSource(path="out")))
    assert caught[0].metadata["roots"] == str(remote.root / "models")
    assert str(remote.root / "models") in caught[0].message


async def test_a_file_that_is_a_link_out_of_the_roots_is_not_copied_into_an_engine(remote: Remote) -> None:
    checkpoint = remote.root / "models" / "linked"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "weights.safetensors").symlink_to(checkpoint / "config.json")
    request = remote.request(source=pb.CheckpointSource(path="linked"), validate_only=True)
    assert (await remote.builder.BuildEngine(request)).done
    (checkpoint / "tokenizer.json").symlink_to("/etc/hostname")
    with refused("PATH_OUTSIDE_ROOTS", INVALID) as caught:
        await remote.builder.BuildEngine(request)
    assert caught[0].metadata["path"] == "tokenizer.json"


@pytest.mark.parametrize("text", ["loop", "loop/x", "x" * 300, "a/" * 2000, "\ue000" * 4000])
async def test_a_path_that_no_file_system_takes_is_refused_and_said_so(remote: Remote, text: str) -> None:
    loop = remote.root / "models" / "loop"
    if not loop.is_symlink():
        loop.symlink_to("loop")
    for source in (pb.CheckpointSource(path=text), pb.CheckpointSource(gguf=pb.GgufSource(path=text))):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await remote.builder.BuildEngine(remote.request(source=source))
        error = from_rpc_error(caught.value)
        assert error.reason in ("PATH_OUTSIDE_ROOTS", "CHECKPOINT_NOT_FOUND"), error


async def test_a_checkpoint_that_went_away_does_not_hide_the_builds(remote: Remote) -> None:
    checkpoint = remote.root / "models" / "fading"
    checkpoint.mkdir()
    operation = await remote.builder.BuildEngine(remote.request(source=pb.CheckpointSource(path="fading")))
    (checkpoint / "model.safetensors").symlink_to("gone")
    await remote.operations.GetOperation(operations_pb2.GetOperationRequest(name=operation.name))
    assert (await remote.operations.ListOperations(operations_pb2.ListOperationsRequest())).operations
