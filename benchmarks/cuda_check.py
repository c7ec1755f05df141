"""Does the torch runner on a GPU say what transformers says there? Prints one JSON object; exit status 1 if not.

    python benchmarks/cuda_check.py
    python benchmarks/cuda_check.py --device cpu

A tiny random Llama is saved, built into an engine, and served by an executor: prompts of several lengths together,
whole and in chunks, greedy. In float32 every token must equal transformers'; bfloat16 is reported. Then a decode step
of the shape of SmolLM2-135M is timed, plain: no CUDA graph, no fused kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpu import SMOLLM2_135M
from transformers import LlamaConfig, LlamaForCausalLM

from builder_service.build.pipeline import run_build
from builder_service.job import BuildConfig, BuildJob, SourceSpec
from engine_store import EngineStore
from engine_store.manifest import Manifest
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig, SchedulerConfig
from inference_service.executor.executor import Executor, ExecutorSettings
from inference_service.executor.messages import AddRequest, Sampling
from inference_service.runners import Runner, load_runner
from inference_service.runners.base import Step

NEW = 32
LENGTHS = (1, 5, 31, 32, 33, 64, 100)
TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}


def build(work: Path, name: str, checkpoint: Path, dtype: str, weights: str) -> tuple[Path, Manifest]:
    job = BuildJob(
        engine_id=name,
        store=str(work / "store"),
        cache=str(work / "cache"),
        source=SourceSpec(kind="huggingface", path=str(checkpoint)),
        build=BuildConfig(dtype=dtype),  # type: ignore[arg-type]
        verify="off",
        weights=weights,  # type: ignore[arg-type]
    )
    run_build(job, lambda event: None)
    store = EngineStore(work / "store")
    return store.version_path(name, 1), store.get(name, 1)


def generate(runner: Runner, manifest: Manifest, config: ModelConfig, prompts: list[list[int]]) -> list[list[int]]:
    settings = ExecutorSettings(
        block_size=manifest.cache_groups[0].block_size,
        engine_id=manifest.build_key,
        max_seq_len=manifest.limits.max_seq_len,
        scheduler=config.scheduler,
        kv_cache=config.kv_cache,
    )
    executor = Executor(runner, settings, time.monotonic)
    tokens: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        executor.submit(AddRequest(request_id=i, token_ids=prompt, sampling=Sampling(max_tokens=NEW)))
    while executor.has_work:
        for output in executor.step():
            assert output.error is None, output.error
            tokens[output.request_id] += output.token_ids
    return tokens


def expected(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
        )
    return out[0, len(prompt) :].tolist()


def config_of(device: str, dtype: str, chunk: int | None = None) -> ModelConfig:
    return ModelConfig(
        runner=RunnerConfig(device=device, dtype=dtype),  # type: ignore[arg-type]
        kv_cache=KvCacheConfig(max_tokens=8192, enable_block_reuse=False),
        scheduler=SchedulerConfig(chunk_size=chunk),
    )


def equality(work: Path, device: str, dtype: str) -> dict[str, Any]:
    """How many of the prompts' greedy tokens equal transformers', for each chunk size."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TINY, initializer_range=0.1)).to(getattr(torch, dtype)).eval()
    checkpoint = work / f"tiny-{dtype}"
    model.save_pretrained(checkpoint)
    directory, manifest = build(work, f"tiny-{dtype}", checkpoint, dtype, "real")
    model.to(device).generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    random = np.random.default_rng(0)
    prompts = [random.integers(3, TINY["vocab_size"], length).tolist() for length in LENGTHS]
    wanted = [expected(model, prompt) for prompt in prompts]
    result: dict[str, Any] = {"prompts": len(prompts)}
    for chunk in (None, 32, 7):
        config = config_of(device, dtype, chunk)
        runner = load_runner(directory, manifest, config)
        got = generate(runner, manifest, config, prompts)
        result[f"equal_chunk_{chunk or 'all'}"] = sum(a == b for a, b in zip(got, wanted, strict=True))
        runner.close()
    return result


def decode_ms(work: Path, device: str) -> dict[str, float]:
    """Median ms of a forward at a context of 128 tokens, SmolLM2-135M's shape, bfloat16."""
    checkpoint = work / "shape"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(SMOLLM2_135M))
    directory, manifest = build(work, "shape", checkpoint, "bfloat16", "dummy")
    runner = load_runner(directory, manifest, config_of(device, "bfloat16"))
    result = {}
    for batch in (1, 32):
        step = decode_step(batch, 128)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            runner.forward(step)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - started))
        result[str(batch)] = sorted(times)[10]
    return result


def decode_step(batch: int, context: int) -> Step:
    ones = np.ones(batch, np.int32)
    return Step(
        token_ids=ones,
        positions=ones * context,
        query_start=np.arange(batch + 1, dtype=np.int32),
        seq_lens=ones * (context + 1),
        block_tables=(np.arange(1, 1 + batch * 5, dtype=np.int32).reshape(batch, 5),),
        logits_rows=np.arange(batch, dtype=np.int32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="enginehouse-check-") as directory:
        work = Path(directory)
        result: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "float32": equality(work, args.device, "float32"),
            "bfloat16": equality(work, args.device, "bfloat16"),
            "decode_ms": decode_ms(work, args.device),
        }
    print(json.dumps(result))
    same = [count for key, count in result["float32"].items() if key.startswith("equal")]
    sys.exit(0 if all(count == result["float32"]["prompts"] for count in same) else 1)


if __name__ == "__main__":
    main()
