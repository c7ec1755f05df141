"""Keeps the fuzzed daemons worth fuzzing: the prey is there, what was built or loaded by chance goes away again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc
from google.protobuf.duration_pb2 import Duration

from enginehouse._gen.enginehouse.inference.v1 import model_pb2, model_pb2_grpc

from .daemons import CANARY, PREY, Home, restock
from .damage import damaged_gguf, damaged_json, damaged_safetensors

SECONDS = 60.0
DAMAGES = (
    ("config.json", damaged_json),
    ("model.safetensors", damaged_safetensors),
    ("tokenizer.json", damaged_json),
    ("tokenizer_config.json", damaged_json),
)


async def keep(home: Home, channels: dict[str, grpc.aio.Channel], dice: random.Random) -> None:
    """Until cancelled."""
    while True:
        await asyncio.to_thread(damage_checkpoints, home, dice)
        await asyncio.sleep(3)
        await asyncio.to_thread(restock, home.store)
        await _models(channels["inference"])


def damage_checkpoints(home: Home, dice: random.Random) -> None:
    """Puts other damage into the two checkpoints that are there to be damaged; a build may be reading them."""
    shutil.copytree(home.checkpoint, home.models / "damaged", dirs_exist_ok=True)
    name, damage = dice.choice(DAMAGES)
    _replace(home.models / "damaged" / name, damage(dice, (home.checkpoint / name).read_bytes()))
    _replace(home.models / "damaged.gguf", damaged_gguf(dice, home.gguf.read_bytes()))


def _replace(path: Path, data: bytes) -> None:
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


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
