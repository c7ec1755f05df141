"""The whole daemon on a real engine: a tiny random checkpoint, built by the real pipeline, served over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import msgspec
import pytest
import torch
from google.longrunning import operations_pb2, operations_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from builder_service.build.pipeline import run_build
from builder_service.job import BuildConfig, BuildJob, SourceSpec
from engine_store import EngineStore
from engine_store.leases import LEASE_SECONDS
from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2_grpc, model_pb2, model_pb2_grpc
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
from inference_service.daemon import Frontend, InferenceSettings, parse_model
from inference_service.frontend.served_model import LoadSpec
from inference_service.served_set import ServedSet
from service_kit.server import Daemon, ServerSettings, serving

from .frontend.serving import Stream, start

SERVING = health_pb2.HealthCheckResponse.SERVING
CONFIG = ModelConfig(
    runner=RunnerConfig(device="cpu", dtype="float32", num_threads=1), kv_cache=KvCacheConfig(max_tokens=16384)
)


class Checkpoint(NamedTuple):
    directory: Path
    store: Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, bytes_tokenizer_dir: Path) -> Checkpoint:
    """A tiny random Llama in float32 with the byte-level tokenizer, and a store with its engine "tiny" and with
    "mute", which has no tokenizer."""
    home = tmp_path_factory.mktemp("daemon")
    directory = home / "checkpoint"
    tokenizer = AutoTokenizer.from_pretrained(bytes_tokenizer_dir)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 5,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).float().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    job = BuildJob(
        engine_id="tiny",
        store=str(home / "store"),
        cache=str(home / "cache"),
        source=SourceSpec(kind="huggingface", path=str(directory)),
        build=BuildConfig(dtype="float32"),
        verify="off",
    )
    run_build(job, lambda event: None)
    mute = home / "mute"
    shutil.copytree(directory, mute, ignore=shutil.ignore_patterns("*token*"))
    source = SourceSpec(kind="huggingface", path=str(mute))
    run_build(msgspec.structs.replace(job, engine_id="mute", source=source), lambda event: None)
    return Checkpoint(directory, home / "store")


@contextlib.asynccontextmanager
async def served(checkpoint: Checkpoint, *models: str) -> AsyncIterator[tuple[Daemon, grpc.aio.Channel]]:
    settings = InferenceSettings(
        server=ServerSettings(port=0, grace_seconds=5), store=checkpoint.store, models=models, config=CONFIG
    )
    async with (
        serving(settings.server, lambda daemon: Frontend(settings).register(daemon)) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        yield daemon, channel


async def until_serving(channel: grpc.aio.Channel, service: str = "") -> list[int]:
    """The statuses that were seen, the last one SERVING."""
    seen: list[int] = []
    async with asyncio.timeout(60):
        stub = health_pb2_grpc.HealthStub(channel)
        async for response in stub.Watch(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True):
            seen.append(response.status)
            if response.status == SERVING:
                break
    return seen


def greedy(checkpoint: Checkpoint, prompt: list[int], tokens: int) -> list[int]:
    model = LlamaForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32)
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, attention_mask=torch.ones(1, len(prompt))
    )
    return output[0, len(prompt) :].tolist()


async def test_health_waits_for_the_chosen_models_and_greedy_text_equals_transformers(checkpoint: Checkpoint) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.directory)
    texts = ["the quick brown fox", "hello world, foo:bar", "ABC 🌶 été"]
    async with served(checkpoint, "chat=tiny@1") as (_, channel):
        seen = await until_serving(channel)
        assert seen[-1] == SERVING
        assert await until_serving(channel, "enginehouse.inference.v1.InferenceService")
        stream = Stream(inference_pb2_grpc.InferenceServiceStub(channel).Generate(timeout=60))
        for i, text in enumerate(texts):
            fields = {"sampling": {"max_tokens": 40}, "model": "chat"}
            await stream.start(start(f"u{i}", None, text=text, **fields))
            await stream.start(start(f"s{i}", None, text=text, stream=True, stream_interval=3, **fields))
        await stream.call.done_writing()
        outcomes = await stream.outcomes()
    for i, text in enumerate(texts):
        expected = greedy(checkpoint, tokenizer(text)["input_ids"], 40)
        for outcome in (outcomes[f"u{i}"], outcomes[f"s{i}"]):
            assert outcome.token_ids == expected
            assert outcome.text == tokenizer.decode(expected, skip_special_tokens=True)


async def test_an_engine_without_a_tokenizer_takes_token_ids_only(checkpoint: Checkpoint) -> None:
    prompt = [5, 6, 7]
    async with served(checkpoint, "mute") as (_, channel):
        await until_serving(channel)
        stream = Stream(inference_pb2_grpc.InferenceServiceStub(channel).Generate(timeout=60))
        await stream.start(start("ids", prompt, sampling={"max_tokens": 8}))
        await stream.start(start("text", None, text="hello"))
        await stream.call.done_writing()
        outcomes = await stream.outcomes()
    assert outcomes["ids"].token_ids == greedy(checkpoint, prompt, 8)
    assert outcomes["text"].error.reason == "NO_TOKENIZER"


async def test_logprobs_and_cached_tokens_come_from_the_real_executor(checkpoint: Checkpoint) -> None:
    prompt = list(range(5, 105))
    async with served(checkpoint, "tiny") as (_, channel):
        await until_serving(channel)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for expected_cached in (0, 96):
            stream = Stream(stub.Generate(timeout=60))
            await stream.start(start("x", prompt, sampling={"max_tokens": 6}, output={"logprobs": 2}))
            await stream.call.done_writing()
            outcome = (await stream.outcomes())["x"]
            positions = outcome.only("finished").logprobs
            assert [position.top[0].token_id for position in positions] == outcome.token_ids
            assert all(len({each.token_id for each in position.top}) == len(position.top) for position in positions)
            assert all(position.top[0].rank == 1 for position in positions)
            assert outcome.only("done").usage.cached_tokens == expected_cached


async def test_a_store_that_cannot_be_used_stops_the_start(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(errors.FailedPrecondition, match=r"store directory .* cannot be used"):
        async with served(Checkpoint(checkpoint.directory, tmp_path / "store")):
            pass


async def test_a_model_that_does_not_exist_stops_the_start(checkpoint: Checkpoint) -> None:
    with pytest.raises(errors.NotFound, match="nothing"):
        async with served(checkpoint, "nothing"):
            pass


@pytest.mark.parametrize(
    ("text", "name", "engine", "ref"),
    [
        ("smollm2", "smollm2", "smollm2", "latest"),
        ("smollm2@3", "smollm2", "smollm2", "3"),
        ("smollm2:stable", "smollm2", "smollm2", "stable"),
        ("smollm2@stable", "smollm2", "smollm2", "stable"),
        ("chat=smollm2@3", "chat", "smollm2", "3"),
        ("chat.v1=smollm2:stable", "chat.v1", "smollm2", "stable"),
    ],
)
def test_models_to_load_are_parsed(text: str, name: str, engine: str, ref: str) -> None:
    spec = parse_model(text, CONFIG)
    assert (spec.name, spec.engine, spec.ref) == (name, engine, ref)


@pytest.mark.parametrize("text", ["", "=", "a=", "=b", "a@", "a:", "a@b@c", "UPPER=a", "UPPER"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        parse_model(text, CONFIG)


MAIN = """
import json, sys
from pathlib import Path
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
from inference_service.daemon import InferenceSettings, main
from enginehouse.errors import EnginehouseError
from service_kit import logs
from service_kit.server import ServerSettings

