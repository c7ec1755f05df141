"""Where a CPU step's time goes: milliseconds by kind of operator, of one decode step and of one prefill.

    python benchmarks/cpu_operators.py --dtype bfloat16 --threads 2

The shape of SmolLM2-135M with random weights. Every operator is timed alone, the best of several runs of the step, so
the sum leaves out what the host does around a step.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from cpu import prepare

from engine_store import EngineStore
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
from inference_service.runners.base import Rows, Sampling, Step
from inference_service.runners.engine import Version
from inference_service.runners.native_program import NativeProgram, _Op, _step_record
from inference_service.runners.torch_cpu import load_cpu

BLOCK = 32


def step_of(sequences: int, new: int, context: int) -> Step:
    """`sequences` that each add `new` tokens to `context` cached ones."""
    width = -(-(context + new) // BLOCK)
    tables = 1 + np.arange(sequences * width, dtype=np.int32).reshape(sequences, width)
    return Step(
        token_ids=np.arange(3, 3 + sequences * new, dtype=np.int32) % 40000,
        positions=np.tile(np.arange(context, context + new, dtype=np.int32), sequences),
        query_start=np.arange(0, sequences * new + 1, new, dtype=np.int32),
        seq_lens=np.full(sequences, context + new, dtype=np.int32),
        block_tables=(tables,),
        logits_rows=np.arange(new - 1, sequences * new, new, dtype=np.int32),
    )


def time_operators(program: NativeProgram, step: Step, rounds: int) -> dict[str, float]:
    """Milliseconds by kind; "step" is the whole step in one call."""
    program.run(step)
    record, _keep = _step_record(step)
    library, threads, size = program._library, torch.get_num_threads(), ctypes.sizeof(_Op)
    best = [float("inf")] * len(program._ops)
    whole = float("inf")
    for _ in range(rounds):
        for index in range(len(program._ops)):
            start = time.perf_counter()
            op = ctypes.byref(program._ops, index * size)
            library.eh_run(op, ctypes.c_int64(1), ctypes.byref(record), threads)
            best[index] = min(best[index], time.perf_counter() - start)
        start = time.perf_counter()
        program.run(step)
        whole = min(whole, time.perf_counter() - start)
    kinds: dict[str, float] = defaultdict(float)
    for instruction, seconds in zip(program._plan.instructions, best, strict=True):
        node = instruction.node
        name = f"linear {node.name.rsplit('.', 1)[-1]}" if node.op == "linear" else node.op
        kinds[name] += seconds * 1e3
    return {"step": whole * 1e3, "sum": sum(kinds.values()), **kinds}


def time_sample(runner: object, rows: int, rounds: int) -> float:
    """Milliseconds of drawing greedily for `rows` rows of the last step."""
    wanted = Rows(tuple([Sampling()] * rows), np.zeros(rows, np.int32))
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        runner.sample(wanted)  # type: ignore[attr-defined]
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as work:
        prepare(argparse.Namespace(work=Path(work), checkpoint=None, random=True))
        store = EngineStore(Path(work) / "store")
        manifest = store.get("benchmark", 1)
        config = ModelConfig(
            runner=RunnerConfig(device="cpu", dtype=args.dtype), kv_cache=KvCacheConfig(max_tokens=16384)
        )
        runner = load_cpu(Version(manifest, store.version_path("benchmark", 1)), config)
        program = runner._program
        assert isinstance(program, NativeProgram), "the native program does not run here"
        for name, step in {
            "decode 1": step_of(1, 1, 160),
            "decode 8": step_of(8, 1, 160),
            "decode 32": step_of(32, 1, 160),
            "prefill 1024": step_of(1, 1024, 0),
        }.items():
            kinds = time_operators(program, step, args.rounds)
            runner.forward(step)
            kinds["sample"] = time_sample(runner, len(step.logits_rows), args.rounds)
            print(json.dumps({name: {kind: round(ms, 2) for kind, ms in kinds.items()}}), flush=True)


if __name__ == "__main__":
    main()
