"""NaN logits fail their own request, with a status and a line in the log; its neighbours notice nothing."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import save_file

from engine_store import EngineStore
from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2_grpc
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
from inference_service.daemon import Frontend, InferenceSettings
from inference_service.frontend.served_model import LoadSpec
from inference_service.runners.engine import Version, read_graph
from inference_service.runners.native_build import native_library
from inference_service.runners.torch_cpu import compute_dtype, load_cpu
from service_kit.server import ServerSettings, serving

from .frontend.serving import Stream, start
from .runners.conftest import TinyEngine

SICK = 77
"""The token whose embedding is NaN."""


def publish(store: EngineStore, folder: Path) -> None:
    """A random engine, with an untied head, in which whoever reads the token SICK computes NaN."""
    engine = TinyEngine(folder, TinyEngine.Shape(tied=False))
    engine.weights["embed.weight"][SICK] = torch.nan
    save_file(engine.weights, folder / "weights/rank0.safetensors")
    with store.stage() as staging:
        shutil.copytree(folder, staging.path, dirs_exist_ok=True)
        staging.publish(engine.manifest)


@pytest.fixture(params=["native", "torch"])
async def stub(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Stream]]:
    native = request.param == "native"
    if native and native_library() is None:
        pytest.skip("no C++ compiler for the native kernels")
    publish(EngineStore(tmp_path / "store"), tmp_path / "engine")
    settings = InferenceSettings(server=ServerSettings(port=0, grace_seconds=5), store=tmp_path / "store")
    runner = RunnerConfig(device="cpu", dtype="float32", num_threads=1)
    config = ModelConfig(runner=runner, kv_cache=KvCacheConfig(max_tokens=2048))
    frontend = Frontend(
        settings, load=lambda folder, manifest, config: load_cpu(Version(manifest, folder), config, native=native)
    )
    async with serving(settings.server, frontend.register) as daemon:
        await frontend.models.load(LoadSpec(name="tiny", engine="tiny", config=config))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel:
            yield inference_pb2_grpc.InferenceServiceStub(channel)


async def generate(stub: Any, *starts: Any) -> dict[str, Any]:
    stream = Stream(stub.Generate(timeout=60))
    for each in starts:
        await stream.start(each)
    await stream.call.done_writing()
    return await stream.outcomes()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5, "top_k": 20}], ids=["greedy", "sampled"])
async def test_a_nan_fails_its_request_alone(
    stub: Any, sampling: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"sampling": {"max_tokens": 12, "ignore_eos": True, **sampling}, "output": {"logprobs": 1}}
    healthy = {f"h{i}": [3 + i, 9, 4] * (1 + i) for i in range(3)}
    alone = {name: (await generate(stub, start(name, ids, **fields)))[name].token_ids for name, ids in healthy.items()}
    mixed = [start(name, ids, **fields) for name, ids in healthy.items()]
    outcomes = await generate(stub, mixed[0], start("sick", [5, SICK, 6], **fields), *mixed[1:])
    error = outcomes["sick"].error
    assert (type(error), error.reason) == (errors.Internal, "REQUEST_FAILED")
    assert "NaN" in error.message
    for name, tokens in alone.items():
        assert outcomes[name].token_ids == tokens
    assert [record.message for record in caplog.records if "NaN" in record.message]
    again = await generate(stub, start("again", [5, SICK, 6], **fields), start("h0", healthy["h0"], **fields))
    assert isinstance(again["again"].error, errors.Internal)
    assert again["h0"].token_ids == alone["h0"]


def test_no_machine_computes_in_float16_unasked(tmp_path: Path) -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        engine = TinyEngine(tmp_path / dtype, dataclasses.replace(TinyEngine.Shape(), dtype=dtype))
        chosen = compute_dtype(RunnerConfig(), read_graph(engine.dir))
        assert chosen in ((torch.bfloat16, torch.float32) if dtype == "bfloat16" else (torch.float32,))
