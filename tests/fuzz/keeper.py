"""Keeps the fuzzed daemons worth fuzzing: the prey is there, what was built or loaded by chance goes away again."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf.duration_pb2 import Duration

from enginehouse._gen.enginehouse.inference.v1 import model_pb2, model_pb2_grpc

from .daemons import CANARY, PREY, Home, restock

SECONDS = 60.0


async def keep(home: Home, channels: dict[str, grpc.aio.Channel]) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(3)
        await asyncio.to_thread(restock, home.store)
        await _models(channels["inference"])


async def tidy(home: Home, channels: dict[str, grpc.aio.Channel]) -> None:
    """Ends everything that runs."""
    listed = await operations_pb2_grpc.OperationsStub(channels["builder"]).ListOperations(
        operations_pb2.ListOperationsRequest(page_size=1000), timeout=SECONDS
    )
    for operation in listed.operations:
        if not operation.done:
            await cancel(operation.name, channels["builder"])
    await asyncio.to_thread(restock, home.store)
    for _ in range(3):
        await _models(channels["inference"])
        await asyncio.sleep(0.3)


async def cancel(operation: str, channel: grpc.aio.Channel) -> None:
    """Cancels an operation that may be gone."""
    with contextlib.suppress(grpc.RpcError):
        await operations_pb2_grpc.OperationsStub(channel).CancelOperation(
            operations_pb2.CancelOperationRequest(name=operation), timeout=SECONDS
        )


async def _models(channel: grpc.aio.Channel) -> None:
    """Unloads all but the canary and the prey, and loads the prey where it is gone."""
    stub = model_pb2_grpc.ModelServiceStub(channel)
    listed = await stub.ListModels(model_pb2.ListModelsRequest(page_size=1000), timeout=SECONDS)
    states = {model.name: model.state for model in listed.models}
    with contextlib.suppress(grpc.RpcError):  # somebody else is at the same model
        for name, state in states.items():
            if name not in (CANARY, PREY) or (name == PREY and state == model_pb2.Model.STATE_FAILED):
                await stub.UnloadModel(model_pb2.UnloadModelRequest(model=name, grace=Duration()), timeout=SECONDS)
        if PREY not in states:
            await stub.LoadModel(model_pb2.LoadModelRequest(engine=PREY), timeout=SECONDS)
