"""A daemon over real sockets whose runner draws from scripts, and a client that checks every stream's laws."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from engine_store import EngineStore
from engine_store.manifest import CacheGroup, Limits, Manifest, Mapping, Source, Target
from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2_grpc, model_pb2_grpc, telemetry_pb2_grpc
from inference_service.config import ModelConfig, SchedulerConfig
from inference_service.daemon import Frontend, InferenceSettings
from inference_service.executor.messages import TokenLogprobs
from inference_service.frontend.served_model import LoadSpec
from inference_service.frontend.session import SessionLimits
from inference_service.runners.base import Rows, RunnerFacts, Sampled, Step
from service_kit.server import Daemon, ServerSettings, serving

BLOCK = 8
NUM_BLOCKS = 65
VOCAB = 410
MAX_SEQ_LEN = 256
EOS = 1
IM_END = 2


class ScriptedRunner:
    """Token p of a request is scripts[seed][p]; beyond its script, or without one, 10 + p % 20.

    `gate` cleared holds the next step; `step_seconds` slows every step; `fail` raises in forward.
    """

    def __init__(self) -> None:
        self.scripts: dict[int, list[int]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.step_seconds = 0.0
        self.fail: BaseException | None = None
        self.steps = 0
        self.rows_seen: list[Rows] = []
        self.closed = False

    num_blocks = (NUM_BLOCKS,)
    vocab_size = VOCAB
    facts = RunnerFacts("cpu", "float32", 1000, 2000)

    def forward(self, step: Step) -> None:
        assert self.gate.wait(30)
        time.sleep(self.step_seconds)
        self.steps += 1
        if self.fail is not None:
            raise self.fail

    def sample(self, rows: Rows) -> Sampled:
        self.rows_seen.append(rows)
        drawn = [self._token(rows, r) for r in range(len(rows.sampling))]
        logprobs = [
            TokenLogprobs((token,), (-0.5,), (1,)) if sampling.logprobs is not None else None
            for token, sampling in zip(drawn, rows.sampling, strict=True)
        ]
        return Sampled(np.array(drawn, np.int32), tuple(logprobs))

    def _token(self, rows: Rows, row: int) -> int:
        position = int(rows.positions[row])
        script = self.scripts.get(rows.sampling[row].seed, [])
        return script[position] if position < len(script) else 10 + position % 20

    def close(self) -> None:
        self.closed = True


def manifest(name: str = "tiny", **changes: Any) -> Manifest:
    record = Manifest(
        schema=1,
        name=name,
        version=1,
        build_key="0" * 64,
        create_time="2026-01-01T00:00:00Z",
        architecture="LlamaForCausalLM",
        opset=1,
        vocab_size=VOCAB,
        eos_token_ids=(EOS,),
        source=Source(kind="dummy", location=""),
        targets=(Target(form="torch", dtype="float32", build_key="0" * 64),),
        limits=Limits(max_batch_size=8, max_num_tokens=64, max_seq_len=MAX_SEQ_LEN),
        mapping=Mapping(),
        cache_groups=(
            CacheGroup(kind="paged", layers=(0,), num_kv_heads=1, head_dim=8, dtype="float32", block_size=BLOCK),
        ),
    )
    import msgspec

    return msgspec.structs.replace(record, **changes)


def publish(store: EngineStore, tokenizer_dir: Path | None, name: str = "tiny", **changes: Any) -> Manifest:
    """A version with a tokenizer and nothing to run: the scripted runner reads no files."""
    with store.stage() as staging:
        (staging.path / "graph.json").write_text("{}")
        if tokenizer_dir is not None:
            shutil.copytree(tokenizer_dir, staging.path / "tokenizer")
        return staging.publish(manifest(name, **changes), force=True).manifest


@dataclasses.dataclass
class Rig:
    """A served model "tiny" and the stubs to it."""

    daemon: Daemon
    frontend: Frontend
    runner: ScriptedRunner
    store: EngineStore
    inference: Any
    models: Any
    telemetry: Any
    channel: grpc.aio.Channel

    @property
    def model(self) -> Any:
        return self.frontend.models.get("tiny")

    def stream(self, timeout: float | None = 30.0) -> Stream:
        return Stream(self.inference.Generate(timeout=timeout))

    async def generate(self, *starts: pb.Start) -> dict[str, Outcome]:
        """All of them on one stream, half-closed at once; law 1 is checked."""
        stream = self.stream()
        for start in starts:
            await stream.start(start)
        await stream.call.done_writing()
        return await stream.outcomes()

    async def one(self, start: pb.Start) -> Outcome:
        return (await self.generate(start))[start.request_id]

    async def settled(self) -> None:
        """Waits until nothing is live anywhere."""
        async with asyncio.timeout(10):
            while self.model.live or self.model.engine.executor.has_work:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serve(
    root: Path,
    tokenizer_dir: Path | None,
    *,
    config: ModelConfig | None = None,
    limits: SessionLimits | None = None,
    **changes: Any,
) -> AsyncIterator[Rig]:
    store, runner = EngineStore(root / "store"), ScriptedRunner()
    publish(store, tokenizer_dir, **changes)
    settings = InferenceSettings(server=ServerSettings(port=0, grace_seconds=5.0), store=root / "store")
    made: list[Frontend] = []

    async def register(daemon: Daemon) -> None:
        frontend = Frontend(settings, load=lambda folder, manifest, config: runner, limits=limits or SessionLimits())
        await frontend.register(daemon)
        made.append(frontend)

    async with serving(settings.server, register) as daemon:
        await made[0].models.load(LoadSpec(name="tiny", engine="tiny", config=config or ModelConfig()))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel:
            yield Rig(
                daemon=daemon,
                frontend=made[0],
                runner=runner,
                store=store,
                inference=inference_pb2_grpc.InferenceServiceStub(channel),
                models=model_pb2_grpc.ModelServiceStub(channel),
                telemetry=telemetry_pb2_grpc.TelemetryServiceStub(channel),
                channel=channel,
            )
            runner.gate.set()


@dataclasses.dataclass
class Outcome:
    """What became of one request."""

    events: list[pb.Event]

    @property
    def kinds(self) -> list[str]:
        return [event.WhichOneof("event") for event in self.events]

    def all(self, kind: str) -> list[Any]:
        return [getattr(event, kind) for event in self.events if event.WhichOneof("event") == kind]

    def only(self, kind: str) -> Any:
        (found,) = self.all(kind)
        return found

    @property
    def error(self) -> errors.EnginehouseError:
        return errors.from_status(self.only("error"))

    @property
    def token_ids(self) -> list[int]:
        return [i for part in (*self.all("delta"), *self.all("finished")) for i in part.token_ids]

    @property
    def text(self) -> str:
        return "".join(part.text for part in (*self.all("delta"), *self.all("finished")))

    @property
    def reason(self) -> str:
        return pb.FinishReason.Name(self.only("finished").reason).removeprefix("FINISH_REASON_")

    def check(self) -> None:
        """Laws 1 and 2: one last event, `finished` once before `done`, accepted first, no empty delta."""
        kinds = self.kinds
        assert kinds[-1] in ("done", "error"), kinds
        assert sum(kind in ("done", "error") for kind in kinds) == 1, kinds
        if kinds[-1] == "done":
            assert kinds[0] == "accepted", kinds
            assert kinds.count("finished") == 1, kinds
            assert kinds[-2] == "finished", kinds
        assert all(delta.token_ids for delta in self.all("delta"))


class Stream:
    """The client's end of one Generate call."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.responses: list[pb.GenerateResponse] = []

    async def start(self, start: pb.Start) -> None:
        await self.call.write(pb.GenerateRequest(start=start))

    async def cancel(self, request_id: str) -> None:
        await self.call.write(pb.GenerateRequest(cancel=pb.Cancel(request_id=request_id)))

    async def read(self) -> pb.GenerateResponse | None:
        response = await self.call.read()
        if response is grpc.aio.EOF:
            return None
        self.responses.append(response)
        return response

    async def until(self, kind: str, request_id: str | None = None) -> pb.Event:
        """Reads until an event of this kind (of this request)."""
        while (response := await self.read()) is not None:
            for event in response.events:
                if event.WhichOneof("event") == kind and request_id in (None, event.request_id):
                    return event
        raise AssertionError(f"the stream ended without {kind}")

    async def outcomes(self) -> dict[str, Outcome]:
        """Reads to the end; every request's outcome."""
        while await self.read() is not None:
            pass
        events: dict[str, list[pb.Event]] = defaultdict(list)
        for response in self.responses:
            assert response.events
            for event in response.events:
                events[event.request_id].append(event)
        outcomes = {request_id: Outcome(each) for request_id, each in events.items() if request_id}
        for outcome in outcomes.values():
            outcome.check()
        return outcomes


def start(request_id: str = "r", ids: Iterable[int] | None = (5, 6, 7), **fields: Any) -> pb.Start:
    """A start; `sampling` and `output` are dicts. `ids` None leaves the prompt to `fields`."""
    for name, message in (("sampling", pb.Start().sampling), ("output", pb.Start().output)):
        if name in fields:
            fields[name] = type(message)(**fields[name])
    if ids is not None:
        fields["token_ids"] = {"ids": list(ids)}
    return pb.Start(request_id=request_id, **fields)


def small_queue(batch: int, queue: int) -> ModelConfig:
    return ModelConfig(scheduler=SchedulerConfig(max_batch_size=batch), max_queue_size=queue)
