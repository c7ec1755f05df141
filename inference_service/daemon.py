"""The inference daemon in one process: gRPC, tokenizers and an executor thread for each model.

    from inference_service.daemon import InferenceSettings, main
    main(InferenceSettings(server=ServerSettings(port=50052), store=Path("store"), models=("smollm2",)))

`main` returns after SIGTERM or SIGINT and an orderly end, and raises EnginehouseError when it could not start or a
model of `models` could not be loaded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from dataclasses import dataclass, field
from pathlib import Path

from google.longrunning import operations_pb2_grpc

from engine_store import EngineStore
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2_grpc, model_pb2_grpc, telemetry_pb2_grpc
from enginehouse.errors import EnginehouseError, Internal, InvalidArgument
from enginehouse.names import parse_engine
from inference_service.config import ModelConfig
from inference_service.engine_loader import RunnerLoader, load_checked
from inference_service.frontend.admission import Admitter
from inference_service.frontend.inference import InferenceServicer
from inference_service.frontend.model_service import ModelServicer
from inference_service.frontend.served_model import LoadSpec, ServedModel, State
from inference_service.frontend.session import SessionLimits
from inference_service.frontend.telemetry import TelemetryServicer
from inference_service.models import ModelManager, check_name
from inference_service.served_set import ServedSet
from service_kit import logs
from service_kit.directories import usable_directory
from service_kit.operations import InMemoryOperations, OperationsServicer
from service_kit.server import Daemon, ServerSettings, run

log = logs.logger("inference")


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """What `enginehouse inference` is started with.

    `models` are loaded at the start, each as `parse_model` reads it; `config` is how, and the default of LoadModel.
    `state` is a directory on local disk where the daemon keeps which models it serves: what was loaded since, it loads
    again at the next start. None: it keeps nothing.
    """

    server: ServerSettings
    store: Path
    models: tuple[str, ...] = ()
    state: Path | None = None
    config: ModelConfig = field(default_factory=ModelConfig)


def parse_model(text: str, config: ModelConfig) -> LoadSpec:
    """ "[name=]engine[@version|@alias]": "chat=smollm2@3", "smollm2@stable", "smollm2" (its latest version). A colon
    may stand for the @.

    Raises:
        InvalidArgument: it has another form.
    """
    name, given, source = text.rpartition("=")
    if given and not name:
        raise InvalidArgument(
            f"{text!r} is no model to load; write [name=]engine[@version|@alias], for example chat=smollm2@3.",
            reason="INVALID_MODEL_ARGUMENT",
            metadata={"value": text},
        )
    engine, version, alias = parse_engine(source.replace(":", "@"))
    return LoadSpec(
        name=check_name(name or engine), engine=engine, ref=str(version or alias or "latest"), config=config
    )


class Frontend:
    """All services of one daemon and what stands behind them.

    Args:
        load: makes runners; the seam for tests.
    """

    def __init__(
        self, settings: InferenceSettings, *, load: RunnerLoader = load_checked, limits: SessionLimits | None = None
    ) -> None:
        self._changed = asyncio.Event()
        self.models = ModelManager(EngineStore(settings.store), load, self._changed.set)
        self.error: EnginehouseError | None = None
        """Why a model of the settings could not be loaded."""
        self._settings = settings
        self._served = ServedSet(settings.state) if settings.state is not None else None
        self._operations = InMemoryOperations()
        self._admitter = Admitter(self.models)
        self._inference = InferenceServicer(
            self.models, self._admitter, limits or SessionLimits(), settings.server.max_message_bytes
        )
        self._loaded = self._closing = False
        self._kept: set[str] = set()
        """Names served before the last restart: they stay on the list though they fail to load, until unloaded."""
        self._loading: asyncio.Task[None]
        self._following: asyncio.Task[None]

    async def register(self, daemon: Daemon) -> None:
        """Adds everything to the daemon, and begins to load the chosen models.

        Raises:
            EnginehouseError: the store cannot be used; a chosen model does not exist or does not fit this machine.
        """
        usable_directory(self._settings.store, "store")
        specs = [parse_model(text, self._settings.config) for text in self._settings.models]
        for spec in specs:
            await self.models.resolve(spec)
        kept = self._served.read() if self._served is not None else []
        self._kept = {spec.name for spec in kept}
        models = ModelServicer(self.models, self._operations, self._settings.config)
        telemetry = TelemetryServicer(self.models, daemon.draining)
        daemon.add(inference_pb2_grpc.add_InferenceServiceServicer_to_server, self._inference)
        daemon.add(model_pb2_grpc.add_ModelServiceServicer_to_server, models)
        daemon.add(telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server, telemetry)
        daemon.add(operations_pb2_grpc.add_OperationsServicer_to_server, OperationsServicer(self._operations))
        daemon.on_drain(self._drain)
        daemon.on_stop(self._close)
        again = [spec for spec in kept if spec.name not in {chosen.name for chosen in specs}]
        self._loading = asyncio.create_task(self._load_all(specs, again), name="load chosen models")
        self._following = asyncio.create_task(self._follow_models(daemon), name="follow models")

    async def _load_all(self, chosen: list[LoadSpec], again: list[LoadSpec]) -> None:
        """A chosen model that cannot be loaded ends the daemon; one that was served before is listed as FAILED."""
        try:
            for spec in chosen:
                await self.models.load(spec)
        except Exception as error:
            self.error = _typed(error)
            log.error("a chosen model could not be loaded", reason=self.error.reason, message=self.error.message)
            signal.raise_signal(signal.SIGTERM)
            return
        for spec in again:
            try:
                await self.models.load(spec)
            except Exception as error:
                message = _typed(error).message
                log.error("a model served before could not be loaded", model=spec.name, message=message)
        self._loaded = True
        self._changed.set()

    async def _follow_models(self, daemon: Daemon) -> None:
        """SERVING once all is loaded, for as long as no executor has died; what is served is kept on disk."""
        written: list[LoadSpec] | None = None
        closing = False
        while not closing:
            await self._changed.wait()
            self._changed.clear()
            closing = self._closing
            if not self._loaded:
                continue
            if any(model.state is State.FAILED and model.engine is not None for model in self.models.list()):
                await daemon.health.set_not_serving()
            else:
                await daemon.health.set_serving()
            served = [_again(model) for model in self.models.list() if model.engine or model.name in self._kept]
            if served != written and await self._keep(served):
                written = served

    async def _keep(self, served: list[LoadSpec]) -> bool:
        """False: it could not be written; the next change tries again."""
        if self._served is None:
            return True
        try:
            await asyncio.to_thread(self._served.write, served)
        except OSError as error:
            log.error("the list of served models could not be written", error=str(error))
            return False
        return True

    async def _drain(self) -> None:
        self._inference.drain(self._settings.server.grace_seconds)
        self.models.end_watches()

    async def _close(self) -> None:
        """What is kept on disk is what was served at the end: the follower ends by itself, after its last write."""
        self._loading.cancel()
        self._closing = True
        self._changed.set()
        await asyncio.gather(self._loading, self._following, return_exceptions=True)
        await self._operations.close()
        await self.models.close()
        self._admitter.close()


def _typed(error: Exception) -> EnginehouseError:
    """The error to tell; one that is not ours goes to the log as it is."""
    if isinstance(error, EnginehouseError):
        return error
    log.error("loading failed on an internal error", exc_info=error)
    return Internal("Loading failed on an internal error; the log has the details.", reason="LOAD_FAILED")


def _again(model: ServedModel) -> LoadSpec:
    """How to load it after a restart: the same version, unless it was asked for by an alias."""
    return model.load if model.alias else dataclasses.replace(model.load, ref=str(model.manifest.version))


async def serve(settings: InferenceSettings) -> None:
    """Serves until SIGTERM or SIGINT, then drains. See the module's docstring for what it raises."""
    frontend = Frontend(settings)
    await run(settings.server, frontend.register)
    if frontend.error is not None:
        raise frontend.error


def main(settings: InferenceSettings) -> None:
    """`serve` in an event loop of its own. Blocks."""
    import uvloop

    uvloop.run(serve(settings))
