"""Questions whose answers nothing that others send may change."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginehouse._gen.enginehouse.builder.v1 import builder_pb2, builder_pb2_grpc
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc

from .daemons import CANARY

SECONDS = 60.0


class Answer(NamedTuple):
    """The canary engine's id, digest and aliases, the greedy tokens of the canary model, and both healths."""

    engine: bytes
    tokens: tuple[int, ...]
    health: tuple[int, ...]


async def ask(channels: dict[str, grpc.aio.Channel]) -> Answer:
    """Asks both daemons; a Generate that an Abort of everything ended is asked again."""
    version = await builder_pb2_grpc.BuilderServiceStub(channels["builder"]).GetEngineVersion(
        builder_pb2.GetEngineVersionRequest(name=f"engines/{CANARY}/versions/1"), timeout=SECONDS
    )
    if "last_use_time" in version.DESCRIPTOR.fields_by_name:
        version.ClearField("last_use_time")
    health = [
        (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)).status
        for channel in channels.values()
    ]
    return Answer(version.SerializeToString(deterministic=True), await _tokens(channels["inference"]), tuple(health))


async def live_requests(channel: grpc.aio.Channel) -> int:
    """Requests that run or wait, over all models."""
    load = await inference_pb2_grpc.InferenceServiceStub(channel).GetLoad(
        inference_pb2.GetLoadRequest(), timeout=SECONDS
    )
    return sum(model.running_requests + model.queued_requests for model in load.models)


async def _tokens(channel: grpc.aio.Channel) -> tuple[int, ...]:
    start = inference_pb2.Start(
        request_id="canary", model=CANARY, token_ids={"ids": [5, 6, 7, 8, 9]}, sampling={"max_tokens": 12}
    )
    for _ in range(20):
        stream = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
            iter([inference_pb2.GenerateRequest(start=start)]), timeout=SECONDS
        )
        events = [event async for response in stream for event in response.events]
        finished = next((event.finished for event in events if event.WhichOneof("event") == "finished"), None)
        if finished is None:
            raise AssertionError(f"the canary failed: {events}")
        if finished.reason != inference_pb2.FINISH_REASON_CANCELLED:
            return tuple(finished.token_ids)
        await asyncio.sleep(0.1)
    raise AssertionError("the canary was cancelled 20 times")
