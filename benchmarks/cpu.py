"""Decode and prefill on a CPU: Enginehouse beside its peers, in one run.

    python benchmarks/cpu.py --random --out cpu.json
    taskset -c 0,1 python benchmarks/cpu.py --checkpoint DIR_OR_GGUF --threads 2 --out cpu.json

Every system runs in a process of its own, once a round; the figures are medians over the rounds. Prompts of 128 random
tokens, 64 new tokens, greedy, end-of-sequence ignored, no prefix reuse. A decode step's time is the difference between
64 and 1 new tokens over 63 steps. Prefill is one prompt of 1024 tokens and one new token. `--random` needs no
checkpoint: the shape of SmolLM2-135M with random weights.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT, NEW, PREFILL = 128, 64, 1024
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "dtype": "bfloat16",
}
SYSTEMS = ("enginehouse-bfloat16", "enginehouse-float32", "transformers-bfloat16", "transformers-float32")
Generate = Callable[[list[list[int]], int], object]
"""Runs prompts together to so many new tokens each."""


def enginehouse(work: Path, dtype: str) -> Generate:
    """The executor and its runner, in this process."""
    from engine_store import EngineStore
    from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
    from inference_service.executor.executor import Executor, ExecutorSettings
    from inference_service.executor.messages import AddRequest, Sampling
    from inference_service.runners import load_runner

    store = EngineStore(work / "store")
    manifest = store.get("benchmark", 1)
    kv_cache = KvCacheConfig(enable_block_reuse=False, max_tokens=32 * 256)
    config = ModelConfig(runner=RunnerConfig(device="cpu", dtype=dtype), kv_cache=kv_cache)
    runner = load_runner(store.version_path("benchmark", 1), manifest, config)
    settings = ExecutorSettings(
        block_size=manifest.cache_groups[0].block_size,
        engine_id=manifest.build_key,
        max_seq_len=manifest.limits.max_seq_len,
        scheduler=config.scheduler,
        kv_cache=kv_cache,
    )
    executor = Executor(runner, settings, time.monotonic)

    def generate(prompts: list[list[int]], new: int) -> None:
        for i, prompt in enumerate(prompts):
            executor.submit(AddRequest(request_id=i, token_ids=prompt, sampling=Sampling(max_tokens=new)))
        while executor.has_work:
            for output in executor.step():
                assert output.error is None, output.error

    return generate


def transformers(work: Path, dtype: str) -> Generate:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(work / "config"), dtype=getattr(torch, dtype))
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(prompts: list[list[int]], new: int) -> object:
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)
        with torch.inference_mode():
            return model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False)

    return generate


def vllm(work: Path, dtype: str) -> Generate:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    llm = LLM(
        str(work / "config"),
        dtype=dtype,
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=2048,
    )

    def generate(prompts: list[list[int]], new: int) -> object:
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        return llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)

    return generate


LOADERS = {"enginehouse": enginehouse, "transformers": transformers, "vllm": vllm}


def prompts_of(count: int, length: int) -> list[list[int]]:
    """Random tokens, others for each prompt."""
    import numpy as np

    return np.random.default_rng(length).integers(3, 49000, (count, length)).tolist()


def seconds(generate: Generate, prompts: list[list[int]], new: int) -> float:
    started = time.perf_counter()
    generate(prompts, new)
    return time.perf_counter() - started


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One system in this process: ms of a decode step by batch, prefill tokens/s, peak memory, load seconds."""
    import torch

    torch.set_num_threads(args.threads)
    name, dtype = args.worker.split("-")
    started = time.perf_counter()
    generate = LOADERS[name](args.work, dtype)
    result: dict[str, Any] = {"load_s": time.perf_counter() - started}
    generate(prompts_of(2, PROMPT), 4)
    for batch in args.batches:
        prompts = prompts_of(batch, PROMPT)
        generate(prompts, 1)
        result[f"decode_ms_{batch}"] = (
            1e3 * (seconds(generate, prompts, NEW) - seconds(generate, prompts, 1)) / (NEW - 1)
        )
    prompts = prompts_of(1, PREFILL)
    result["prefill_tokens_per_s"] = PREFILL / min(seconds(generate, prompts, 1) for _ in range(2))
    result["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def prepare(args: argparse.Namespace) -> None:
    """Builds the engine, and the config that the peers make their random model from."""
    from builder_service.build.pipeline import run_build
    from builder_service.job import BuildConfig, BuildJob, SourceSpec

    config = args.work / "config"
    config.mkdir(parents=True)
    (config / "config.json").write_text(json.dumps(SMOLLM2_135M))
    path = args.checkpoint or config
    job = BuildJob(
        engine_id="benchmark",
        store=str(args.work / "store"),
        cache=str(args.work / "cache"),
        source=SourceSpec(kind="gguf" if path.is_file() else "huggingface", path=str(path.resolve())),
        build=BuildConfig(dtype="bfloat16"),
        verify="off",
        weights="real" if args.checkpoint else "dummy",
    )
    run_build(job, lambda event: None)


def read_bandwidth() -> float:
    """GB/s at which all threads read 512 MiB of float32, best of eight."""
    import torch

    data = torch.ones(1 << 27)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - started)
    return data.nbytes / min(times) / 1e9


