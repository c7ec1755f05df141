"""A daemon on a real socket with one method of each arity, whose behaviour a test chooses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
import pytest

from enginehouse._gen.enginehouse.inference.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from service_kit.server import Daemon, ServerSettings, serving

Behaviour = Callable[[Any], Any]


class Probe(inference_pb2_grpc.InferenceServiceServicer, model_pb2_grpc.ModelServiceServicer):
    """Awaits `behaviour(context)` in every method before it answers."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    async def GetServerInfo(self, request, context):
        await self.behaviour(context)
        return inference_pb2.ServerInfo(version="probe")

    async def GetTokenizer(self, request, context):
        yield inference_pb2.TokenizerFileChunk(path="first")
        await self.behaviour(context)

    async def GetLoad(self, request, context):
        return inference_pb2.Load()

    async def Generate(self, request_iterator, context):
        await context.write(inference_pb2.GenerateResponse())
        await self.behaviour(context)

    async def UploadAdapter(self, request_iterator, context):
        await self.behaviour(context)
        return model_pb2.Adapter(name="probe")


class Running(NamedTuple):
    daemon: Daemon
    channel: grpc.aio.Channel
    inference: inference_pb2_grpc.InferenceServiceStub
    models: model_pb2_grpc.ModelServiceStub


async def nothing(context: Any) -> None:
    """The behaviour of a method that simply answers."""


@contextlib.asynccontextmanager
async def running(behaviour: Behaviour = nothing, **settings: Any) -> AsyncIterator[Running]:
    async def register(daemon: Daemon) -> None:
        probe = Probe(behaviour)
        daemon.add(inference_pb2_grpc.add_InferenceServiceServicer_to_server, probe)
        daemon.add(model_pb2_grpc.add_ModelServiceServicer_to_server, probe)
        await daemon.health.set_serving()

    async with (
        serving(ServerSettings(port=0, grace_seconds=5, **settings), register) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        yield Running(
            daemon,
            channel,
            inference_pb2_grpc.InferenceServiceStub(channel),
            model_pb2_grpc.ModelServiceStub(channel),
        )


@pytest.fixture
def start():
    """Starts a daemon: `async with start(behaviour) as running`."""
    return running
