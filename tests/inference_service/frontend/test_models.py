"""Loading, unloading and watching models; what an executor's death does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine_store.manifest import Mapping, Target
from enginehouse import errors
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import model_pb2 as mpb
from enginehouse._gen.enginehouse.inference.v1 import telemetry_pb2 as tpb

from .serving import Rig, ScriptedRunner, publish, start

UUID = "6b1cf46e-93ba-4f2b-9a0e-2f1f5f6b8f11"


async def refusal(call: Any) -> errors.EnginehouseError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return errors.from_rpc_error(caught.value)


async def wait(rig: Rig, operation: operations_pb2.Operation) -> operations_pb2.Operation:
    stub = operations_pb2_grpc.OperationsStub(rig.channel)
    return await stub.WaitOperation(
        operations_pb2.WaitOperationRequest(name=operation.name, timeout=Duration(seconds=10))
    )


async def load(rig: Rig, **fields: Any) -> mpb.Model:
    done = await wait(rig, await rig.models.LoadModel(mpb.LoadModelRequest(**fields)))
    if done.HasField("error"):
        raise errors.from_status(done.error)
    model = mpb.Model()
    assert done.response.Unpack(model)
    return model


async def serving_status(rig: Rig) -> int:
    response = await health_pb2_grpc.HealthStub(rig.channel).Check(health_pb2.HealthCheckRequest())
    return response.status


async def test_a_loaded_model_is_described(rig: Rig) -> None:
    model = await load(rig, engine="tiny", model="second", labels={"team": "a"}, limits={"max_seq_len": 100})
    assert model.state == mpb.Model.STATE_READY
    assert model.engine_version == "engines/tiny/versions/1"
    assert model.limits.max_seq_len == 100
    assert model.limits.max_batch_size == 8
    assert model.labels == {"team": "a"}
    assert model.has_tokenizer
    assert model.has_chat_template
    facts = model.load_facts
    assert (list(facts.devices), facts.dtype) == (["cpu"], common_pb2.DATA_TYPE_FLOAT32)
    assert (facts.weights_bytes, facts.kv_cache_bytes) == (1000, 2000)
    assert list(model.eos_token_ids) == [1]
    assert model.cache_groups[0].num_blocks == 65
    assert await rig.models.GetModel(mpb.GetModelRequest(name="second")) == model
    listed = await rig.models.ListModels(mpb.ListModelsRequest())
    assert [each.name for each in listed.models] == ["second", "tiny"]


async def test_a_bound_on_prompts_is_kept(rig: Rig) -> None:
    await load(rig, engine="tiny", model="short", limits={"max_input_len": 4, "max_beam_width": 1})
    outcomes = await rig.generate(start("fits", [5] * 4, model="short"), start("long", [5] * 5, model="short"))
    assert outcomes["fits"].kinds[-1] == "done"
    assert outcomes["long"].error.metadata["max_prompt_tokens"] == "4"


async def test_each_served_name_answers_and_the_bare_name_needs_to_be_unique(rig: Rig) -> None:
    await load(rig, engine="tiny", model="second")
    outcomes = await rig.generate(start("a", model="tiny"), start("b", model="second@1"), start("c"))
    assert outcomes["b"].only("accepted").model == "second"
    assert outcomes["c"].error.reason == "MODEL_NOT_NAMED"


async def test_an_alias_is_resolved_and_can_be_named(rig: Rig) -> None:
    rig.store.set_alias("tiny", "stable", 1)
    model = await load(rig, engine="tiny", model="aliased", alias="stable")
    assert model.alias == "stable"
    assert (await rig.one(start(model="aliased@stable"))).kinds[-1] == "done"


async def test_loading_the_same_again_is_no_error_and_another_version_is(rig: Rig) -> None:
    assert (await load(rig, engine="tiny")).name == "tiny"
    publish(rig.store, None)
    error = await refusal(rig.models.LoadModel(mpb.LoadModelRequest(engine="tiny")))
    assert isinstance(error, errors.AlreadyExists)


async def test_a_repeated_request_id_answers_with_the_same_operation(rig: Rig) -> None:
    request = mpb.LoadModelRequest(engine="tiny", model="once", request_id=UUID)
    first, second = await rig.models.LoadModel(request), await rig.models.LoadModel(request)
    assert first.name == second.name
    await wait(rig, first)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"opset": 99}, "UNSUPPORTED_OPSET"),
        ({"targets": (Target(form="tensorrt", dtype="float16", build_key="0"),)}, "UNSUPPORTED_TARGET"),
        ({"mapping": Mapping(world_size=2, tensor_parallel=2)}, "UNSUPPORTED_WORLD_SIZE"),
    ],
)
async def test_an_engine_that_does_not_fit_is_refused_with_both_sides(
    rig: Rig, changes: dict[str, Any], reason: str
) -> None:
    publish(rig.store, None, "unfit", **changes)
    error = await refusal(rig.models.LoadModel(mpb.LoadModelRequest(engine="unfit")))
    assert isinstance(error, errors.FailedPrecondition)
    assert error.reason == reason
    assert error.metadata.keys() == {"engine", "server"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"engine": "nothing"}, errors.NotFound),
        ({"engine": "tiny", "version": 7}, errors.NotFound),
        ({"engine": "tiny", "alias": "nope"}, errors.NotFound),
        ({"engine": "../etc"}, errors.InvalidArgument),
        ({}, errors.InvalidArgument),
        ({"engine": "tiny", "model": "UPPER"}, errors.InvalidArgument),
        ({"engine": "tiny", "model": "m", "limits": {"max_seq_len": 9999}}, errors.InvalidArgument),
        ({"engine": "tiny", "model": "m", "limits": {"max_batch_size": 9}}, errors.InvalidArgument),
        ({"engine": "tiny", "model": "m", "executor": {"num_threads": 0}}, errors.InvalidArgument),
        ({"engine": "tiny", "model": "m", "executor": {"num_threads": 10_000}}, errors.InvalidArgument),
        ({"engine": "tiny", "model": "m", "kv_cache": {"tokens_per_block": 64}}, errors.FailedPrecondition),
        ({"engine": "tiny", "model": "m", "kv_cache": {"host_cache_size": 1}}, errors.Unimplemented),
        ({"engine": "tiny", "model": "m", "limits": {"max_beam_width": 2}}, errors.Unimplemented),
        ({"engine": "tiny", "model": "m", "speculative": {"mode": "eagle"}}, errors.Unimplemented),
        ({"engine": "tiny", "model": "m", "replace": True}, errors.Unimplemented),
        ({"engine": "tiny", "model": "m", "follow_alias": True}, errors.Unimplemented),
        ({"engine": "tiny", "model": "m", "target": "tensorrt"}, errors.Unimplemented),
        ({"engine": "tiny", "model": "m", "request_id": "x"}, errors.InvalidArgument),
    ],
)
async def test_a_bad_load_is_refused_at_once(rig: Rig, fields: dict[str, Any], error: type[Exception]) -> None:
    assert type(await refusal(rig.models.LoadModel(mpb.LoadModelRequest(**fields)))) is error
    assert [model.name for model in rig.frontend.models.list()] == ["tiny"]


async def test_validate_only_loads_nothing(rig: Rig) -> None:
    operation = await rig.models.LoadModel(mpb.LoadModelRequest(engine="tiny", model="m", validate_only=True))
    assert operation.done
    assert not operation.HasField("error")
    assert [model.name for model in rig.frontend.models.list()] == ["tiny"]


async def test_a_failed_load_is_listed_with_its_reason_and_can_be_tried_again(rig: Rig) -> None:
    loader = rig.frontend.models._loader
    works = loader._load

    def fails(*_: Any) -> ScriptedRunner:
        raise errors.FailedPrecondition("not enough memory", reason="KV_CACHE_TOO_SMALL")

    loader._load = fails
    with pytest.raises(errors.FailedPrecondition, match="not enough memory"):
        await load(rig, engine="tiny", model="m")
    model = await rig.models.GetModel(mpb.GetModelRequest(name="m"))
    assert (model.state, model.state_message) == (mpb.Model.STATE_FAILED, "not enough memory")
    refused = (await rig.one(start(model="m"))).error
    assert (type(refused), refused.metadata["state"]) == (errors.FailedPrecondition, "FAILED")
    loader._load = works
    watch = rig.models.WatchModels(mpb.WatchModelsRequest(model="m"))
    assert (await watch.read()).model.state == mpb.Model.STATE_FAILED
    assert (await load(rig, engine="tiny", model="m")).state == mpb.Model.STATE_READY
    while (event := await watch.read()).model.state != mpb.Model.STATE_READY:
        assert not event.removed


async def test_unloading_lets_live_requests_finish_and_frees_the_engine(rig: Rig) -> None:
    rig.runner.step_seconds = 0.01
    stream = rig.stream()
    await stream.start(start("x", sampling={"max_tokens": 30, "ignore_eos": True}))
    await stream.until("accepted")
    operation = await rig.models.UnloadModel(mpb.UnloadModelRequest(model="tiny"))
    await asyncio.sleep(0.05)
    await stream.start(start("late"))
    await stream.call.done_writing()
    outcomes = await stream.outcomes()
    assert outcomes["x"].only("done").usage.completion_tokens == 30
    assert outcomes["late"].error.metadata["state"] == "UNLOADING"
    assert (await wait(rig, operation)).HasField("response")
    assert rig.runner.closed
    assert isinstance(await refusal(rig.models.GetModel(mpb.GetModelRequest(name="tiny"))), errors.NotFound)
    leases = [path.name for path in (rig.store.root / "leases").iterdir() if not path.name.endswith(".used")]
    assert leases == []


async def test_unloading_at_once_ends_live_requests_with_unavailable(rig: Rig) -> None:
    rig.runner.step_seconds = 0.02
    stream = rig.stream()
    await stream.start(start("x", stream=True, sampling={"max_tokens": 200, "ignore_eos": True}))
    await stream.until("delta")
    await wait(rig, await rig.models.UnloadModel(mpb.UnloadModelRequest(model="tiny", grace=Duration())))
    await stream.call.done_writing()
    error = (await stream.outcomes())["x"].error
    assert (type(error), error.reason) == (errors.Unavailable, "MODEL_UNLOADED")


async def test_a_dead_executor_fails_the_model_its_requests_and_health(rig: Rig) -> None:
    assert await serving_status(rig) == health_pb2.HealthCheckResponse.SERVING
    rig.runner.gate.clear()
    stream = rig.stream()
    await stream.start(start("x", sampling={"max_tokens": 200}))
    await stream.until("accepted")
    rig.runner.fail = SystemExit("a broken invariant")
    rig.runner.gate.set()
    await stream.call.done_writing()
    error = (await stream.outcomes())["x"].error
    assert (type(error), error.reason) == (errors.Unavailable, "EXECUTOR_STOPPED")
    assert rig.model.state.name == "FAILED"
    async with asyncio.timeout(5):
        while await serving_status(rig) == health_pb2.HealthCheckResponse.SERVING:
            await asyncio.sleep(0.01)
    rig.runner.fail = None
    assert (await load(rig, engine="tiny")).state == mpb.Model.STATE_READY
    assert (await rig.one(start())).kinds[-1] == "done"


async def test_a_watch_tells_what_is_there_and_then_every_change(rig: Rig) -> None:
    watch = rig.models.WatchModels(mpb.WatchModelsRequest())
    first = await watch.read()
    assert (first.sequence, first.model.name, first.model.state) == (1, "tiny", mpb.Model.STATE_READY)
    await load(rig, engine="tiny", model="second")
    await wait(rig, await rig.models.UnloadModel(mpb.UnloadModelRequest(model="second")))
    seen = []
    while not (event := await watch.read()).removed:
        seen.append(event.model.state)
    assert mpb.Model.STATE_READY in seen
    assert event.model.name == "second"


@pytest.mark.parametrize("method", ["LoadAdapter", "UnloadAdapter", "ListAdapters"])
async def test_adapters_are_refused_by_name(rig: Rig, method: str) -> None:
    request = getattr(mpb, f"{method}{'s' if method.endswith('z') else ''}Request")()
    error = await refusal(getattr(rig.models, method)(request))
    assert (type(error), error.metadata["method"]) == (errors.Unimplemented, method)


async def test_statistics_of_steps_are_kept_and_streamed(rig: Rig) -> None:
    stream = rig.telemetry.StreamStats(tpb.StreamStatsRequest(model="tiny"))
    await asyncio.sleep(0.1)
    await rig.one(start(stream=True, sampling={"max_tokens": 5}))
    message = await stream.read()
    assert message.iterations[-1].kv_cache_stats.max_num_blocks == 64
    stats = await rig.telemetry.GetStats(tpb.GetStatsRequest(model="tiny"))
    numbers = [each.iter for each in stats.iterations]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 5
    assert sum(each.inflight_batching_stats.num_ctx_tokens for each in stats.iterations) == 3
    later = await rig.telemetry.GetStats(tpb.GetStatsRequest(model="tiny", after_iteration=numbers[2]))
    assert [each.iter for each in later.iterations] == numbers[3:]
    error = await refusal(rig.telemetry.GetStats(tpb.GetStatsRequest(include_requests=True)))
    assert error.metadata["field"] == "include_requests"


async def test_cache_events_are_refused_by_name(rig: Rig) -> None:
    call = rig.telemetry.StreamKvCacheEvents(tpb.StreamKvCacheEventsRequest(model="tiny"))
    assert isinstance(await refusal(call.read()), errors.Unimplemented)


async def test_several_versions_are_served_side_by_side(rig: Rig, bytes_tokenizer_dir: Path) -> None:
    publish(rig.store, bytes_tokenizer_dir)
    model = await load(rig, engine="tiny", model="newer")
    assert model.engine_version == "engines/tiny/versions/2"


async def test_unloading_twice_frees_nothing_under_a_running_step(rig: Rig) -> None:
    stream = rig.stream()
    rig.runner.gate.clear()
    await stream.start(start())
    await stream.until("accepted")
    model = rig.model
    at_once = mpb.UnloadModelRequest(model="tiny", grace=Duration())
    operations = [await rig.models.UnloadModel(at_once) for _ in range(2)]
    async with asyncio.timeout(10):
        while model.live:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not rig.runner.closed
    rig.runner.gate.set()
    assert not [done.error for done in [await wait(rig, each) for each in operations] if done.HasField("error")]
    assert rig.runner.closed