def machine(threads: int) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in lines if line.count(":") == 1}
    flags = set(facts.get("flags", "").split())
    return {
        "cpu": facts.get("model name", platform.processor()),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "threads": threads,
        "features": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile"}),
        "load_average": os.getloadavg()[0],
        "read_gb_per_s": round(read_bandwidth(), 1),
        "versions": {name: _version(name) for name in ("torch", "transformers", "vllm", "enginehouse")},
        "python": platform.python_version(),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def run_worker(args: argparse.Namespace, system: str) -> dict[str, Any]:
    """One system in a child process. Its standard error is shown; a failure ends the run."""
    command = [sys.executable, __file__, "--worker", system, "--work", str(args.work), "--threads", str(args.threads)]
    command += ["--batches", *map(str, args.batches)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--random", action="store_true", help="the shape of SmolLM2-135M, random weights (default)")
    source.add_argument("--checkpoint", type=Path, help="Hugging Face directory or GGUF file of SmolLM2-135M")
    parser.add_argument("--peer", action="append", default=[], choices=["vllm"], help="measure it too, if installed")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args)))
        return
    with tempfile.TemporaryDirectory(prefix="enginehouse-benchmark-") as directory:
        args.work = Path(directory)
        report(args, compare(args))


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """All systems, `rounds` times in turn."""
    prepare(args)
    absent = [peer for peer in args.peer if importlib.util.find_spec(peer) is None]
    systems = args.systems + [f"{peer}-bfloat16" for peer in args.peer if peer not in absent]
    rounds: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    facts = machine(args.threads)
    for _ in range(args.rounds):
        for system in systems:
            rounds[system].append(run_worker(args, system))
            print(system, json.dumps(rounds[system][-1]), file=sys.stderr, flush=True)
    medians = {s: {k: statistics.median(r[k] for r in runs) for k in runs[0]} for s, runs in rounds.items()}
    weights = sum(f.stat().st_size for f in args.work.rglob("rank0.safetensors"))
    for system, figures in medians.items():
        if "decode_ms_1" in figures:
            size = weights * (2 if system.endswith("float32") else 1)
            figures["weights_gb_per_s_1"] = size / figures["decode_ms_1"] / 1e6
    return {"machine": facts, "medians": medians, "rounds": rounds, "absent": absent}


def report(args: argparse.Namespace, result: dict[str, Any]) -> None:
    print(json.dumps(result["machine"]))
    columns = list(next(iter(result["medians"].values())))
    print("| system | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for system, figures in result["medians"].items():
        print(f"| {system} | " + " | ".join(f"{figures[column]:.1f}" for column in columns) + " |")
    for peer in result["absent"]:
        print(f"{peer}: not installed, not measured")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
