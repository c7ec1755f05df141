"""`TelemetryService`: what executors did in their last steps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.duration_pb2 import Duration

from enginehouse._gen.enginehouse.inference.v1 import telemetry_pb2 as tpb
from enginehouse._gen.enginehouse.inference.v1 import telemetry_pb2_grpc
from enginehouse.errors import Unimplemented
from inference_service.frontend.checks import check_int, invalid
from inference_service.frontend.clock import wall_timestamp
from inference_service.frontend.served_model import ServedModel, State, StepStats
from inference_service.models import ModelManager
from service_kit.fields import refuse_unsupported

POLL_SECONDS = 0.05
MAX_TIMEOUT = 60.0


class TelemetryServicer(telemetry_pb2_grpc.TelemetryServiceServicer):
    """`draining` is set when the server ends; streams end with it."""

    def __init__(self, models: ModelManager, draining: asyncio.Event) -> None:
        self._models = models
        self._draining = draining

    async def GetStats(self, request: tpb.GetStatsRequest, context: Any) -> tpb.GetStatsResponse:
        refuse_unsupported(request, {"model", "after_iteration", "max_iterations", "timeout"})
        model = self._models.find(request.model)
        most = check_int("max_iterations", request.max_iterations, 0)
        ends = time.monotonic() + min(_seconds("timeout", request.timeout), MAX_TIMEOUT)
        while not (steps := _after(model, request.after_iteration)) and time.monotonic() < ends:
            await asyncio.sleep(POLL_SECONDS)
        return tpb.GetStatsResponse(iterations=[_message(model, step) for step in steps[-most:]])

    async def StreamStats(
        self, request: tpb.StreamStatsRequest, context: Any
    ) -> AsyncIterator[tpb.StreamStatsResponse]:
        refuse_unsupported(request, {"model", "interval"})
        model = self._models.find(request.model)
        latest_only = request.HasField("interval")
        interval = max(POLL_SECONDS, _seconds("interval", request.interval))
        last = model.steps[-1].stats.iteration if model.steps else 0
        while not self._draining.is_set() and model.state is not State.GONE:
            steps = _after(model, last)
            if steps:
                last = steps[-1].stats.iteration
                shown = steps[-1:] if latest_only else steps
                yield tpb.StreamStatsResponse(iterations=[_message(model, step) for step in shown])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), interval)

    async def StreamKvCacheEvents(
        self, request: tpb.StreamKvCacheEventsRequest, context: Any
    ) -> AsyncIterator[tpb.KvCacheEventBatch]:
        self._models.find(request.model)
        raise Unimplemented(
            "StreamKvCacheEvents is not supported yet; GetStats tells how full the cache is.",
            reason="UNSUPPORTED_METHOD",
            metadata={"method": "StreamKvCacheEvents"},
        )
        yield


def _seconds(field: str, duration: Duration) -> float:
    seconds: float = duration.ToNanoseconds() / 1e9
    if seconds < 0:
        raise invalid(field, f"is {seconds:g} s; it must not be negative.", value=seconds)
    return seconds


def _after(model: ServedModel, iteration: int) -> list[StepStats]:
    """Kept steps after this one. A step in which nothing was computed has its predecessor's number."""
    latest = {step.stats.iteration: step for step in model.steps if step.stats.iteration > iteration}
    return [latest[number] for number in sorted(latest)]


def _message(model: ServedModel, step: StepStats) -> tpb.IterationStats:
    stats, scheduler = step.stats, model.load.config.scheduler
    latency = Duration()
    latency.FromNanoseconds(int(stats.iteration_latency_s * 1e9))
    return tpb.IterationStats(
        timestamp=wall_timestamp(step.time),
        iter=stats.iteration,
        iter_latency=latency,
        num_active_requests=stats.num_running,
        num_queued_requests=stats.num_waiting,
        max_num_active_requests=scheduler.max_batch_size,
        max_batch_size_static=scheduler.max_batch_size,
        max_batch_size_runtime=scheduler.max_batch_size,
        max_num_tokens_static=scheduler.max_num_tokens,
        max_num_tokens_runtime=scheduler.max_num_tokens,
        kv_cache_stats=_cache(step),
        inflight_batching_stats=tpb.InflightBatchingStats(
            num_scheduled_requests=stats.num_context_requests + stats.num_generation_requests,
            num_context_requests=stats.num_context_requests,
            num_gen_requests=stats.num_generation_requests,
            num_paused_requests=stats.num_paused_requests,
            num_ctx_tokens=stats.num_scheduled_tokens - stats.num_generation_requests,
            avg_num_decoded_tokens_per_iter=1.0 if stats.num_generation_requests else 0.0,
        ),
    )


def _cache(step: StepStats) -> tpb.KvCacheStats:
    stats = step.stats
    looked_for = stats.reused_blocks_total + stats.missed_blocks_total
    return tpb.KvCacheStats(
        max_num_blocks=stats.max_blocks,
        free_num_blocks=stats.free_blocks,
        used_num_blocks=stats.used_blocks,
        tokens_per_block=stats.tokens_per_block,
        reused_blocks=stats.reused_blocks_total,
        missed_blocks=stats.missed_blocks_total,
        cache_hit_rate=stats.reused_blocks_total / looked_for if looked_for else 0.0,
    )
