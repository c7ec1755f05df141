"""Law 10: a draining server says so, refuses new starts, and lets streams end with their last live request."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse._gen.enginehouse.inference.v1 import model_pb2 as mpb
from enginehouse._gen.enginehouse.inference.v1 import telemetry_pb2 as tpb

from .serving import Rig, start

LONG = {"max_tokens": 40, "ignore_eos": True}


async def test_live_requests_finish_and_new_ones_are_refused(rig: Rig) -> None:
    rig.runner.step_seconds = 0.02
    stream = rig.stream()
    await stream.start(start("x", stream=True, sampling=LONG))
    await stream.until("delta")
    drain = asyncio.create_task(rig.daemon.drain())
    notice = (await stream.until("draining")).draining
    assert notice.retry_after.seconds == 1
    assert notice.deadline.ToNanoseconds() / 1e9 == pytest.approx(time.time() + 5, abs=2)
    await stream.start(start("late"))
    outcomes = await stream.outcomes()  # not half-closed by the client: the server ends it
    assert outcomes["x"].only("done").usage.completion_tokens == 40
    assert isinstance(outcomes["late"].error, errors.Unavailable)
    assert outcomes["late"].error.retry_after is not None
    assert await stream.call.code() is grpc.StatusCode.OK
    await drain


async def test_new_calls_are_refused_and_endless_streams_end(rig: Rig) -> None:
    watch = rig.models.WatchModels(mpb.WatchModelsRequest())
    await watch.read()
    stats = rig.telemetry.StreamStats(tpb.StreamStatsRequest())
    idle = rig.stream()
    await idle.start(start("x"))
    await idle.until("done")
    await rig.daemon.drain()
    assert await watch.read() is grpc.aio.EOF
    while await stats.read() is not grpc.aio.EOF:
        pass
    await idle.outcomes()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.inference.GetServerInfo(pb.GetServerInfoRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_statistics_stream_with_a_long_interval_does_not_hold_up_the_end(rig: Rig) -> None:
    stream = rig.telemetry.StreamStats(tpb.StreamStatsRequest(interval=Duration(seconds=3600)))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await rig.daemon.drain()
    assert time.monotonic() - began < rig.daemon.settings.grace_seconds / 2
    assert await stream.read() is grpc.aio.EOF
