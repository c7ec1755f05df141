"""Laws of the runners: logits are the reference's, and a token does not depend on its batch or its chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_ops.run import run_graph
from enginehouse.errors import DataLoss, FailedPrecondition
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
from inference_service.executor.messages import Sampling
from inference_service.runners import load_runner
from inference_service.runners.base import BlockCopy, Rows
from inference_service.runners.engine import Version
from inference_service.runners.native_build import native_library
from inference_service.runners.native_program import NativeProgram
from inference_service.runners.torch_cpu import load_cpu
from inference_service.runners.torch_ops import TorchProgram

FLOAT32 = ModelConfig(runner=RunnerConfig(device="cpu", dtype="float32", num_threads=1))

SHAPES = {
    "gqa": {},
    "mqa": {"heads": 6, "kv_heads": 1},
    "mha": {"heads": 3, "kv_heads": 3, "head_dim": 32},
    "wide": {"heads": 4, "kv_heads": 2, "head_dim": 128, "layers": 1},
    "odd": {"heads": 5, "kv_heads": 1, "head_dim": 48, "hidden": 37, "ffn": 53, "vocab": 131},
    "bias": {"bias": True},
    "qk_norm": {"qk_norm": True, "head_dim": 64},
    "window": {"window": 5},
    "window_block": {"window": 16, "block_size": 32},
    "untied": {"tied": False},
    "partial": {"rotary": 8},
}


@pytest.fixture(params=["torch", "native"])
def load(request):
    """load(engine, dtype) -> runner, once over torch operators, once over the native kernels."""
    native = request.param == "native"
    if native and native_library() is None:
        pytest.skip("no C++ compiler for the native kernels")

    def load(engine, dtype="float32"):
        config = ModelConfig(runner=RunnerConfig(device="cpu", dtype=dtype, num_threads=1))
        runner = load_cpu(Version(engine.manifest, engine.dir), config, native=native)
        assert isinstance(runner._program, NativeProgram if native else TorchProgram)
        return runner

    return load


@pytest.fixture(params=SHAPES)
def engine(request, tiny_engine, shape):
    return tiny_engine(shape(**SHAPES[request.param]))


def tables_of(random: np.random.Generator, sequences: int, blocks: int, total: int) -> np.ndarray:
    return random.permutation(np.arange(1, total))[: sequences * blocks].reshape(sequences, blocks)


def test_logits_are_the_references_on_mixed_steps(engine, steps, load):
    runner = load(engine)
    pools = engine.reference_pools(runner.num_blocks[0])
    random = np.random.default_rng(0)
    tables = tables_of(random, 4, 9, min(runner.num_blocks[0], 200))
    lengths = [0, 0, 0, 0]
    # A sequence a column: prefill, chunks of odd sizes, decoding, and one that joins late.
    for counts in ([1, 7, 30, 0], [1, 9, 1, 1], [5, 1, 1, 40], [1, 1, 1, 1], [1, 17, 9, 1]):
        rows = [row for row, count in enumerate(counts) if count]
        chunks = [(random.integers(0, engine.shape.vocab, counts[row]), lengths[row]) for row in rows]
        step = steps.make(chunks, tables[rows])
        for row in rows:
            lengths[row] += counts[row]
        runner.forward(step)
        expected = run_graph(engine.graph, engine.weights, steps.inputs(step), pools)["logits"]
        torch.testing.assert_close(runner.logits, expected, atol=1e-4, rtol=0)
    runner.close()


def test_block_copies_come_before_the_writes(tiny_engine, steps, load):
    runner = load(tiny_engine())
    prompt = np.arange(8)
    runner.forward(steps.make([(prompt, 0)], np.array([[1, 2]])))
    runner.forward(steps.make([(np.array([9]), 7)], np.array([[3]]), copies=(BlockCopy(0, 1, 3),)))
    copied = runner.logits.clone()
    runner.forward(steps.make([(np.array([*range(7), 9]), 0)], np.array([[4]])))
    torch.testing.assert_close(copied, runner.logits, atol=1e-5, rtol=0)


def greedy(runner, steps, prompts, tables, new_tokens, chunk=None):
    """Greedy tokens of sequences that run together."""
    lengths, tokens = [0] * len(prompts), [list(p) for p in prompts]
    goal = [len(p) + new_tokens for p in prompts]
    while any(len(t) < g for t, g in zip(tokens, goal, strict=True)):
        rows = [i for i in range(len(prompts)) if len(tokens[i]) < goal[i]]
        counts = [min(chunk or 10**6, len(tokens[i]) - lengths[i]) for i in rows]
        step = steps.make(
            [(np.array(tokens[i][lengths[i] : lengths[i] + c]), lengths[i]) for i, c in zip(rows, counts, strict=True)],
            tables[rows],
        )
        runner.forward(step)
        drawn = runner.sample(Rows((Sampling(),) * len(rows), np.zeros(len(rows), np.int32))).token_ids
        for i, count, token in zip(rows, counts, drawn, strict=True):
            lengths[i] += count
            if lengths[i] == len(tokens[i]):
                tokens[i].append(int(token))
    return tokens


def test_alone_equals_batched_equals_chunked(engine, steps, load):
    runner = load(engine)
    random = np.random.default_rng(1)
    prompts = [random.integers(0, engine.shape.vocab, n) for n in (1, 8, 23, 40)]
    tables = tables_of(random, 4, 8, 100)
    together = greedy(runner, steps, prompts, tables, 12)
    for i, prompt in enumerate(prompts):
        assert greedy(runner, steps, [prompt], tables[i : i + 1], 12) == [together[i]]
    for chunk in (1, 7, 8, 9):
        assert greedy(runner, steps, prompts, tables, 12, chunk) == together


def test_native_logits_are_bit_for_bit_the_same_alone_batched_and_chunked(engine, steps):
    if native_library() is None:
        pytest.skip("no C++ compiler for the native kernels")
    config = ModelConfig(runner=RunnerConfig(device="cpu", dtype="float32", num_threads=2))
    runner = load_cpu(Version(engine.manifest, engine.dir), config)
    random = np.random.default_rng(2)
    blocks = 250 // engine.shape.block_size + 1
    tables = tables_of(random, 3, blocks, runner.num_blocks[0])
    prompts = [random.integers(0, engine.shape.vocab, n) for n in (250, 33, 100)]
    runner.forward(steps.make([(prompt, 0) for prompt in prompts], tables))
    together = runner.logits.clone()
    for i, prompt in enumerate(prompts):
        for chunk in (1, 15, 16, 17, 64, len(prompt)):
            for start in range(0, len(prompt), chunk):
                runner.forward(steps.make([(prompt[start : start + chunk], start)], tables[i : i + 1]))
            assert torch.equal(runner.logits[0], together[i]), chunk


def test_stale_nans_in_freed_blocks_do_not_leak(tiny_engine, steps, load):
    """Into prompts, and into sequences that decode beside a longer one."""
    runner, tables = load(tiny_engine()), np.array([[1, 2], [3, 4]])
    seen = []
    for stale in (0.0, float("nan")):
        for pool in runner.pools.values():
            pool.fill_(stale)
        for chunks in ([(np.arange(20), 0), (np.array([3]), 0)], [(np.array([3]), 20), (np.array([7]), 1)]):
            runner.forward(steps.make(chunks, tables))
            seen.append(runner.logits.clone())
    torch.testing.assert_close(seen[2:], seen[:2], atol=0, rtol=0)


def test_bfloat16_stays_near_float32(tiny_engine, steps, shape, load):
    engine = tiny_engine(shape(dtype="bfloat16", qk_norm=True, bias=True))
    step = steps.make([(np.arange(20), 0), (np.arange(3), 0), (np.array([7]), 0)], np.arange(1, 13).reshape(3, 4))
    logits = []
    for dtype in ("float32", "bfloat16"):
        runner = load(engine, dtype)
        runner.forward(step)
        logits.append(runner.logits.clone())
    assert logits[1].dtype == torch.float32
    torch.testing.assert_close(logits[1], logits[0], atol=0.15, rtol=0.05)


def test_pools_follow_the_configuration(tiny_engine):
    engine = tiny_engine()
    config = ModelConfig(kv_cache=KvCacheConfig(max_tokens=100), runner=FLOAT32.runner)
    assert load_runner(engine.dir, engine.manifest, config).num_blocks == (100 // 16 + 1,)
    with pytest.raises(FailedPrecondition, match="KV cache") as error:
        load_runner(engine.dir, engine.manifest, ModelConfig(kv_cache=KvCacheConfig(max_tokens=15)))
    assert error.value.reason == "KV_CACHE_TOO_SMALL"


def test_facts_count_weights_and_pools_in_the_type_computed_in(tiny_engine, load):
    facts = load(tiny_engine(), "bfloat16").facts
    wide = load(tiny_engine(), "float32").facts
    assert (facts.device, facts.dtype, wide.dtype) == ("cpu", "bfloat16", "float32")
    assert wide.weights_bytes == 2 * facts.weights_bytes > 0
    assert wide.kv_cache_bytes == 2 * facts.kv_cache_bytes > 0


def test_damaged_files_are_refused(tiny_engine, shape):
    engine = tiny_engine()
    weights = engine.dir / "weights/rank0.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DataLoss, match=r"rank0\.safetensors"):
        load_runner(engine.dir, engine.manifest, FLOAT32)
    other = tiny_engine(shape(bias=True))
    (engine.dir / "graph.json").write_bytes((other.dir / "graph.json").read_bytes())
    weights.write_bytes((tiny_engine().dir / "weights/rank0.safetensors").read_bytes())
    with pytest.raises(DataLoss, match="differs"):
        load_runner(engine.dir, engine.manifest, FLOAT32)