port, store, *models = json.loads(sys.argv[1])
runner = RunnerConfig(device="cpu", dtype="float32", num_threads=1)
config = ModelConfig(runner=runner, kv_cache=KvCacheConfig(max_tokens=4096))
logs.setup("info")
try:
    main(InferenceSettings(server=ServerSettings(port=port), store=Path(store), models=tuple(models), config=config))
except EnginehouseError as error:
    sys.exit(f"refused: {error.reason}")
"""


@contextlib.contextmanager
def process(checkpoint: Checkpoint, *models: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = json.dumps([port, str(checkpoint.store), *models])
    child = subprocess.Popen(
        [sys.executable, "-c", MAIN, arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield child, port
    finally:
        child.kill()
        child.communicate()


async def ended(child: subprocess.Popen[str]) -> str:
    """Waits for the process; what it wrote."""
    return (await asyncio.to_thread(child.communicate, None, 90))[1]


async def test_sigterm_drains_live_streams_and_ends_the_process(checkpoint: Checkpoint) -> None:
    with process(checkpoint, "tiny") as (child, port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await until_serving(channel)
            stream = Stream(inference_pb2_grpc.InferenceServiceStub(channel).Generate(timeout=60))
            await stream.start(start("x", stream=True, sampling={"max_tokens": 1500, "ignore_eos": True}))
            await stream.until("delta")
            child.send_signal(signal.SIGTERM)
            await stream.until("draining")
            await stream.start(start("late"))
            outcomes = await stream.outcomes()
            assert outcomes["x"].only("done").usage.completion_tokens == 1500
            assert isinstance(outcomes["late"].error, errors.Unavailable)
        await ended(child)
        assert child.returncode == 0


async def test_a_damaged_engine_ends_the_process_with_its_error(checkpoint: Checkpoint, tmp_path: Path) -> None:
    damaged = Checkpoint(checkpoint.directory, tmp_path / "store")
    shutil.copytree(checkpoint.store, damaged.store)
    for weights in damaged.store.rglob("rank0.safetensors"):
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.unlink()
        weights.write_bytes(data)
    with process(damaged, "tiny") as (child, _):
        written = await ended(child)
        assert child.returncode == 1
        assert "refused: FILE_DAMAGED" in written


async def test_a_daemon_that_was_killed_leaves_a_lease_that_ends_by_itself(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    copied = Checkpoint(checkpoint.directory, tmp_path / "store")
    shutil.copytree(checkpoint.store, copied.store)
    shutil.rmtree(copied.store / "leases", ignore_errors=True)
    now = time.time()
    with process(copied, "tiny") as (child, port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await until_serving(channel)
        EngineStore(copied.store, clock=lambda: now - 3600).delete_version("tiny", 1)
        child.kill()
        await ended(child)
    folder = copied.store / "engines/tiny/versions/1"
    EngineStore(copied.store).collect()
    assert folder.is_dir()
    EngineStore(copied.store, clock=lambda: time.time() + LEASE_SECONDS).collect()
    assert not folder.exists()


@contextlib.asynccontextmanager
async def keeping(checkpoint: Checkpoint, state: Path) -> AsyncIterator[tuple[Frontend, grpc.aio.Channel]]:
    settings = InferenceSettings(
        server=ServerSettings(port=0, grace_seconds=5), store=checkpoint.store, state=state, config=CONFIG
    )
    frontend = Frontend(settings)
    async with (
        serving(settings.server, frontend.register) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        await until_serving(channel)
        yield frontend, channel


async def test_a_restarted_daemon_serves_what_it_served(checkpoint: Checkpoint, tmp_path: Path) -> None:
    async with keeping(checkpoint, tmp_path / "state") as (frontend, channel):
        stub = model_pb2_grpc.ModelServiceStub(channel)
        operations = operations_pb2_grpc.OperationsStub(channel)
        for name in ("kept", "dropped"):
            request = model_pb2.LoadModelRequest(engine="tiny", model=name, limits={"max_seq_len": 99})
            operation = await stub.LoadModel(request)
            await operations.WaitOperation(operations_pb2.WaitOperationRequest(name=operation.name))
        operation = await stub.UnloadModel(model_pb2.UnloadModelRequest(model="dropped"))
        await operations.WaitOperation(operations_pb2.WaitOperationRequest(name=operation.name))
        async with asyncio.timeout(10):
            while [(spec.name, spec.ref) for spec in ServedSet(tmp_path / "state").read()] != [("kept", "1")]:
                await asyncio.sleep(0.01)
    async with keeping(checkpoint, tmp_path / "state") as (frontend, _):
        (model,) = frontend.models.list()
        assert (model.name, model.state.name, model.spec.max_seq_len) == ("kept", "READY", 99)


async def test_what_was_served_at_the_end_is_kept_however_slow_the_disk_is(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (time.sleep(0.3), sync(fd)))
    async with keeping(checkpoint, tmp_path / "state") as (frontend, _):
        for name in ("kept", "dropped"):
            await frontend.models.load(LoadSpec(name=name, engine="tiny", config=CONFIG))
        await frontend.models.unload("dropped")
    assert [spec.name for spec in ServedSet(tmp_path / "state").read()] == ["kept"]


async def test_a_model_that_fails_to_load_again_stays_on_the_list_until_it_is_unloaded(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    copied = Checkpoint(checkpoint.directory, tmp_path / "store")
    shutil.copytree(checkpoint.store, copied.store)
    weights = copied.store / "engines/tiny/versions/1/weights/rank0.safetensors"
    away = tmp_path / "away"
    async with keeping(copied, tmp_path / "state") as (frontend, _):
        await frontend.models.load(LoadSpec(name="kept", engine="tiny", config=CONFIG))
    weights.rename(away)
    async with keeping(copied, tmp_path / "state") as (frontend, _):
        assert [model.state.name for model in frontend.models.list()] == ["FAILED"]
    away.rename(weights)
    async with keeping(copied, tmp_path / "state") as (frontend, _):
        assert [model.state.name for model in frontend.models.list()] == ["READY"]
        await frontend.models.unload("kept")
    assert ServedSet(tmp_path / "state").read() == []


async def test_an_unreadable_list_of_served_models_stops_the_start(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "served.json").write_text("{")
    with pytest.raises(errors.FailedPrecondition, match=r"served\.json"):
        async with keeping(checkpoint, tmp_path):
            pass
