"""`ModelService`: loads and unloads models as long-running operations; adapters are refused by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from google.longrunning import operations_pb2
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from enginehouse._gen.enginehouse.inference.v1 import model_pb2 as mpb
from enginehouse._gen.enginehouse.inference.v1 import model_pb2_grpc
from enginehouse.errors import Unimplemented
from inference_service.config import ModelConfig
from inference_service.engine_loader import Progress
from inference_service.frontend.checks import invalid
from inference_service.frontend.clock import wall_timestamp
from inference_service.frontend.load_request import check_against_engine, to_load_spec
from inference_service.frontend.model_messages import model_message
from inference_service.frontend.served_model import LoadSpec, ServedModel, State
from inference_service.models import ModelManager
from service_kit import pagination
from service_kit.operations import Handle, InMemoryOperations

DEFAULT_GRACE = 30.0
PAGE_SCOPE = "models"


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Args:
    defaults: for what a LoadModelRequest leaves open.
    """

    def __init__(self, models: ModelManager, operations: InMemoryOperations, defaults: ModelConfig) -> None:
        self._models = models
        self._operations = operations
        self._defaults = defaults

    async def LoadModel(self, request: mpb.LoadModelRequest, context: Any) -> operations_pb2.Operation:
        spec, manifest = await self._models.resolve(to_load_spec(request, self._defaults))
        check_against_engine(request, manifest)
        if request.validate_only:
            return _validated(spec)
        if not self._operations.knows(request.request_id):
            self._models.check_free(spec, manifest)
        metadata = mpb.LoadModelMetadata(create_time=wall_timestamp(time.time()))

        async def work(handle: Handle) -> Message:
            report = _progress(handle, metadata, asyncio.get_running_loop())
            return model_message(await self._models.start_load(spec, manifest, report))

        return self._operations.start(work, metadata, request, request.request_id)

    async def UnloadModel(self, request: mpb.UnloadModelRequest, context: Any) -> operations_pb2.Operation:
        model = self._models.get(request.model)
        grace = request.grace.ToNanoseconds() / 1e9 if request.HasField("grace") else DEFAULT_GRACE
        if grace < 0:
            raise invalid("grace", f"is {grace:g} s; it must not be negative.", value=grace)
        metadata = mpb.UnloadModelMetadata(
            model=model.name, live_requests=len(model.live), create_time=wall_timestamp(time.time())
        )

        async def work(handle: Handle) -> Message:
            await self._models.unload(request.model, grace)
            return Empty()

        return self._operations.start(work, metadata, request)

    async def GetModel(self, request: mpb.GetModelRequest, context: Any) -> mpb.Model:
        return model_message(self._models.get(request.name))

    async def ListModels(self, request: mpb.ListModelsRequest, context: Any) -> mpb.ListModelsResponse:
        page = pagination.parse(request.page_size, request.page_token, PAGE_SCOPE)
        shown, token = pagination.paginate(self._models.list(), lambda model: model.name, page, PAGE_SCOPE)
        return mpb.ListModelsResponse(models=[model_message(model) for model in shown], next_page_token=token)

    async def WatchModels(self, request: mpb.WatchModelsRequest, context: Any) -> AsyncIterator[mpb.ModelEvent]:
        sequence = 0
        async for model in self._models.watch():
            if request.model in ("", model.name):
                sequence += 1
                yield _event(sequence, model)

    async def LoadAdapter(self, request: mpb.LoadAdapterRequest, context: Any) -> mpb.Adapter:
        _no_adapters("LoadAdapter")

    async def UploadAdapter(
        self, request_iterator: AsyncIterator[mpb.UploadAdapterRequest], context: Any
    ) -> mpb.Adapter:
        _no_adapters("UploadAdapter")

    async def UnloadAdapter(self, request: mpb.UnloadAdapterRequest, context: Any) -> Empty:
        _no_adapters("UnloadAdapter")

    async def ListAdapters(self, request: mpb.ListAdaptersRequest, context: Any) -> mpb.ListAdaptersResponse:
        _no_adapters("ListAdapters")


def _progress(handle: Handle, metadata: mpb.LoadModelMetadata, loop: asyncio.AbstractEventLoop) -> Progress:
    """Reports from the loading thread become the operation's metadata, on the loop."""

    def update(fraction: float, text: str) -> None:
        metadata.fraction, metadata.message = fraction, text
        handle.update(metadata)

    def report(fraction: float, text: str) -> None:
        loop.call_soon_threadsafe(update, fraction, text)

    return report


def _validated(spec: LoadSpec) -> operations_pb2.Operation:
    """The answer to validate_only: an operation that is done and kept nowhere."""
    operation = operations_pb2.Operation(name="operations/validated", done=True)
    operation.metadata.Pack(mpb.LoadModelMetadata(fraction=1.0, message="the model can be loaded"))
    operation.response.Pack(mpb.Model(name=spec.name, labels=dict(spec.labels)))
    return operation


def _event(sequence: int, model: ServedModel) -> mpb.ModelEvent:
    return mpb.ModelEvent(
        sequence=sequence,
        model=model_message(model),
        removed=model.state is State.GONE,
        time=wall_timestamp(model.update_time),
    )


def _no_adapters(method: str) -> NoReturn:
    raise Unimplemented(
        f"{method} is not supported yet: this version serves base models only.",
        reason="UNSUPPORTED_METHOD",
        metadata={"method": method},
    )
