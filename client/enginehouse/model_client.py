"""The inference daemon's models from Python: load, unload, list, and ask how busy they are."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from google.longrunning import operations_pb2

from enginehouse._calls import wait_operation
from enginehouse._client import DaemonClient
from enginehouse._convert import from_proto
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc
from enginehouse.configs import KvCacheConfig, SchedulerConfig, data_type
from enginehouse.connection import INFERENCE_TARGET, Endpoint, TlsConfig
from enginehouse.engine_types import EngineLimits
from enginehouse.errors import FailedPrecondition, from_status
from enginehouse.names import EngineRef, parse_engine

POLL_S = 0.1
_LIMITS = ("max_batch_size", "max_num_tokens", "max_input_len", "max_seq_len", "max_beam_width")
_EXECUTOR = (
    *("normalize_log_probs", "iter_stats_max_iterations", "request_stats_max_iterations", "max_queue_size"),
    *("guided_decoding_backend", "gather_generation_logits", "num_threads", "num_postprocess_workers"),
    "deterministic",
)


@dataclass(frozen=True, kw_only=True)
class LoadFacts:
    """What loading found."""

    target: str = ""
    devices: tuple[str, ...] = ()
    dtype: str = ""
    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    kv_cache_tokens: int = 0
    load_duration: float | None = None
    read_duration: float | None = None
    """Seconds."""
    world_size: int = 0


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model on an inference daemon. `state`: loading, ready, unloading, failed or restarting."""

    name: str = ""
    engine_version: str = ""
    state: str = ""
    state_message: str = ""
    limits: EngineLimits | None = None
    load_facts: LoadFacts | None = None
    features: tuple[str, ...] = ()
    create_time: datetime | None = None
    update_time: datetime | None = None
    alias: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    vocab_size: int = 0
    architecture: str = ""
    has_tokenizer: bool = False
    has_chat_template: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelLoad:
    """How busy a model is."""

    model: str = ""
    running_requests: int = 0
    queued_requests: int = 0
    queued_tokens: int = 0
    running_tokens: int = 0
    used_kv_blocks: int = 0
    total_kv_blocks: int = 0
    generation_throughput: float = 0.0
    """Tokens a second, over the last ten seconds."""
    cache_hit_rate: float = 0.0
    max_queue_size: int = 0


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded; `ModelClient.load` takes each as a keyword. None and "": the server's default.

    model: the served name [the engine's id]. target: "torch", "tensorrt" or "tensorrt-rtx" [the fastest]. dtype: the
    type to compute in. The max_* lower the engine's limits. replace: take the place of a model of this name.
    """

    model: str = ""
    target: str = ""
    dtype: str = "auto"
    kv_cache_config: KvCacheConfig | None = None
    scheduler_config: SchedulerConfig | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_beam_width: int | None = None
    enable_chunked_prefill: bool | None = None
    normalize_log_probs: bool | None = None
    iter_stats_max_iterations: int | None = None
    request_stats_max_iterations: int | None = None
    max_queue_size: int | None = None
    guided_decoding_backend: str | None = None
    gather_generation_logits: bool | None = None
    num_threads: int | None = None
    num_postprocess_workers: int | None = None
    deterministic: bool | None = None
    devices: Sequence[str] = ()
    follow_alias: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    replace: bool = False
    request_id: str | None = None

    def to_proto(self, engine: EngineRef) -> model_pb2.LoadModelRequest:
        request = model_pb2.LoadModelRequest(
            model=self.model,
            engine=engine.engine,
            version=engine.version,
            alias=engine.alias,
            target=self.target,
            dtype=data_type(self.dtype),
            kv_cache=self.kv_cache_config.to_proto() if self.kv_cache_config else None,
            scheduler=self.scheduler_config.to_proto() if self.scheduler_config else None,
            devices=self.devices,
            follow_alias=self.follow_alias,
            labels=dict(self.labels),
            replace=self.replace,
            request_id=self.request_id or str(uuid.uuid4()),
        )
        if limits := self._set(_LIMITS):
            request.limits.CopyFrom(common_pb2.EngineLimits(**limits))
        if executor := self._set(_EXECUTOR):
            request.executor.CopyFrom(model_pb2.ExecutorConfig(**executor))
        if self.enable_chunked_prefill is not None:
            request.scheduler.enable_chunked_prefill = self.enable_chunked_prefill
        return request

    def _set(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ModelClient(DaemonClient):
    """The models of an inference daemon.

    Args:
        target: HOST:PORT of the daemon.
        tls: TLS settings; None speaks plain text.
        token: sent as a bearer token.
        timeout: seconds for each call that answers at once.
    """

    def __init__(
        self,
        target: str = INFERENCE_TARGET,
        *,
        tls: TlsConfig | None = None,
        token: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(Endpoint(target=target, daemon="inference", tls=tls, token=token), timeout)
        self._models = model_pb2_grpc.ModelServiceStub(self._calls.channel)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._calls.channel)

    def load(self, engine: str, *, timeout: float | None = None, **options: Any) -> ServedModel:
        """Loads an engine version and waits until it takes requests.

        Args:
            engine: `name` (the latest version), `name@3` or `name@alias`.
            timeout: seconds for the whole load; then TimeoutError, and the load goes on.
            options: the fields of LoadOptions.
        """
        operation = self.start_load(engine, **options)
        operation = wait_operation(self._calls, operation, timeout)
        if operation.HasField("error"):
            raise from_status(operation.error)
        model = model_pb2.Model()
        operation.response.Unpack(model)
        return from_proto(ServedModel, model)

    def start_load(self, engine: str, **options: Any) -> operations_pb2.Operation:
        """Begins a load without waiting."""
        request = LoadOptions(**options).to_proto(parse_engine(engine))
        operation: operations_pb2.Operation = self._calls.unary(self._models.LoadModel, request)
        return operation

    def unload(self, model: str, *, grace: float | None = None, timeout: float | None = None) -> None:
        """Unloads a model and waits until it is gone. Live requests may take `grace` seconds to finish [30]."""
        request = model_pb2.UnloadModelRequest(model=model)
        if grace is not None:
            request.grace.FromNanoseconds(int(grace * 1e9))
        operation = wait_operation(self._calls, self._calls.unary(self._models.UnloadModel, request), timeout)
        if operation.HasField("error"):
            raise from_status(operation.error)

    def model(self, name: str) -> ServedModel:
        """One model by its served name. Raises NotFound."""
        request = model_pb2.GetModelRequest(name=name)
        return from_proto(ServedModel, self._calls.unary(self._models.GetModel, request))

    def models(self) -> Iterator[ServedModel]:
        """All models by name."""
        for page in self._calls.pages(self._models.ListModels, model_pb2.ListModelsRequest()):
            yield from (from_proto(ServedModel, item) for item in page.models)

    def wait_ready(self, name: str, timeout: float = 600.0) -> ServedModel:
        """Waits until a model that is being loaded takes requests. Raises FailedPrecondition when it cannot."""
        deadline = time.monotonic() + timeout
        while (model := self.model(name)).state in ("loading", "restarting"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"model {name} is still {model.state} after {timeout} s")
            time.sleep(POLL_S)
        if model.state != "ready":
            raise FailedPrecondition(
                f"Model {name} is {model.state}: {model.state_message or 'load it again'}",
                reason="MODEL_NOT_READY",
                metadata={"model": name, "state": model.state},
            )
        return model

    def load_of(self, model: str = "") -> tuple[ModelLoad, ...]:
        """How busy a model is, or all."""
        response = self._calls.unary(self._inference.GetLoad, inference_pb2.GetLoadRequest(model=model))
        return tuple(from_proto(ModelLoad, item) for item in response.models)
